"""Training runs that resume, and the building blocks of training programs."""

from keras_vit._logging import show as show_log  # noqa: F401
from keras_vit._program import UserError as UserError
from keras_vit._program import require as require
from keras_vit._program import user_errors as user_errors
from keras_vit.training.ablation import PLACES as PLACES
from keras_vit.training.ablation import write_ablation as write_ablation
from keras_vit.training.callbacks import EvaluateAverages as EvaluateAverages
from keras_vit.training.callbacks import MetricsFile as MetricsFile
from keras_vit.training.checkpoint import Diverged as Diverged
from keras_vit.training.checkpoint import Preempted as Preempted
from keras_vit.training.checkpoint import (
    ResumableCheckpoint as ResumableCheckpoint,
)
from keras_vit.training.command_line import TrainingFlags as TrainingFlags
from keras_vit.training.command_line import check_names as check_names
from keras_vit.training.command_line import check_numbers as check_numbers
from keras_vit.training.command_line import flag as flag
from keras_vit.training.command_line import flags as flags
from keras_vit.training.command_line import run as run
from keras_vit.training.masked import METHODS as METHODS
from keras_vit.training.masked import Reconstructions as Reconstructions
from keras_vit.training.masked import build_masked as build_masked
from keras_vit.training.masked import method_of as method_of
from keras_vit.training.masked import save_masked as save_masked
from keras_vit.training.models import MODEL_NAMES as MODEL_NAMES
from keras_vit.training.models import bias_head as bias_head
from keras_vit.training.models import build_model as build_model
from keras_vit.training.models import check_classes as check_classes
from keras_vit.training.models import check_patch_size as check_patch_size
from keras_vit.training.models import choose_patch_size as choose_patch_size
from keras_vit.training.models import choose_sizes as choose_sizes
from keras_vit.training.models import (
    initialize_positions as initialize_positions,
)
from keras_vit.training.models import layout_of as layout_of
from keras_vit.training.models import model_facts as model_facts
from keras_vit.training.models import set_trainable as set_trainable
from keras_vit.training.models import zero_head as zero_head
from keras_vit.training.plots import save_curves as save_curves
from keras_vit.training.plots import save_predictions as save_predictions
from keras_vit.training.plots import spread_out as spread_out
from keras_vit.training.presets import FINE_TUNING as FINE_TUNING
from keras_vit.training.presets import PRESETS as PRESETS
from keras_vit.training.results import FILES as FILES
from keras_vit.training.results import print_results as print_results
from keras_vit.training.run_folder import CHECKPOINTS as CHECKPOINTS
from keras_vit.training.run_folder import check_output as check_output
from keras_vit.training.run_folder import circumstances as circumstances
from keras_vit.training.run_folder import open_output as open_output
from keras_vit.training.run_folder import replacing as replacing
from keras_vit.training.run_folder import save_json as save_json
from keras_vit.training.run_folder import versions as versions
from keras_vit.training.setup import begin as begin
from keras_vit.training.setup import jit_compile as jit_compile
from keras_vit.training.sweep import rates_of as rates_of
from keras_vit.training.sweep import sweep as sweep
from keras_vit.training.training_run import Run as Run
