import keras
import numpy as np
from keras import ops

from keras_vit import _checks
from keras_vit.layers import MaskToken
from keras_vit.pretraining import _masks
from keras_vit.pretraining._masked_model import MaskedModel
from keras_vit.pretraining._parts import head_policy

TARGETS = ("mean_color", "downsized", "pixels")
_BITS = 3
_LEVELS = 2**_BITS
# Of the corrupted patches; the others keep their embedding.
_TO_MASK, _TO_OTHER = 0.8, 0.1


@keras.saving.register_keras_serializable("keras_vit")
class MaskedPatchPrediction(MaskedModel):
    """The paper's self-supervision: guess the colours of corrupted patches.

    From "An Image is Worth 16x16 Words", Appendix B.1.2
    (https://arxiv.org/abs/2010.11929), whose code was not released. Half the
    patch embeddings are corrupted: of these 80% are replaced by a learned
    vector, 10% by the embedding of another patch of the image, and 10% stay.
    The targets are the paper's three, of which it found the first enough.

    Args:
        encoder: A `VisionTransformer` for images of one size, whose output is
            all tokens: `include_top=False, pooling=None`. Its weights are
            shared, so that `model.encoder` is the trained one.
        target: "mean_color", the patch's mean colour with 3 bits a channel
            (512 classes of RGB); "downsized", the colours of 4 x 4 parts of
            it (16 predictions); or "pixels", all of them (squared error).
        mask_ratio: Float in (0, 1). Share of corrupted patches.
        value_range: `(lowest, highest)` of pixels, which the 3 bits divide
            evenly: numbers, or one for each channel.
        seed: Integer. Seed of what is corrupted; None for any.
        **kwargs: `name`, `dtype`.

    Call arguments:
        images: Tensor of shape `(batch, height, width, channels)`.
        masked: Tensor of shape `(batch, num_patches)`, 1 or True where a
            patch is corrupted; None draws one.
        training: Boolean. Whether the encoder's dropout and stochastic depth
            are on.

    Returns:
        A call gives a dict: `prediction`, logits `(batch, num_patches,
        predictions, classes)`, or pixels `(batch, num_patches, rows *
        columns * channels)`; and `masked`, which counts in the loss.

    Raises:
        ValueError: if the encoder gives no tokens, no patch is corrupted, or
            patches of less than 4 x 4 pixels are to be made smaller.

    Example:

    >>> encoder = keras_vit.ViTB16(include_top=False)
    >>> model = keras_vit.pretraining.MaskedPatchPrediction(encoder)
    >>> model.compile("adam")
    >>> model.fit(images)
    """

    def __init__(
        self,
        encoder,
        target="mean_color",
        mask_ratio=0.5,
        value_range=(-1.0, 1.0),
        seed=None,
        **kwargs,
    ):
        super().__init__(encoder, seed=seed, **kwargs)
        parts = self.parts
        _masks.num_kept(parts.num_patches, mask_ratio)
        self.mask_ratio = mask_ratio
        self.target = _checks.one_of("target", target, TARGETS)
        self.value_range = value_range
        self._low, high = _range(value_range, parts.channels)
        self._size = high - self._low
        # Of a channel's level in a class: red first.
        self._place = _LEVELS ** np.arange(parts.channels)[::-1]
        side = 4 if target == "downsized" else 1
        if side > min(parts.patch_size):
            raise ValueError(
                "`target='downsized'` divides a patch into 4 x 4 parts. "
                f"Received: patches of {parts.patch_size} pixels"
            )
        self._shrink = [_means(size, side) for size in parts.patch_size]
        self._classes = _LEVELS**parts.channels
        outputs = side * side * self._classes
        self.mask_token = MaskToken(dtype=self.dtype_policy, name="mask_token")
        self.mask_token.build((None, None, parts.hidden_size))
        self.predictor = keras.layers.Dense(
            parts.patch_area if target == "pixels" else outputs,
            dtype=head_policy(self.dtype_policy),
            name="predictor",
        )
        self.predictor.build((None, None, parts.hidden_size))

    def call(self, images, masked=None, training=None):
        parts = self.parts
        batch = ops.shape(images)[0]
        if masked is None:
            masked = _masks.random_mask(
                batch, parts.num_patches, self.mask_ratio, self.seed_generator
            )
        masked = ops.cast(masked, "float32")
        how = keras.random.uniform(
            (batch, parts.num_patches, 2), seed=self.seed_generator
        )
        tokens = parts.embed(
            images, lambda x: self.corrupt(x, masked, how), training
        )
        tokens = parts.encode(tokens, training)
        x = self.predictor(tokens[:, parts.num_prefix :])
        if self.target != "pixels":
            x = ops.reshape(
                x,
                (-1, parts.num_patches, x.shape[-1] // self._classes)
                + (self._classes,),
            )
        return {"prediction": x, "masked": masked}

    def corrupt(self, embeddings, masked, how):
        """Corrupts patch embeddings.

        Args:
            embeddings: Tensor of shape `(batch, num_patches, hidden_size)`.
            masked: Tensor of shape `(batch, num_patches)`, 1 for those to
                corrupt.
            how: Tensor of shape `(batch, num_patches, 2)`, numbers in [0, 1):
                below 0.8 the learned vector takes the embedding's place,
                below 0.9 another patch's, which the second number tells.
        """
        count = self.parts.num_patches
        kind, which = how[..., 0], how[..., 1]
        to_mask = masked * ops.cast(kind < _TO_MASK, "float32")
        to_other = ops.cast(kind < _TO_MASK + _TO_OTHER, "float32")
        to_other = ops.cast(masked * to_other - to_mask, embeddings.dtype)
        # 1 to count - 1 patches further on, so never the patch itself.
        step = 1 + ops.minimum(ops.floor(which * (count - 1)), count - 2)
        place = (ops.arange(count) + ops.cast(step, "int32")) % count
        others = ops.take_along_axis(embeddings, place[..., None], axis=1)
        to_other = to_other[..., None]
        x = embeddings * (1 - to_other) + others * to_other
        return self.mask_token(x, to_mask)

    def patch_losses(self, images, outputs):
        patches, prediction = self.parts.cut(images), outputs["prediction"]
        if self.target == "pixels":
            return ops.mean((prediction - patches) ** 2, axis=-1)
        losses = keras.losses.sparse_categorical_crossentropy(
            self.colors(patches), prediction, from_logits=True
        )
        return ops.mean(losses, axis=-1)

    def colors(self, patches):
        """Returns the classes of patches, `(batch, num_patches, parts)`."""
        p, q = self.parts.patch_size
        x = ops.reshape(
            patches, (-1, self.parts.num_patches, p, q, self.parts.channels)
        )
        x = ops.einsum("ip,jq,bnpqc->bnijc", *self._shrink, x)
        low, size = map(ops.convert_to_tensor, (self._low, self._size))
        x = (x - low) / size
        levels = ops.clip(ops.floor(x * _LEVELS), 0, _LEVELS - 1)
        place = ops.convert_to_tensor(self._place.astype("float32"))
        classes = ops.cast(ops.sum(levels * place, axis=-1), "int32")
        return ops.reshape(
            classes, (-1, self.parts.num_patches, x.shape[2] * x.shape[3])
        )

    def pixels(self, prediction, patches):
        if self.target == "pixels":
            return prediction
        classes = ops.argmax(prediction, axis=-1)[..., None]
        place = ops.convert_to_tensor(self._place.astype("int32"))
        classes = ops.cast(classes, "int32")
        levels = ops.cast(classes // place % _LEVELS, "float32")
        low, size = map(ops.convert_to_tensor, (self._low, self._size))
        x = (levels + 0.5) / _LEVELS * size + low
        side = len(self._shrink[0])
        x = ops.reshape(
            x, (-1, self.parts.num_patches, side, side, self.parts.channels)
        )
        grow = [(shrink > 0).astype("float32") for shrink in self._shrink]
        grow = [array / array.sum(0) for array in grow]
        x = ops.einsum("ip,jq,bnijc->bnpqc", *grow, x)
        return ops.reshape(
            x, (-1, self.parts.num_patches, self.parts.patch_area)
        )

    def get_config(self):
        return {
            **super().get_config(),
            "target": self.target,
            "mask_ratio": self.mask_ratio,
            "value_range": self.value_range,
        }


def _range(value_range, channels):
    low, high = (np.asarray(bound, "float32") for bound in value_range)
    if any(x.shape not in ((), (channels,)) for x in (low, high)) or not (
        np.all(low < high)
    ):
        raise ValueError(
            "`value_range` must be `(lowest, highest)` of pixels, numbers or "
            f"one for each of {channels} channels. Received: "
            f"value_range={value_range!r}"
        )
    return low, high


def _means(size, parts):
    """A matrix that takes the means of equal parts of `size` pixels; a pixel
    on an edge belongs to both sides by its share."""
    edges = np.linspace(0, size, parts + 1)
    pixel = np.arange(size)
    over = np.minimum(edges[1:, None], pixel + 1) - np.maximum(
        edges[:-1, None], pixel
    )
    return (np.clip(over, 0, 1) * parts / size).astype("float32")
