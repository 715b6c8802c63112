"""A checkpoint opened: its weights under our names and what they tell."""

from dataclasses import dataclass

from keras_vit.converters import _resnet
from keras_vit.converters._architecture import architecture
from keras_vit.converters._config import told_by
from keras_vit.converters._convert import Format
from keras_vit.converters._convert import from_checkpoint
from keras_vit.converters._files import read
from keras_vit.converters._files import read_config
from keras_vit.converters._heads import number_of_heads
from keras_vit.converters._layouts import POSITION_PREFIXES
from keras_vit.converters._layouts import detect
from keras_vit.converters._layouts import meaning
from keras_vit.converters._resnet_formats import without_counts


@dataclass(frozen=True)
class Checkpoint:
    path: str
    layout: str
    format: Format
    weights: dict  # our paths to arrays
    config: dict  # arguments that a config.json beside it tells

    @property
    def patch_size(self):
        """`(rows, columns)`, or None if there is no patch embedding."""
        kernel = self.weights.get("patch_embedding/kernel")
        return None if kernel is None else kernel.shape[:2]

    @property
    def family(self):
        """ "vit", "hybrid" or "bit": which function builds its model."""
        return _resnet.family(self.weights)

    @property
    def stride(self):
        """How many pixels a side are one position of what patches cut."""
        if self.family == "vit":
            return 1
        return _resnet.stride(_resnet.layers_of(self.weights))

    def arguments(
        self,
        grid=None,
        image_grid=None,
        class_token=None,
        position_prefix=None,
    ):
        """Returns the arguments of its model's function that the file tells.

        Args:
            grid: `(rows, columns)` of its position embeddings, if known.
            image_grid: `(rows, columns)` of the images that the model is for,
                to take if the position embeddings are no square.
            class_token: Boolean. Whether the model wanted has a class token;
                None if the file has one.
            position_prefix: As in `VisionTransformer`; None takes what fits.
        """
        shapes = {path: array.shape for path, array in self.weights.items()}
        implied = meaning(self.layout, self.format, shapes)
        if self.family == "bit":
            return {**implied, **_resnet.bit_facts(shapes)}
        config = dict(self.config)
        stored = config.pop("grid_size", None)
        grid = grid or stored
        try:
            facts = architecture(
                shapes,
                grid,
                image_grid,
                class_token,
                (position_prefix,)
                if position_prefix
                else POSITION_PREFIXES[self.layout],
            )
        except ValueError as error:
            raise ValueError(f"{self.path!r} cannot be used. {error}") from None
        if self.layout == "big_vision" and facts["position_embedding"] == (
            "none"
        ):
            facts["position_embedding"] = "sincos2d"  # it is never stored
        return {**implied, **facts, **config}


def open_checkpoint(path, layout=None, num_heads=None):
    """Reads a file exactly, under the spelling that its keys are in.

    Args:
        path: A file or folder that `converters._files.read` reads.
        layout: Name of the layout; None finds it by the keys.
        num_heads: Integer, for layouts that do not store it; None takes what
            the file or its size tells.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or is not in that layout.
    """
    arrays = read(path)
    config = {}
    try:
        arrays = without_counts(arrays)
        name, spelling = detect(arrays, layout)
        if name in ("huggingface", "timm"):
            config = told_by(read_config(path), name)
        heads = number_of_heads(
            arrays, spelling, num_heads or config.get("num_heads")
        )
        weights = from_checkpoint(arrays, spelling, heads)
    except ValueError as error:
        wanted = f" the layout {layout!r}" if layout else " a known layout"
        raise ValueError(
            f"{str(path)!r} cannot be read as{wanted}. {error}"
        ) from None
    return Checkpoint(str(path), name, spelling, weights, config)
