"""Who is measured on each backend: a name, and where it is built."""

LIMIT = "matrix products"
OURS = "keras_vit"

_KERAS = {
    OURS: ("keras_models", "keras_vit"),
    # As PyTorch's packages compute it: the tanh form is Google's.
    "keras_vit, exact GELU": ("keras_models", "keras_vit_erf"),
    "keras-hub": ("keras_models", "keras_hub"),
    "zeromodels": ("keras_models", "zeromodels"),
}

CONTENDERS = {
    "jax": {
        **_KERAS,
        "vit_jax (Flax)": ("jax_models", "vit_jax"),
        LIMIT: ("jax_models", "products"),
    },
    "tensorflow": {
        **_KERAS,
        LIMIT: ("tensorflow_models", "products"),
    },
    "torch": {
        **_KERAS,
        "timm": ("torch_models", "timm"),
        "timm, torch.compile": ("torch_models", "timm", True),
        "transformers": ("torch_models", "transformers"),
        LIMIT: ("torch_models", "products"),
    },
}
