import dataclasses
import signal
import warnings

import pytest

from keras_vit import training
from keras_vit_programs import flags
from tests.recipes import programs

pytestmark = pytest.mark.backends("torch")


parse, Training = flags.parse_args, flags.Training


@dataclasses.dataclass(frozen=True)
class Config(flags.Settings):
    steps: int = flags.flag("how many, 100% of them", 5, minimum=1)
    rate: float | None = flags.flag("how fast", above=0, below=1)
    kind: str = flags.flag("what kind", "a", choices=("a", "b"))
    long_name: str = flags.flag("what", "a")
    loud: bool = flags.flag("how", False)
    shots: tuple[int, ...] = flags.flag("how often", (1, 5))
    names: tuple[str, ...] = flags.flag("which", ())
    rank: int = flags.flag("how deep", 1, choices=(1, 2))
    inner: int = 3  # without a help, it is no flag


def test_dataclass_fields_become_flags(capsys):
    argv = ["--steps", "7", "--rate", "1e-2", "--long-name", "b c", "--loud"]
    argv += ["--shots", "2", "--names", "a", "b c"]
    expected = {"steps": 7, "rate": 0.01, "long_name": "b c", "loud": True}
    expected |= {"shots": (2,), "names": ("a", "b c")}
    assert parse(Config, "", argv) == Config(**expected)
    assert parse(Config, "", []) == Config()
    with pytest.raises(SystemExit) as error:
        parse(Config, "What it does.\n\n  an example", ["--help"])
    assert error.value.code == 0
    out = capsys.readouterr().out
    for text in (
        "What it does.\n\n  an example",
        "how fast\n",
        "how many, 100% of them (default: 5)",
        "how often (default: 1 5)",
    ):
        assert text in out


@pytest.mark.parametrize(
    "argv, words",
    [
        (["--stepz", "1"], "--stepz"),
        (["--step", "1"], "--step"),  # no abbreviations
        (["--inner", "4"], "--inner"),
        (["--steps", "x"], "invalid int value: 'x'"),
        (["--steps", "0"], "--steps must be 1 or more. Received: 0"),
        (["--rate", "1"], "--rate must be below 1. Received: 1.0"),
        (["--rate", "nan"], "Received: nan"),
        (["--rate", "inf"], "Received: inf"),
        (["--kind", "c"], "--kind must be one of ('a', 'b'). Received: c"),
        (["--rate"], "expected one argument"),
        (["--shots"], "--shots"),
        (["--shots", "1", "x"], "'x'"),
    ],
)
def test_wrong_flags_give_a_one_line_error(argv, words, capsys):
    with pytest.raises(SystemExit) as error:
        parse(Config, "", argv)
    assert error.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert words in err


def mistake():
    with flags.user_errors():
        raise FileNotFoundError("There is no file 'x'.")


def fail(error):
    raise error


@pytest.mark.parametrize(
    "main, status, words",
    [
        (mistake, 2, "error: There is no file 'x'.\n"),
        # Codes of a terminal do not change it.
        (
            lambda: fail(flags.UserError("c\x1b[2Jd\ne")),
            2,
            "error: c\\x1b[2Jd\ne",
        ),
        (lambda: fail(training.Preempted("Saved step 3.")), 143, "step 3."),
        (lambda: fail(training.Diverged("The loss is nan.")), 1, "is nan."),
        (lambda: fail(KeyboardInterrupt()), 130, "same command resumes"),
    ],
)
def test_exit_status_of_each_error(main, status, words, capsys, monkeypatch):
    monkeypatch.setattr(warnings, "formatwarning", warnings.formatwarning)
    with pytest.raises(SystemExit) as ended:
        flags.run(lambda config: main(), Training, "", [])
    assert ended.value.code == status
    text = "".join(capsys.readouterr())
    assert words in text
    assert ("command resumes" in text) == (status == 130)
    line = warnings.formatwarning("a\x1b[2J", UserWarning, "a.py", 3)
    assert line == "warning: a\\x1b[2J\n"
    with pytest.raises(SystemExit):
        wrong = flags.UserError("Give `rank=2`, not `inner=2`.")
        flags.run(lambda config: fail(wrong), Config, "", [])
    assert "Give --rank 2, not `inner=2`." in capsys.readouterr().err
    with pytest.raises(ValueError, match="a bug"):
        flags.run(lambda config: fail(ValueError("a bug")), Training, "", [])
    saved = training.Preempted("Saved step 3.")
    saved.number = signal.SIGINT
    with pytest.raises(SystemExit) as ended:
        flags.run(lambda config: fail(saved), Training, "", [])
    assert ended.value.code == 130
    with pytest.raises(SystemExit):
        flags.run(
            lambda config: fail(KeyboardInterrupt()), Training, "", ["--overwrite"]
        )
    assert "same command without --overwrite resumes" in capsys.readouterr().err


@pytest.mark.parametrize("given", [0.1, "paper", 0.0])
def test_holdout_accepts_a_number_or_paper(given):
    made = programs.Settings(holdout=str(given))
    read = parse(programs.Settings, "", ["--holdout", str(given)])
    for config in (made, read):
        assert config.holdout == given
        assert type(config.holdout) is type(given)


def test_labels_are_one_hot_only_with_mixing():
    """None means no mixing where a recipe has no default of its own."""
    config = programs.Settings()
    assert config.batches()["one_hot"] is False
    assert config.augmentation(3)["mixup"] == 0
    assert programs.Settings(mixup=0.2).batches()["one_hot"] is True


@pytest.mark.parametrize(
    "text, expected",
    [
        (None, None),
        ("torch", "torch"),
        ("0.5/0.5", "tf"),
        ("0.1,0.2/0.3", ((0.1, 0.2), (0.3, 0.3))),
        ([[0.1], [0.2]], ((0.1,), (0.2,))),  # of the config.json of a run
    ],
)
def test_modes_of_pixels_are_parsed(text, expected):
    assert programs.Settings(mode=text).mode == expected
    found = flags.Teacher(teacher="a", teacher_mode=text)
    assert found.teacher_mode == expected


@pytest.mark.parametrize("text", ["caffe", "0.5", "0.5/0", "0.5/x", "1/2/3", "/"])
def test_wrong_modes_of_pixels_are_refused(text):
    with pytest.raises(ValueError, match=f"--mode must be tf, .* MEAN/STD.*: {text}"):
        programs.Settings(mode=text)
