import pytest

from keras_vit.training import models

pytestmark = pytest.mark.backends("torch")


@pytest.mark.parametrize(
    "size, patch",
    [(8, 2), (16, 2), (28, 4), (32, 4), (48, 6), (64, 8), (96, 12), (224, 16)],
)
def test_chosen_patch_size(size, patch):
    assert models.choose_patch_size(size) == patch


@pytest.mark.parametrize("size", [1, 3, 31, 62])
def test_sizes_without_a_patch_size_raise(size):
    with pytest.raises(ValueError, match="Use --image-size .*--patch-size"):
        models.choose_patch_size(size)


def test_suggested_image_sizes_are_accepted():
    with pytest.raises(ValueError, match="--image-size 28 or 32") as error:
        models.choose_patch_size(31)
    assert "divides 31: 1, 31." in str(error.value)
    for size in (28, 32):
        models.choose_patch_size(size)


def test_patch_size_must_divide_the_image_size():
    models.check_patch_size(32, 8)
    with pytest.raises(ValueError, match="--image-size 6 or 9, or a patch of"):
        models.check_patch_size(8, 3)
    with pytest.raises(ValueError, match="--image-size 16, or"):
        models.check_patch_size(8, 16)
