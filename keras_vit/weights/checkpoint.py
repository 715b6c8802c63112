"""The `Checkpoint` class and `open_checkpoint`, which reads one."""

import functools
from dataclasses import dataclass
from dataclasses import field

import numpy as np

from keras_vit import downloads
from keras_vit._published import PREPROCESSING
from keras_vit._types import Array
from keras_vit._types import Config
from keras_vit._types import StrPath
from keras_vit._warnings import warn
from keras_vit.config import ResNetConfig
from keras_vit.config import ViTConfig
from keras_vit.config import config_from
from keras_vit.config import stride
from keras_vit.weights import formats
from keras_vit.weights import infer
from keras_vit.weights.files import class_names_of
from keras_vit.weights.files import existing_path
from keras_vit.weights.files import read
from keras_vit.weights.files import read_config
from keras_vit.weights.files import resolve_run_folder
from keras_vit.weights.files.keras import is_keras
from keras_vit.weights.files.keras import read_keras
from keras_vit.weights.formats.keras_hub import mean_and_std
from keras_vit.weights.saved_models import HYPERPARAMETERS_NOT_IN_SHAPES
from keras_vit.weights.saved_models import arguments_of
from keras_vit.weights.weight_map import WeightMap
from keras_vit.weights.weight_map import from_checkpoint

# Keras files already use keras_vit's paths: there is nothing to map.
_KERAS_MAP = WeightMap("", {}, ())
# All models of these families were released with ImageNet's mean and standard
# deviation; these are the names of their variants in several layouts.
_NORMALIZED_FAMILIES = ("deit", "dinov2", "dinov3", "mae")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read into memory.

    Attributes:
        path: String. The file or folder.
        layout: String. Name of its layout; `"keras"` for .keras and
            .weights.h5 files.
        weight_map: The `WeightMap` between its keys and keras_vit paths.
        weights: Dict of keras_vit paths to arrays.
        stored: Dict of the model arguments in the file, in a config.json next
            to it or in the table of released weights.
        build_arguments: Dict of the saved model's arguments that do not
            describe its architecture, such as `input_shape`.
        file_keys: Dict of keys of `weight_map` to the keys of the file, which
            differ in files of older versions of the code base.
        given: Dict of what the caller knows: `grid_size`, `position_prefix`,
            and `image_grid`, that of the model's input, which is used if the
            position embeddings are no square grid.
        released_mode: String. The `mode` of `preprocess_input` in the table of
            released weights; None for other files.
        saved: Dict in the config.json of a .keras file.
        layers: Dict of the names of layers to their classes and configs in it.
    """

    path: str
    layout: str
    weight_map: WeightMap
    weights: dict[str, Array]
    stored: Config
    build_arguments: Config = field(default_factory=dict)
    file_keys: dict[str, str] = field(default_factory=dict)
    given: Config = field(default_factory=dict)
    released_mode: str | None = None
    saved: Config = field(default_factory=dict)
    layers: dict[str, Config] = field(default_factory=dict)

    def key(self, path: str) -> str:
        """Returns the file's key of a keras_vit path, for messages."""
        return self.weight_map.key(path, self.file_keys)

    @property
    def patch_size(self) -> tuple[int, int] | None:
        """`(rows, columns)`, or None if there is no patch embedding."""
        kernel = self.weights.get("patch_embedding/kernel")
        return None if kernel is None else (kernel.shape[0], kernel.shape[1])

    @property
    def family(self) -> str:
        """The model family: `"vit"`, `"hybrid"` or `"bit"`."""
        return infer.family(self.weights)

    @property
    def is_detector(self) -> bool:
        """Whether it is a model of `keras_vit.detection`."""
        return bool({"detection_tokens", "point_boxes"} & self.layers.keys())

    def class_names(self, classes: int) -> list[str] | None:
        """Returns the names of the classes in the file, else in the config.json
        next to it; None if there are none or another number of them."""
        own = self.saved.get("config", {}).get("class_names")
        config = {"label_names": own} if own else read_config(self.path)
        return class_names_of(config, classes)

    @property
    def preprocess_mode(self) -> str | None:
        """The `mode` of `preprocess_input` that the weights require.

        None if it is neither stored nor the same for all models of the layout,
        or of a family that has its own names in it, such as DINOv2.
        """
        variant = self.weight_map.variant
        return (
            self.build_arguments.get("preprocessing")
            or self.released_mode
            or _stored_mode(self.path)
            or self.code_base.preprocess_mode
            or ("torch" if variant.startswith(_NORMALIZED_FAMILIES) else None)
        )

    @property
    def code_base(self) -> formats.Format:
        """The code base of its layout, without properties for Keras's."""
        return formats.FORMATS.get(self.layout) or formats.Format()

    @property
    def patch_resampling(self) -> str:
        """The method by which a patch embedding of the code base is resized."""
        return self.code_base.patch_resampling

    @property
    def stride(self) -> int:
        """Downsampling factor of the ResNet; 1 if there is none."""
        if self.family == "vit":
            return 1
        return stride(infer.units_per_stage(self.weights))

    @functools.cached_property
    def config(self) -> ViTConfig | ResNetConfig:
        """The architecture, inferred once.

        A field that the file does not determine has its default: `grid_size` is
        None, and `missing_hyperparameters` lists the others.
        """
        return config_from(self._arguments)

    @property
    def is_pretraining_model(self) -> bool:
        """Whether a .keras file holds a model of `keras_vit.pretraining`."""
        return "encoder" in self.saved.get("config", ())

    @functools.cached_property
    def pretraining(self) -> Config:
        """What pre-training adds to the encoder, as `infer_pretraining`."""
        return infer.infer_pretraining(self.shapes)

    @property
    def shapes(self) -> infer.Shapes:
        """The shapes of the arrays, by path."""
        return {path: array.shape for path, array in self.weights.items()}

    @property
    def channels(self) -> int:
        """Number of channels of the images."""
        kernels = ("root_conv/kernel", "patch_embedding/kernel")
        path = next(path for path in kernels if path in self.weights)
        return self.weights[path].shape[2]

    @property
    def classes(self) -> int | None:
        """Number of classes; None without a head."""
        bias = self.weights.get("head/bias")
        return None if bias is None else len(bias)

    def arguments(self) -> Config:
        """Returns all that is known of the model, as arguments of its function.

        Values in `stored` take precedence over those inferred from shapes, and
        these over those implied by the layout. A `ValueError` is raised if the
        arrays are not those of a model, or fit several architectures.
        """
        return dict(self._arguments)

    @functools.cached_property
    def _arguments(self) -> Config:
        shapes, stored, given = self.shapes, dict(self.stored), self.given
        implied, prefix = {}, given.get("position_prefix")
        prefixes = (prefix,) if prefix else infer.POSITION_PREFIXES
        try:
            if self.layout != "keras":
                variant = self.weight_map.variant
                implied = formats.implied_arguments(
                    self.layout, self.weight_map, shapes
                )
                if not prefix:
                    prefixes = self.code_base.possible_prefixes(variant)
            if self.family == "bit":
                return {**implied, **infer.infer_bit(shapes), **stored}
            inferred = infer.infer_architecture(
                shapes,
                given.get("grid_size") or stored.pop("grid_size", None),
                given.get("image_grid"),
                prefixes,
                # Derived from the name of timm's architecture only, so it is
                # checked against the shapes.
                stored.pop("position_prefix", None)
                if self.layout == "timm"
                else None,
            )
            inferred |= self.pretraining
        except (ValueError, KeyError, IndexError) as error:
            reason = str(error)
            if not isinstance(error, ValueError):
                reason = f"Arrays are missing or have no axes ({reason})."
            raise ValueError(
                f"{self.path!r} cannot be used. {reason}"
            ) from error
        stored.pop("grid_size", None)
        if self.layout == "big_vision" and (
            inferred["position_embedding"] == "none"
        ):
            inferred["position_embedding"] = "sincos2d"  # it is never stored
        return {**implied, **inferred, **stored}


