"""A Vision Transformer in NumPy, float64: the reference for every backend.

Written from the paper's equations and independent of the package's layers. It
reads weights by their path.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf)


def layer_norm(x, weights, name, epsilon):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    x = (x - mean) / np.sqrt(variance + epsilon)
    return x * weights[f"{name}/gamma"] + weights[f"{name}/beta"]


def gelu(x, kind):
    if kind == "gelu":
        return x * (1 + _erf(x / math.sqrt(2))) / 2
    if kind == "quick_gelu":
        return x / (1 + np.exp(-1.702 * x))
    return x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def attention(x, context, weights, name, epsilon, offsets=None):
    def project(which, source):
        kernel = weights[f"{name}/{which}/kernel"]  # (D, heads, d)
        y = np.einsum("btd,dhk->bhtk", source, kernel)
        bias = weights.get(f"{name}/{which}/bias")
        y = y if bias is None else y + bias[None, :, None]
        if f"{name}/{which}_norm/gamma" in weights:
            y = layer_norm(y, weights, f"{name}/{which}_norm", epsilon)
        return y

    query, key, value = (
        project("query", x),
        project("key", context),
        project("value", context),
    )
    scores = query @ key.swapaxes(2, 3)
    if offsets is not None:  # one for every p_q - p_k, from -(N - 1) to N - 1
        count = (len(offsets) + 1) // 2
        for p in range(-count, 0):  # the patches come last
            for q in range(-count, 0):
                far = offsets[p - q + count - 1]
                scores[:, :, p, q] += query[:, :, p] @ far
    scores = scores / math.sqrt(query.shape[-1])
    scores = np.exp(scores - scores.max(-1, keepdims=True))
    probabilities = scores / scores.sum(-1, keepdims=True)
    mixed = probabilities @ value  # (B, heads, T, d)
    kernel = weights[f"{name}/attention_output/kernel"]
    bias = weights[f"{name}/attention_output/bias"]
    return np.einsum("bhtk,hkd->btd", mixed, kernel) + bias


def mlp(x, weights, name, kind):
    hidden = x @ weights[f"{name}/dense_1/kernel"]
    hidden = gelu(hidden + weights[f"{name}/dense_1/bias"], kind)
    hidden = hidden @ weights[f"{name}/dense_2/kernel"]
    return hidden + weights[f"{name}/dense_2/bias"]


def block(x, weights, name, kind="gelu_tanh", epsilon=1e-6, offsets=None):
    y = layer_norm(x, weights, f"{name}/norm_1", epsilon)
    y = attention(y, y, weights, f"{name}/attention", epsilon, offsets)
    x = x + y * weights.get(f"{name}/scale_1/gamma", 1)
    y = layer_norm(x, weights, f"{name}/norm_2", epsilon)
    y = mlp(y, weights, f"{name}/mlp", kind)
    return x + y * weights.get(f"{name}/scale_2/gamma", 1)


def patches(images, patch_size):
    batch, height, width, channels = images.shape
    p, q = patch_size
    cut = [
        images[:, r : r + p, c : c + q].reshape(batch, -1)
        for r in range(0, height, p)
        for c in range(0, width, q)
    ]
    return np.stack(cut, axis=1)


def positions(weights, layer):
    """What a layer adds to all tokens; 0 if there is no such layer."""
    if f"{layer}/embedding" in weights:
        return weights[f"{layer}/embedding"]
    if f"{layer}/columns" not in weights:
        return 0
    x, y = weights[f"{layer}/columns"], weights[f"{layer}/rows"]
    rows = [
        np.concatenate([x[column], y[row]])
        for row in range(len(y))
        for column in range(len(x))
    ]
    prefix = weights.get(f"{layer}/prefix", np.zeros((1, 0, 2 * x.shape[1])))
    return np.concatenate([prefix, [rows]], axis=1)


def vision_transformer(images, weights, pooling, kind="gelu_tanh", eps=1e-6):
    """Logits of a ViT with class token or without, and any pooling."""
    weights = {k: np.asarray(w, "float64") for k, w in weights.items()}
    kernel = weights["patch_embedding/kernel"]
    x = patches(images.astype("float64"), kernel.shape[:2])
    x = x @ kernel.reshape(-1, kernel.shape[-1])
    x = x + weights.get("patch_embedding/bias", 0)
    prefix = 0
    for name in ("register_tokens", "class_token"):
        if f"{name}/tokens" in weights:
            tokens = weights[f"{name}/tokens"]
            prefix += tokens.shape[1]
            tokens = np.broadcast_to(tokens, (len(x), *tokens.shape[1:]))
            x = np.concatenate([tokens, x], axis=1)
    x = x + positions(weights, "position_embedding")
    i = 0
    while f"block_{i}/norm_1/gamma" in weights:
        offsets = None
        for layer in (f"position_embedding_{i}", "position_embedding_shared"):
            x = x + positions(weights, layer)
            offsets = weights.get(f"{layer}/offsets", offsets)
        x = block(x, weights, f"block_{i}", kind, eps, offsets)
        i += 1
    x = layer_norm(x, weights, "encoder_norm", eps)
    if pooling == "token":
        x = x[:, 0]
    elif pooling == "first_patch":
        x = x[:, prefix]
    elif pooling == "gap":
        x = x[:, prefix:].mean(1)
    else:
        probe = weights["pooling/probe"]
        probe = np.broadcast_to(probe, (len(x), 1, x.shape[-1]))
        x = attention(probe, x[:, prefix:], weights, "pooling/attention", eps)
        y = layer_norm(x, weights, "pooling/norm", eps)
        x = (x + mlp(y, weights, "pooling/mlp", kind))[:, 0]
    if "pre_logits/kernel" in weights:
        x = np.tanh(x @ weights["pre_logits/kernel"] + weights["pre_logits/bias"])
    return x @ weights["head/kernel"] + weights["head/bias"]
