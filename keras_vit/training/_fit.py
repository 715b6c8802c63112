import keras

from keras_vit.training._optimizers import assign_averages
from keras_vit.training._optimizers import averaged
from keras_vit.training._optimizers import inner_optimizer
from keras_vit.training._tf_batches import reading


def fit(model, train, test, *, steps, interval, callbacks, checkpoints, done=0):
    """Calls `model.fit` until `steps` steps are done.

    With `use_ema=True` of the optimizer, evaluations are of the averages of
    the weights, and the model has them in the end, as after `model.fit`.

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
        Diverged: if the loss is NaN or infinite.
        UserError: if an image cannot be read.
    """
    if getattr(inner_optimizer(model), "use_ema", False):
        callbacks = [_Averages(), *callbacks]
    if done % interval:
        # The metrics continue from where they were, and exist only after use.
        model.evaluate(test, steps=1, verbose=0)
    with checkpoints.watching(), reading(checkpoints):
        for start, length, rounds in parts(done, steps, interval):
            model.fit(
                train(start),
                epochs=rounds,
                steps_per_epoch=length,
                validation_data=test,
                callbacks=[*callbacks, checkpoints],
                shuffle=False,  # the batches are shuffled already
                verbose=0,  # `Progress` logs more
            )
    # Also if an earlier run was interrupted after its last step.
    assign_averages(model)


class _Averages(keras.callbacks.Callback):
    """Evaluates averaged weights, and trains on with the raw ones.

    At the end of each call, `model.fit` replaces the weights by their
    averages. Keras's `SwapEMAWeights` adds and subtracts them under
    TensorFlow, so that evaluating would change the weights by rounding.
    """

    def __init__(self):
        super().__init__()
        self._evaluation = self._raw = None

    def on_train_begin(self, logs=None):
        if self._raw is not None:
            for variable, value in zip(
                self.model.trainable_variables, self._raw, strict=True
            ):
                variable.assign(value)
        self._raw = None

    def on_test_begin(self, logs=None):
        self._evaluation = averaged(self.model)
        self._evaluation.__enter__()

    def on_test_end(self, logs=None):
        self._evaluation.__exit__(None, None, None)

    def on_epoch_end(self, epoch, logs=None):
        if epoch + 1 == self.params["epochs"]:
            self._raw = [
                keras.ops.convert_to_numpy(variable)
                for variable in self.model.trainable_variables
            ]


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
