from dataclasses import dataclass
from dataclasses import field

from keras_vit.downloads import Source


@dataclass(frozen=True)
class Weights:
    """A row of the table: one set of weights, whoever hands it out."""

    files: tuple  # of (Source, layout), the one to try first first
    image_size: int
    classes: int | None  # None: there is no head
    mode: str  # of `preprocess_input`
    # What is so whichever file is read, as it follows from the training.
    arguments: dict = field(default_factory=dict)
    zero_head: bool = False  # released with a head of zeros, or without it


def bucket(path, layout="vit_jax"):
    """An .npz file of Google's."""
    url = f"https://storage.googleapis.com/{path.replace('+', '%2B')}.npz"
    return Source(url), layout


def hub(repository, layout):
    """The weights of a repository on the Hugging Face hub."""
    return Source(f"hf://{repository}/model.safetensors"), layout


def meta(path, layout, digest=""):
    """A .pth file of Meta's."""
    url = f"https://dl.fbaipublicfiles.com/{path}.pth"
    return Source(url, digest), layout
