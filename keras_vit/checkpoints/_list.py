import urllib.parse

from keras_vit.checkpoints._named import folder_of
from keras_vit.checkpoints._table import ALIASES
from keras_vit.checkpoints._table import TABLE
from keras_vit.checkpoints._table import tags_of

_HEADER = ("model", "weights", "pixels", "classes", "mode", "from", "here")


def list_weights(model=None, print_fn=print):
    """Prints the table of weights that can be given by name.

    The columns: the model function; its `weights`; the size of the images in
    pixels; the classes ("0-head": the head was released with zeros only);
    the `mode` of `preprocess_input`; the hosts that have the file, in the
    order in which they are tried; whether it is on this machine already.

    Args:
        model: String. Name of a model, to see only its weights.
        print_fn: Function of a line; `print` by default.

    Raises:
        ValueError: if there are no weights for such a model.

    Example:

    >>> keras_vit.list_weights("ViTH14")
    """
    if model is not None and not tags_of(model):
        models = dict.fromkeys(name for name, _ in TABLE)
        raise ValueError(
            f"There are weights for {', '.join(models)}. Received: "
            f"model={model!r}"
        )
    rows = [_HEADER]
    for (variant, tag), row in TABLE.items():
        if model in (None, variant):
            rows.append(_cells(variant, tag, row))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = zip(row, widths, strict=True)
        print_fn("  ".join(f"{cell:{w}}" for cell, w in cells).rstrip())
    print_fn("")
    for alias, tag in ALIASES.items():
        print_fn(f"{alias!r} is short for {tag!r}.")
    print_fn(
        "Also a path, 'https://...', 'hf://owner/name' or "
        "'hf://owner/name/file'."
    )


def _cells(variant, tag, row):
    addresses = (
        urllib.parse.urlparse(source.address) for source, _ in row.files
    )
    hosts = ("hf" if a.scheme == "hf" else a.netloc for a in addresses)
    here = any(
        (folder_of(variant, tag) / source.name).is_file()
        for source, _ in row.files
    )
    classes = "-" if row.classes is None else str(row.classes)
    return (
        variant,
        tag,
        str(row.image_size),
        f"{classes} 0-head" if row.zero_head else classes,
        row.mode,
        ", ".join(hosts),
        "yes" if here else "",
    )
