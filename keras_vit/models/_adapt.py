"""Lossy surgery: fitting weights to a model of another size.

It acts on our own weights only, never on a checkpoint's arrays, so it is
written once and not once a layout.
"""

import numpy as np

_HEADS = ("head", "distillation_head")
_FIRST = ("root_conv/kernel", "patch_embedding/kernel")


def adapt(weights, shapes, positions=(), grid=None, keeps_head=True):
    """Returns weights fitted to a model's shapes, as far as that has meaning.

    * A whole head is left out, so that the model keeps its own, if the model
      has none, has another number of classes, drops the `pre_logits` layer
      that the head was trained on, or `keeps_head` is False.
    * `pre_logits`, a pooling head and the norm behind it are left out if the
      model has none.
    * The first kernel, of the patches or of a ResNet, is fitted to the model's
      channels.
    * Position embeddings are resampled to the model's grid.

    Everything else stays as it is: a strict loader then finds what is wrong.

    Args:
        weights: Dict of our paths to arrays.
        shapes: Dict of the model's paths to shapes.
        positions: Dict of names to the model's layers of positions.
        grid: `(rows, columns)` of the weights' position embeddings, or None
            if unknown.
        keeps_head: Boolean. Whether a head that fits is taken.

    Returns:
        `(weights, fresh, unfitted)`; `fresh` are the paths of the model's
        heads that have no weights to take, and stay new; `unfitted` is a dict
        of the paths of position embeddings that cannot be resampled to why.
    """
    weights, fresh, unfitted = dict(weights), set(), {}
    whole = {"pre_logits/kernel", "pre_logits/bias"} <= weights.keys()
    drops_pre_logits = whole and "pre_logits/kernel" not in shapes
    if drops_pre_logits:
        _leave_out(weights, "pre_logits/")
    for part in ("pooling/", "head_norm/", "mask_token/"):
        if not any(path.startswith(part) for path in shapes):
            _leave_out(weights, part)
    for head in _HEADS:
        absent = not any(path.startswith(f"{head}/") for path in weights)
        unwanted = drops_pre_logits or not keeps_head
        if absent or unwanted or _has_other_classes(head, weights, shapes):
            _leave_out(weights, f"{head}/")
            fresh |= {path for path in shapes if path.startswith(f"{head}/")}
    # Where the image comes in: a ResNet's root if there is one.
    path = next((p for p in _FIRST if p in weights), None)
    if path in shapes and weights[path].ndim == 4:
        weights[path] = adapt_channels(weights[path], shapes[path][2])
    if grid is not None:
        for name, layer in dict(positions).items():
            try:
                _fit_positions(weights, name, layer, grid)
            except ValueError as error:
                paths = [f"{name}/{key}" for key in layer.embedding_variables()]
                unfitted |= dict.fromkeys(paths, str(error))
    return weights, fresh, unfitted


def _fit_positions(weights, name, layer, grid):
    stored = {
        key: weights.get(f"{name}/{key}") for key in layer.embedding_variables()
    }
    if any(array is None for array in stored.values()):
        return
    for key, array in layer.resample_arrays(stored, grid).items():
        weights[f"{name}/{key}"] = array


def _has_other_classes(head, weights, shapes):
    """Whether a head is whole and only its number of classes is another; or
    the model has no head at all."""
    kernel, bias = weights.get(f"{head}/kernel"), weights.get(f"{head}/bias")
    if f"{head}/kernel" not in shapes:
        return True
    if kernel is None or bias is None or kernel.ndim != 2:
        return False
    width, classes = shapes[f"{head}/kernel"]
    whole = bias.shape == kernel.shape[1:]
    return whole and kernel.shape[0] == width and kernel.shape[1] != classes


def adapt_channels(kernel, channels):
    """Fits a first kernel (rows, columns, channels, out) to other channels.

    One channel gets the sum of all, so a grey image gives exactly what it
    gave as an image of equal channels. More (or fewer) repeat the kernel's
    channels in order, scaled so that the sum of the responses keeps its size.
    """
    old = kernel.shape[2]
    if channels == old:
        return kernel
    if channels == 1:
        return kernel.sum(axis=2, keepdims=True)
    index = np.arange(channels) % old
    return kernel[:, :, index] * np.asarray(old / channels, kernel.dtype)


def _leave_out(weights, start):
    for name in [name for name in weights if name.startswith(start)]:
        del weights[name]
