"""Learning rate schedules of the published training code."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_vit.utils import checks
from keras_vit.utils.types import Config, Tensor

__all__ = [
    "BiTHyperRule", "CosineSchedule", "warmup_cosine", "WarmupDecay", "WarmupMultiStep",
]  # fmt: skip

STAIRS = (30 / 90, 60 / 90, 80 / 90)


class _Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule whose attributes are the arguments of its constructor."""

    def get_config(self) -> Config:
        return dict(vars(self))


@keras.saving.register_keras_serializable("keras_vit")
class WarmupDecay(_Schedule):
    """Learning rate schedule of pre-training: linear warm-up, then a decay.

    It follows `create_learning_rate_schedule` of
    google-research/vision_transformer and of big_vision. Let `x` be the
    completed fraction of the steps after the warm-up. The decays are

    - "cosine": `peak * (1 + cos(pi * x)) / 2`;
    - "linear": linear from `peak` to `end`;
    - "staircase": division by 10 at 30/90, 60/90 and 80/90 of all steps ("Big
      Transfer (BiT)", Section 3.3, https://arxiv.org/abs/1912.11370).

    Args:
        peak: Float. The peak learning rate.
        steps: Integer. Number of training steps, including the warm-up.
        warmup_steps: Integer in [0, steps). 0 for no warm-up.
        decay: String. "cosine", "linear" or "staircase".
        end: Float. The last learning rate of "linear"; 1e-5 in the paper.

    Raises:
        ValueError: if there is no such decay, or if `warmup_steps` is out of
            range.
    """

    def __init__(
        self,
        peak: float,
        steps: int,
        warmup_steps: int,
        decay: str = "cosine",
        end: float = 1e-5,
    ) -> None:
        checks.one_of("decay", decay, tuple(DECAYS))
        if not 0 <= warmup_steps < steps:
            raise ValueError(
                "The warm-up must be shorter than the training. Received: "
                f"warmup_steps={warmup_steps} of {steps} steps"
            )
        self.peak, self.steps, self.warmup_steps = peak, steps, warmup_steps
        self.decay, self.end = decay, end

    def __call__(self, step: Any) -> Tensor:
        step = keras.ops.cast(step, "float32")
        rate = DECAYS[self.decay](self, step)
        if self.warmup_steps:
            rate = rate * keras.ops.minimum(step / self.warmup_steps, 1.0)
        return rate

    def _done(self, step: Any) -> Tensor:
        """Returns the completed fraction of the steps after the warm-up."""
        done = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return keras.ops.clip(done, 0.0, 1.0)

    def _cosine(self, step: Any) -> Tensor:
        cosine = keras.ops.cos(np.pi * self._done(step))
        return self.peak * 0.5 * (1 + cosine)

    def _linear(self, step: Any) -> Tensor:
        return self.end + (self.peak - self.end) * (1 - self._done(step))

    def _staircase(self, step: Any) -> Tensor:
        rate = self.peak * keras.ops.ones_like(step)
        for share in STAIRS:
            stair = round(share * self.steps)
            rate = keras.ops.where(step >= stair, rate / 10, rate)
        return rate


@keras.saving.register_keras_serializable("keras_vit")
class WarmupMultiStep(_Schedule):
    """Learning rate schedule with linear warm-up and decay at milestones.

    It follows `MultiStepLRScheduler` of microsoft/SimMIM, lr_scheduler.py, with
    one difference: the training loop of SimMIM sets the learning rate after
    each step, so that a step uses the value of the previous one.

    Args:
        peak: Float. The peak learning rate.
        warmup_steps: Integer. 0 for no warm-up.
        milestones: List of integers. From each of these steps on, the learning rate is
            multiplied by `factor`.
        start: Float. The initial learning rate of the warm-up.
        factor: Float.

    Raises:
        ValueError: if the warm-up ends after the first milestone.
    """

    def __init__(
        self,
        peak: float,
        warmup_steps: int,
        milestones: Sequence[int],
        start: float = 0.0,
        factor: float = 0.1,
    ) -> None:
        self.peak, self.warmup_steps = peak, warmup_steps
        self.milestones = list(milestones)
        fits = min(self.milestones, default=warmup_steps) >= warmup_steps
        after = f"after the warm-up of {warmup_steps} steps"
        checks.require(fits, "milestones", self.milestones, after)
        self.start, self.factor = start, factor

    def __call__(self, step: Any) -> Tensor:
        ops = keras.ops
        step = ops.cast(step, "float32")
        done = ops.minimum(step / max(1, self.warmup_steps), 1.0)
        rate = self.start + (self.peak - self.start) * done
        if not self.warmup_steps:
            rate = self.peak * ops.ones_like(step)
        for milestone in self.milestones:
            rate = ops.where(step >= milestone, rate * self.factor, rate)
        return rate


