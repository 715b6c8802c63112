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


def _keras(function, library="keras_vit", **more):
    return Contender("keras_models", function, (library,), **more)


def _changed(suffix, contenders, **changes):
    """Returns contenders with other fields, and names that say so."""
    return {
        f"{name}, {suffix}": dataclasses.replace(contender, **changes)
        for name, contender in contenders.items()
    }


_KERAS = {
    OURS: _keras("keras_vit"),
    BEFORE: _keras("keras_vit", option="before"),  # of another clone
    # As PyTorch's packages compute it: the tanh form is Google's.
    "keras_vit, exact GELU": _keras("keras_vit_erf"),
    "keras-hub": _keras("keras_hub", "keras_hub"),
}
_MAIN = {name: _KERAS[name] for name in (OURS, BEFORE, "keras-hub")}
# Without Keras's trainer.
_DIRECT = _changed(
    "direct call", _MAIN, of=("inference",), arguments={"direct": True}
)
_LIMIT = {LIMIT: _keras("products", "keras", arguments={"direct": True})}
# Keras compiles with XLA by itself under JAX, not under TensorFlow on a CPU.
_XLA = _changed("XLA", _MAIN, arguments={"jit_compile": True})
_TORCH = {
    OURS: _KERAS[OURS],
    "keras-hub": _KERAS["keras-hub"],
    "timm": Contender("torch_models", "timm", ("timm",)),
    "transformers": Contender(
        "torch_models", "transformers", ("transformers",)
    ),
}
_COMPILED = _changed(
    "torch.compile", _TORCH, option="compile", arguments={"jit_compile": True}
)
# A training step of DINO, measured if it is named by `--only`.
_DINO = {
    "DINO": _keras("dino", option="only", of=("step",)),
    "DINO, lightly": Contender(
        "torch_models", "dino", ("lightly", "timm"), option="only", of=("step",)
    ),
}


def _exported(*names):
    exported = Contender(
        *("exported_models", "", ("keras_vit",)),
        option="export",
        of=("inference",),
    )
    return {
        f"keras_vit, {name}": dataclasses.replace(exported, function=name)
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
