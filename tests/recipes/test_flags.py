"""Every flag that a recipe once had is still accepted.

flags.json has the flags by the number of their values, of 2026-11-24.
"""

import json
import pathlib

import pytest

from keras_vit.training import command_line
from tests.recipes import programs

pytestmark = pytest.mark.backends("torch")
FLAGS = pathlib.Path(__file__).with_name("flags.json")
FLAGS = json.loads(FLAGS.read_text())


@pytest.mark.parametrize("name", FLAGS)
def test_flags_keep_their_names_and_number_of_values(name, capsys):
    with pytest.raises(SystemExit):
        command_line.parse_args(programs.load(name).Config, "", ["--help"])
    usage = capsys.readouterr().out.partition("\n\n")[0]
    usage = " ".join(usage.split()) + " "
    for count, flags in FLAGS[name].items():
        for flag in flags.split():
            start = f"[{flag}{'] ' if count == '0' else ' '}"
            _, found, rest = usage.partition(start)
            assert found, flag
            if count != "0":
                values = rest.partition("]")[0]
                assert ("[" in values) == (count == "+"), flag
