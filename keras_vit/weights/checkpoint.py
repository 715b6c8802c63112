"""The `Checkpoint` class, and `open_checkpoint`, which reads a checkpoint."""

import functools
import math
import os
import pathlib
from dataclasses import dataclass, field

import numpy as np

from keras_vit.config import ResNetConfig, ViTConfig, config_from, stride
from keras_vit.utils import checks
from keras_vit.utils.scaling import Mode, as_mode, fits
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights import formats, infer
from keras_vit.weights.detect import Match, find_model
from keras_vit.weights.files import (
    ADAPTER_FILES,
    check_arrays,
    class_names_of,
    locate,
    read_config,
    stored_mode,
    stored_resizing,
    weights_file,
)
from keras_vit.weights.files.keras import is_keras, is_quantized, read_keras
from keras_vit.weights.formats.text import PREFIX as TEXT
from keras_vit.weights.formats.text import read as read_text
from keras_vit.weights.formats.unsupported import refusal
from keras_vit.weights.peft import read_merged
from keras_vit.weights.weight_map import WeightMap, from_checkpoint

# All models of these families were released with ImageNet's mean and standard
# deviation; these are the names of their variants in several formats.
_NORMALIZED_FAMILIES = ("deit", "dinov2", "dinov3", "mae")
# DINOv3 of satellite images, as the names of its files say.
_SATELLITE = "sat493m"
_SATELLITE_MODE = ((0.430, 0.411, 0.296), (0.213, 0.156, 0.143))


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read into memory.

    Attributes:
        path: String. The file or folder.
        format: String. Name of its format; `"keras"` for .keras and
            .weights.h5 files.
        weight_map: The `WeightMap` between its keys and keras_vit paths.
        weights: Dict that maps keras_vit paths to arrays.
        stored: Dict of the model arguments in the file, in a config.json next
            to it or in the table of released weights.
        build_arguments: Dict of the saved model's arguments that do not
            describe its architecture, such as `input_shape`.
        file_keys: Dict that maps keys of `weight_map` to keys of the file, which differ
            in files of older versions of the code base.
        own_keys: Dict that maps the code base's keys to keys of the file, which differ
            if a program wraps the model.
        unstored: Dict of the arguments that a file without a config.json does not
            determine, with their assumed values.
        outer_head: Boolean. Whether the head is a separate layer after an encoder, so
            that the pooling is not known.
        released_mode: String. The `mode` of `preprocess_input` in the table of
            released weights; None for other files.
        saved: The dict in the config.json of a .keras file.
        layers: Dict that maps the names of layers to their classes and configs in
            `saved`.
    """

    path: str
    format: str
    weight_map: WeightMap
    weights: dict[str, Array]
    stored: Config
    build_arguments: Config = field(default_factory=dict)
    file_keys: dict[str, str] = field(default_factory=dict)
    own_keys: dict[str, str] = field(default_factory=dict)
    unstored: dict[str, str] = field(default_factory=dict)
    outer_head: bool = False
    released_mode: Mode | None = None
    saved: Config = field(default_factory=dict)
    layers: dict[str, Config] = field(default_factory=dict)

    def key(self, path: str) -> str:
        """Returns the file's key for a keras_vit path, for messages."""
        return self.weight_map.key(path, self.file_keys)

    @property
    def patch_size(self) -> tuple[int, int] | None:
        """`(rows, columns)`, or None if there is no patch embedding."""
        kernel = self.weights.get("patch_embedding/kernel")
        return None if kernel is None else (kernel.shape[0], kernel.shape[1])

    @functools.cached_property
    def family(self) -> str:
        """The family of the model, a name in `keras_vit.families.FAMILIES`."""
        return infer.family(self.weights, self.layers)

    @property
    def encoder_family(self) -> str:
        """The family of its encoder: `"vit"`, `"hybrid"` or `"bit"`."""
        return infer.encoder_family(self.weights)

    @property
    def is_dense(self) -> bool:
        """Whether it is a detector or a segmenter."""
        return self.family in infer.DENSE

    @property
    def is_fixed(self) -> bool:
        """Whether only Keras can load the model, as it was saved."""
        return bool(self.layers) and (self.is_dense or is_quantized(self.layers))

    @property
    def is_detector(self) -> bool:
        """Whether it is a model of `keras_vit.detection`."""
        return self.family in ("yolos", "fcos")

    def raise_if_fixed(self) -> None:
        """Raises a `ValueError` if its weights cannot be used in another model."""
        if not (self.is_fixed or self.is_dense):
            return
        kind = "a detector or a segmenter" if self.is_dense else "quantized weights"
        how = " as it was saved, without other arguments" if self.is_fixed else ""
        raise ValueError(
            f"{self.path!r} holds {kind}, not the float weights of a classifier or an "
            f"encoder. `keras_vit.load` loads it{how}."
        )

    def class_names(self, classes: int | None) -> list[str] | None:
        """Returns the class names in the file, or those in the config.json next to it;
        None if there are none, or if their number is wrong."""
        own = self.saved.get("config", {}).get("class_names")
        config = {"label_names": own} if own else read_config(self.path)
        return class_names_of(config, classes)

    @functools.cached_property
    def preprocess_mode(self) -> Mode | None:
        """The `mode` of `preprocess_input` that the weights require.

        None if it is neither stored nor the same for all models of the format, or of a
        family with its own names in the format, such as DINOv2; or if it is for another
        number of channels than the weights.
        """
        own = self.build_arguments.get("preprocessing") or (
            self.saved.get("config", {}).get("preprocess_mode")
        )
        implied = self.code_base.preprocess_mode
        if self.weight_map.variant.startswith(_NORMALIZED_FAMILIES):
            implied = "torch"
        if implied == "torch" and _SATELLITE in pathlib.Path(self.path).name:
            implied = _SATELLITE_MODE
        mode = (
            (own and as_mode(own))
            or self.released_mode
            or stored_mode(self.path)
            or implied
        )
        return mode if mode and fits(mode, self.channels) else None

    @property
    def resizing(self) -> Config | None:
        """How images were resized, in timm's terms; None if it is not stored."""
        own = self.saved.get("config", {}).get("resizing")
        return stored_resizing(self.path, own)

    @property
    def code_base(self) -> formats.Format:
        """The code base of its format; for Keras's formats, one without properties."""
        return formats.FORMATS.get(self.format) or formats.Format()

    @property
    def stride(self) -> int:
        """Downsampling factor of the ResNet; 1 if there is none."""
        if self.encoder_family == "vit":
            return 1
        return stride(infer.units_per_stage(self.weights))

    @functools.cached_property
    def config(self) -> ViTConfig | ResNetConfig:
        """The architecture.

        A field that the file does not determine has its default: `grid_size` is
        None, and `missing` lists the others.
        """
        return config_from(self.arguments())

    @property
    def is_pretraining_model(self) -> bool:
        """Whether a .keras file holds a model of `keras_vit.pretraining`."""
        return "encoder" in self.saved.get("config", ())

    @property
    def shapes(self) -> infer.Shapes:
        """The shapes of the arrays, by path."""
        return {path: array.shape for path, array in self.weights.items()}

    @property
    def channels(self) -> int:
        """Number of channels of the images."""
        return infer.channels(self.shapes)

    @property
    def classes(self) -> int | None:
        """Number of classes; None without a head."""
        bias = self.weights.get("head/bias")
        return None if bias is None else len(bias)

    def missing(self, explicit: Config) -> list[str]:
        """Lists the arguments that a bare .weights.h5 file does not store, that
        cannot be inferred from shapes, and that the caller does not pass."""
        known = {name for name, x in explicit.items() if x is not None}
        known |= self.stored.keys()
        needed = infer.HYPERPARAMETERS_NOT_IN_SHAPES[self.encoder_family]
        return [x for x in needed if self.format == "keras" and x not in known]

    def assumed(self, explicit: Config) -> dict[str, str]:
        """Returns the `assumptions` about arguments that neither the file nor the
        caller determines."""
        known = {name for name, x in explicit.items() if x is not None}
        keys = self.own_keys.values()
        found = self.code_base.assumptions(self.weight_map.variant, keys)
        found = {**found, **self.unstored}
        return {x: found[x] for x in found.keys() - known - self.stored.keys()}

    def raise_if_missing(self, explicit: Config) -> None:
        """Raises a `ValueError` if there are any `missing` arguments, and warns of
        those that are assumed."""
        for name, assumption in self.assumed(explicit).items():
            warn(
                f"{self.path!r} does not store `{name}`, which is assumed to be "
                f"{assumption}. Pass `{name}` to `converters.load`."
            )
        if missing := self.missing(explicit):
            raise ValueError(
                f"{self.path!r} holds weights only and does not store "
                f"{', '.join(missing)}. Pass them; or pass `format`, the code base "
                "that the weights were made for: 'vit_jax' for the defaults of this "
                "package, 'timm', ...; or build the model that was saved and call "
                "its `load_weights`."
            )

    def build_arguments_with(self, overrides: Config) -> Config:
        """Returns the arguments that build the model, with a new head if `classes`
        requires one."""
        weights, arguments = self.weights, {**self.build_arguments}
        has_head = "head/kernel" in weights
        top = has_head or overrides.get("classes") is not None
        has_token = "class_token/tokens" in weights
        if not top:
            of_clip = has_token and "pre_norm/gamma" in weights
            pooling = "token" if of_clip else None
            for path, mode in (  # what remains of a model without its head
                ("pre_logits/kernel", "token" if has_token else "gap"),
                ("head_norm/gamma", "gap"),
                ("pooling/probe", "map"),
            ):
                pooling = mode if path in weights else pooling
            arguments.setdefault("pooling", pooling)
        elif has_head or arguments.get("pooling") is None:
            arguments.pop("pooling", None)  # inferred with the architecture
        if "input_shape" in arguments and not overrides.get("preprocessing", True):
            # The preprocessing may have repeated the channel of gray images.
            shape = (*arguments["input_shape"][:2], self.channels)
            arguments["input_shape"] = shape
        arguments = {"include_top": top, **arguments, **overrides}
        if "pre_logits/bias" in weights and (
            arguments["include_top"] or arguments.get("pooling")
        ):
            size = len(weights["pre_logits/bias"])
            arguments.setdefault("representation_size", size)
        return arguments

    def may_read_first_patch(self, arguments: Config) -> bool:
        """Returns whether a head that is inferred to read the mean of the
        patches may read the first: big_vision's `pool_type="0"` has the same
        arrays as `pool_type="gap"`."""
        return (
            self.format in ("big_vision", "keras")
            and "pooling" not in self.stored
            and arguments.get("pooling") == "gap"
            and arguments.get("classes") is not None
        )

    def arguments(self, given: Config | None = None) -> Config:
        """Returns all that is known about the model, as arguments of its function.

        Values in `stored` take precedence over those inferred from shapes, and
        these over those implied by the format. The inference uses `grid_size`
        and `position_prefix` of what is `given`, and `image_grid`, that of the
        model's input, for position embeddings that do not form a square grid. A
        `ValueError` is raised if the arrays do not belong to a model, or fit several
        architectures.
        """
        shapes, stored, given = self.shapes, dict(self.stored), given or {}
        implied, prefix = {}, given.get("position_prefix")
        prefixes = (prefix,) if prefix else infer.POSITION_PREFIXES
        try:
            if self.format != "keras":
                implied = formats.implied_arguments(
                    self.format, self.weight_map, shapes
                )
                if not prefix:
                    variant = self.weight_map.variant
                    prefixes = self.code_base.possible_prefixes(variant)
            grid = stored.pop("grid_size", None)
            configured = None
            if self.format in ("timm", "keras"):
                # Derived from the name of timm's architecture only, so it is
                # checked against the shapes.
                configured = stored.pop("position_prefix", None)
            elif self.format == "big_vision":
                # Its loader takes the first of n * n + 1 rows for that of the token.
                shape = shapes.get("position_embedding/embedding", ())
                rest = shape[1] - 1 if len(shape) == 3 else 0
                if rest > 0 and math.isqrt(rest) ** 2 == rest:
                    configured = "all"
            inferred = infer.infer_architecture(
                shapes,
                given.get("grid_size") or grid,
                given.get("image_grid"),
                prefixes,
                configured,
            )
            inferred |= infer.infer_family(shapes)
        except (ValueError, KeyError, IndexError) as error:
            reason = str(error)
            if not isinstance(error, ValueError):
                reason = f"Arrays are missing or have no axes ({reason})."
            raise ValueError(f"{self.path!r} cannot be used. {reason}") from error
        if self.format == "big_vision" and (
            inferred.get("position_embedding") == "none"
        ):
            inferred["position_embedding"] = "sincos2d"  # it is never stored
        return {**implied, **inferred, **stored}