@keras.saving.register_keras_serializable("keras_vit")
class CosineSchedule(_Schedule):
    """Schedule that changes from one value to another along half a cosine.

    At step `t` of `steps`, it is `end + (start - end) * (1 + cos(pi * t /
    steps)) / 2`, as in `cosine_scheduler` of facebookresearch/dino, utils.py. DINO and
    MoCo v3 increase the momentum of the teacher in this way, and DINO also the weight
    decay.

    Args:
        start: Float. The value at step 0.
        end: Float. The value from step `steps` on.
        steps: Integer. Number of training steps.
    """

    def __init__(self, start: float, end: float, steps: int) -> None:
        self.start, self.end, self.steps = start, end, steps

    def __call__(self, step: Any) -> Tensor:
        ops = keras.ops
        done = ops.minimum(ops.cast(step, "float32") / self.steps, 1.0)
        change = 0.5 * (self.start - self.end) * (1 + ops.cos(np.pi * done))
        return self.end + change


DECAYS = {
    "cosine": WarmupDecay._cosine,
    "linear": WarmupDecay._linear,
    "staircase": WarmupDecay._staircase,
}


def warmup_cosine(peak: float, steps: int, warmup: float) -> WarmupDecay:
    """Returns the paper's schedule: linear warm-up, then cosine decay to 0.

    Args:
        peak: Float. The peak learning rate.
        steps: Integer. Number of training steps, including the warm-up.
        warmup: Float in [0, 1). Fraction of the steps in which the learning
            rate is warmed up.

    Returns:
        A `WarmupDecay`.
    """
    # Keras's CosineDecay is not used: under JAX it compiles functions again at
    # each call and does not release them, which takes 1.5 MB per evaluation.
    rising = min(max(1, int(warmup * steps)), steps)
    return WarmupDecay(peak, max(steps, rising + 1), rising)


@keras.saving.register_keras_serializable("keras_vit")
class BiTHyperRule(_Schedule):
    """Learning rate schedule of BiT-HyperRule, for fine-tuning.

    After a linear warm-up, the learning rate is divided by 10 three times.
    With fewer than 10,000 steps, the warm-up takes 20% of the steps, and the divisions
    follow after 40%, 60% and 80%. With more, the warm-up takes 500 steps, and the
    divisions follow after 30%, 60% and 90%. From "Big Transfer (BiT)", Section 3.3
    (https://arxiv.org/abs/1912.11370), and `bit_hyperrule.py` of its code.

    Args:
        peak: Float. The peak learning rate; 0.003 for batches of 512 images.
        steps: Integer. Number of training steps, including the warm-up.
    """

    def __init__(self, peak: float, steps: int) -> None:
        self.peak, self.steps = peak, steps

    def __call__(self, step: Any) -> Tensor:
        ops = keras.ops
        step = ops.cast(step, "float32")
        short = self.steps < 10_000
        warmup_steps = self.steps * 0.2 if short else 500.0
        fractions = (0.4, 0.6, 0.8) if short else (0.3, 0.6, 0.9)
        rate = self.peak * ops.minimum(step / warmup_steps, 1.0)
        for fraction in fractions:
            rate = ops.where(step > fraction * self.steps, rate / 10, rate)
        return rate

    @staticmethod
    def steps_for(num_images: int) -> int:
        """Returns the number of steps that the rule prescribes for a dataset.

        Args:
            num_images: Integer. Number of training images.

        Returns:
            Integer. 500 for fewer than 20,000 images, 10,000 for fewer than 500,000,
            and otherwise 20,000.
        """
        if num_images < 20_000:
            return 500
        return 10_000 if num_images < 500_000 else 20_000
