"""Putting a checkpoint's weights into a model: all of them or none."""

from keras_vit.checkpoints._convert import raise_if
from keras_vit.checkpoints._positions import is_positions
from keras_vit.models._adapt import adapt


def load_into(model, checkpoint, grid=None, keeps_head=True):
    """Loads a checkpoint into a model that may differ from it in size.

    Args:
        model: A model made by `VisionTransformer`.
        checkpoint: A `Checkpoint`.
        grid: `(rows, columns)` of its position embeddings, or None.
        keeps_head: Boolean. Whether a head that fits is taken.

    Raises:
        ValueError: if anything is missing, has no place or is of another
            shape. One error lists everything; the model is then as it was.
    """
    variables = variables_of(model)
    shapes = {path: tuple(v.shape) for path, v in variables.items()}
    positions = {x.name: x for x in model.layers if is_positions(x.name)}
    weights, fresh, unfitted = adapt(
        checkpoint.weights, shapes, positions, grid, keeps_head
    )

    key = checkpoint.format.key
    problems = {
        "Arrays that are missing from the file": [
            key(path) for path in shapes.keys() - weights.keys() - fresh
        ],
        "Arrays that the model has no place for": [
            key(path) for path in weights.keys() - shapes.keys()
        ],
        "Arrays of another shape than the model's": [
            f"{key(path)}: {weights[path].shape} in the file, "
            f"{shapes[path]} in the model"
            for path in weights.keys() & shapes.keys() - unfitted.keys()
            if weights[path].shape != shapes[path]
        ],
        # Their shape may be the model's all the same.
        "Position embeddings that cannot be fitted to the model": [
            f"{key(path)}: {why}" for path, why in unfitted.items()
        ],
    }
    if any(problems.values()):
        raise_if(
            problems,
            f"{checkpoint.path!r} does not fit the model {model.name!r}. It "
            f"holds {_sizes(checkpoint)}; `keras_vit.converters.load` builds "
            "what a file holds.",
            most=8,
        )
    for path, array in weights.items():
        variables[path].assign(array)


def _sizes(checkpoint):
    """What a file holds, in words; it may be too broken to tell."""
    names = ("patch_size", "hidden_size", "num_layers", "resnet_layers")
    try:
        told = checkpoint.arguments()
    except ValueError:
        told = {}
    sizes = [f"{name}={told[name]}" for name in names if told.get(name)]
    return ", ".join(sizes) or "no whole model"


def variables_of(model):
    """Returns the weights of a functional model by path, `{path: variable}`.

    A path begins with its layer, whatever scope the model was built in.
    """
    return {
        layer.name + variable.path.partition(layer.name)[2]: variable
        for layer in model.layers
        for variable in layer.weights
    }