def open_checkpoint(
    path: StrPath,
    format: str | None = None,
    num_heads: int | None = None,
    finite: bool = True,
    decoder: bool = False,
    decoder_num_heads: int | None = None,
    base: StrPath | None = None,
    text: bool = False,
) -> Checkpoint:
    """Reads a checkpoint without adapting its weights.

    Args:
        path: Path of a file or folder that `files.read` supports, of a .keras
            or .weights.h5 file, of a recipe's run folder or of a PEFT adapter; or a URL
            (https://, http://, gs://, hf://).
        format: String. Name of the format; None detects it from the keys. For a
            .weights.h5 file, the format of the code base from which the weights
            originate.
        num_heads: Integer. Number of heads, for formats that do not store it;
            None takes it from config.json or infers it from the width.
        finite: Boolean. Whether to require that every value is finite, as a model does.
        decoder: Boolean. Whether to read the weights that a pre-training
            model has in addition to its encoder.
        decoder_num_heads: Integer. Like `num_heads`, for MAE's decoder.
        base: Path of the weights to which an adapter applies; None for the local path
            in its config.
        text: Boolean. Whether to read the text tower of a file that has one.

    Returns:
        A `Checkpoint`; for an adapter, its path is `base`.

    Raises:
        FileNotFoundError: if there is no such file.
        OSError: if it could not be downloaded.
        ValueError: if it cannot be read, or does not have this format.
    """
    expected = "a path or a URL; save a model or a state dict to a file first"
    checks.require(isinstance(path, str | os.PathLike), "path", type(path), expected)
    path = locate(path)
    is_adapter = not is_keras(path) and weights_file(path).name in ADAPTER_FILES
    if base is not None and not is_adapter:
        raise ValueError(
            f"{str(path)!r} is not a PEFT adapter, for which `base` is intended. "
            "Leave `base` out, or give the folder with adapter_config.json."
        )
    if is_keras(path):
        return _open_keras(path, format, finite, decoder, text)
    arrays = None
    if is_adapter:
        path, arrays = read_merged(weights_file(path), base, format)
    match, left_out = find_model(path, format, finite, arrays)
    code_base, weight_map, normalized, keys, *_ = match
    try:
        config = formats.find_config(code_base, path)
        stored = code_base.read_keys(match.own_keys)
        stored |= code_base.read_config(config) if config else {}
        heads = infer.infer_num_heads(
            normalized,
            weight_map,
            num_heads or stored.get("num_heads") or code_base.num_heads,
        )
        decoder_heads = decoder_num_heads or stored.get("decoder_num_heads")
        stored.pop("decoder_num_heads", None)
        decoder_heads = infer.infer_decoder_num_heads(
            normalized,
            weight_map,
            # Without the decoder, its arrays are dropped, whatever their axes.
            decoder_heads if decoder else 1,
        )
        weights = from_checkpoint(normalized, weight_map, (heads, decoder_heads), keys)
        if "block_0/norm_1/gamma" in weights and "block_0/norm_1/beta" not in weights:
            raise ValueError(refusal("a ViT whose norms have no biases, as RMSNorm"))
        if not decoder:
            weights = infer.drop_pretraining(weights)
        weights, stored = code_base.after_reading(weights, stored, weight_map.variant)
        if config:
            code_base.check_config(config, weights)
    except ValueError as error:
        wanted = f" the format {format!r}" if format else " a known format"
        raise ValueError(f"{str(path)!r} cannot be read as{wanted}. {error}") from error
    if text:
        inside = {key.removeprefix(match.prefix): x for key, x in left_out.items()}
        image = {**code_base.implied(weight_map.variant, weights), **stored}
        if found := read_text(inside, code_base.name, config, image):
            check_arrays(path, inside, {}, finite)
            weights, left_out = {**weights, **found[0]}, {}
            stored = {**stored, "text": found[1]}
    _warn_of(match, [*left_out], weights, path)
    others = code_base.look_alikes(weight_map.variant, weights)
    if others and not config and not (format and formats.split(format)[1]):
        warn(
            f"{str(path)!r} has arrays that {others} have, too, which this package "
            f"does not have. It is read as {match.name!r}: put its config.json next "
            "to the file if it is another."
        )
    unstored = code_base.unstored(weight_map.variant, weights)
    if config:  # that of a Lightning module says nothing of the pooling
        asked = "global_pool" not in config and code_base.name == "timm"
        unstored = {k: x for k, x in unstored.items() if asked and k == "pooling"}
    for head in ("head", "distillation_head"):
        kernel = weights.get(f"{head}/kernel")
        if kernel is not None and kernel.ndim == 2:
            weights.setdefault(f"{head}/bias", np.zeros_like(kernel[0]))
    activation = stored.pop("classifier_activation", None)
    built = {"classifier_activation": activation} if activation else {}
    return Checkpoint(
        str(path),
        code_base.name,
        weight_map,
        weights,
        stored,
        built,
        keys,
        {key: x for key, x in match.own_keys.items() if x not in match.left_out},
        unstored,
        match.outer_head is not None,
    )


