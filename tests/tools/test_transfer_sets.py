"""tools/transfer_sets.py."""

import pathlib
import random

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.backends("torch")
TOOLS = pathlib.Path(__file__).parents[2] / "tools"


def test_sets_are_the_same_each_time(monkeypatch):
    monkeypatch.syspath_prepend(TOOLS)
    import transfer_sets as sets

    splits = [split for split, _, _ in sets.digits()]
    assert (len(splits), splits.count("test")) == (1797, 360)
    picture = Image.new("RGBA", (40, 30), (255, 0, 0, 255))
    photos = [Image.new("RGB", (300, 200), (0, 0, shade)) for shade in (1, 2)]
    (first, mask), (second, _) = (
        map(np.asarray, sets.composed(picture, photos, random.Random(0)))
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(mask, first[..., 0] > 127)
    assert first.shape == (84, 84, 3)
    # The picture has its own proportions.
    rows, columns = np.nonzero(first[..., 0] > 250)
    height, width = (np.ptp(x) + 1 for x in (rows, columns))
    assert width / height == pytest.approx(4 / 3, abs=0.1)
    assert 0.6 * 84 - 2 <= width <= 0.95 * 84
