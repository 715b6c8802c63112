"""Steps: functions of an example and a seed."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeAlias

import keras
import numpy as np

from keras_vit.data.decoding import tf
from keras_vit.utils.types import Tensor

# Keys: "image", encoded or pixels; "label", "mask" or "boxes"; "name"; "channels", an
# integer; "seed", of which those of the steps are made. A step may add "weight".
Example: TypeAlias = dict[str, Any]
# Two integers, a tensor, for images that `tf.data` reads; a `numpy.random.Generator`
# for those that NumPy makes.
Seed: TypeAlias = Any
StepFunction: TypeAlias = Callable[[Example, Seed], Example]
P = ParamSpec("P")


class Step:
    """A function of an example and a seed, together with its other arguments."""

    def __init__(
        self, function: Callable[..., Example], args: tuple, kwargs: dict[str, Any]
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs

    def __call__(self, example: Example, seed: Seed = None) -> Example:
        return self.function(example, seed, *self.args, **self.kwargs)

    def __repr__(self) -> str:
        named = (f"{name}={value!r}" for name, value in self.kwargs.items())
        return f"{self.function.__name__}({', '.join([*map(repr, self.args), *named])})"


def step(
    function: Callable[Concatenate[Example, Seed, P], Example],
) -> Callable[P, Step]:
    """Returns a function that makes steps: it takes the arguments of `function` except
    the first two, the example and the seed."""
    whole = inspect.signature(function)
    rest = list(whole.parameters.values())[2:]
    signature = whole.replace(parameters=rest, return_annotation=Step)

    @functools.wraps(function)
    def make(*args: P.args, **kwargs: P.kwargs) -> Step:
        signature.bind(*args, **kwargs)  # an error now, and not in a batch
        return Step(function, args, kwargs)

    vars(make)["__signature__"] = signature  # for `help`
    return make


def check_alone(example: Example) -> None:
    """Raises a `ValueError` if an example has masks or boxes, which a step that moves
    the pixels of the image would have to move, too."""
    if others := example.keys() & {"mask", "boxes"}:
        raise ValueError(
            "This step would move the pixels of an image, but not its mask or boxes: "
            "use `scale_crop`, or a step of your own. Received: an image with "
            f"{', '.join(others)}"
        )


def checked(
    name: str, functions: Iterable[StepFunction | None]
) -> list[StepFunction | None]:
    """Returns the functions as a list; raises a `ValueError` if one is not a step."""
    found = list(functions)
    for place, one in enumerate(found):
        makes_steps = getattr(one, "__signature__", None)
        is_call = callable(one) and not isinstance(one, keras.layers.Layer)
        if one is not None and (
            not is_call or getattr(makes_steps, "return_annotation", None) is Step
        ):
            raise ValueError(
                f"`{name}` must be functions of an example and a seed: write "
                "`steps.flip()`, not `steps.flip`, and `steps.layer(layer)` for a "
                f"layer of Keras. Received at place {place}: {one!r}"
            )
    return found


def call(
    function: StepFunction | None, place: int, example: Example, seed: Seed
) -> Example:
    """Returns the result of a step for an example; raises a `ValueError` if it is not a
    modified example."""
    if function is None:
        return example
    found = function(example, seed)
    kept = example.keys() & {"image", "label", "mask", "boxes"}
    if not isinstance(found, dict) or kept - found.keys():
        names = list(found) if isinstance(found, dict) else type(found).__name__
        raise ValueError(
            "A step must return a dict with all of "
            f"{', '.join(map(repr, sorted(kept)))}, such as `example | {{'image': "
            f"image}}`. Received from the step at place {place}, {function!r}: {names}"
        )
    return found


def run(
    steps: Sequence[StepFunction | None], example: Example, seed: Tensor
) -> Example:
    """Returns an example after the steps, in a function that `tf.data` maps.

    The seed of a step depends on its place in the list. None keeps a place, so that
    leaving a step out does not change the random numbers of the others.
    """
    first = tf.unstack(tf.random.experimental.stateless_split(seed, 3), num=3)
    for place, function in enumerate(steps):
        # Published runs erase with `fold_in(seed, 3)`, at the fifth place.
        fold = tf.random.experimental.stateless_fold_in
        own = first[place] if place < 3 else fold(seed, place - 1)
        example = call(function, place, example, own)
    if getattr(example["image"], "dtype", None) == tf.string:
        raise ValueError(
            "`steps` must begin with a step that decodes files, such as `decode()` or "
            f"a crop. Received: {list(steps)}"
        )
    return example


def run_on_arrays(
    steps: Sequence[StepFunction | None], example: Example, key: tuple[int, ...]
) -> Example:
    """Returns an example of NumPy arrays after the steps, with generators that depend
    on the key and the place of a step."""
    for place, function in enumerate(steps):
        if function is not None:
            own = np.random.default_rng((*key, place) if place else key)
            example = call(function, place, example, own)
    return example
