import pytest

from keras_vit.training import command_line
from keras_vit.training import models

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    "size, patch",
    [(8, 2), (16, 2), (28, 4), (32, 4), (48, 6), (64, 8), (96, 12), (224, 16)],
)
def test_chosen_patch_size(size, patch):
    assert models.choose_patch_size(size) == patch


def test_patch_size_must_divide_the_image_size():
    models.check_patch_size(32, 8)
    with pytest.raises(ValueError, match="of 8: give --image-size 9, or"):
        models.check_patch_size(8, 3)
    with pytest.raises(ValueError, match="multiple of 4.* Received: 31"):
        models.choose_patch_size(31)


def test_patch_sizes_of_rectangular_images():
    assert models.choose_patch_size((64, 48)) == 8
    assert models.choose_patch_size((48, 96)) == 8
    models.check_patch_size((64, 48), 16)
    with pytest.raises(ValueError, match="64x50: give --image-size 64"):
        models.check_patch_size((64, 50), 16)
    assert models.resolve_sizes((None, (64, 48), 8), None, 1) == ((64, 48), 8)


@pytest.mark.parametrize(
    "value, size",
    [("64", 64), (64, 64), ("64x48", (64, 48)), ([64, 48], (64, 48))]
    + [("8x8", 8), (None, None)],
)
def test_image_size_flag_is_parsed(value, size):
    assert command_line.parse_image_size(value) == size
    if size:
        text = models.size_text(size)
        assert command_line.parse_image_size(text) == size


@pytest.mark.parametrize("value", ["", "0", "64x", "1x2x3", "64x-8", "a", 0])
def test_wrong_image_sizes_raise(value):
    with pytest.raises(ValueError, match=f"64x48. Received: {value}$"):
        command_line.parse_image_size(value)
