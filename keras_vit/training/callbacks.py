"""Keras callbacks of training, and the scores of its evaluations."""

import contextlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import keras

from keras_vit.optimizers import averaged
from keras_vit.utils import checks

# The metrics by name, in all calls by `model.fit`: Keras's default is None.
Logs: TypeAlias = Any
# The step of an evaluation and its metrics, such as "test_accuracy", by name.
Row: TypeAlias = dict[str, Any]
# What a model is selected by: the first of these that is measured. The sign is
# that of a higher score for a better model.
SCORES = {
    "accuracy": 1,
    "mean_average_precision": 1,
    "mean_iou": 1,
    "AP": 1,
    "knn_accuracy": 1,
    "zero_shot_accuracy": 1,
    "loss": -1,
}


def score_name(row: Row) -> str:
    """Returns the name of the score in a row, such as "test_accuracy": the first
    of `SCORES` that was measured; raises a `ValueError` if none was."""
    names = [f"{split}_{x}" for x in SCORES for split in ("validation", "test")]
    found = [name for name in names if name in row]
    if not found:
        raise ValueError(
            "The best weights are those of the best evaluation, and there was none. "
            f"Give `fit` `validation_data`. Received: metrics {', '.join(row)}"
        )
    return found[0]


def selection_score(row: Row) -> float:
    """Returns the score of a row for model selection; higher scores are better."""
    name = score_name(row)
    return SCORES[name.partition("_")[2]] * row[name]


def comparable(rows: Sequence[Row]) -> list[Row]:
    """Returns the rows with the `score_name` of the last row: if a run was resumed with
    other metrics, earlier rows may have another score."""
    name = score_name(rows[-1])
    return [row for row in rows if name in row and score_name(row) == name]


def best_row(rows: Sequence[Row]) -> Row:
    """Returns the row with the highest `selection_score` among the `comparable` rows;
    the last one if there are several."""
    return max(reversed(comparable(rows)), key=selection_score)


class EvaluateAverages(keras.callbacks.Callback):
    """Evaluates the moving averages of the weights during training.

    It is for optimizers with `use_ema=True`. Training continues with the weights that
    are not averaged. After training, the model has the averages, as after `model.fit`.

    `model.fit` replaces the weights by their averages at the end of each call,
    which this callback reverts when the next call begins. It does not use Keras's
    `SwapEMAWeights`, which adds and subtracts the averages under TensorFlow, so that
    each evaluation would change the weights by rounding errors.
    """

    def __init__(self) -> None:
        super().__init__()
        self._evaluation, self._raw = contextlib.ExitStack(), None

    def on_train_begin(self, logs: Logs = None) -> None:
        checks.averages_fit_norms(self.model)
        if self._raw is not None:
            for variable, value in zip(
                self.model.trainable_variables, self._raw, strict=True
            ):
                variable.assign(value)
        self._raw = None

    def on_test_begin(self, logs: Logs = None) -> None:
        self._evaluation.enter_context(averaged(self.model))

    def on_test_end(self, logs: Logs = None) -> None:
        self._evaluation.close()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if epoch + 1 == self.params["epochs"]:
            self._raw = [
                keras.ops.convert_to_numpy(variable)
                for variable in self.model.trainable_variables
            ]
