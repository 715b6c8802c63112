"""What a file holds and what it leaves open, for reading."""

from keras_vit.checkpoints._files import read
from keras_vit.checkpoints._files import read_config
from keras_vit.checkpoints._keras_files import is_keras
from keras_vit.checkpoints.checkpoint import missing_hyperparameters
from keras_vit.checkpoints.checkpoint import open_checkpoint
from keras_vit.checkpoints.formats import detect_layout
from keras_vit.checkpoints.formats import first_patch_is_possible
from keras_vit.checkpoints.formats import is_config_of


def inspect(path, layout=None, settings=None):
    """Returns a description of a checkpoint.

    What is ambiguous does not stop it: the description says what is, and
    which `--set` resolves it.

    Args:
        path: Path of what to read.
        layout: Name of its layout; None finds it.
        settings: Dict of arguments of `VisionTransformer` that are known.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it cannot be read.
    """
    settings, questions = dict(settings or {}), []
    if is_keras(path):
        checkpoint = open_checkpoint(path, layout, finite=False)
        arrays, name = checkpoint.weights, "of Keras's own files"
        silent = missing_hyperparameters(checkpoint, settings)
        if silent:
            questions.append(
                f"{', '.join(silent)}: weights alone do not tell. Give them "
                "with --set, or --from and the layout whose code they are for"
            )
    else:
        arrays = read(path, finite=False)
        try:
            found, spelling = detect_layout(arrays, layout)
        except ValueError as error:
            if layout is not None:
                raise
            return "\n".join(
                ["layout          unknown", str(error), *_table(arrays)]
            )
        name = ":".join(filter(None, (found, spelling.variant)))
        checkpoint = _opened(path, layout, settings, questions)
    told = _told(checkpoint, settings, questions)
    if "pooling" not in {**checkpoint.stored, **settings} and (
        first_patch_is_possible(checkpoint.layout, told)
    ):
        questions.append(
            "pooling: 'gap', the mean of the patches, or 'first_patch', "
            'big_vision\'s pool_type="0": arrays do not tell (--set '
            "pooling=first_patch)"
        )
    lines = [f"{'layout':20} {name}", *_size(arrays)]
    config = read_config(path)
    if config and not is_keras(path):
        used = "read" if is_config_of(config, checkpoint.layout) else "not read"
        lines.append(f"{'config.json':20} {used}")
    lines += [f"{key:20} {value}" for key, value in sorted(told.items())]
    if questions:
        lines += ["", "ambiguous:", *(f"  {line}" for line in questions)]
    return "\n".join([*lines, *_table(arrays)])


def _opened(path, layout, settings, questions):
    heads = settings.get("num_heads")
    try:
        return open_checkpoint(path, layout, heads, finite=False)
    except ValueError as error:
        if heads is not None:
            raise
        checkpoint = open_checkpoint(path, layout, 1, finite=False)
        settings["num_heads"] = "?"
        reason = str(error).partition(". ")[2]
        questions.append(f"num_heads: {reason} (--set num_heads=...)")
        return checkpoint


def _told(checkpoint, settings, questions):
    """The arguments, of which those that are ambiguous are asked for."""
    grid = settings.get("grid_size")
    prefix = settings.get("position_prefix")
    try:
        told = checkpoint.arguments(grid, position_prefix=prefix)
    except ValueError as error:
        # One reading of its positions leaves nothing to contradict it.
        try:
            told = checkpoint.arguments(grid, position_prefix="all")
        except ValueError as other:
            raise error from other
        reason = str(error).partition("cannot be used. ")[2]
        questions.append(f"grid_size, position_prefix: {reason}")
    else:
        count = told.get("num_positions")
        if count is not None and told["grid_size"] is None:
            grids = [
                f"({n}, {count // n})"
                for n in range(1, count + 1)
                if count % n == 0
            ]
            questions.append(
                f"grid_size: {count} positions are no square. Give --set "
                f"grid_size=(rows,columns). Possible: {', '.join(grids)}"
            )
    return {**told, **settings}


def _size(arrays):
    count = sum(array.size for array in arrays.values())
    dtypes = sorted({str(array.dtype) for array in arrays.values()})
    return [
        f"{'parameters':20} {count:,}",
        f"{'dtype':20} {', '.join(dtypes)}",
    ]


def _table(arrays):
    width = max(map(len, arrays), default=0)
    shapes = {key: str(tuple(a.shape)) for key, a in arrays.items()}
    second = max(map(len, shapes.values()), default=0)
    return [
        "",
        f"{'key':{width}}  {'shape':{second}}  dtype",
        *(
            f"{key:{width}}  {shapes[key]:{second}}  {array.dtype}"
            for key, array in arrays.items()
        ),
    ]
