"""tools/gallery.py writes its pictures."""

import pathlib

import numpy as np
import pytest
from PIL import Image

from tests.recipes import programs
from tests.small import tiny


@pytest.mark.backends("torch")
def test_images_of_two_digits(monkeypatch):
    """Each digit is in a quarter of its own, and the other quarters are black."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    monkeypatch.syspath_prepend(programs.RECIPES.parent / "tools")
    import gallery

    rng = np.random.default_rng(0)
    for _ in range(20):
        image, numbers, corners = gallery.on_black(rng, digits, "test", 2)
        for number, (y, x) in zip(numbers, corners, strict=True):
            found = digits.images[1437:][digits.target[1437:] == number]
            quarter = image[y : y + 8, x : x + 8].copy()
            assert (np.minimum(16 * found, 255) == quarter).all(axis=(1, 2)).any()
            image[y : y + 8, x : x + 8] = 0
        assert len({*numbers}) == 2 and not image.any()


@pytest.mark.slow
@pytest.mark.backends("torch")
def test_maps_of_photographs(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(programs.RECIPES.parent / "tools")
    import gallery

    monkeypatch.chdir(tmp_path)
    pathlib.Path("docs/images").mkdir(parents=True)
    tiny(
        input_shape=(308, 308, 3),
        patch_size=77,
        include_top=False,
        classes=None,
    ).save("encoder.keras")
    photos = ["tall.png", "wide.png"]
    for name, size in zip(photos, [(60, 40), (40, 60)], strict=True):
        pixels = np.random.default_rng(0).integers(0, 256, (*size, 3), "uint8")
        Image.fromarray(pixels).save(name)
    gallery.maps("encoder.keras", *photos)
    found = {path.name: path for path in pathlib.Path("docs/images").iterdir()}
    assert found.keys() == {
        "maps.jpg",
        "embedding_filters.png",
        "attention_distance.png",
        "token_norms.png",
    }
    # One column a photograph, and six rows.
    with Image.open(found["maps.jpg"]) as picture:
        pixels = np.asarray(picture.convert("L"))
    assert pixels.shape[0] > 2 * pixels.shape[1] and pixels.std() > 10
