"""Hints at flags in the errors of programs."""

import argparse

import pytest

from keras_vit_programs.console import nearest_flag

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        ("photo.png", ". Each value needs its flag in front, such as"),
        ("--wieghts a", ". Did you mean --weights?"),
        ("-x", ""),
    ],
)
def test_hint_at_the_flag_of_an_unknown_argument(given, hint):
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights")
    message = f"unrecognized arguments: {given}"
    assert nearest_flag(parser, message).startswith(hint)
    if "--" not in given:
        parser.add_argument("target")
        assert nearest_flag(parser, message) == ""