def open_checkpoint(
    path: StrPath,
    layout: str | None = None,
    num_heads: int | None = None,
    finite: bool = True,
    decoder: bool = False,
    decoder_num_heads: int | None = None,
) -> Checkpoint:
    """Reads a checkpoint without adapting its weights.

    Args:
        path: Path of a file or folder that `files.read` supports, of a .keras
            or .weights.h5 file, or of a recipe's run folder; or a URL
            (https://, http://, gs://, hf://).
        layout: String. Name of the layout; None detects it from the keys. For
            a .weights.h5 file, the layout of the code base that the weights
            were made for.
        num_heads: Integer. Number of heads, for layouts that do not store it;
            None takes it from config.json or infers it from the width.
        finite: Boolean. Whether every value must be finite, as in a model.
        decoder: Boolean. Whether to read the weights that a pre-training
            model has in addition to its encoder.
        decoder_num_heads: Integer. As `num_heads`, for MAE's decoder.

    Returns:
        A `Checkpoint`.

    Raises:
        FileNotFoundError: if there is no such file.
        OSError: if it could not be downloaded.
        ValueError: if it cannot be read, or does not have this layout.
    """
    path = resolve_run_folder(downloads.fetch_if_remote(path))
    if is_keras(path):
        return _open_keras(path, layout, finite, decoder)
    arrays = read(path, finite)
    config, found = {}, {}
    try:
        name, weight_map = formats.detect_layout(arrays, layout)
        code_base = formats.FORMATS[name]
        left_out = code_base.left_out(arrays)
        normalized = code_base.normalize(arrays)
        file_keys = formats.file_keys(arrays, normalized)
        if code_base.config_key:
            found = (read_config(path, file) for file in code_base.config_files)
            found = next(filter(None, found), {})
            config = formats.read_config_arguments(found, name)
        heads = infer.infer_num_heads(
            normalized,
            weight_map,
            num_heads or config.get("num_heads") or code_base.num_heads,
        )
        decoder_heads = config.pop("decoder_num_heads", None)
        decoder_heads = infer.infer_decoder_num_heads(
            normalized,
            weight_map,
            # Without the decoder, its arrays are dropped, whatever their axes.
            (decoder_num_heads or decoder_heads) if decoder else 1,
        )
        weights = from_checkpoint(
            normalized, weight_map, (heads, decoder_heads), file_keys
        )
        if not decoder:
            weights = infer.drop_pretraining(weights)
        weights, config = code_base.after_reading(
            weights, config, weight_map.variant
        )
        if formats.is_config_of(found, name):
            code_base.check_config(found, weights)
    except ValueError as error:
        wanted = f" the layout {layout!r}" if layout else " a known layout"
        raise ValueError(
            f"{str(path)!r} cannot be read as{wanted}. {error}"
        ) from error
    if left_out:
        warn(
            f"{str(path)!r} holds {len(left_out)} arrays that are no part of "
            f"the image model, which are left out: {', '.join(left_out[:3])}"
            + (" ..." if len(left_out) > 3 else "")
        )
    activation = config.pop("classifier_activation", None)
    built = {"classifier_activation": activation} if activation else {}
    return Checkpoint(
        str(path), name, weight_map, weights, config, built, file_keys
    )


