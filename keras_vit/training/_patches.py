"""Which patches cut an image into a sensible number of tokens."""

PATCHES = range(2, 17)
GRIDS = range(2, 25)  # patches a side; attention costs the fourth power
WANTED_GRID = 8


def choose_patch_size(image_size):
    """Returns the patch that cuts an image closest to 8 x 8 patches.

    Raises:
        ValueError: if none of 2 to 16 pixels gives 2 to 24 patches a side.
    """
    fitting = [
        patch
        for patch in PATCHES
        if image_size % patch == 0 and image_size // patch in GRIDS
    ]
    if not fitting:
        below = max(4, image_size // 4 * 4)
        raise ValueError(
            f"No patch of {PATCHES[0]} to {PATCHES[-1]} pixels cuts an image "
            f"of {image_size} x {image_size} into {GRIDS[0]} to {GRIDS[-1]} "
            f"patches a side. Use --image-size {below} or {below + 4}, or give "
            f"a --patch-size that divides {image_size}: "
            f"{_divisors(image_size)}."
        )
    # The larger patch wins a draw: it is the cheaper one.
    return min(
        reversed(fitting),
        key=lambda patch: abs(image_size // patch - WANTED_GRID),
    )


def check_patch_size(image_size, patch_size):
    """Raises a `ValueError` if the patch does not divide the image."""
    if image_size % patch_size:
        below = image_size // patch_size * patch_size
        sizes = [str(n) for n in (below, below + patch_size) if n]
        raise ValueError(
            f"Patches of {patch_size} pixels do not divide an image of "
            f"{image_size} x {image_size}. Use --image-size "
            f"{' or '.join(sizes)}, or a patch of {_divisors(image_size)}."
        )


def choose_sizes(image_sizes, patch_size, stride):
    """Returns the image's and the patch's size, which go together.

    Args:
        image_sizes: Sizes of which the first that is not None is taken.
        patch_size: Integer; None chooses one.
        stride: How many pixels a patch counts a side; 0 without patches.

    Raises:
        ValueError: if the patch does not divide the image.
    """
    image_size = next(size for size in image_sizes if size)
    if stride:
        if patch_size is None:
            patch_size = choose_patch_size(image_size)
        check_patch_size(image_size, patch_size * stride)
    return image_size, patch_size


def _divisors(size):
    return ", ".join(str(n) for n in range(1, size + 1) if size % n == 0)
