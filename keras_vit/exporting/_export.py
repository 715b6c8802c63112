"""Writes a model for those who run it without Keras, and checks what it
wrote."""

import keras

from keras_vit.exporting import _checking
from keras_vit.exporting._formats import FORMATS
from keras_vit.exporting._formats import raise_unless_fits
from keras_vit.exporting._formats import writer_of
from keras_vit.exporting._quiet import quiet
from keras_vit.exporting._targets import bytes_of
from keras_vit.exporting._targets import replacing
from keras_vit.models import Model


def export(model, target, name, shape, size, int8=False, check=True, say=print):
    """Writes a model in a format, or nothing.

    Args:
        model: `keras.Model` of one input and one output.
        target: `pathlib.Path` that may be replaced.
        name: String. A key of `FORMATS`.
        shape: `(batch, height, width, channels)`, None where it is left open.
        size: `(height, width)` of the images to check an open size with.
        int8: Boolean. Whether to make dense weights int8.
        check: Boolean. Whether to run what was written.
        say: Function that shows a line.

    Raises:
        ValueError: if the format cannot hold this, or computes something else
            than the model.
    """
    raise_unless_fits(name, model, shape)
    form, write = FORMATS[name], writer_of(name)
    say(
        f"writing  {name} with {keras.config.backend()}, images "
        + " x ".join("any" if n is None else str(n) for n in shape)
    )
    # Before quantising, which is done to a copy.
    pairs = check and _checking.expected(model, _checking.cases(shape, size))
    source = model
    if int8 and not form.quantises:
        source = _quantised(model)
    with replacing(target) as temporary:
        _write(write, source, temporary, name, shape, int8)
        if check:
            _check(form.reader(temporary), form, model, pairs, int8, say)
    say(_sizes(model, target))


def with_softmax(model):
    """Returns the model with probabilities for logits.

    Raises:
        ValueError: if it gives no logits.
    """
    output, last = model.outputs[0], model.layers[-1]
    made = getattr(last, "activation", None)
    if made in (keras.activations.softmax, keras.activations.sigmoid):
        raise ValueError(
            f"--softmax: the model's last layer, {last.name!r}, has the "
            f"activation {made.__name__} already."
        )
    if len(output.shape) != 2:
        raise ValueError(
            "--softmax is for a model that ends in logits, (batch, classes). "
            f"This one's output has the shape {output.shape}."
        )
    layer = keras.layers.Softmax(name="probabilities")
    return Model(model.inputs, layer(output), name=model.name)


def _write(write, model, path, name, shape, int8):
    try:
        write(model, path, shape, int8)
    except (ImportError, OSError):
        raise
    except Exception as error:  # a converter's own kinds, and there are many
        first = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"{keras.config.backend()} could not write {name}: "
            f"{type(error).__name__}: {first}"
        ) from error


def _quantised(model):
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    with quiet():  # of all layers that have nothing to quantise
        copy.quantize("int8")
    return copy


def _check(run, form, model, pairs, int8, say):
    kind = "int8" if int8 else model.layers[-1].compute_dtype
    say(f"checked  difference {_checking.compare(run, pairs, kind)}")
    images = pairs[0][0]
    if int8:
        same, total = _checking.agreement(run, model, pairs[-1][0].shape)
        say(f"int8     same largest output on {same} of {total} random images")
    both = (model.predict_on_batch, run)
    times = [1000 * _checking.seconds(call, images) for call in both]
    say(
        f"latency  batch of {len(images)}: {times[1]:.2f} ms with "
        f"{form.program}, {times[0]:.2f} ms with Keras on "
        f"{keras.config.backend()} (best of {_checking.ROUNDS})"
    )


def _sizes(model, target):
    return (
        f"wrote    {target} ({bytes_of(target) / 1e6:.2f} MB; the weights in "
        f"float32 are {4 * model.count_params() / 1e6:.2f})"
    )
