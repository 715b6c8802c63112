"""The contenders of each backend, and the sizes of their models."""

import dataclasses
from types import SimpleNamespace

BEFORE = "keras_vit, before"
LIMIT = "matrix products"
OURS = "keras_vit"

# "An Image is Worth 16x16 Words", Table 1; "How to train your ViT?", Table 2.
_SIZES = {
    "Ti16": (192, 12, 3, 768, 16),
    "S16": (384, 12, 6, 1536, 16),
    "B16": (768, 12, 12, 3072, 16),
    "L16": (1024, 24, 16, 4096, 16),
    "H14": (1280, 32, 16, 5120, 14),
}
_NAMES = "hidden_size", "num_layers", "num_heads", "mlp_dim", "patch_size"
SIZES = {
    name: SimpleNamespace(**dict(zip(_NAMES, values, strict=True)))
    for name, values in _SIZES.items()
}
CLASSES = 1000


@dataclasses.dataclass(frozen=True)
class Contender:
    """A function of a module of this package that builds a model.

    The module's `runs` measures it, with `arguments`. `libraries` are imported
    before the model is built, so that their memory can be subtracted. A
    contender with an `option` is measured only if that is given.
    """

    module: str
    function: str
    libraries: tuple = ()
    option: str | None = None
    of: tuple = ("inference", "step")
    arguments: dict = dataclasses.field(default_factory=dict)


_KERAS = {
    OURS: Contender("keras_models", "keras_vit", ("keras_vit",)),
    # keras_vit of another clone.
    BEFORE: Contender(
        "keras_models", "keras_vit", ("keras_vit",), option="before"
    ),
    # As PyTorch's packages compute it: the tanh form is Google's.
    "keras_vit, exact GELU": Contender(
        "keras_models", "keras_vit_erf", ("keras_vit",)
    ),
    "keras-hub": Contender("keras_models", "keras_hub", ("keras_hub",)),
}
# Without Keras's trainer.
_DIRECT = {
    f"{name}, direct call": dataclasses.replace(
        _KERAS[name], of=("inference",), arguments={"direct": True}
    )
    for name in (OURS, BEFORE, "keras-hub")
}
_LIMIT = {
    LIMIT: Contender(
        "keras_models", "products", ("keras",), arguments={"direct": True}
    )
}
# Keras compiles with XLA by itself under JAX, not under TensorFlow on a CPU.
_XLA = {
    f"{name}, XLA": dataclasses.replace(
        _KERAS[name], arguments={"jit_compile": True}
    )
    for name in (OURS, BEFORE, "keras-hub")
}
_TORCH = {
    OURS: _KERAS[OURS],
    "keras-hub": _KERAS["keras-hub"],
    "timm": Contender("torch_models", "timm", ("timm",)),
    "transformers": Contender(
        "torch_models", "transformers", ("transformers",)
    ),
}
_COMPILED = {
    f"{name}, torch.compile": dataclasses.replace(
        contender, option="compile", arguments={"jit_compile": True}
    )
    for name, contender in _TORCH.items()
}
# A training step of DINO, measured if it is named by `--only`.
_DINO = {
    "DINO": Contender(
        "keras_models", "dino", ("keras_vit",), option="only", of=("step",)
    ),
    "DINO, lightly": Contender(
        "torch_models", "dino", ("lightly", "timm"), option="only", of=("step",)
    ),
}


def _exported(*names):
    return {
        f"keras_vit, {name}": Contender(
            "exported_models",
            name,
            ("keras_vit",),
            option="export",
            of=("inference",),
        )
        for name in names
    }


_ONNX = "onnx", "onnx int8", "openvino", "openvino int8"
CONTENDERS = {
    "jax": {
        **_KERAS,
        **_DIRECT,
        "vit_jax (Flax)": Contender(
            "jax_models", "vit_jax", ("vit_jax.models_vit", "optax")
        ),
        **_exported("saved_model", *_ONNX),
        **_LIMIT,
    },
    "tensorflow": {
        **_KERAS,
        **_XLA,
        **_exported("saved_model", *_ONNX, "litert", "litert int8"),
        **_LIMIT,
    },
    "torch": {
        **_KERAS,
        **_DIRECT,
        **_TORCH,
        **_COMPILED,
        **_DINO,
        **_exported(*_ONNX, "torch"),
        **_LIMIT,
    },
}
NAMES = tuple(dict.fromkeys(name for c in CONTENDERS.values() for name in c))
