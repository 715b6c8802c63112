"""Lossy surgery: fitting weights to a model of another size.

It acts on our own weights only, never on a checkpoint's arrays, so it is
written once and not once a layout.
"""

import numpy as np

from keras_vit.layers._position_embedding import fit_embedding

_HEADS = ("head/", "distillation_head/")


def adapt(weights, shapes, positions=None, grid=None):
    """Returns weights fitted to a model's shapes, as far as that has meaning.

    * The head is left out, so that the model keeps its own, if the model has
      none, has another number of classes, or drops the `pre_logits` layer
      that the head was trained on.
    * `pre_logits`, a pooling head and the norm behind it are left out if the
      model has none.
    * The patch kernel is fitted to the model's channels.
    * Position embeddings are resampled to the model's grid.

    Everything else stays as it is: a strict loader then finds what is wrong.

    Args:
        weights: Dict of our paths to arrays.
        shapes: Dict of the model's paths to shapes.
        positions: The model's `AddPositionEmbs` layer, if it has one.
        grid: `(rows, columns)` of the weights' position embeddings, or None
            if unknown.
    """
    weights = dict(weights)
    drops_pre_logits = _has(weights, "pre_logits/") and not _has(
        shapes, "pre_logits/"
    )
    if drops_pre_logits:
        _leave_out(weights, "pre_logits/")
    for part in ("pooling/", "head_norm/", "mask_token/"):
        if not _has(shapes, part):
            _leave_out(weights, part)
    for head in _HEADS:
        path = f"{head}kernel"
        differs = path in weights and weights[path].shape != shapes.get(path)
        if differs or drops_pre_logits:
            _leave_out(weights, head)
    kernel, wanted = (
        weights.get("patch_embedding/kernel"),
        shapes.get("patch_embedding/kernel"),
    )
    if kernel is not None and wanted is not None and kernel.ndim == 4:
        weights["patch_embedding/kernel"] = adapt_channels(kernel, wanted[2])
    path = "position_embedding/embedding"
    if grid is not None and path in weights and path in shapes:
        weights[path] = fit_embedding(
            weights[path],
            grid,
            positions.built_grid,
            positions.resampling,
            positions.num_prefix_tokens,
        )
    return weights


def adapt_channels(kernel, channels):
    """Fits a patch kernel (rows, columns, channels, out) to other channels.

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


def _has(names, start):
    return any(name.startswith(start) for name in names)


def _leave_out(weights, start):
    for name in [name for name in weights if name.startswith(start)]:
        del weights[name]
