"""What the names and shapes of position embeddings tell: kind, place, grid."""

import re

_LAYER = re.compile(r"position_embedding(_\d+|_shared)?")
# An array that a kind alone has.
_KINDS = {
    "embedding": "learned",
    "columns": "learned_2d",
    "offsets": "relative",
}


def is_positions(layer):
    """Whether a layer of that name holds positions."""
    return _LAYER.fullmatch(layer) is not None


def placement(layer):
    """Returns the `position_placement` that a layer's name stands for."""
    suffix = _LAYER.fullmatch(layer)[1]
    if suffix is None:
        return "stem"
    return "every_layer" + ("_shared" if suffix == "_shared" else "")


def positions_in(shapes):
    """Returns `(kind, layer's name)`; ("none", None) if nothing is stored.

    Args:
        shapes: Dict of our paths to shapes.
    """
    for path in shapes:
        layer, _, array = path.partition("/")
        if is_positions(layer) and array in _KINDS:
            return _KINDS[array], layer
    return "none", None


def reasons_against(told, layout):
    """Lists why no foreign layout has a place for a model's positions."""
    kind = told["position_embedding"]
    place = told.get("position_placement", "stem")
    reasons = []
    if kind in ("learned_2d", "relative"):
        reasons.append(f"it has no place for {kind} positions")
    elif place != "stem":
        reasons.append(f"it has no place for positions in {place}")
    elif kind == "sincos2d" and layout != "big_vision":
        reasons.append("fixed positions (sincos2d)")
    return reasons
