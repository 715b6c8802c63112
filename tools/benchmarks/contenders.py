"""Who is measured on each backend: where it is built, and of what library."""

import dataclasses

LIMIT = "matrix products"
RATE = "matrix rate"
OURS = "keras_vit"

_EXTRA = 'pip install -e ".[bench]"'
_CLONE = "put a clone of google-research/vision_transformer on PYTHONPATH"


@dataclasses.dataclass(frozen=True)
class Contender:
    """A function of a module here, and what it builds upon.

    `libraries` are imported before anything is built, so that what they hold
    in memory is known; `hint` says where they come from. `compiled` ones are
    left out unless `--compile` asks for them.
    """

    module: str
    function: str
    libraries: tuple = ()
    hint: str = _EXTRA
    compiled: bool = False


_PRODUCTS = {
    backend: {
        LIMIT: Contender(f"{backend}_models", "products"),
        RATE: Contender("rates", backend, (backend,)),
    }
    for backend in ("jax", "tensorflow", "torch")
}
_KERAS = {
    OURS: Contender("keras_models", "keras_vit", ("keras_vit",)),
    # As PyTorch's packages compute it: the tanh form is Google's.
    "keras_vit, exact GELU": Contender(
        "keras_models", "keras_vit_erf", ("keras_vit",)
    ),
    "keras-hub": Contender("keras_models", "keras_hub", ("keras_hub",)),
    "zeromodels": Contender(
        "keras_models", "zeromodels", ("zeromodels.models.vit",)
    ),
}
_TIMM = ("timm.models.vision_transformer",)
_TRANSFORMERS = ("transformers.models.vit.modeling_vit",)

CONTENDERS = {
    "jax": {
        **_KERAS,
        "vit_jax (Flax)": Contender(
            "jax_models", "vit_jax", ("vit_jax.models_vit", "optax"), _CLONE
        ),
        **_PRODUCTS["jax"],
    },
    "tensorflow": {**_KERAS, **_PRODUCTS["tensorflow"]},
    "torch": {
        **_KERAS,
        "timm": Contender("torch_models", "timm", _TIMM),
        "timm, torch.compile": Contender(
            "torch_models", "timm", _TIMM, compiled=True
        ),
        "transformers": Contender(
            "torch_models", "transformers", _TRANSFORMERS
        ),
        "transformers, torch.compile": Contender(
            "torch_models", "transformers", _TRANSFORMERS, compiled=True
        ),
        **_PRODUCTS["torch"],
    },
}
NAMES = tuple(dict.fromkeys(name for c in CONTENDERS.values() for name in c))
