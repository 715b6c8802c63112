"""The matrix products of a Vision Transformer alone, on each backend.

Without biases, norms, activations, softmax, positions, class token and sums,
the time is that of the backend's products of matrices of these shapes. Queries,
keys and values are one product or three, whichever was measured to be faster.
"""

# B batch, T tokens, D hidden size, M mlp_dim, H heads, d head size


def weights(size, convert):
    """Returns random matrices as tensors of the backend, made by `convert`."""
    import numpy as np

    rng = np.random.default_rng(0)

    def matrix(rows, columns):
        values = rng.standard_normal((rows, columns)) / rows**0.5
        return convert(values.astype("float32"))

    hidden, mlp = size.hidden_size, size.mlp_dim
    return {
        "patches": matrix(3 * size.patch_size**2, hidden),
        "blocks": [
            {
                "qkv": matrix(hidden, 3 * hidden),
                "out": matrix(hidden, hidden),
                "mlp_1": matrix(hidden, mlp),
                "mlp_2": matrix(mlp, hidden),
            }
            for _ in range(size.num_layers)
        ],
        "head": matrix(hidden, size.classes),
    }


def forward(weights, images, size, reshape, transpose, fused):
    """Returns the logits, (B, classes), with functions of the backend."""
    rows = images.shape[0] * size.patches
    by_head = (images.shape[0], size.patches, -1, *_heads(size))
    # The number and the size of the patches matter, not their pixels.
    x = reshape(images, (rows, -1)) @ weights["patches"]  # (B T, D)
    for block in weights["blocks"]:
        if fused:
            qkv = reshape(x @ block["qkv"], by_head)
            q, k, v = transpose(qkv, (2, 0, 3, 1, 4))
        else:
            q, k, v = (
                transpose(reshape(x @ part, by_head)[:, :, 0], (0, 2, 1, 3))
                for part in _thirds(block["qkv"], size.hidden_size)
            )
        x = (q @ transpose(k, (0, 1, 3, 2))) @ v  # (B, H, T, d)
        x = reshape(transpose(x, (0, 2, 1, 3)), (rows, -1)) @ block["out"]
        x = (x @ block["mlp_1"]) @ block["mlp_2"]
    return (
        reshape(x, (images.shape[0], size.patches, -1))[:, 0] @ weights["head"]
    )


def _heads(size):
    return size.num_heads, size.hidden_size // size.num_heads


def _thirds(matrix, width):
    return (matrix[:, i * width : (i + 1) * width] for i in range(3))
