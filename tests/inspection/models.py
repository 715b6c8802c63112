"""Models whose attention is known."""

import numpy as np

import keras_vit

GRID, PATCH = (2, 3), 8


def looking_at(patch, **arguments):
    """A model whose tokens all attend to one patch, or uniformly if it is
    None."""
    model = keras_vit.VisionTransformer(
        **{
            "input_shape": (GRID[0] * PATCH, GRID[1] * PATCH, 3),
            "patch_size": PATCH,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 2,
            "classes": 3,
            **arguments,
        }
    )
    for weight in model.weights:
        if not weight.path.endswith("gamma"):
            weight.assign(np.zeros(weight.shape))
    if patch is None:
        return model
    positions = model.get_layer("position_embedding")
    # This patch alone has something in its first channel, which is a key.
    embedding = np.zeros(positions.embedding.shape)
    embedding[0, positions.num_prefix_tokens + patch, 0] = 1
    positions.embedding.assign(embedding)
    kernel, bias = np.zeros((16, 2, 8)), np.zeros((2, 8))
    kernel[0, :, 0] = bias[:, 0] = 8
    for index in range(2):
        attention = model.get_layer(f"block_{index}").attention
        attention.key.kernel.assign(kernel)
        attention.query.bias.assign(bias)
    return model


def images(count=2):
    shape = (count, GRID[0] * PATCH, GRID[1] * PATCH, 3)
    return np.zeros(shape, "float32")
