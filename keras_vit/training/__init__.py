"""Training that resumes bit for bit, and helpers of training programs."""

from keras_vit.training.callbacks import EvaluateAverages as EvaluateAverages
from keras_vit.training.checkpoint import Preempted as Preempted
from keras_vit.training.checkpoint import ResumableCheckpoint as ResumableCheckpoint
from keras_vit.training.compiling import jit_compile as jit_compile
from keras_vit.training.freezing import freeze_weights as freeze_weights
from keras_vit.training.freezing import set_trainable as set_trainable
from keras_vit.training.state_files import Diverged as Diverged
