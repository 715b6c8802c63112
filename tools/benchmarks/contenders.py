"""Who is measured on each backend: where it is built, and of what library."""

import dataclasses

BEFORE = "keras_vit, before"
LIMIT = "matrix products"
RATE = "matrix rate"
OURS = "keras_vit"

_EXTRA = 'pip install -e ".[bench]"'
_CLONE = "put a clone of google-research/vision_transformer on PYTHONPATH"


@dataclasses.dataclass(frozen=True)
class Contender:
    """A function of a module here, or what its `runs` takes, and what that
    builds upon.

    `libraries` are imported before anything is built, so that what they hold
    in memory is known; `hint` says where they come from. Those with an
    `option` are left out unless it was given. `of` is what they can do, and
    `arguments` are further ones of the module's `runs`.
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
    # The same of another tree.
    BEFORE: Contender(
        "keras_models", "keras_vit", ("keras_vit",), option="before"
    ),
    # As PyTorch's packages compute it: the tanh form is Google's.
    "keras_vit, exact GELU": Contender(
        "keras_models", "keras_vit_erf", ("keras_vit",)
    ),
    # The recipes' optimizer for Keras's own.
    "keras_vit, its SGD": Contender(
        "keras_models", "keras_vit_sgd", ("keras_vit",), of=("step",)
    ),
    "keras-hub": Contender("keras_models", "keras_hub", ("keras_hub",)),
    "zeromodels": Contender(
        "keras_models", "zeromodels", ("zeromodels.models.vit",)
    ),
}
# Without Keras's trainer around it.
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


_ONNX = {"onnx": "ONNX", "onnx_int8": "ONNX int8"}
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
