"""The contenders of each backend, and the sizes of their models.

Libraries are imported by the functions that need them, in the process of the
contender.
"""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np

BACKENDS = ("jax", "tensorflow", "torch")
WHAT = ("inference", "step")
OURS = "keras_vit"
BEFORE = "keras_vit, before"  # of another clone
CLASSES = 1000
DINO = {"output_dim": 4096, "hidden_dim": 512, "bottleneck_dim": 256}
# A model, sizes of which are attributes by the names of `VisionTransformer`.
Size = Any
Run = Callable[[], Any]

# "An Image is Worth 16x16 Words", Table 1; "How to train your ViT?", Table 2.
_NAMES = "hidden_size", "num_layers", "num_heads", "mlp_dim", "patch_size"
SIZES = {
    name: SimpleNamespace(**dict(zip(_NAMES, values, strict=True)))
    for name, values in {
        "Ti16": (192, 12, 3, 768, 16),
        "S16": (384, 12, 6, 1536, 16),
        "B16": (768, 12, 12, 3072, 16),
    }.items()
}


# Models of Keras.


def keras_vit(size: Size, pixels: int, **arguments: Any) -> Any:
    import keras_vit

    return keras_vit.VisionTransformer(
        input_shape=(pixels, pixels, 3),
        **{**vars(size), "classes": CLASSES, **arguments},
    )


def keras_hub(size: Size, pixels: int, classes: int = CLASSES) -> Any:
    import keras_hub

    backbone = keras_hub.models.ViTBackbone(
        image_shape=(pixels, pixels, 3),
        patch_size=(size.patch_size, size.patch_size),
        num_layers=size.num_layers,
        num_heads=size.num_heads,
        hidden_dim=size.hidden_size,
        mlp_dim=size.mlp_dim,
    )
    return keras_hub.models.ViTImageClassifier(backbone=backbone, num_classes=classes)


