"""A checkpoint opened: its weights under our names and what they tell."""

from dataclasses import dataclass

from keras_vit.converters._architecture import architecture
from keras_vit.converters._convert import Format
from keras_vit.converters._convert import from_checkpoint
from keras_vit.converters._files import read
from keras_vit.converters._formats import FORMATS


@dataclass(frozen=True)
class Checkpoint:
    path: str
    format: Format
    weights: dict  # our paths to arrays

    def architecture(self, grid=None, class_token=None):
        """Returns what `converters._architecture.architecture` says of it."""
        shapes = {path: array.shape for path, array in self.weights.items()}
        try:
            return architecture(shapes, grid, class_token)
        except ValueError as error:
            raise ValueError(f"{self.path!r} cannot be used. {error}") from None


def open_checkpoint(path, layout="vit_jax"):
    """Reads a file exactly, under the spelling that knows most of its keys.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read, or is not in that layout.
    """
    arrays = read(path)
    spelling = min(FORMATS[layout], key=lambda f: len(f.unknown(arrays)))
    try:
        weights = from_checkpoint(arrays, spelling)
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} is not in the layout {layout!r}. {error}"
        ) from None
    return Checkpoint(str(path), spelling, weights)
