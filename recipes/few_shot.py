"""Evaluates the frozen features of a model by simple classifiers.

The few-shot accuracy is that of "An Image is Worth 16x16 Words", Section 4.1
and Figure 4 (https://arxiv.org/abs/2010.11929): regularized least-squares
regression, in closed form, from the features of 1, 5, 10 and 25 images per
class to targets of -1 and 1, with the settings of big_vision's
`fewshot_lsr.py`. On all training images, the recipe also fits a linear probe
(softmax regression) and nearest neighbors (k = 20, votes weighted by
similarity, as for DINO).

  python recipes/few_shot.py --weights runs/digits
      evaluates the model of a training recipe's run on the dataset of its
      training
  python recipes/few_shot.py --model ViTB16 --weights imagenet21k \\
      --dataset oxford_iiit_pet --image-size 224
      evaluates released weights on a dataset of TFDS; a GPU or a TPU is
      recommended, of which one device is used
  python recipes/few_shot.py --weights runs/digits --l2 1 32 1024 32768
      compares several regularization strengths

Features are the inputs of the classification head. The output folder contains
results.json and features.npz. The image size and the preprocessing are read
from the config.json of the run, if there is one; otherwise images are resized
as in big_vision's `common_fewshot.py`. The environment variable KERAS_BACKEND
selects jax, tensorflow or torch.
"""

import dataclasses
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np

import keras_vit
from keras_vit_programs import classifiers, defaults, flags, run_folder

FILES = ("results.json", "features.npz")
PROBE_L2 = 1e-3
# Maximum number of training images times classes for which the linear probe is
# fitted by default. CIFAR-100 has 5 million, ImageNet 1.3 billion: its scores
# take 10 GB in float64 and are computed up to 1000 times.
LARGEST_PROBE = 100_000_000
# As published: big_vision/configs/common_fewshot.py
PROTOCOL = "few-shot"


DEFAULTS = (
    flags.Rule(
        "protocol",
        f"as in training if that is known, else {PROTOCOL}, the published one, "
        "which resizes to 256 pixels and crops the central 224",
    ),
    defaults.constant("batch_size", 64),
)


@dataclasses.dataclass(frozen=True)
class Config(flags.Evaluation):
    shots: tuple[int, ...] = flags.flag(
        "numbers of training images per class", (1, 5, 10, 25), minimum=1
    )
    seeds: int = flags.flag(
        "number of random samples of these images, which are averaged",
        3,
        minimum=1,
    )
    l2: tuple[float, ...] = flags.flag(
        "L2 penalty of the weights, by default that of `fewshot_lsr.py`. It is not "
        "chosen on images: with several, all results are reported, and also which "
        "penalty has the highest mean accuracy over --shots on these test images",
        (1024.0,),
        above=0,
    )
    neighbors: int = flags.flag(
        "number of nearest neighbors; 0 to leave out this evaluation",
        20,
        minimum=0,
    )
    probe_l2: float | None = flags.flag(
        f"L2 penalty of the linear probe; 0 for no probe; default: {PROBE_L2}, "
        f"and no probe if training images x classes exceed "
        f"{LARGEST_PROBE:,}, as for ImageNet",
        minimum=0,
    )
    max_train: int | None = flags.flag(
        "use only a random sample of N training images", minimum=1
    )

    defaults = DEFAULTS


def main(config):
    started = time.perf_counter()
    with flags.user_errors():
        config = flags.fill(config)
        trained = classifiers.load_trained(config, has_head=False)
        data = classifiers.load_data(config, trained)
        if config.max_train:
            data = data.sample("train", config.max_train)
        model = keras_vit.evaluation.feature_model(trained.model)
        options = trained.reading(data, config.batch_size, PROTOCOL)
        output = run_folder.results_folder(
            config.output, f"runs/few-shot-{data.name}", config.overwrite
        )
        print(
            f"data      {data.name}: {data.num_train} training and "
            f"{data.num_test} test images, {len(data.class_names)} classes\n"
            f"{classifiers.describe_classifier(trained, options['protocol'])}\n"
            f"features  {model.output.shape[-1]} columns\n"
            f"output    {output}",
            flush=True,
        )
        x, y, test_x, test_y = keras_vit.evaluation.predict_splits(
            trained.for_batches(model), data, options
        )
        rows = keras_vit.evaluation.few_shot(
            x,
            y,
            config.shots,
            config.seeds,
            test_features=test_x,
            test_labels=test_y,
            l2=config.l2,
            class_names=data.class_names,
        )
        run_folder.prepare_output(output, FILES)
    with run_folder.atomic_write(output / "features.npz") as temporary:
        np.savez(temporary, train=x, train_labels=y, test=test_x, test_labels=test_y)
    # The penalty with the highest mean test accuracy over shots.
    means = {
        l2: np.mean([row["accuracy"] for row in rows if row["l2"] == l2])
        for l2 in dict.fromkeys(row["l2"] for row in rows)
    }
    results = {
        "few_shot": rows,
        "best_l2": max(means, key=lambda l2: means[l2]),
    }
    classes = len(data.class_names)
    probe_l2 = probe_l2_of(config, len(x) * classes)
    if probe_l2:
        probe = keras_vit.evaluation.linear_probe(x, y, classes, probe_l2)
        results["linear_probe"] = keras_vit.evaluation.accuracy(
            probe.scores(test_x), test_y
        )
    if config.neighbors:
        votes = keras_vit.evaluation.nearest_neighbors(
            x, y, classes, test_x, min(config.neighbors, len(x))
        )
        results["nearest_neighbors"] = keras_vit.evaluation.accuracy(votes, test_y)
    show(results, config)
    run_folder.save_json(
        {
            **results,
            "seconds": round(time.perf_counter() - started, 1),
            "reading": options,
            "data": data.metadata(),
            **run_folder.program_info(dataclasses.asdict(config)),
        },
        output / "results.json",
    )
    for name in FILES:
        print(f"  {output / name}")


def probe_l2_of(config, scores):
    """Returns the penalty of the linear probe, or 0 for no probe."""
    if config.probe_l2 is not None:
        return config.probe_l2
    if scores <= LARGEST_PROBE:
        return PROBE_L2
    print(
        f"No linear probe is fitted: training images x classes are {scores:,}, "
        f"more than {LARGEST_PROBE:,}, and it could take hours. To fit it "
        f"nevertheless, give --probe-l2 {PROBE_L2}.",
        flush=True,
    )
    return 0


def show(results, config):
    print(f"\n{'shots':>6}{'l2':>10}{'accuracy':>10}{'std':>8}{'per class':>11}")
    for row in results["few_shot"]:
        print(
            f"{row['shots']:6}{row['l2']:10g}{row['accuracy']:10.4f}"
            f"{row['std']:8.4f}{row['per_class']:11.4f}"
        )
    if len(config.l2) > 1:
        print(f"best l2 on these test images: {results['best_l2']:g}")
    for name in ("linear_probe", "nearest_neighbors"):
        if name in results:
            print(f"{name.replace('_', ' '):24}{results[name]:10.4f}")


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
