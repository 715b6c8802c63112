import keras

from keras_vit.training._tf_batches import reading


def warmup_cosine(peak, steps, warmup):
    """Returns the paper's schedule: a linear rise, then half a cosine to 0.

    Args:
        peak: Float. The highest learning rate.
        steps: Integer. Steps of the whole training.
        warmup: Float in [0, 1). Share of them in which the rate rises.
    """
    rising = min(max(1, int(warmup * steps)), steps)
    return keras.optimizers.schedules.CosineDecay(
        0.0,
        decay_steps=max(1, steps - rising),  # Keras counts from the peak on
        warmup_target=peak,
        warmup_steps=rising,
    )


@keras.saving.register_keras_serializable("keras_vit")
class HyperRule(keras.optimizers.schedules.LearningRateSchedule):
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


def fit(model, train, test, *, steps, interval, callbacks, checkpoints, done=0):
    """Calls `model.fit` until `steps` steps are done.

    Args:
        model: A compiled model.
        train: Function of a step that returns the endless batches from there.
        test: Batches that end; evaluated at every multiple of `interval`
            steps and after the last one.
        steps: Integer.
        interval: Integer.
        callbacks: List of Keras callbacks, shared by the calls of `fit`.
        checkpoints: `Checkpoints`, which see the others' work.
        done: Integer. Steps that an earlier run has done.

    Raises:
        Preempted: after SIGTERM, when everything is saved.
        Diverged: if the loss is no number any more.
        UserError: if an image cannot be read.
    """
    if done % interval:
        # The metrics go on from where they were, and exist only after use.
        model.evaluate(test, steps=1, verbose=0)
    with checkpoints.watching(), reading():
        for start, length, rounds in parts(done, steps, interval):
            model.fit(
                train(start),
                epochs=rounds,
                steps_per_epoch=length,
                validation_data=test,
                callbacks=[*callbacks, checkpoints],
                shuffle=False,  # the batches are shuffled already
                verbose=0,  # `Progress` says more
            )


def parts(done, steps, interval):
    """Lists calls of `model.fit`, as `(first step, length, rounds)`: up to
    the next evaluation, whole intervals, and what remains."""
    calls = []
    for length in (interval - done % interval, interval, steps % interval):
        length = min(length, steps - done)
        rounds = (steps - done) // interval if length == interval else 1
        if length and rounds:
            calls.append((done, length, rounds))
            done += length * rounds
    return calls
