"""Text report on a checkpoint: format, architecture, size and keys."""

from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.detect import find_model
from keras_vit.weights.files import locate, read, read_all, read_config
from keras_vit.weights.files.keras import is_keras
from keras_vit.weights.formats import is_config_of


def report(
    path: StrPath, format: str | None = None, arguments: Config | None = None
) -> tuple[str, bool]:
    """Returns a description of a checkpoint, and whether its format is known:
    `keras-vit convert --inspect`.

    Ambiguities do not raise an error: the description lists them with the
    arguments that resolve them.
    """
    arguments, ambiguities = dict(arguments or {}), []
    path, name = locate(path), "none, a file of Keras's"
    if not is_keras(path):
        try:
            match, _ = find_model(path, format, finite=False)
        except ValueError as error:
            arrays = read(path, finite=False)
            if format is not None:
                raise
            lines = [*_key_table(arrays), "format          unknown", str(error)]
            return "\n".join(lines), False
        name, (arrays, _) = match.name, read_all(path)
        arrays = {key: arrays[key] for key in match.own_keys.values()}
    num_heads = arguments.get("num_heads")
    try:
        checkpoint = open_checkpoint(path, format, num_heads, finite=False)
    except ValueError as error:
        if num_heads is not None or is_keras(path):
            raise
        checkpoint = open_checkpoint(path, format, 1, finite=False)
        arguments["num_heads"] = "?"
        reason = str(error).partition(". ")[2]
        ambiguities.append(f"num_heads: {reason}")
    missing = checkpoint.missing(arguments)
    if missing:
        ambiguities.append(
            f"{', '.join(missing)}: not stored in the file. Give them, or "
            "`format`, the code base that the weights are for"
        )
    if is_keras(path):
        arrays = checkpoint.weights
    inferred = _infer(checkpoint, arguments, ambiguities)
    if "pooling" not in arguments and (checkpoint.may_read_first_patch(inferred)):
        ambiguities.append(
            "pooling: 'gap', the mean of the patches, or 'first_patch', "
            'big_vision\'s pool_type="0", have the same arrays '
            "(`pooling=first_patch`)"
        )
    ambiguities += [
        f"{name}: not stored, and taken to be {assumption}; give `{name}` otherwise"
        for name, assumption in checkpoint.assumed(arguments).items()
    ]
    count = sum(array.size for array in arrays.values())
    dtypes = sorted({str(array.dtype) for array in arrays.values()})
    lines = [
        f"{'format':20} {name}",
        f"{'parameters':20} {count:,}",
        f"{'dtype':20} {', '.join(dtypes)}",
    ]
    config = read_config(path)
    if config and not is_keras(path):
        used = "read" if is_config_of(config, checkpoint.format) else "not read"
        lines.append(f"{'config.json':20} {used}")
    mode, resizing = checkpoint.preprocess_mode, checkpoint.resizing
    lines += [
        f"{'pixels':20} {mode or 'unknown scaling'}"
        + "".join(f", {key} {value}" for key, value in (resizing or {}).items())
    ]
    built = {} if checkpoint.is_fixed else checkpoint.build_arguments_with(arguments)
    if not built.get("include_top", True) and built.get("pooling", "") is None:
        kinds = "`pooling=token` or gap for one vector, or classes for a head"
        lines.append(f"{'output':20} all tokens, as there is no head; give {kinds}")
    not_stored = checkpoint.code_base.arguments.keys() - checkpoint.stored.keys()
    default = dict.fromkeys(not_stored - arguments.keys(), " (default of the format)")
    lines += [
        f"{key:20} {value}{default.get(key, '')}"
        for key, value in sorted(inferred.items())
    ]
    if ambiguities:
        lines += ["", "ambiguous:", *(f"  {line}" for line in ambiguities)]
    # Last, as a terminal shows the end of a long text.
    return "\n".join([*_key_table(arrays), *lines]), True


def _infer(checkpoint: Checkpoint, arguments: Config, ambiguities: list[str]) -> Config:
    """Returns the arguments of the model; appends to `ambiguities`."""
    try:
        inferred = checkpoint.arguments(arguments)
    except ValueError as error:
        # The position embeddings fit two grids: describe one of them.
        given = {**arguments, "position_prefix": "all"}
        try:
            inferred = checkpoint.arguments(given)
        except ValueError as other:
            raise error from other
        reason = str(error).partition("cannot be used. ")[2]
        ambiguities.append(f"grid_size, position_prefix: {reason}")
    else:
        count = inferred.get("num_positions")
        if count is not None and inferred["grid_size"] is None:
            grids = [
                f"({n}, {count // n})" for n in range(1, count + 1) if count % n == 0
            ]
            ambiguities.append(
                f"grid_size: {count} positions do not form a square. Give "
                f"`grid_size=(rows,columns)`. Possible: {', '.join(grids)}"
            )
    return {**inferred, **arguments}


def _key_table(arrays: dict[str, Array]) -> list[str]:
    width = max(map(len, arrays), default=0)
    shapes = {key: str(tuple(a.shape)) for key, a in arrays.items()}
    second = max(map(len, shapes.values()), default=0)
    return [
        f"{'key':{width}}  {'shape':{second}}  dtype",
        *(
            f"{key:{width}}  {shapes[key]:{second}}  {array.dtype}"
            for key, array in arrays.items()
        ),
        "",
    ]
