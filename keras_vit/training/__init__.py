"""Training runs that resume bit for bit, and helpers of the recipes.

Its modules hold what a program of your own rarely needs: `command_line` (flags
from dataclasses), `run_folder` (locks and atomic writes), `models` (patch
sizes and initial values), `plots`, `study` (several runs of one program), and
`pretraining` (training without labels).
"""

from keras_vit.training.callbacks import CSVMetrics as CSVMetrics
from keras_vit.training.callbacks import EvaluateAverages as EvaluateAverages
from keras_vit.training.checkpoint import Diverged as Diverged
from keras_vit.training.checkpoint import Preempted as Preempted
from keras_vit.training.checkpoint import (
    ResumableCheckpoint as ResumableCheckpoint,
)
from keras_vit.training.models import MODEL_NAMES as MODEL_NAMES
from keras_vit.training.models import build_model as build_model
from keras_vit.training.models import check_classes as check_classes
from keras_vit.training.models import (
    choose_model_and_size as choose_model_and_size,
)
from keras_vit.training.models import fine_tuning_size as fine_tuning_size
from keras_vit.training.models import freeze_weights as freeze_weights
from keras_vit.training.models import resolve_model_spec as resolve_model_spec
from keras_vit.training.models import set_trainable as set_trainable
from keras_vit.training.presets import FINE_TUNING as FINE_TUNING
from keras_vit.training.presets import PRE_TRAINING as PRE_TRAINING
from keras_vit.training.run_folder import COMPARISON as COMPARISON
from keras_vit.training.run_folder import save_json as save_json
from keras_vit.training.setup import begin as begin
from keras_vit.training.setup import build_optimizer as build_optimizer
from keras_vit.training.setup import jit_compile as jit_compile
from keras_vit.training.setup import launch as launch
from keras_vit.training.setup import load_run_data as load_run_data
from keras_vit.training.setup import warmup_decay as warmup_decay
from keras_vit.training.study import begin_study as begin_study
from keras_vit.training.study import measure_once as measure_once
from keras_vit.training.study import open_study as open_study
from keras_vit.training.study import read_finished as read_finished
from keras_vit.training.study import sweep as sweep
from keras_vit.training.study import train_classifier as train_classifier
from keras_vit.training.training_run import FILES as FILES
from keras_vit.training.training_run import Run as Run
from keras_vit.training.training_run import print_results as print_results
from keras_vit.training.training_run import write_model as write_model