def _warn_of(
    match: Match, left_out: list[str], weights: dict[str, Array], path: StrPath
) -> None:
    """Warns of what is left out of a file, and of what is assumed of its head."""
    if left_out:
        listed = match.modules(left_out)
        more = [f"and {len(listed) - 8} more"] if len(listed) > 8 else []
        where = f" in {match.prefix[:-1]!r}" if match.prefix else ""
        warn(
            f"{str(path)!r} holds {len(left_out)} arrays that are not part of the "
            f"image model{where}, which are left out: " + ", ".join(listed[:8] + more)
        )
    if match.outer_head:
        warn(
            f"The head of {str(path)!r} is taken to be {match.outer_head!r}, which "
            "reads what the encoder returns. Give `pooling` if it reads something "
            "else, or `include_top=False` to leave it out."
        )
    if "head/kernel" in weights and "head/bias" not in weights:
        warn(
            f"The head of {str(path)!r} has no bias. The model, and files to which it "
            "is written, have a bias of zeros."
        )


def _open_keras(
    path: StrPath, format: str | None, finite: bool, decoder: bool, text: bool
) -> Checkpoint:
    """Reads a file of Keras's, whose arguments a format may imply."""
    if format is not None:
        formats.split(format)  # raises an error before the file is read
    file = read_keras(path, finite)
    try:
        stored, build_arguments = infer.arguments_of(file)
    except ValueError as error:
        reason = (
            f"was not made by keras_vit. {error} Load it with the library that wrote "
            "it; of keras-hub's models, the folder is read that their "
            "`save_to_preset` writes."
        )
        raise ValueError(f"{str(path)!r} {reason}") from error
    weights = file.weights if decoder else infer.drop_pretraining(file.weights)
    checkpoint = Checkpoint(
        str(path),
        "keras",
        WeightMap("", {}, ()),  # it already has keras_vit's paths
        weights if text else {k: x for k, x in weights.items() if k[:5] != TEXT},
        stored,
        build_arguments,
        saved=file.config,
        layers=file.layers,
    )
    if format is None:
        return checkpoint
    if not checkpoint.missing({}):
        raise ValueError(
            f"{str(path)!r} has no format and stores what a format implies. "
            f"Leave out format={format!r}."
        )
    weights = checkpoint.weights
    weight_map = formats.get_weight_map(format, weights)
    stored.update(formats.implied_arguments(format, weight_map, weights))
    return checkpoint
