"""Learning rate schedules of the published training code."""

import keras
import numpy as np

STAIRS = (30 / 90, 60 / 90, 80 / 90)


@keras.saving.register_keras_serializable("keras_vit")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """The schedules of pre-training: a linear rise, then a decay.

    As `create_learning_rate_schedule` of google-research/vision_transformer
    and of big_vision. After `warmup_steps`, with `x` growing from 0 to 1:

    - "cosine": `peak * (1 + cos(pi * x)) / 2`
    - "linear": from the peak to `end`
    - "staircase": a tenth at 30/90, 60/90 and 80/90 of all steps ("Big
      Transfer (BiT)", Section 3.3, https://arxiv.org/abs/1912.11370)

    Args:
        peak: Float. The highest learning rate.
        steps: Integer. Steps of the whole training.
        warmup_steps: Integer, below `steps`; 0 for none.
        decay: "cosine", "linear" or "staircase".
        end: Float. The last rate of "linear": 1e-5 in the paper.

    Raises:
        ValueError: if there is no such decay, or nothing is left of the steps
            after the rise.
    """

    def __init__(self, peak, steps, warmup_steps, decay="cosine", end=1e-5):
        if decay not in DECAYS:
            raise ValueError(
                f"There is no decay {decay!r}. There are: {', '.join(DECAYS)}."
            )
        if not 0 <= warmup_steps < steps:
            raise ValueError(
                "The warm-up must be shorter than the training. Received: "
                f"warmup_steps={warmup_steps} of {steps} steps"
            )
        self.peak, self.steps, self.warmup_steps = peak, steps, warmup_steps
        self.decay, self.end = decay, end

    def __call__(self, step):
        ops = keras.ops
        step = ops.cast(step, "float32")
        rate = DECAYS[self.decay](self, step)
        if self.warmup_steps:
            rate = rate * ops.minimum(step / self.warmup_steps, 1.0)
        return rate

    def _done(self, step):
        """The share of the steps after the rise that is over."""
        done = (step - self.warmup_steps) / (self.steps - self.warmup_steps)
        return keras.ops.clip(done, 0.0, 1.0)

    def _cosine(self, step):
        cosine = keras.ops.cos(np.pi * self._done(step))
        return self.peak * 0.5 * (1 + cosine)

    def _linear(self, step):
        return self.end + (self.peak - self.end) * (1 - self._done(step))

    def _staircase(self, step):
        rate = self.peak * keras.ops.ones_like(step)
        for share in STAIRS:
            stair = round(share * self.steps)
            rate = keras.ops.where(step >= stair, rate / 10, rate)
        return rate

    def get_config(self):
        return {
            "peak": self.peak,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "decay": self.decay,
            "end": self.end,
        }


@keras.saving.register_keras_serializable("keras_vit")
class WarmupMultiStep(keras.optimizers.schedules.LearningRateSchedule):
    """A linear warm-up, then a learning rate that falls at milestones.

    As `MultiStepLRScheduler` of microsoft/SimMIM, lr_scheduler.py. Its
    training loop sets the learning rate after a step, so that each step has
    the one of the step before it; here each step has its own.

    Args:
        peak: Float. The highest learning rate.
        warmup_steps: Integer.
        milestones: List of integers. From each of these steps on, the
            learning rate is multiplied by `factor`.
        start: Float. The learning rate of the first step of the warm-up.
        factor: Float.
    """

    def __init__(self, peak, warmup_steps, milestones, start=0.0, factor=0.1):
        if milestones and warmup_steps > min(milestones):
            raise ValueError(
                "The warm-up must end before the first milestone. Received: "
                f"warmup_steps={warmup_steps}, milestones={milestones}"
            )
        self.peak, self.warmup_steps = peak, warmup_steps
        self.milestones = list(milestones)
        self.start, self.factor = start, factor

    def __call__(self, step):
        ops = keras.ops
        step = ops.cast(step, "float32")
        done = ops.minimum(step / max(1, self.warmup_steps), 1.0)
        rate = self.start + (self.peak - self.start) * done
        if not self.warmup_steps:
            rate = self.peak * ops.ones_like(step)
        for milestone in self.milestones:
            rate = ops.where(step >= milestone, rate * self.factor, rate)
        return rate

    def get_config(self):
        return {
            "peak": self.peak,
            "warmup_steps": self.warmup_steps,
            "milestones": self.milestones,
            "start": self.start,
            "factor": self.factor,
        }


DECAYS = {
    "cosine": WarmupDecay._cosine,
    "linear": WarmupDecay._linear,
    "staircase": WarmupDecay._staircase,
}


def warmup_cosine(peak, steps, warmup):
    """Returns the paper's schedule: a linear rise, then half a cosine to 0.

    Args:
        peak: Float. The highest learning rate.
        steps: Integer. Steps of the whole training.
        warmup: Float in [0, 1). Share of them in which the rate rises.
    """
    # Keras's own CosineDecay, which it would be, compiles something anew at
    # each call under JAX, and that stays: 1.5 MB an evaluation.
    rising = min(max(1, int(warmup * steps)), steps)
    return WarmupDecay(peak, max(steps, rising + 1), rising)


# The name of earlier versions, which saved models contain.
@keras.saving.register_keras_serializable("keras_vit", name="HyperRule")
class BiTHyperRule(keras.optimizers.schedules.LearningRateSchedule):
    """BiT's schedule: a linear rise, then a tenth at each of three steps.

    "Big Transfer (BiT)", Section 3.3 (https://arxiv.org/abs/1912.11370), and
    `bit_hyperrule.py` of its code: short schedules rise over a fifth of their
    steps and fall after each further fifth; long ones rise for 500 steps and
    fall after 30%, 60% and 90%.

    Args:
        peak: Float. The highest learning rate: 0.003 for a batch of 512.
        steps: Integer. Steps of the whole training.
    """

    def __init__(self, peak, steps):
        self.peak, self.steps = peak, steps

    def __call__(self, step):
        ops = keras.ops
        step = ops.cast(step, "float32")
        short = self.steps < 10_000
        rise = self.steps * 0.2 if short else 500.0
        shares = (0.4, 0.6, 0.8) if short else (0.3, 0.6, 0.9)
        rate = self.peak * ops.minimum(step / rise, 1.0)
        for share in shares:
            rate = ops.where(step > share * self.steps, rate / 10, rate)
        return rate

    def get_config(self):
        return {"peak": self.peak, "steps": self.steps}
