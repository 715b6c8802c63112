import math

import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _padding
from keras_vit.layers import _patch_grid
from keras_vit.layers import initializers


@keras.saving.register_keras_serializable("keras_vit")
class PatchEmbedding(keras.Layer):
    """Projects each patch of an image to a vector, with one convolution.

    Kernel and stride are the patch, so this is `Patches` followed by `Dense`.
    The result keeps its rows and columns, which position embeddings need to
    follow the image; reshape it to `(batch, num_patches, hidden_size)` for
    the encoder. Channels come last whatever Keras's `image_data_format`.

    From "An Image is Worth 16x16 Words", Section 3.1, Equation 1
    (https://arxiv.org/abs/2010.11929).

    Args:
        hidden_size: Integer. Length of each patch's vector.
        patch_size: Integer or `(rows, columns)`, in pixels (in positions,
            over a feature map).
        use_bias: Boolean. Whether to add a bias.
        pad_to_patch: Boolean. Whether to accept images that the patch does
            not divide, adding zeros at the bottom and at the right.

    Call arguments:
        inputs: Images of shape `(batch, height, width, channels)`, in
            [-1, 1] for pretrained weights (see `preprocess_input`).

    Output shape:
        `(batch, rows, columns, hidden_size)`

    Raises:
        ValueError: if the patch does not divide the image and `pad_to_patch`
            is False.

    Example:

    >>> keras_vit.layers.PatchEmbedding(768, 16)(np.zeros((1, 224, 224, 3))).shape
    (1, 14, 14, 768)
    """  # noqa: E501

    def __init__(
        self,
        hidden_size,
        patch_size,
        use_bias=True,
        pad_to_patch=False,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.hidden_size = _checks.positive_int("hidden_size", hidden_size)
        self.patch_size = _checks.positive_pair("patch_size", patch_size)
        self.use_bias = use_bias
        self.pad_to_patch = pad_to_patch

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        channels = input_shape[-1]
        if channels is None:
            raise ValueError(
                "PatchEmbedding must know the number of channels. Received: "
                f"shape {tuple(input_shape)}. Give the last size, for example "
                "`keras.Input((None, None, 3))`."
            )
        self.kernel = self.add_weight(
            shape=(*self.patch_size, channels, self.hidden_size),
            initializer=initializers.lecun(
                math.prod(self.patch_size) * channels
            ),
            name="kernel",
        )
        if self.use_bias:
            self.bias = self.add_weight(
                shape=(self.hidden_size,),
                initializer=initializers.Constant(0.0),
                name="bias",
            )
        self.input_spec = keras.layers.InputSpec(ndim=4, axes={-1: channels})

    def call(self, inputs):
        images = _patch_grid.fit(
            inputs,
            self.patch_size,
            self.pad_to_patch,
            channels=self.kernel.shape[2],
        )
        x = _padding.channels_last(
            ops.conv,
            images,
            self.kernel,
            strides=self.patch_size,
            padding="valid",
        )
        return x + self.bias if self.use_bias else x

    def compute_output_shape(self, input_shape):
        _checks.rank(
            "PatchEmbedding",
            input_shape,
            4,
            "(batch, height, width, channels)",
        )
        grid = _patch_grid.grid_size(
            input_shape[1:3], self.patch_size, self.pad_to_patch
        )
        return (input_shape[0], *grid, self.hidden_size)

    def get_config(self):
        return {
            **super().get_config(),
            "hidden_size": self.hidden_size,
            "patch_size": self.patch_size,
            "use_bias": self.use_bias,
            "pad_to_patch": self.pad_to_patch,
        }
