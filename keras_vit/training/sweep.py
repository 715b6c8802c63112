"""The learning rate from a grid, by images that were held out for it."""

import dataclasses
import json
import shutil

from keras_vit._logging import logger
from keras_vit._logging import show
from keras_vit._program import user_errors
from keras_vit.training.checkpoint import Diverged
from keras_vit.training.checkpoint import raise_if_another
from keras_vit.training.experiment import begin
from keras_vit.training.experiment import data_of
from keras_vit.training.experiment import main_of
from keras_vit.training.experiment import train
from keras_vit.training.plots import save_sweep
from keras_vit.training.results import print_results
from keras_vit.training.run_folder import DONE
from keras_vit.training.run_folder import SWEEP
from keras_vit.training.run_folder import save_json
from keras_vit.training.run_folder import versions

# "An Image is Worth 16x16 Words", Table 4
_RATES = (0.001, 0.003, 0.01, 0.03)
_RATES_OF = {"imagenet2012": (0.003, 0.01, 0.03, 0.06)}
FILES = ("sweep.json", "sweep.png")


def rates_of(text, dataset=""):
    """Returns the learning rates of `--sweep`, from low to high.

    Args:
        text: "paper" for the grid of the paper's Table 4, or numbers with
            commas between them.
        dataset: String. Its name.

    Raises:
        ValueError: if they are not two or more different rates above 0.
    """
    if text == "paper":
        return _RATES_OF.get(dataset.split(":")[0], _RATES)
    try:
        rates = sorted({float(part) for part in text.split(",")})
    except ValueError:
        rates = []
    if len(rates) < 2 or not 0 < rates[0] <= rates[-1] < float("inf"):
        raise ValueError(
            "--sweep must be 'paper', or two or more learning rates above 0 "
            f"such as 0.003,0.01,0.03. Received: {text!r}"
        )
    return tuple(rates)


def sweeping(plan):
    """Like `main_of`, for a recipe whose config has a field `sweep`.

    With it, every rate of the grid is trained with on the training images but
    those of `--holdout` ("paper" where it is not given), and the best one on
    all of them. A sweep that was interrupted goes on with the same command.
    """
    once = main_of(plan)

    def main(config):
        show()
        if config.sweep is None:
            once(config)
        else:
            _sweep(plan, config)

    return main


def _sweep(plan, config):
    with user_errors():
        chosen, data, output = begin(config, holdout="paper")
        config = dataclasses.replace(
            config,
            output=str(output),
            holdout="paper" if config.holdout is None else config.holdout,
        )
        rates = rates_of(config.sweep, config.dataset)
        jobs = {rate: _job_of(plan, config, data, rate) for rate in rates}
        if config.overwrite and chosen.first:
            shutil.rmtree(output / SWEEP, ignore_errors=True)
            for name in (*FILES, DONE):
                (output / name).unlink(missing_ok=True)
        chosen.gather(0)
        # What an earlier run did, or that it was another run's.
        done = {rate: _done(job, output) for rate, job in jobs.items()}
        chosen.gather(0)
    for rate, job in jobs.items():
        if done[rate] is None:
            if chosen.first:
                logger.info(f"\nsweep     learning rate {rate:g}")
            done[rate] = _trained(job, chosen, _folder(output, rate))
    best = _report(done, data, config, output, chosen)
    # 0, so that a preset leaves out no images either.
    config = dataclasses.replace(
        config, holdout=0.0, sweep=None, overwrite=False
    )
    with user_errors():
        data = data_of(config, config.holdout)
        job = _job_of(plan, config, data, best)
    facts = train(job, chosen, output)
    if chosen.first:
        print_results(facts, output)


def _job_of(plan, config, data, rate):
    return plan(
        dataclasses.replace(config, learning_rate=rate, sweep=None), data
    )


def _folder(output, rate):
    return output / SWEEP / f"lr-{rate:g}"


def _done(job, output):
    """Returns the facts of a rate that was trained with before, or None."""
    path = _folder(output, job.config.learning_rate) / DONE
    if not path.exists():
        return None
    facts = json.loads(path.read_text())
    found = {**facts["config"], "backend": facts["versions"]["backend"]}
    expected = job.facts()
    known = {k: found[k] for k in expected if k in found}
    raise_if_another(path, known, expected)
    return facts


def _trained(job, chosen, folder):
    try:
        return train(job, chosen, folder, keep=False)
    except Diverged as error:  # which says that this rate is too high
        facts = {
            "config": job.facts(),
            "dev_accuracy": None,
            "diverged": str(error),
            "versions": versions(),
        }
        if chosen.first:
            logger.info(error)
            save_json(facts, folder / DONE)
        return facts


def _report(done, data, config, output, chosen):
    """Says and writes how the rates did; returns the best one."""
    found = {rate: facts["dev_accuracy"] for rate, facts in done.items()}
    good = {rate: x for rate, x in found.items() if x is not None}
    if not good:
        raise Diverged(
            "Training diverged with every learning rate of the sweep. Give "
            f"lower ones. Received: --sweep {config.sweep}"
        )
    best = max(good, key=good.get)  # of equals the lowest
    if not chosen.first:
        return best
    logger.info(f"\nlearning rate  accuracy on {data.num_dev} held out images")
    for rate, accuracy in found.items():
        text = "diverged" if accuracy is None else f"{accuracy:.4f}"
        logger.info(f"{rate:<13g}  {text}" + "  best" * (rate == best))
    logger.info(f"\ntraining on all images with {best:g}")
    facts = {
        "rates": [
            {"learning_rate": rate, "dev_accuracy": accuracy}
            for rate, accuracy in found.items()
        ],
        "best": best,
        "holdout": config.holdout,
        "num_dev": data.num_dev,
    }
    save_json(facts, output / "sweep.json")
    save_sweep(found, output / "sweep.png", title=f"{data.name}: sweep")
    return best
