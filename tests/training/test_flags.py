import dataclasses
import warnings

import pytest

from keras_vit import training
from keras_vit.training import command_line
from keras_vit.training import presets

pytestmark = pytest.mark.backends("torch")


@dataclasses.dataclass(frozen=True)
class Config:
    steps: int = command_line.flag("how many, 100% of them", 5, minimum=1)
    rate: float | None = command_line.flag("how fast", above=0, below=1)
    kind: str = command_line.flag("what kind", "a", choices=("a", "b"))
    long_name: str = command_line.flag("what", "a")
    loud: bool = command_line.flag("how", False)

    def __post_init__(self):
        command_line.check_flags(self)


def test_dataclass_fields_become_flags():
    argv = ["--steps", "7", "--rate", "1e-2", "--long-name", "b c", "--loud"]
    assert command_line.parse_args(Config, "", argv) == Config(
        7, 0.01, "a", "b c", True
    )
    assert command_line.parse_args(Config, "", []) == Config()


def test_errors_and_warnings_do_not_change_the_terminal(capsys, monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)

    def main(config):
        raise command_line.UserError("c\x1b[2Jd\ne")

    with pytest.raises(SystemExit):
        command_line.run(main, Config, "", [])
    assert "error: c\\x1b[2Jd\ne" in capsys.readouterr().err
    line = warnings.formatwarning("a\x1b[2J", UserWarning, "a.py", 3)
    assert line == "warning: a\\x1b[2J\n"


def test_settings_without_help_are_no_flags(capsys):
    @dataclasses.dataclass(frozen=True)
    class More(Config):
        inner: int = 3

    with pytest.raises(SystemExit):
        command_line.parse_args(More, "", ["--inner", "4"])
    assert "--inner" in capsys.readouterr().err
    assert command_line.parse_args(More, "", []).inner == 3


@dataclasses.dataclass(frozen=True)
class Several:
    shots: tuple[int, ...] = command_line.flag("how many", (1, 5))
    names: tuple[str, ...] = command_line.flag("which", ())


def test_flags_with_several_values(capsys):
    assert command_line.parse_args(Several, "", []) == Several((1, 5), ())
    argv = ["--shots", "2", "--names", "a", "b c"]
    assert command_line.parse_args(Several, "", argv) == Several(
        (2,), ("a", "b c")
    )
    for wrong in (["--shots"], ["--shots", "1", "x"]):
        with pytest.raises(SystemExit):
            command_line.parse_args(Several, "", wrong)
    capsys.readouterr()
    with pytest.raises(SystemExit):
        command_line.parse_args(Several, "", ["--help"])
    out = capsys.readouterr().out
    assert "how many (default: 1 5)" in out and "which\n" in out


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--stepz", "1"], "--stepz"),
        (["--step", "1"], "--step"),  # no abbreviations
        (["--steps", "x"], "invalid int value: 'x'"),
        (["--steps", "0"], "--steps must be 1 or more. Received: 0"),
        (["--rate", "1"], "--rate must be below 1. Received: 1.0"),
        (["--rate", "nan"], "Received: nan"),
        (["--rate", "inf"], "Received: inf"),
        (["--kind", "c"], "--kind must be one of ('a', 'b'). Received: c"),
        (["--rate"], "expected one argument"),
    ],
)
def test_wrong_flags_give_a_one_line_error(argv, words, capsys):
    with pytest.raises(SystemExit) as error:
        command_line.parse_args(Config, "", argv)
    assert error.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert words in err


def test_help_shows_text_and_defaults(capsys):
    with pytest.raises(SystemExit) as error:
        command_line.parse_args(
            Config, "What it does.\n\n  an example", ["--help"]
        )
    assert error.value.code == 0
    out = capsys.readouterr().out
    assert "What it does.\n\n  an example" in out
    assert "--rate X" in out and "how fast\n" in out
    assert "how many, 100% of them (default: 5)" in out


