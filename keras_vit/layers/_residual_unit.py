import keras
from keras import ops

from keras_vit import _checks
from keras_vit.layers import _padding
from keras_vit.layers._composite import CompositeLayer
from keras_vit.layers._group_norm import GroupNorm
from keras_vit.layers._std_conv import StdConv2D


@keras.saving.register_keras_serializable("keras_vit")
class ResidualUnit(CompositeLayer):
    """A bottleneck unit of the hybrids' ResNets and of BiT's.

    Three convolutions, 1 x 1, 3 x 3 and 1 x 1, on a residual, with group
    norms and standardised kernels. From "Deep Residual Learning"
    (https://arxiv.org/abs/1512.03385, Section 4.1); with the norms first from
    "Identity Mappings in Deep Residual Networks"
    (https://arxiv.org/abs/1603.05027) as in BiT
    (https://arxiv.org/abs/1912.11370).

    Args:
        filters: Integer. Channels between the convolutions; four times as
            many come out.
        strides: Integer. That of the 3 x 3 convolution.
        projects: Boolean. Whether the shortcut is a 1 x 1 convolution, as
            where size or channels change.
        preactivation: Boolean. Whether norm and ReLU come before each
            convolution (BiT; the shortcut's then has no norm of its own) or
            after it (the hybrids; the unit then starts as its shortcut).
        groups: Integer. Of the norms.
        group_norm_epsilon: Float above 0. See `GroupNorm`.
        std_epsilon: Float above 0. See `StdConv2D`, also for the next two.
        std_epsilon_place: "std" or "variance".
        conv_padding: "same" or "symmetric".

    Call arguments:
        inputs: Tensor of shape `(batch, height, width, channels)`.

    Output shape:
        `(batch, ceil(height / strides), ceil(width / strides), 4 * filters)`

    Raises:
        ValueError: if an argument is wrong, or the shortcut would have
            another shape than what it is added to.
    """

    def __init__(
        self,
        filters,
        strides=1,
        projects=False,
        preactivation=False,
        groups=32,
        *,
        group_norm_epsilon,
        std_epsilon=1e-5,
        std_epsilon_place="std",
        conv_padding="same",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = _checks.positive_int("filters", filters)
        self.strides = _checks.positive_int("strides", strides)
        self.projects = projects
        self.preactivation = preactivation
        self.groups = _checks.positive_int("groups", groups)
        self.group_norm_epsilon = _checks.positive_float(
            "group_norm_epsilon", group_norm_epsilon
        )
        self.std_epsilon = _checks.positive_float("std_epsilon", std_epsilon)
        self.std_epsilon_place = std_epsilon_place
        self.conv_padding = _checks.one_of(
            "conv_padding", conv_padding, ("same", "symmetric")
        )
        self.conv_1 = self._conv(filters, 1, "conv_1")
        self.norm_1 = self._norm("norm_1")
        self.conv_2 = self._conv(filters, 3, "conv_2", strides)
        self.norm_2 = self._norm("norm_2")
        self.conv_3 = self._conv(4 * filters, 1, "conv_3")
        # After the last convolution, zeros: a unit starts as its shortcut.
        self.norm_3 = self._norm("norm_3", "ones" if preactivation else "zeros")
        self.conv_proj = self.norm_proj = None
        if projects:
            self.conv_proj = self._conv(4 * filters, 1, "conv_proj", strides)
            if not preactivation:
                self.norm_proj = self._norm("norm_proj")

    def _conv(self, filters, kernel_size, name, strides=1):
        return StdConv2D(
            filters,
            kernel_size,
            strides,
            self.conv_padding,
            self.std_epsilon,
            self.std_epsilon_place,
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name, gamma="ones"):
        return GroupNorm(
            self.groups,
            epsilon=self.group_norm_epsilon,
            gamma_initializer=gamma,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        shape = self.compute_output_shape(input_shape)
        if not self.projects and (
            self.strides != 1 or input_shape[-1] != shape[-1]
        ):
            raise ValueError(
                "A shortcut without `projects=True` keeps its shape: "
                f"`strides` must be 1 and the channels {shape[-1]}. Received: "
                f"strides={self.strides}, shape {tuple(input_shape)}"
            )
        before = (*input_shape[:-1], self.filters)
        after = (*shape[:-1], self.filters)
        pre = self.preactivation
        self.conv_1.build(input_shape)
        self.norm_1.build(input_shape if pre else before)
        self.conv_2.build(before)
        self.norm_2.build(before if pre else after)
        self.conv_3.build(after)
        self.norm_3.build(after if pre else shape)
        if self.conv_proj is not None:
            self.conv_proj.build(input_shape)
        if self.norm_proj is not None:
            self.norm_proj.build(shape)
        self.restore_trainable()

    def call(self, inputs):
        unit = self._norm_first if self.preactivation else self._norm_last
        return unit(inputs)

    def _norm_last(self, x):
        """vit_jax/models_resnet.py."""
        shortcut = x
        if self.projects:
            shortcut = self.norm_proj(self.conv_proj(x))
        x = ops.relu(self.norm_1(self.conv_1(x)))
        x = ops.relu(self.norm_2(self.conv_2(x)))
        x = self.norm_3(self.conv_3(x))
        return ops.relu(x + shortcut)

    def _norm_first(self, x):
        """BiT's: the projection reads what is normalised, and has no norm."""
        shortcut = x
        x = ops.relu(self.norm_1(x))
        if self.projects:
            shortcut = self.conv_proj(x)
        x = ops.relu(self.norm_2(self.conv_1(x)))
        x = ops.relu(self.norm_3(self.conv_2(x)))
        return self.conv_3(x) + shortcut

    def compute_output_shape(self, input_shape):
        shape = _padding.output_shape(
            "ResidualUnit", input_shape, (1, 1), (self.strides,) * 2
        )
        return (*shape, 4 * self.filters)

    def get_config(self):
        return {
            **super().get_config(),
            "filters": self.filters,
            "strides": self.strides,
            "projects": self.projects,
            "preactivation": self.preactivation,
            "groups": self.groups,
            "group_norm_epsilon": self.group_norm_epsilon,
            "std_epsilon": self.std_epsilon,
            "std_epsilon_place": self.std_epsilon_place,
            "conv_padding": self.conv_padding,
        }
