"""Fine-tunes weights on the 19 tasks of VTAB-1k, with 1000 images per task.

Settings are those of "An Image is Worth 16x16 Words", Section 4.1, Figure 2 and
Appendix B.1.1 (https://arxiv.org/abs/2010.11929): SGD with momentum 0.9, a peak
learning rate of 0.01 with cosine decay, 2500 steps of 512 images of 384 pixels,
gradients clipped to a global norm of 1, no weight decay, and a head of zeros.
As in BiT, images are resized, randomly cropped and flipped, except where this
would change the label ("Big Transfer", Section 3.3). Which tasks these are is
an interpretation: here, the structured tasks have neither, and SVHN has no
flips. Tasks, splits and labels are those of "VTAB"
(https://arxiv.org/abs/1910.04867) and its code,
google-research/task_adaptation.

  python recipes/vtab.py --model ViTB16 --weights imagenet21k
      runs all 19 tasks, on one GPU or one device of a TPU, with several
      hundred GB of TFDS data
  python recipes/vtab.py --weights ViT-B_16.npz --tasks dtd pets eurosat
      runs three of them
  python recipes/vtab.py --weights ViT-B_16.npz --validate
      trains on 800 images and evaluates on the 200 validation images, to choose
      settings

An interrupted run resumes with the same command: tasks in results.json are not
run again. The data of Resisc45 and Retinopathy must be downloaded manually. If
the data of a task are missing, the recipe prints how to get them and runs the
other tasks. The output folder contains results.json. The environment variable
KERAS_BACKEND selects jax, tensorflow or torch.
"""

import dataclasses
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np

import keras_vit
from keras_vit_programs import building, defaults, flags, run_folder, sizes

RESULTS = "results.json"
# Flags that may differ when a run resumes.
FREE = ("tasks", "output", "overwrite", "show_settings")
TASKS = (
    *("caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn"),
    *("camelyon", "eurosat", "resisc45", "retinopathy"),
    *("clevr-count", "clevr-distance", "dmlab", "kitti-distance"),
    *("dsprites-location", "dsprites-orientation"),
    *("smallnorb-azimuth", "smallnorb-elevation"),
)
DEFAULTS = (
    flags.Rule("weights", "none; it is required"),
    flags.Rule("spec", "", lambda s, _: sizes.resolve_model_spec(s.model, s.weights)),
    defaults.MODE,
    defaults.constant("image_size", 384),
    defaults.constant("batch_size", 512),
    flags.Rule("steps", "2500 for each task", lambda s, _: 2500),
    defaults.constant("learning_rate", 0.01),
    # vit_jax/configs/common.py has 500 warm-up steps.
    defaults.constant("warmup", 0.2),
    defaults.constant("output", "runs/vtab"),
)


@dataclasses.dataclass(frozen=True)
class Config(
    flags.Weights,
    flags.Pixels,
    flags.Compute,
    flags.Steps,
    flags.Warmup,
    flags.Output,
):
    tasks: tuple[str, ...] = flags.flag(
        f"one or more of {', '.join(TASKS)}; default: all", (), choices=TASKS
    )
    validate: bool = flags.flag(
        "train on 800 images and evaluate on the 200 validation images "
        "instead of the test set",
        False,
    )

    defaults = DEFAULTS

    def __post_init__(self):
        super().__post_init__()
        if self.weights is None:
            raise ValueError("Give --weights: the weights to fine-tune.")


def main(config):
    with flags.user_errors():
        if config.mixed_precision:
            keras.config.set_dtype_policy("mixed_bfloat16")
        flags.require("tensorflow_datasets")
        config = flags.fill(config)
        spec = sizes.resolve_model_spec(config.model, config.weights)
        if spec["stride"]:
            sizes.check_patch_size(
                config.image_size, spec["patch_size"] * spec["stride"]
            )
        output, done = opened(config)
    names = config.tasks or TASKS
    missing = {}
    for number, name in enumerate(names, start=1):
        if name in done:
            print(f"{name}: {done[name]['accuracy']:.4f}, done before")
            continue
        print(f"\n{name} ({number} of {len(names)})", flush=True)
        try:
            data = keras_vit.data.load_vtab(name, config.validate)
        except ValueError as error:
            missing[name] = str(error)
            print(error)
            continue
        done[name] = fine_tune(config, name, data)
        print(f"{name}: {done[name]['accuracy']:.4f}", flush=True)
        save(config, output, done)
    save(config, output, done)
    show(done)
    print(f"  {output / RESULTS}")
    if missing:
        raise flags.UserError(
            f"{len(missing)} tasks were left out, because their data could not "
            f"be had: {', '.join(missing)}. The reasons are above; the same "
            "command resumes with them."
        )


