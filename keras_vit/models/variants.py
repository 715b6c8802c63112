"""The functions that build named variants, such as `ViTB16`."""

import fnmatch
import inspect
from collections.abc import Callable
from typing import Unpack

from keras_vit.config import BIT_VARIANTS, VARIANTS, VariantArguments, variant_sizes
from keras_vit.models.arguments import check_arguments
from keras_vit.models.model import Model, unique_name
from keras_vit.models.resnet import BiT
from keras_vit.models.vit import HybridVisionTransformer, VisionTransformer
from keras_vit.utils.types import Config, StrPath, Tensor
from keras_vit.weights import Checkpoint, resolve_weights

_DOC = """Builds {name}, {description}

    Args:
        include_top: Boolean. Whether to end in a classification head, which
            is initialized to zero.
        weights: None for random weights; the name of released weights, such
            as "imagenet21k" (`keras_vit.list_weights()` returns all), which are
            downloaded once; or the path or URL of a checkpoint, see
            `{function}`.
        input_tensor: Optional Keras tensor to build the model on.
        input_shape: `(height, width, channels)`; height and width may be None
            for images of any size. None means that of `weights`, or
            `(224, 224, 3)` without weights.
        pooling: As in `{function}`.
        classes: Integer. Number of classes; None for that of `weights`, or
            1000 without weights.
        classifier_activation: Activation of the head; None for logits.
        name: String. Name of the model. None for "{name}", with a
            number from the second such model of a program on.
        **architecture: Any other argument of `{function}`, such as
            `preprocessing=True` for images of any size with values in
            [0, 255].

    Returns:
        A `keras.Model` that takes images in [-1, 1] (`preprocess_input`), or
        in [0, 255] with `preprocessing`.

    Raises:
        ValueError: if an argument is wrong or the weights do not fit.
        FileNotFoundError: if there is no file at `weights`.
        OSError: if the weights cannot be downloaded.
        TypeError: if there is no such argument.

    Example:

    >>> model = keras_vit.{name}(classes=10)
    """
_VIT = """a Vision Transformer for images.

    {sizes}.
    From "An Image is Worth 16x16 Words" (https://arxiv.org/abs/2010.11929)
    and, for Ti, S, g and G, from its successors."""
_BIT = """a BiT ResNet for images.

    Units of the stages {resnet_layers}, width factor {width_factor}. From "Big
    Transfer (BiT): General Visual Representation Learning"
    (https://arxiv.org/abs/1912.11370)."""


# Type checkers infer the arguments of `model`, which no annotation could hold.
def list_models(pattern: str = "*") -> list[str]:
    """Returns the names of the functions that build a model, such as "ViTB16".

    `keras_vit.list_weights` returns the names of weights, such as those of DINO.

    Args:
        pattern: String. What the names match, in any case, with "*" for any
            characters, such as "vitb*".

    Example:

    >>> model = getattr(keras_vit, keras_vit.list_models()[0])(classes=10)
    """
    names = (*VARIANTS, *BIT_VARIANTS)
    return [x for x in names if fnmatch.fnmatchcase(x.lower(), pattern.lower())]


def variant_builder(variant: str):  # noqa: ANN201
    """Returns the function that builds a model of `VARIANTS` or
    `BIT_VARIANTS`."""
    sizes = variant_sizes(variant)
    build: Callable[..., Model]  # It checks the names of its arguments.
    if variant in BIT_VARIANTS:
        build, description = BiT, _BIT.format(**sizes)
    else:
        hybrid = "resnet_layers" in sizes
        build = HybridVisionTransformer if hybrid else VisionTransformer
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        description = _VIT.format(sizes=listed)
    accepted = [*inspect.signature(build).parameters]

    def model(
        include_top: bool = True,
        weights: StrPath | Checkpoint | None = None,
        input_tensor: Tensor | None = None,
        input_shape: tuple[int | None, ...] | None = None,
        pooling: str | None = None,
        classes: int | None = None,
        classifier_activation: str | Callable[[Tensor], Tensor] | None = None,
        name: str | None = None,
        **architecture: Unpack[VariantArguments],
    ) -> Model:
        check_arguments(variant, architecture, accepted)
        resolved = resolve_weights(weights, variant, sizes)
        differing = {}
        # Weights that were given by the name of released ones.
        if isinstance(resolved, Checkpoint) and resolved is not weights:
            differing = _differing_sizes(resolved, sizes)
        return build(
            include_top=include_top,
            weights=resolved,
            input_tensor=input_tensor,
            input_shape=input_shape,
            pooling=pooling,
            classes=classes,
            classifier_activation=classifier_activation,
            name=name or unique_name(variant),
            **{**sizes, **differing, **architecture},
        )

    own, of_build = inspect.signature(model), inspect.signature(build)
    written = [*own.parameters.values()][:-1]
    others = of_build.parameters.keys() - {"config", *own.parameters}
    written += [x for x in of_build.parameters.values() if x.name in others]
    # What `help` and notebooks show.
    vars(model)["__signature__"] = own.replace(parameters=written)
    model.__name__ = model.__qualname__ = variant
    model.__module__ = "keras_vit.models"  # where pickle looks it up
    model.__doc__ = _DOC.format(
        name=variant, description=description, function=build.__name__
    )
    return model


def _differing_sizes(checkpoint: Checkpoint, sizes: Config) -> Config:
    """Returns the sizes in which released weights differ from a variant.

    MoCo v3's ViT-S/16 has 12 heads.
    """
    stored = checkpoint.stored
    return {name: stored[name] for name in sizes if name in stored}


ViTTi16 = variant_builder("ViTTi16")
ViTS16 = variant_builder("ViTS16")
ViTS32 = variant_builder("ViTS32")
ViTB8 = variant_builder("ViTB8")
ViTB16 = variant_builder("ViTB16")
ViTB32 = variant_builder("ViTB32")
ViTL16 = variant_builder("ViTL16")
ViTL32 = variant_builder("ViTL32")
ViTH14 = variant_builder("ViTH14")
ViTS14 = variant_builder("ViTS14")
ViTB14 = variant_builder("ViTB14")
ViTL14 = variant_builder("ViTL14")
ViTg14 = variant_builder("ViTg14")
ViTG14 = variant_builder("ViTG14")
R_ViTTi16 = variant_builder("R_ViTTi16")
R26ViTS32 = variant_builder("R26ViTS32")
R26ViTB32 = variant_builder("R26ViTB32")
R50ViTB16 = variant_builder("R50ViTB16")
R50ViTL32 = variant_builder("R50ViTL32")
BiT_R50x1 = variant_builder("BiT_R50x1")
BiT_R50x3 = variant_builder("BiT_R50x3")
BiT_R101x1 = variant_builder("BiT_R101x1")
BiT_R101x3 = variant_builder("BiT_R101x3")
BiT_R152x2 = variant_builder("BiT_R152x2")
BiT_R152x4 = variant_builder("BiT_R152x4")
