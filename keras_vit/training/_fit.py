from keras_vit.training._tf_batches import reading


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
    with checkpoints.watching(), reading(checkpoints):
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
