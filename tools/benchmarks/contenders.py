"""The contenders of each backend: their modules and libraries."""

import dataclasses

BEFORE = "keras_vit, before"
LIMIT = "matrix products"
RATE = "matrix rate"
OURS = "keras_vit"

_EXTRA = 'pip install -e ".[bench]"'
_CLONE = "put a clone of google-research/vision_transformer on PYTHONPATH"


@dataclasses.dataclass(frozen=True)
class Contender:
    """A contender: a function of a module of this package, or an argument of
    the module's `runs`, and its libraries.

    `libraries` are imported before the model is built, so that their memory
    can be subtracted; `hint` describes how to install them. A contender with
    an `option` is measured only if it is given. `of` lists the supported
    measurements, and `arguments` are further arguments of `runs`.
    """

    module: str
    function: str
    libraries: tuple = ()
    hint: str = _EXTRA
    option: str | None = None
    of: tuple = ("inference", "step")
    arguments: dict = dataclasses.field(default_factory=dict)


_PRODUCTS = {
    backend: {
        LIMIT: Contender(f"{backend}_models", "products"),
        RATE: Contender("rates", backend, (backend,)),
    }
    for backend in ("jax", "tensorflow", "torch")
}
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
    # With the optimizer of the recipes instead of Keras's.
    "keras_vit, its SGD": Contender(
        "keras_models", "keras_vit_sgd", ("keras_vit",), of=("step",)
    ),
    "keras-hub": Contender("keras_models", "keras_hub", ("keras_hub",)),
    "zeromodels": Contender(
        "keras_models", "zeromodels", ("zeromodels.models.vit",)
    ),
}
# Without Keras's trainer.
_DIRECT = {
    f"{name}, direct call": dataclasses.replace(
        _KERAS[name], of=("inference",), arguments={"direct": True}
    )
    for name in (OURS, BEFORE, "keras-hub")
}
# Keras compiles with XLA by itself under JAX, not under TensorFlow on a CPU.
_XLA = {
    f"{name}, XLA": dataclasses.replace(
        _KERAS[name], arguments={"jit_compile": True}
    )
    for name in (OURS, BEFORE, "keras-hub")
}

# `jit_compile=True` is `torch.compile` under PyTorch.
_COMPILED = {
    f"{name}, torch.compile": dataclasses.replace(
        _KERAS[name], option="compile", arguments={"jit_compile": True}
    )
    for name in (OURS, "keras-hub")
}


def _exported(**functions):
    return {
        f"keras_vit, {name}": Contender(
            "exported_models",
            function,
            ("keras_vit",),
            'pip install -e ".[export]"',
            option="export",
            of=("inference",),
        )
        for function, name in functions.items()
    }


_ONNX = {
    "onnx": "ONNX",
    "onnx_int8": "ONNX int8",
    "openvino": "OpenVINO",
    "openvino_int8": "OpenVINO int8",
}
_TIMM = ("timm.models.vision_transformer",)
_TRANSFORMERS = ("transformers.models.vit.modeling_vit",)

CONTENDERS = {
    "jax": {
        **_KERAS,
        **_DIRECT,
        "vit_jax (Flax)": Contender(
            "jax_models", "vit_jax", ("vit_jax.models_vit", "optax"), _CLONE
        ),
        **_exported(saved_model="SavedModel", **_ONNX),
        **_PRODUCTS["jax"],
    },
    "tensorflow": {
        **_KERAS,
        **_XLA,
        **_exported(
            saved_model="SavedModel",
            **_ONNX,
            litert="LiteRT",
            litert_int8="LiteRT int8",
        ),
        **_PRODUCTS["tensorflow"],
    },
    "torch": {
        **_KERAS,
        **_DIRECT,
        **_COMPILED,
        "timm": Contender("torch_models", "timm", _TIMM),
        "timm, torch.compile": Contender(
            "torch_models",
            "timm",
            _TIMM,
            option="compile",
            arguments={"compiled": True},
        ),
        "transformers": Contender(
            "torch_models", "transformers", _TRANSFORMERS
        ),
        "transformers, torch.compile": Contender(
            "torch_models",
            "transformers",
            _TRANSFORMERS,
            option="compile",
            arguments={"compiled": True},
        ),
        **_exported(**_ONNX, torch_program="torch.export"),
        **_PRODUCTS["torch"],
    },
}
NAMES = tuple(dict.fromkeys(name for c in CONTENDERS.values() for name in c))
