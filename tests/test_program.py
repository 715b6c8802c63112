"""Hints at flags in the errors of programs."""

import argparse

import pytest

from keras_vit_programs.console import nearest_flag, with_flags

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


def test_messages_of_the_library_are_translated_to_flags():
    message = (
        "Pass `format`, `num_heads=3` or `base`, `overwrite=True`, `load_weights`."
    )
    convert = "Pass --from, --set num_heads=3 or --set base=..., --overwrite, "
    assert with_flags(message, {"from_", "set", "overwrite"}) == (
        f"{convert}`load_weights`."
    )
    assert with_flags(message, {"erase"}) == message
    heads = "it by `keras-vit convert FILE model.keras --set num_heads=...`."
    assert with_flags("Give `num_heads`.", {"erase"}) == f"Give {heads}"
    assert with_flags("`erase=0.0`", {"erase"}) == "--erase 0.0"
    assert with_flags("`check=False`", {"check"}) == "--no-check"
    assert with_flags("`train='lora'`", {"train"}) == "--train lora"
    assert with_flags("`ignore` is 7", {"ignore_value"}) == "--ignore-value is 7"
