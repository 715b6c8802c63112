"""What changes while a model is trained, to a file and back."""

import json
import os

import keras
import numpy as np

from keras_vit.training._output import replacing


class Diverged(ArithmeticError):
    """The loss is no number any more."""


def raise_if_another(path, found, expected):
    """Raises a `ValueError` if a file's run is not the run at hand.

    Args:
        path: Path that is named.
        found: Dict of facts, as JSON has them.
        expected: Dict of facts.
    """
    expected = json.loads(json.dumps(expected))
    differing = [
        f"{name} was {found.get(name, 'not recorded')!r} and is "
        f"{expected.get(name, 'not recorded')!r}"
        for name in sorted(found.keys() | expected.keys())
        if found.get(name) != expected.get(name)
    ]
    if found.keys() != expected.keys():
        differing.append("it was written by another version of this package")
    if differing:
        raise ValueError(
            f"{str(path)!r} is of another run: {'; '.join(differing)}. Run "
            "the same command to go on, or start anew in another folder or "
            "with --overwrite."
        )


class _TorchRandom:
    """PyTorch's random state, looking like a variable.

    Unseeded dropout draws from it, and so do data loaders and evaluations. So
    it begins anew with every interval, from the seed and the step, and is
    saved in the midst of one.
    """

    dtype = "uint8"

    def __init__(self, device):
        self.device = device

    @property
    def shape(self):
        return tuple(self.device.get_rng_state().shape)

    def seed(self, entropy):
        import torch

        (seed,) = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
        torch.manual_seed(int(seed >> np.uint64(1)))

    def assign(self, array):
        import torch

        self.device.set_rng_state(torch.from_numpy(array.copy()))

    def __array__(self, dtype=None, copy=None):
        return self.device.get_rng_state().numpy().copy()


def random_states():
    if keras.backend.backend() != "torch":
        return []
    import torch

    # Dropout draws on the device that it runs on.
    return [_TorchRandom(torch.cuda if torch.cuda.is_available() else torch)]


def state_of(model):
    """Returns all that changes while a model is trained, by name."""
    groups = {
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        "random": random_states(),
    }
    return {
        f"{group}/{i}": variable
        for group, variables in groups.items()
        for i, variable in enumerate(variables)
    }


def _raise_unless_finite(name, array):
    """A step can blow up the weights before any loss shows it."""
    if (
        array.dtype.kind in "fV"
        and not np.isfinite(array.astype("float32")).all()
    ):
        raise Diverged(
            f"A value of {name} is not finite any more. Nothing was saved over "
            "the last good checkpoint. Lower the learning rate, or lengthen "
            "the warm-up."
        )


def arrays_of(state):
    """Returns the values as arrays that a file can hold."""
    arrays = {}
    for name, variable in state.items():
        dtype = keras.backend.standardize_dtype(variable.dtype)
        if not isinstance(variable, _TorchRandom):
            variable = keras.ops.convert_to_numpy(variable)
        array = np.asarray(variable)
        _raise_unless_finite(name, array)
        if dtype == "bfloat16":  # which .npz has no name for; no bit is lost
            array = array.astype("float32")
        arrays[name] = array
    return arrays


def write_state(path, arrays, note):
    # An archive's list of its members has no checksum; the note has one.
    text = json.dumps({**note, "names": list(arrays)}).encode()
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, note=np.frombuffer(text, np.uint8), **arrays)
        file.flush()
        os.fsync(file.fileno())  # or a power cut leaves a name without bytes


def read_state(path):
    """Returns `(arrays, note)`; checksums are compared while reading."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    note = json.loads(arrays.pop("note").tobytes())
    if note.pop("names") != list(arrays):
        raise ValueError("its arrays are not all there")
    return arrays, note
