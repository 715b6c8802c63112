"""Which positions a model has, and where they are added."""

from keras_vit import _checks

KINDS = ("learned", "learned_1d", "learned_2d", "relative", "sincos2d", "none")
PLACEMENTS = ("stem", "every_layer", "every_layer_shared")


def settle(kind, place, told):
    """Returns `(kind, place)` with nothing left open.

    What is said must go together; what the weights tell gives way.

    Args:
        kind: One of `KINDS`, or None.
        place: One of `PLACEMENTS`, or None.
        told: Dict of arguments that the weights tell.
    """
    if kind is None:
        kind = told.get("position_embedding", "learned")
    _checks.one_of("position_embedding", kind, KINDS)
    kind = "learned" if kind == "learned_1d" else kind
    if place is None and kind == told.get("position_embedding"):
        place = told.get("position_placement")
    if place is None:
        place = "every_layer" if kind == "relative" else "stem"
    _checks.one_of("position_placement", place, PLACEMENTS)
    if kind == "relative" and place == "stem":
        raise ValueError(
            "Relative positions are part of every block's attention: they can "
            "be `position_placement='every_layer'` or 'every_layer_shared'. "
            "Received: position_placement='stem'"
        )
    return kind, "stem" if kind == "none" else place