def test_run_prints_user_errors_and_raises_other_exceptions(capsys):
    def mistaken(config):
        with command_line.user_errors():
            raise FileNotFoundError("There is no file 'x'.")

    with pytest.raises(SystemExit) as error:
        command_line.run(mistaken, Config, "", [])
    assert error.value.code == 2
    assert capsys.readouterr().err == "error: There is no file 'x'.\n"

    def broken(config):
        raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        command_line.run(broken, Config, "", [])


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "given, expected", [(0.1, 0.1), ("0.1", 0.1), ("paper", "paper"), (0, 0.0)]
)
def test_holdout_accepts_a_number_or_paper(given, expected):
    made = command_line.TrainingFlags(holdout=given)
    read = command_line.parse_args(
        command_line.TrainingFlags, "", ["--holdout", str(given)]
    )
    for config in (made, read):
        assert config.holdout == expected
        assert type(config.holdout) is type(expected)


@pytest.mark.backends("torch")
def test_labels_are_one_hot_only_with_mixing():
    """None means no mixing where a recipe has no default of its own."""
    config = command_line.TrainingFlags()
    assert config.batches()["one_hot"] is False
    assert config.augmentation(3)["mixup"] == 0
    assert command_line.TrainingFlags(mixup=0.2).batches()["one_hot"] is True


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "error, status",
    [
        (training.Preempted("Saved step 3."), 143),
        (training.Diverged("The loss is nan."), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_status_of_each_error(error, status, capsys):
    def main(config):
        raise error

    with pytest.raises(SystemExit) as ended:
        command_line.run(main, command_line.TrainingFlags, "", [])
    assert ended.value.code == status
    resumes = "the same command resumes" in capsys.readouterr().err
    assert resumes == isinstance(error, KeyboardInterrupt)


NAMES = {"cifar10": {"steps": 9, "warmup_steps": 3}}
PUBLISHED = presets.Published(
    "a paper",
    {"warmup": 0.1, "learning_rate": 0.5, "batch_size": 10, "mixup": 0.2},
    by_dataset=NAMES | {("B", "cifar10"): {"learning_rate": 0.4}},
    by_model={"B": {"mixup": 0.3}},
)


@dataclasses.dataclass(frozen=True)
class Tuned(command_line.TrainingFlags):
    preset: str = "a"
    model: str | None = None
    warmup: float | None = None
    warmup_steps: int | None = None
    batch_size: int | None = None


@pytest.mark.parametrize(
    "given, expected",
    [
        ({}, (9, None, 0.4, 0.3, 10, 3, None)),
        ({"epochs": 2}, (None, 2, 0.4, 0.3, 10, 3, None)),
        ({"warmup": 0.5}, (9, None, 0.4, 0.3, 10, None, 0.5)),
        ({"mixup": 0.0}, (9, None, 0.4, 0.0, 10, 3, None)),
        ({"accumulate": 4}, (9, None, 0.4, 0.3, 8, 3, None)),
        ({"model": "C"}, (9, None, 0.5, 0.2, 10, 3, None)),
        (
            {"dataset": "digits", "steps": 1, "warmup_steps": 0},
            (1, None, 0.5, 0.3, 10, 0, None),
        ),
    ],
)
def test_flags_replace_published_settings_and_their_alternatives(
    given, expected
):
    config = Tuned(**{"dataset": "cifar10:1", "model": "B", **given})
    names = ("steps", "epochs", "learning_rate", "mixup", "batch_size")
    names += ("warmup_steps", "warmup")
    filled = PUBLISHED.fill(config)
    assert tuple(getattr(filled, name) for name in names) == expected


def test_published_settings_depend_on_model_and_dataset():
    with pytest.raises(ValueError, match="depends on the model. Give --model"):
        PUBLISHED.fill(Tuned(dataset="cifar10"))
    with pytest.raises(
        ValueError, match="settings for cifar10. For digits, give --steps too"
    ):
        PUBLISHED.fill(Tuned(model="B"))