def opened(config):
    """Returns the path of the output folder, and its results by task."""
    path = run_folder.check_output(config.output, overwrite=True) / RESULTS
    if config.overwrite or not path.exists():
        run_folder.check_output(config.output, config.overwrite)
        run_folder.prepare_output(path.parent, [RESULTS])
        return path.parent, {}
    try:
        earlier = json.loads(path.read_text())
        settings, done = earlier["config"], earlier["tasks"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{str(path)!r} does not hold results of this recipe. Choose another "
            "--output, or --overwrite."
        ) from error
    found, expected = (
        {name: value for name, value in flags.items() if name not in FREE}
        for flags in (settings, dataclasses.asdict(config))
    )
    run_folder.check_same_run(path, found, expected)
    return path.parent, done


def optimizer_of(rate):
    # As in vit_jax/train.py, the momentum is in bfloat16.
    return keras_vit.optimizers.PublishedSGD(
        rate, momentum=0.9, momentum_dtype="bfloat16", global_clipnorm=1.0
    )


def fine_tune(config, name, data):
    """Fine-tunes and evaluates the weights on one task."""
    started = time.perf_counter()
    task = keras_vit.data.VTAB_TASKS[name]
    keras.utils.clear_session()
    keras.utils.set_random_seed(config.seed)
    model = building.build_model(
        config.model,
        config.weights,
        None,
        config.seed,
        input_shape=config.input_shape(data.channels),
        classes=task.classes,
        remat=config.remat,
    )
    # Its last block computes only the tokens that the head reads.
    model = keras_vit.models.inference_model(model)
    rate = keras_vit.schedules.warmup_cosine(
        config.learning_rate, config.steps, config.warmup
    )
    model.compile(
        optimizer=optimizer_of(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=keras_vit.training.jit_compile(),
    )
    options = {
        "image_size": config.image_size,
        "batch_size": config.batch_size,
        "mode": config.mode,
        "protocol": "bit-hyperrule" if task.crop else "whole",
    }
    batches = data.train(seed=config.seed, flip=task.flip, **options)
    history = model.fit(
        batches,
        steps_per_epoch=config.steps,
        shuffle=False,  # the batches are shuffled already
        verbose=1 if sys.stdout.isatty() else 2,
    )
    loss = history.history["loss"][-1]
    if not np.isfinite(loss):
        raise keras_vit.training.Diverged(
            f"The loss of {name} is not a number. Lower --learning-rate."
        )
    logits, labels = keras_vit.evaluation.predict_dataset(
        model, data.test(**options), data.num_test
    )
    return {
        "group": task.group,
        "accuracy": keras_vit.evaluation.accuracy(logits, labels),
        "images": len(labels),
        "train_loss": float(loss),
        "seconds": round(time.perf_counter() - started, 1),
    }


def groups():
    return (*keras_vit.data.VTAB_GROUPS, "all")


def means_of(done):
    """Returns the mean accuracies of the groups of tasks and of all tasks;
    groups with missing results are left out."""
    tasks, means = keras_vit.data.VTAB_TASKS, {}
    for group in groups():
        names = [x for x in tasks if group in ("all", tasks[x].group)]
        if all(name in done for name in names):
            found = [done[name]["accuracy"] for name in names]
            means[group] = float(np.mean(found))
    return means


def save(config, output, done):
    results = {"tasks": done, "means": means_of(done)}
    results |= run_folder.program_info(dataclasses.asdict(config))
    run_folder.save_json(results, output / RESULTS)


def show(done):
    tasks, means = keras_vit.data.VTAB_TASKS, means_of(done)
    rows = [(x, y.group, done.get(x, {}).get("accuracy")) for x, y in tasks.items()]
    rows += [("mean", group, means.get(group)) for group in groups()]
    print(f"\n{'task':24}{'group':14}{'accuracy':>9}")
    for name, group, accuracy in rows:
        shown = "-" if accuracy is None else f"{accuracy:.4f}"
        print(f"{name:24}{group:14}{shown:>9}")


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
