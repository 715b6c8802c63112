"""The teacher of the flag `--teacher`."""

from typing import Any

import keras

from keras_vit import losses
from keras_vit.data import ImageDataset
from keras_vit.distillation import TARGETS, Distillation, as_teacher
from keras_vit.evaluation import load_classifier
from keras_vit_programs import flags


def distill(student: keras.Model, config: flags.Teacher, data: ImageDataset) -> Any:
    """Returns the model that a recipe trains: the student, or with `--teacher`
    a `Distillation`."""
    if config.teacher is None:
        return student
    if len(student.inputs) > 1:
        raise ValueError(
            "--teacher sees images of one size: leave out --max-tokens. Received: "
            f"--max-tokens {vars(config)['max_tokens']}"
        )
    target = config.distill or "logits"
    kinds = TARGETS[target]
    kind = config.distill_loss or kinds[0]
    for unfit, what in (
        (kind not in kinds, f"--distill-loss {kind}"),
        (kind != "soft" and config.temperature, "--temperature"),
        (target != "features" and config.loss == "sigmoid", "--loss sigmoid"),
    ):
        if unfit:
            raise ValueError(
                f"{what} does not go with --distill {target}, whose losses are "
                f"{', '.join(kinds)} (only soft has a temperature, and only "
                "features go with --loss sigmoid): leave it out."
            )
    trained = load_classifier(
        config.teacher, config.teacher_model, config.teacher_size, config.teacher_mode
    )
    teacher = as_teacher(
        trained,
        target == "features",
        config.mode or "tf",
        config.input_shape(data.channels)[-1],
        data,
    )
    loss = losses.DistillationLoss(kind, config.temperature or 1.0)
    return Distillation(student, teacher, target, loss, config.alpha)
