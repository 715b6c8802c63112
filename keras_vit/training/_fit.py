import sys

import keras


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


def fit(model, train, test, *, steps, interval, callbacks):
    """Calls `model.fit` for exactly `steps` steps.

    Args:
        model: A compiled model.
        train: Endless batches.
        test: Batches that end; evaluated after every `interval` steps and
            after the last one.
        steps: Integer.
        interval: Integer.
        callbacks: List of Keras callbacks, shared by the calls of `fit`.
    """
    rounds, rest = divmod(steps, interval)
    for epochs, length in ((rounds, interval), (1, rest)):
        if epochs and length:
            model.fit(
                train,
                epochs=epochs,
                steps_per_epoch=length,
                validation_data=test,
                callbacks=callbacks,
                shuffle=False,  # the batches are shuffled already
                # A bar in a log file would be hundreds of lines.
                verbose=1 if sys.stdout.isatty() else 2,
            )
