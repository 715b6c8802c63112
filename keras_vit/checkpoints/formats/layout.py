"""What the package knows about one code base's checkpoints."""

from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field

from keras_vit.checkpoints.infer import POSITION_PREFIXES


def _no_arguments(variant, paths):
    return {}


def _no_reasons(arguments, variant):
    return []


@dataclass(frozen=True)
class Layout:
    """Names of a code base's arrays, and what its code does with them.

    Attributes:
        name: String. The `layout` argument of the public functions.
        maps: Tuple of `WeightMap`s with different `variant`s. The first that
            has a key for every weight is written.
        arguments: Dict of what its code always uses: `activation`,
            `norm_epsilon`, `resampling`.
        normalize: Function from a file's arrays to the same arrays under the
            names and with the axes of `maps`: renames what older versions
            wrote. It never raises, and leaves alone what it does not know.
        marker: A key, if files are taken for this layout only if they have
            it (or if the layout is explicit).
        position_prefixes: Dict of variants to the possible values of
            `position_prefix`, the likeliest first; "" for other variants.
        implied: Function from a variant and keras_vit paths to further
            arguments.
        stem: Dict of the constants of a hybrid's ResNet.
        resnets: Dict of variants to `(preactivation, constants)` of ResNets
            alone (BiT).
        poolings: Dict of the poolings that its head can read to whether they
            come with a class token; None for both.
        needs_class_token: Boolean. Whether all its models have one.
        fixed_positions: Boolean. Whether it has models with fixed positions.
        unsupported: Function from arguments and a variant to reasons why its
            code would compute something else, that arrays do not show.
        config_key: The key by which a config.json is known to be the code
            base's.
        read_config: Function from a config.json to arguments.
        reference: Function that runs a checkpoint in the original library
            (see `reference.py`), or the reason why there is none.
    """

    name: str
    maps: tuple
    arguments: dict = field(default_factory=dict)
    normalize: Callable = dict
    marker: str | None = None
    position_prefixes: dict = field(
        default_factory=lambda: {"": POSITION_PREFIXES}
    )
    implied: Callable = _no_arguments
    stem: dict = field(default_factory=dict)
    resnets: dict = field(default_factory=dict)
    poolings: dict = field(
        default_factory=lambda: dict.fromkeys(
            ("token", "token_gap", "gap", "map")
        )
    )
    needs_class_token: bool = False
    fixed_positions: bool = False
    unsupported: Callable = _no_reasons
    config_key: str | None = None
    read_config: Callable | None = None
    reference: Callable | str = "no library of its own"

    def possible_prefixes(self, variant):
        """Returns the possible values of `position_prefix` of a variant."""
        prefixes = self.position_prefixes
        return prefixes.get(variant, prefixes[""])


def replace_prefix(arrays, old, new=""):
    """Returns arrays with another prefix if all of them have the old one."""
    if not all(key.startswith(old) for key in arrays):
        return arrays
    return {new + k.removeprefix(old): array for k, array in arrays.items()}


def replace_layers(layers, renamed=(), without=()):
    """Returns layers of a `WeightMap` for code that has other names.

    Args:
        layers: Tuple as in `WeightMap`.
        renamed: Dict of its names to other names.
        without: Tuple of prefixes of keras_vit names of layers to leave out.
    """
    renamed = dict(renamed)
    return tuple(
        (path, renamed.get(key, key), parameter_type)
        for path, key, parameter_type in layers
        if not "".join(path).startswith(tuple(without))
    )
