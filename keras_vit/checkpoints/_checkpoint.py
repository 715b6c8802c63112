"""A checkpoint opened: its weights under our names and what they tell."""

from dataclasses import dataclass
from dataclasses import field

from keras_vit import downloads
from keras_vit.checkpoints import _resnet
from keras_vit.checkpoints._architecture import architecture
from keras_vit.checkpoints._config import told_by
from keras_vit.checkpoints._convert import Format
from keras_vit.checkpoints._convert import from_checkpoint
from keras_vit.checkpoints._decoder import decoder_facts
from keras_vit.checkpoints._decoder import decoder_heads
from keras_vit.checkpoints._decoder import drop_decoder
from keras_vit.checkpoints._decoder import without_decoder
from keras_vit.checkpoints._heads import number_of_heads
from keras_vit.checkpoints._layouts import detect
from keras_vit.checkpoints._layouts import known
from keras_vit.checkpoints._layouts import meaning
from keras_vit.checkpoints._layouts import position_prefixes
from keras_vit.checkpoints._layouts import spelling_of
from keras_vit.checkpoints._resnet_formats import without_counts
from keras_vit.checkpoints.files import existing_path
from keras_vit.checkpoints.files import read
from keras_vit.checkpoints.files import read_config
from keras_vit.checkpoints.files import resolve_run_folder
from keras_vit.checkpoints.keras_files import HYPERPARAMETERS_NOT_IN_SHAPES
from keras_vit.checkpoints.keras_files import is_keras
from keras_vit.checkpoints.keras_files import read_keras

# Keras's files have our own names: no rows, and a path is its own key.
_OURS = Format("", {}, ())


@dataclass(frozen=True)
class Checkpoint:
    path: str
    layout: str  # "keras" for Keras's own files
    format: Format
    weights: dict  # our paths to arrays
    config: dict  # arguments that the file, or a config.json beside it, tells
    # Arguments of the saved model that are not of its architecture.
    built: dict = field(default_factory=dict)

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
        implied, config = {}, dict(self.config)
        stored = config.pop("grid_size", None)
        configured = None
        if self.layout == "timm":  # inferred from the architecture's name
            configured = config.pop("position_prefix", None)
        prefixes = position_prefixes(self.layout, self.format.name)
        if position_prefix:
            prefixes = (position_prefix,)
        try:
            if self.layout != "keras":
                implied = meaning(self.layout, self.format, shapes)
            if self.family == "bit":
                facts = _resnet.bit_facts(shapes)
                return {**implied, **facts, **self.config}
            facts = architecture(
                shapes,
                grid or stored,
                image_grid,
                class_token,
                prefixes,
                configured,
            )
            facts |= decoder_facts(shapes)
        except (ValueError, KeyError, IndexError) as error:
            what = str(error)
            if not isinstance(error, ValueError):  # of arrays that are not
                what = f"Arrays are missing or have no axes ({what})."
            raise ValueError(f"{self.path!r} cannot be used. {what}") from error
        if self.layout == "big_vision" and facts["position_embedding"] == (
            "none"
        ):
            facts["position_embedding"] = "sincos2d"  # it is never stored
        return {**implied, **facts, **config}


def open_checkpoint(
    path,
    layout=None,
    num_heads=None,
    finite=True,
    decoder=False,
    decoder_num_heads=None,
):
    """Reads a file exactly, under the spelling that its keys are in.

    Args:
        path: A file or folder that `checkpoints.files.read` reads, one of
            Keras's own files, the folder of a recipe's run, or the address of
            a file (https://, gs://, hf://).
        layout: Name of the layout; None finds it by the keys. For a
            .weights.h5 file, that whose code made the weights.
        num_heads: Integer, for layouts that do not store it; None takes what
            the file or its size tells.
        finite: Boolean. Whether every value must be finite, as for a model.
        decoder: Boolean. Whether to read what pre-training had beyond the
            encoder.
        decoder_num_heads: Integer, as `num_heads`, of MAE's decoder.

    Raises:
        FileNotFoundError: if there is no such file.
        OSError: if it could not be downloaded.
        ValueError: if it cannot be read, or is not in that layout.
    """
    path = resolve_run_folder(downloads.fetch_if_remote(path))
    if is_keras(path):
        return _open_keras(path, layout, finite, decoder)
    arrays = read(path, finite)
    config = {}
    try:
        arrays = without_counts(arrays)
        name, spelling = detect(arrays, layout)
        if not decoder:
            arrays = drop_decoder(arrays, spelling)
        if name in ("huggingface", "timm"):
            config = told_by(read_config(path), name)
        heads = number_of_heads(
            arrays, spelling, num_heads or config.get("num_heads")
        )
        told = decoder_num_heads or config.pop("decoder_num_heads", None)
        told = decoder_heads(arrays, spelling, told)
        weights = from_checkpoint(arrays, spelling, (heads, told))
    except ValueError as error:
        wanted = f" the layout {layout!r}" if layout else " a known layout"
        raise ValueError(
            f"{str(path)!r} cannot be read as{wanted}. {error}"
        ) from error
    return Checkpoint(str(path), name, spelling, weights, config)


def _open_keras(path, layout, finite, decoder):
    known(layout)
    weights, told, built = read_keras(existing_path(path), finite)
    if not decoder:
        weights = without_decoder(weights)
    checkpoint = Checkpoint(str(path), "keras", _OURS, weights, told, built)
    silent = untold(checkpoint, {})
    if layout is not None:
        if not silent:
            raise ValueError(
                f"{str(path)!r} has no layout and tells itself what a layout "
                f"would. Leave out layout={layout!r}."
            )
        name, spelling = layout.partition(":")[0], spelling_of(layout, weights)
        told.update(meaning(name, spelling, weights))
    return checkpoint


def untold(checkpoint, said):
    """Lists what only a .weights.h5 file leaves open: how the model computes.

    Args:
        checkpoint: A `Checkpoint`.
        said: Dict of arguments that are given.
    """
    if checkpoint.layout != "keras":
        return []
    known_ones = checkpoint.config.keys() | said.keys()
    names = HYPERPARAMETERS_NOT_IN_SHAPES[checkpoint.family]
    return [name for name in names if name not in known_ones]


def raise_if_untold(checkpoint, said):
    """Raises a `ValueError` if `untold` lists anything."""
    silent = untold(checkpoint, said)
    if silent:
        raise ValueError(
            f"{checkpoint.path!r} holds weights only and does not tell "
            f"{', '.join(silent)}. Give them, or as `layout` (--from) the code "
            "that the weights were made for: 'vit_jax' for the defaults of "
            "this package, 'timm', ..."
        )
