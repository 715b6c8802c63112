"""Open a checkpoint: its weights under keras_vit's paths, and its arguments."""

from dataclasses import dataclass
from dataclasses import field

from keras_vit import downloads
from keras_vit.checkpoints import formats
from keras_vit.checkpoints import infer
from keras_vit.checkpoints.files import existing_path
from keras_vit.checkpoints.files import read
from keras_vit.checkpoints.files import read_config
from keras_vit.checkpoints.files import resolve_run_folder
from keras_vit.checkpoints.keras_files import HYPERPARAMETERS_NOT_IN_SHAPES
from keras_vit.checkpoints.keras_files import is_keras
from keras_vit.checkpoints.keras_files import read_keras
from keras_vit.checkpoints.weight_map import WeightMap
from keras_vit.checkpoints.weight_map import from_checkpoint

# Keras's files have keras_vit's own paths, which are their own keys.
_KERAS_MAP = WeightMap("", {}, ())


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read into memory.

    Attributes:
        path: String. The file or folder.
        layout: Name of its layout; "keras" for .keras and .weights.h5 files.
        weight_map: The `WeightMap` between its keys and keras_vit paths.
        weights: Dict of keras_vit paths to arrays.
        stored: Dict of arguments of the model's function that the file, a
            config.json next to it or the table of released weights states.
            What is not in it is inferred from shapes or implied by the layout.
        build_arguments: Dict of arguments of the saved model that are not of
            its architecture, such as `input_shape`.
    """

    path: str
    layout: str
    weight_map: WeightMap
    weights: dict
    stored: dict
    build_arguments: dict = field(default_factory=dict)

    @property
    def patch_size(self):
        """`(rows, columns)`, or None if there is no patch embedding."""
        kernel = self.weights.get("patch_embedding/kernel")
        return None if kernel is None else kernel.shape[:2]

    @property
    def family(self):
        """ "vit", "hybrid" or "bit": which function builds its model."""
        return infer.family(self.weights)

    @property
    def stride(self):
        """Pixels a side of an image that one position of what the patch
        embedding cuts stands for; 1 without a ResNet."""
        if self.family == "vit":
            return 1
        return infer.stride(infer.units_per_stage(self.weights))

    def arguments(
        self,
        grid=None,
        image_grid=None,
        class_token=None,
        position_prefix=None,
    ):
        """Returns the arguments of the function that builds its model.

        Args:
            grid: `(rows, columns)` of its position embeddings, if known.
            image_grid: `(rows, columns)` of patches of the images that the
                model is built for; used if the position embeddings are no
                square grid.
            class_token: Boolean. Whether the model has a class token; None if
                it has one where the file has.
            position_prefix: As in `VisionTransformer`; None infers it.

        Returns:
            Dict of arguments: what is `stored` takes precedence over what
            shapes show, and that over what the layout implies.

        Raises:
            ValueError: if the arrays are not those of a model, or ambiguous.
        """
        shapes = {path: array.shape for path, array in self.weights.items()}
        stored, implied = dict(self.stored), {}
        prefixes, configured = infer.POSITION_PREFIXES, None
        try:
            if self.layout != "keras":
                implied = formats.implied_arguments(
                    self.layout, self.weight_map, shapes
                )
                layout = formats.LAYOUTS[self.layout]
                prefixes = layout.possible_prefixes(self.weight_map.variant)
                # Guessed from the name of timm's architecture: shapes decide.
                if self.layout == "timm":
                    configured = stored.pop("position_prefix", None)
            if self.family == "bit":
                return {**implied, **infer.infer_bit(shapes), **stored}
            stored_grid = stored.pop("grid_size", None)
            inferred = infer.infer_architecture(
                shapes,
                grid or stored_grid,
                image_grid,
                class_token,
                (position_prefix,) if position_prefix else prefixes,
                configured,
            )
            inferred |= infer.infer_pretraining(shapes)
        except (ValueError, KeyError, IndexError) as error:
            reason = str(error)
            if not isinstance(error, ValueError):
                reason = f"Arrays are missing or have no axes ({reason})."
            raise ValueError(
                f"{self.path!r} cannot be used. {reason}"
            ) from error
        if self.layout == "big_vision" and (
            inferred["position_embedding"] == "none"
        ):
            inferred["position_embedding"] = "sincos2d"  # it is never stored
        return {**implied, **inferred, **stored}


def open_checkpoint(
    path,
    layout=None,
    num_heads=None,
    finite=True,
    decoder=False,
    decoder_num_heads=None,
):
    """Reads a checkpoint exactly.

    Args:
        path: A file or folder that `read` reads, a .keras or .weights.h5
            file, the folder of a recipe's run, or the address of a file
            (https://, gs://, hf://).
        layout: Name of the layout; None detects it by the keys. For a
            .weights.h5 file, that whose code made the weights.
        num_heads: Integer, for layouts that do not store it; None takes what
            a config.json states or the width implies.
        finite: Boolean. Whether every value must be finite, as for a model.
        decoder: Boolean. Whether to read what pre-training had beyond the
            encoder.
        decoder_num_heads: Integer. As `num_heads`, of MAE's decoder.

    Returns:
        A `Checkpoint`.

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
        name, weight_map = formats.detect_layout(arrays, layout)
        arrays = formats.LAYOUTS[name].normalize(arrays)
        if not decoder:
            arrays = _drop_decoder(arrays, weight_map)
        if formats.LAYOUTS[name].config_key:
            config = formats.read_config_arguments(read_config(path), name)
        heads = infer.infer_num_heads(
            arrays, weight_map, num_heads or config.get("num_heads")
        )
        decoder_heads = config.pop("decoder_num_heads", None)
        decoder_heads = infer.infer_decoder_num_heads(
            arrays, weight_map, decoder_num_heads or decoder_heads
        )
        weights = from_checkpoint(arrays, weight_map, (heads, decoder_heads))
    except ValueError as error:
        wanted = f" the layout {layout!r}" if layout else " a known layout"
        raise ValueError(
            f"{str(path)!r} cannot be read as{wanted}. {error}"
        ) from error
    return Checkpoint(str(path), name, weight_map, weights, config)


def _drop_decoder(arrays, weight_map):
    """Returns a checkpoint's arrays without those of pre-training."""
    dropped = {
        key
        for paths, keys, _ in weight_map.transfers(weight_map.paths(arrays))
        if paths[0].startswith(infer.PRETRAINING_PREFIXES)
        for key in keys
    }
    return {key: a for key, a in arrays.items() if key not in dropped}


def _open_keras(path, layout, finite, decoder):
    formats.check_layout(layout)
    weights, stored, build_arguments = read_keras(existing_path(path), finite)
    if not decoder:
        weights = infer.drop_pretraining(weights)
    checkpoint = Checkpoint(
        str(path), "keras", _KERAS_MAP, weights, stored, build_arguments
    )
    if layout is None:
        return checkpoint
    if not missing_hyperparameters(checkpoint, {}):
        raise ValueError(
            f"{str(path)!r} has no layout and stores what a layout implies. "
            f"Leave out layout={layout!r}."
        )
    weight_map = formats.get_weight_map(layout, weights)
    stored.update(formats.implied_arguments(layout, weight_map, weights))
    return checkpoint


def missing_hyperparameters(checkpoint, explicit):
    """Lists the arguments that a .weights.h5 file does not store and shapes
    do not show.

    Args:
        checkpoint: A `Checkpoint`.
        explicit: Dict of arguments that the caller passes.
    """
    if checkpoint.layout != "keras":
        return []
    known = checkpoint.stored.keys() | explicit.keys()
    return [
        name
        for name in HYPERPARAMETERS_NOT_IN_SHAPES[checkpoint.family]
        if name not in known
    ]


def check_hyperparameters(checkpoint, explicit):
    """Raises a `ValueError` if `missing_hyperparameters` lists anything."""
    missing = missing_hyperparameters(checkpoint, explicit)
    if missing:
        raise ValueError(
            f"{checkpoint.path!r} holds weights only and does not store "
            f"{', '.join(missing)}. Pass them, or `layout=` (on the command "
            "line --from) with the code base that the weights were made for: "
            "'vit_jax' for the defaults of this package, 'timm', ..."
        )