def products(size: Size, pixels: int) -> Any:
    """The matrix products of a Vision Transformer alone.

    Without biases, norms, activations, softmax, positions, class token and
    sums, the time is that of the backend's products of matrices of these
    shapes.
    """
    import keras
    from einops import rearrange

    width, mlp = size.hidden_size, size.mlp_dim
    count = (pixels // size.patch_size) ** 2
    block = [(width, width)] * 4 + [(width, mlp), (mlp, width)]
    shapes = [(3 * size.patch_size**2, width)]
    shapes += [*block * size.num_layers, (width, CLASSES)]

    class Products(keras.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.matrices = [self.add_weight(shape=shape) for shape in shapes]

        def call(self, images: Any) -> Any:
            patches, *blocks, head = self.matrices
            # The number and the size of the patches matter, not their pixels.
            x = keras.ops.reshape(images, (-1, count, shapes[0][0])) @ patches
            for i in range(0, len(blocks), len(block)):
                *projections, out, first, second = blocks[i : i + len(block)]
                query, key, value = (
                    rearrange(x @ w, "b n (h d) -> b h n d", h=size.num_heads)
                    for w in projections
                )
                x = (query @ keras.ops.swapaxes(key, 2, 3)) @ value
                x = rearrange(x, "b h n d -> b n (h d)")
                x = x @ out @ first @ second
            return x[:, 0] @ head

    images = keras.Input((pixels, pixels, 3))
    return keras.Model(images, Products()(images))


def run_keras(
    build: Callable,
    size: Size,
    images: np.ndarray,
    what: str,
    jit_compile: bool | str = "auto",
) -> Run:
    """Returns a function that runs a model once and waits, as its users do."""
    import keras

    model = build(size, images.shape[1])
    inputs = keras.ops.convert_to_tensor(images)
    if what == "inference":
        if jit_compile is True:
            model.jit_compile = True
        return lambda: model.predict_on_batch(inputs)
    model.compile(
        keras.optimizers.SGD(1e-3, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    labels = keras.ops.convert_to_tensor(np.arange(len(images)) % CLASSES)
    return lambda: model.train_on_batch(inputs, labels)


def run_direct(build: Callable, size: Size, images: np.ndarray, what: str) -> Run:
    """Returns a function that runs inference without Keras's trainer.

    It is jitted under JAX, a function of a graph under TensorFlow, and without
    gradients under PyTorch.
    """
    import keras

    if what == "step":
        return run_keras(build, size, images, what)
    model = build(size, images.shape[1])
    inputs = keras.ops.convert_to_tensor(images)
    backend = keras.config.backend()
    if backend == "torch":
        import torch

        return torch.inference_mode()(lambda: model(inputs, training=False))
    if backend == "tensorflow":
        import tensorflow as tf

        graph = tf.function(lambda: model(inputs, training=False))
        return lambda: graph().numpy()
    import jax

    weights = [[v.value for v in model.trainable_variables]]
    weights.append([v.value for v in model.non_trainable_variables])
    call = jax.jit(lambda w, x: model.stateless_call(*w, x, training=False)[0])
    return lambda: jax.block_until_ready(call(weights, inputs))


def run_exported(written: str, size: Size, images: np.ndarray, what: str) -> Run:
    """Returns a function that runs an exported model without Keras; `written`
    is the name of a format, followed by " int8" for such weights."""
    from keras_vit import exporting

    name, _, int8 = written.partition(" ")
    form = exporting.FORMATS[name]
    # The file must stay open: some runtimes read it lazily.
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / f"model{form.suffix}"
    exporting.export(
        keras_vit(size, images.shape[1]),
        path,
        name,
        batch_size=len(images),
        int8_weights=bool(int8),
        check=False,
    )
    run = form.read(path)
    return lambda _=folder: run(images)


# Models of other libraries.


def timm(size: Size, pixels: int, **arguments: Any) -> Any:
    from timm.models.vision_transformer import VisionTransformer

    return VisionTransformer(
        patch_size=size.patch_size,
        embed_dim=size.hidden_size,
        depth=size.num_layers,
        num_heads=size.num_heads,
        mlp_ratio=size.mlp_dim / size.hidden_size,
        **{"num_classes": CLASSES, "img_size": pixels, **arguments},
    )


def transformers(size: Size, pixels: int) -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=size.hidden_size,
        num_hidden_layers=size.num_layers,
        num_attention_heads=size.num_heads,
        intermediate_size=size.mlp_dim,
        image_size=pixels,
        patch_size=size.patch_size,
        num_labels=CLASSES,
    )
    return ViTForImageClassification(config)


def run_torch(
    build: Callable,
    size: Size,
    images: np.ndarray,
    what: str,
    jit_compile: bool = False,
) -> Run:
    import torch

    model = build(size, images.shape[1])
    optimizer = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9)
    inputs = torch.tensor(images).permute(0, 3, 1, 2).contiguous()
    if jit_compile:
        model = torch.compile(model)
    if what == "inference":
        model.eval()
        return torch.inference_mode()(lambda: model(inputs))
    labels = torch.arange(len(images)) % CLASSES

    def step() -> None:
        optimizer.zero_grad()
        logits = model(inputs)
        logits = getattr(logits, "logits", logits)
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()

    return step


def run_vit_jax(size: Size, images: np.ndarray, what: str) -> Run:
    """The original Vision Transformer in Flax.

    vit_jax is not on the package index: put a clone of
    google-research/vision_transformer on PYTHONPATH.
    """
    import jax
    import optax
    from vit_jax import models_vit

    model = models_vit.VisionTransformer(
        num_classes=CLASSES,
        patches=SimpleNamespace(size=(size.patch_size, size.patch_size)),
        hidden_size=size.hidden_size,
        transformer={
            "mlp_dim": size.mlp_dim,
            "num_heads": size.num_heads,
            "num_layers": size.num_layers,
            "attention_dropout_rate": 0.0,
            "dropout_rate": 0.0,
        },
    )
    inputs = jax.numpy.asarray(images)
    weights = jax.jit(model.init, static_argnames="train")(
        jax.random.key(0), inputs, train=False
    )
    apply = jax.jit(lambda w, x: model.apply(w, x, train=False))
    if what == "inference":
        return lambda: jax.block_until_ready(apply(weights, inputs))
    labels = np.arange(len(images)) % CLASSES
    optimizer = optax.sgd(1e-3, momentum=0.9)

    def loss(weights: Any) -> Any:
        logits = model.apply(weights, inputs, train=True)
        losses = optax.softmax_cross_entropy_with_integer_labels
        return losses(logits, labels).mean()

    def step(weights: Any, state: Any) -> tuple:
        value, gradients = jax.value_and_grad(loss)(weights)
        updates, state = optimizer.update(gradients, state)
        return optax.apply_updates(weights, updates), state, value

    step = jax.jit(step, donate_argnums=(0, 1))
    held = [weights, optimizer.init(weights)]

    def once() -> None:
        *held[:], value = step(*held)
        jax.block_until_ready(value)

    return once


# A training step of DINO.


def dino_crops(batch: int) -> dict[str, np.ndarray]:
    """Returns two crops of 224 pixels and two of 96 of each image."""
    rng = np.random.default_rng(0)
    return {
        name: rng.normal(size=(batch, 2, size, size, 3)).astype("float32")
        for name, size in (("global", 224), ("local", 96))
    }


def run_dino(size: Size, images: np.ndarray, what: str) -> Run:
    import keras

    from keras_vit import pretraining

    encoder = keras_vit(size, images.shape[1], include_top=False, activation="gelu")
    model = pretraining.DINO(encoder, **DINO)
    model.compile(keras.optimizers.AdamW(1e-4))
    crops = dino_crops(len(images))
    return lambda: model.train_on_batch(crops)


def run_lightly(size: Size, images: np.ndarray, what: str) -> Run:
    """DINO, made of lightly's and timm's parts.

    It needs `pip install --no-deps lightly==1.6.0`.
    """
    import torch
    from lightly.loss import DINOLoss
    from lightly.models.modules import DINOProjectionHead
    from lightly.models.utils import update_momentum

    outputs, hidden, bottleneck = DINO.values()

    def build() -> torch.nn.Module:
        encoder = timm(size, images.shape[1], num_classes=0, dynamic_img_size=True)
        head = DINOProjectionHead(size.hidden_size, hidden, bottleneck, outputs)
        return torch.nn.Sequential(encoder, head)

    student, teacher = build(), build().requires_grad_(False)
    teacher.load_state_dict(student.state_dict())
    loss, batch = DINOLoss(outputs), len(images)
    optimizer = torch.optim.AdamW(student.parameters(), 1e-4)
    large, small = (
        torch.from_numpy(x).permute(1, 0, 4, 2, 3).flatten(0, 1).contiguous()
        for x in dino_crops(batch).values()
    )

    def step() -> None:
        update_momentum(student, teacher, 0.996)
        targets = teacher(large).split(batch)
        outputs = student(large).split(batch) + student(small).split(batch)
        optimizer.zero_grad()
        loss(targets, outputs).backward()
        optimizer.step()

    return step


@dataclasses.dataclass(frozen=True)
class Contender:
    """A function of the sizes of a model, of images and of what to measure,
    which returns a function that runs the model once.

    `libraries` are imported before the model is built, so that their memory
    can be subtracted. A contender with an `option` is measured only if that is
    given, or if it is named by `--only`.
    """

    start: Callable[[Size, np.ndarray, str], Run]
    libraries: tuple[str, ...] = ("keras_vit",)
    backends: tuple[str, ...] = BACKENDS
    option: str | None = None
    of: tuple[str, ...] = WHAT


def _keras(
    build: Callable,
    library: str = "keras_vit",
    run: Callable = run_keras,
    **more: Any,
) -> Contender:
    return Contender(partial(run, build), (library,), **more)


_COMPILED = partial(run_keras, jit_compile=True)
_BEFORE = {"option": "before"}
# These run without Keras's trainer.
_DIRECT = {
    "run": run_direct,
    "backends": ("jax", "torch"),
    "of": ("inference",),
}
# Keras compiles with XLA by itself under JAX, not under TensorFlow on a CPU.
_XLA = {"run": _COMPILED, "backends": ("tensorflow",)}
_COMPILE = {"backends": ("torch",), "option": "compile"}
CONTENDERS = {
    OURS: _keras(keras_vit),
    BEFORE: _keras(keras_vit, **_BEFORE),
    # PyTorch's packages compute the exact GELU; the tanh form is Google's.
    "keras_vit, exact GELU": _keras(partial(keras_vit, activation="gelu")),
    "keras-hub": _keras(keras_hub, "keras_hub"),
    "keras_vit, direct call": _keras(keras_vit, **_DIRECT),
    "keras-hub, direct call": _keras(keras_hub, "keras_hub", **_DIRECT),
    "keras_vit, XLA": _keras(keras_vit, **_XLA),
    "keras_vit, before, XLA": _keras(keras_vit, **_XLA, **_BEFORE),
    "keras-hub, XLA": _keras(keras_hub, "keras_hub", **_XLA),
    "vit_jax (Flax)": Contender(run_vit_jax, ("vit_jax.models_vit", "optax"), ("jax",)),
    "keras_vit, torch.compile": _keras(keras_vit, run=_COMPILED, **_COMPILE),
    "DINO": Contender(run_dino, backends=("torch",), option="only", of=("step",)),
    "DINO, lightly": Contender(
        run_lightly, ("lightly", "timm"), ("torch",), "only", ("step",)
    ),
    "matrix products": _keras(products, "keras", run_direct),
}
for name, build in (("timm", timm), ("transformers", transformers)):
    run = partial(run_torch, build)
    CONTENDERS[name] = Contender(run, (name,), ("torch",))
    CONTENDERS[f"{name}, torch.compile"] = Contender(
        partial(run, jit_compile=True), (name,), **_COMPILE
    )
for name, backends in (
    ("saved_model", ("jax", "tensorflow")),
    ("onnx", BACKENDS),
    ("onnx int8", BACKENDS),
    ("openvino", BACKENDS),
    ("openvino int8", BACKENDS),
    ("litert", ("tensorflow",)),
    ("litert int8", ("tensorflow",)),
):
    CONTENDERS[f"keras_vit, {name}"] = Contender(
        partial(run_exported, name),
        backends=backends,
        option="export",
        of=("inference",),
    )
