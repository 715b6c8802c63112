"""Calls of `model.fit` as the recipes make them."""

from keras_vit.optimizers import inner_optimizer
from keras_vit.training import EvaluateAverages


def fit(model, train, test, *, steps, interval, callbacks, checkpoints):
    """Trains until `steps` steps are done.

    Args:
        model: Compiled model.
        train: Function of a step that returns the endless batches from there.
        test: Batches to evaluate on.
        steps: Integer. Steps of the whole run, as Keras counts them.
        interval: Integer. Steps between two evaluations.
        callbacks: List of Keras callbacks.
        checkpoints: `ResumableCheckpoint`, which may have been restored.
    """
    if getattr(inner_optimizer(model), "use_ema", False):
        callbacks = [EvaluateAverages(), *callbacks]
    callbacks = [*callbacks, checkpoints]
    checkpoints.steps = steps
    with checkpoints.watching():
        epoch = checkpoints.finish_interval(model, train, interval, test, callbacks)
        model.fit(
            train(checkpoints.step),
            steps_per_epoch=interval,
            initial_epoch=epoch,
            epochs=-(-steps // interval),
            validation_data=test,
            callbacks=callbacks,
            shuffle=False,
            verbose=0,
        )
