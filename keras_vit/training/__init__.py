"""Training that resumes bit for bit, and helpers for training programs."""

from keras_vit.training.callbacks import EvaluateAverages
from keras_vit.training.checkpoint import Preempted, ResumableCheckpoint
from keras_vit.training.compiling import jit_compile
from keras_vit.training.freezing import freeze_weights, set_trainable
from keras_vit.training.state_files import Diverged

__all__ = [
    "Diverged", "EvaluateAverages", "freeze_weights", "jit_compile", "Preempted",
    "ResumableCheckpoint", "set_trainable",
]  # fmt: skip