def _stored_mode(path: StrPath) -> str | None:
    """Returns the `mode` of `preprocess_input` in JSON files next to weights.

    These are the config.json of a run of this package or of timm, the
    preprocessor_config.json of transformers, and keras-hub's
    image_converter.json.
    """
    try:
        config = read_config(path)
        preprocessor = read_config(path, "preprocessor_config.json")
        converter = read_config(path, "image_converter.json")
    except (ValueError, OSError):
        return None
    run, timm = (config.get(key) for key in ("config", "pretrained_cfg"))
    if isinstance(run, dict) and run.get("mode") in list(PREPROCESSING):
        return run["mode"]
    timm = timm if isinstance(timm, dict) else {}
    for found in (
        (preprocessor.get("image_mean"), preprocessor.get("image_std")),
        mean_and_std(converter.get("config")),
        (timm.get("mean"), timm.get("std")),
    ):
        for mode, expected in PREPROCESSING.items():
            try:
                if np.allclose(np.array(found, "float64"), expected, atol=1e-6):
                    return mode
            except (TypeError, ValueError):  # values that are no numbers
                break
    return None


def _open_keras(
    path: StrPath, layout: str | None, finite: bool, decoder: bool
) -> Checkpoint:
    """Reads a file of Keras's, whose arguments a layout may imply."""
    if layout is not None:
        formats.split(layout)  # raises an error before the file is read
    file = read_keras(existing_path(path), finite)
    try:
        stored, build_arguments = arguments_of(file)
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} was not made by keras_vit. {error}"
        ) from error
    weights = file.weights
    if not decoder:
        weights = infer.drop_pretraining(weights)
    checkpoint = Checkpoint(
        str(path),
        "keras",
        _KERAS_MAP,
        weights,
        stored,
        build_arguments,
        saved=file.config,
        layers=file.layers,
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


def missing_hyperparameters(
    checkpoint: Checkpoint, explicit: Config
) -> list[str]:
    """Lists the arguments that a bare .weights.h5 file does not store, that
    cannot be inferred from shapes, and that the caller does not pass."""
    if checkpoint.layout != "keras":
        return []
    given = {name for name, value in explicit.items() if value is not None}
    needed = HYPERPARAMETERS_NOT_IN_SHAPES[checkpoint.family]
    return [x for x in needed if x not in checkpoint.stored and x not in given]


def check_hyperparameters(checkpoint: Checkpoint, explicit: Config) -> None:
    """Raises a `ValueError` if any of `missing_hyperparameters` is missing."""
    missing = missing_hyperparameters(checkpoint, explicit)
    if missing:
        raise ValueError(
            f"{checkpoint.path!r} holds weights only and does not store "
            f"{', '.join(missing)}. Pass them; or pass `layout=` to "
            "`converters.load` (--from on the command line), with the code "
            "base that the weights were made for: 'vit_jax' for the defaults "
            "of this package, 'timm', ...; or build the model that was saved "
            "and call its `load_weights`."
        )
