"""Folders that timm, transformers, Keras and keras_vit open, for the hub.

A folder contains the same weights three times: `model.keras` for Keras and
keras_vit, `timm.safetensors` for timm, and `transformers.safetensors` for
transformers, which finds its name in `model.safetensors.index.json`. The
libraries read one `config.json`, in which their keys do not overlap.
"""

import json
import pathlib
import shutil
import tempfile
from typing import Unpack

import keras

from keras_vit import converters
from keras_vit.config import ModelArguments
from keras_vit.models import preprocessing_of
from keras_vit.utils.scaling import Mode, mean_and_std
from keras_vit.utils.text import printable
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.weights.checkpoint import Checkpoint, open_checkpoint
from keras_vit.weights.files import check_new_files, read_config, write
from keras_vit.weights.formats import FORMATS, check_representable, huggingface, timm
from keras_vit.weights.weight_map import to_checkpoint
from keras_vit.weights.writing import warn_of_activation, write_checkpoint

__all__ = ["save"]


def __dir__() -> list[str]:
    return __all__  # without the names of imports


KERAS, TIMM, TRANSFORMERS = "keras", "timm", "transformers"
WEIGHTS = {
    KERAS: "model.keras",
    TIMM: "timm.safetensors",
    TRANSFORMERS: "transformers.safetensors",
}
_INDEX, _CARD = "model.safetensors.index.json", "README.md"


def save(
    source: StrPath,
    folder: StrPath,
    format: str | None = None,
    license: str | None = None,
    overwrite: bool = False,
    num_heads: int | None = None,
    **settings: Unpack[ModelArguments],
) -> dict[str, str | None]:
    """Writes a folder for the Hugging Face hub that four libraries open.

    - Keras: `keras.saving.load_model("folder/model.keras")`, after
      `import keras_vit`;
    - keras_vit: `keras_vit.converters.load("folder")`;
    - timm: `timm.create_model("local-dir:folder", pretrained=True)`;
    - transformers: `AutoModelForImageClassification.from_pretrained("folder")`.

    A library that has no model of this architecture is left out. The folder also has a
    model card, `README.md`, with the dataset and the accuracy from the config.json of a
    recipe's run.

    Args:
        source: String or path of a checkpoint, as in `converters.load`, such as
            the folder of a recipe's run.
        folder: String or path of the folder to write.
        format: String. Format of the checkpoint; None infers it.
        license: String. Identifier of the weights' license for the card, such
            as "apache-2.0"; None if it is unknown.
        overwrite: Boolean. Whether existing files of these names may be
            replaced.
        num_heads: Integer. As in `converters.load`.
        **settings: Arguments of the model's function that take precedence over
            the checkpoint.

    Returns:
        Dict that maps the name of each library ("keras", "timm", "transformers") to
        None, or to the reason why the folder has no file for it.

    Raises:
        FileExistsError: if files would be replaced and `overwrite` is False.
        ValueError: if the checkpoint cannot be read or its model cannot be built.

    Example:

    >>> keras_vit.hub.save("runs/digits", "hub/digits", license="mit")
    """
    folder = pathlib.Path(folder).expanduser()
    names = [*WEIGHTS.values(), _INDEX, _CARD, *huggingface.JSON_FILES]
    check_new_files(folder, names, overwrite)
    checkpoint = open_checkpoint(source, format, num_heads)
    checkpoint.raise_if_fixed()
    model = converters.load_for_images(checkpoint, **settings)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=folder.parent, prefix=f".{folder.name}-"
    ) as temporary:
        temporary = pathlib.Path(temporary)
        missing = _write(model, checkpoint, temporary, license, folder.name)
        folder.mkdir(exist_ok=True)
        for name in names:  # nothing is replaced before all is written
            if (temporary / name).exists():
                shutil.move(temporary / name, folder / name)
            else:
                (folder / name).unlink(missing_ok=True)
    return missing


def _write(
    model: keras.Model,
    checkpoint: Checkpoint,
    folder: pathlib.Path,
    license: str | None,
    title: str,
) -> dict[str, str | None]:
    weights, arguments, built = converters.describe(model)
    mode = built.get("preprocessing") or checkpoint.preprocess_mode or "tf"
    run = read_config(checkpoint.path)
    class_names = checkpoint.class_names(arguments["classes"])
    converters.write_keras(model, folder / WEIGHTS[KERAS])
    config: Config = {}
    missing: dict[str, str | None] = {KERAS: None}
    for library, write_part in (
        (TIMM, _write_timm),
        (TRANSFORMERS, _write_transformers),
    ):
        try:
            config |= write_part(weights, arguments, mode, folder, checkpoint)
            missing[library] = None
        except ValueError as error:
            missing[library] = str(error)
    if class_names:  # also without transformers: `predict.py` reads them
        config |= huggingface.label_entries(class_names)
        if missing[TIMM] is None:
            config["label_names"] = class_names
    activation = built.get("classifier_activation")
    config |= huggingface.problem_type(run, activation)
    written = [WEIGHTS[x] for x in (TIMM, TRANSFORMERS) if missing[x] is None]
    if written:
        warn_of_activation(built, " and ".join(written))
    text = json.dumps(config, indent=2)
    (folder / "config.json").write_text(text, encoding="utf-8")
    resizing = config.get("pretrained_cfg")
    card = _card(
        title, model, arguments, mode, resizing, run, class_names, license, missing
    )
    (folder / _CARD).write_text(card, encoding="utf-8")
    return missing


def _write_timm(
    weights: dict[str, Array],
    arguments: Config,
    mode: Mode,
    folder: pathlib.Path,
    source: Checkpoint,
) -> Config:
    """Writes the weights for timm and returns its entries of config.json."""
    name = WEIGHTS[TIMM]
    config = timm.hub_config(arguments, mode, name)
    config["pretrained_cfg"] |= source.resizing or {}
    check_representable(arguments, TIMM)
    weights, weight_map = FORMATS[TIMM].map_to_write("", weights)
    heads = (arguments["num_heads"], None)
    write(to_checkpoint(weights, weight_map, heads), folder / name)
    return config


def _write_transformers(
    weights: dict[str, Array],
    arguments: Config,
    mode: Mode,
    folder: pathlib.Path,
    source: Checkpoint,
) -> Config:
    """Writes the weights for transformers and returns its entries."""
    import safetensors

    with tempfile.TemporaryDirectory(dir=folder) as part:
        part = pathlib.Path(part) / "model"
        write_checkpoint(
            *(weights, arguments, part, "huggingface"),
            source=source,
            preprocess_mode=mode,
        )
        config, preprocessor = (
            json.loads((part / name).read_text()) for name in huggingface.JSON_FILES
        )
        shutil.move(part / "model.safetensors", folder / WEIGHTS[TRANSFORMERS])
    if arguments["channels"] == 3:
        text = json.dumps(preprocessor, indent=2)
        (folder / huggingface.JSON_FILES[1]).write_text(text)
    # The index is where transformers finds the file's name.
    name = WEIGHTS[TRANSFORMERS]
    with safetensors.safe_open(folder / name, "numpy") as file:
        keys = list(file.keys())
    index = {
        "metadata": {"total_size": (folder / name).stat().st_size},
        "weight_map": dict.fromkeys(keys, name),
    }
    (folder / _INDEX).write_text(json.dumps(index, indent=2))
    return config


def _card(
    title: str,
    model: keras.Model,
    arguments: Config,
    mode: Mode,
    resizing: Config | None,
    run: Config,
    class_names: list[str] | None,
    license: str | None,
    missing: dict[str, str | None],
) -> str:
    """Returns the text of the model card."""
    from huggingface_hub import EvalResult, ModelCardData

    config = run.get("config")
    config = config if isinstance(config, dict) else {}
    dataset, accuracy = config.get("dataset"), run.get("test_accuracy")
    dataset = dataset and printable(pathlib.PurePath(str(dataset)).name)
    results = None
    if isinstance(accuracy, float) and dataset:
        results = [
            EvalResult(
                task_type="image-classification",
                dataset_type=dataset,
                dataset_name=dataset,
                dataset_split="test",
                metric_type="accuracy",
                metric_value=round(accuracy, 4),
            )
        ]
    classifies = arguments["classes"] is not None
    task = "image-classification" if classifies else "image-feature-extraction"
    data = ModelCardData(
        library_name="keras",
        license=license,
        pipeline_tag=task,
        tags=["keras-vit", "vision-transformer"]
        + [name for name in (TIMM, TRANSFORMERS) if missing[name] is None],
        model_name=title,
        eval_results=results,
    )
    height, width, channels = (n or "any" for n in model.input_shape[1:])
    mean, std = mean_and_std(mode)
    lines = [
        "---",
        data.to_yaml().strip(),
        "---",
        "",
        f"# {title}",
        "",
        f"A {model.name} of {model.count_params():,} parameters, saved by keras_vit.",
        "",
        f"- Images: {height} x {width} pixels, {channels} channels",
        f"- Preprocessing: values in [0, 1] minus {list(mean)}, divided by "
        f"{list(std)}; `keras_vit.preprocess_input(images, mode={mode!r})`",
        f"- Classes: {arguments['classes'] or 'none, the output is features'}",
    ]
    if resizing:
        crop = f"crop_pct={resizing['crop_pct']:.4g}, {resizing['crop_mode']}"
        lines.insert(-1, f"- Resizing: {resizing['interpolation']}, {crop}, as in timm")
    if preprocessing_of(model) is not None:
        lines[-2] += (
            f". `{WEIGHTS[KERAS]}` does this itself: give it values from 0 to 255"
        )
    if class_names:
        names = [" ".join(name.split()) for name in class_names[:20]]
        more = len(class_names) - len(names)
        lines[-1] += f": {', '.join(names)}" + (
            f" and {more} more, which are in config.json" if more else ""
        )
    if dataset:
        lines.append(f"- Trained on: {dataset}")
    if isinstance(accuracy, float):
        lines.append(f"- Test accuracy: {accuracy:.4f}")
    lines += [
        "",
        "## Use",
        "",
        "```python",
        *_usage(title, classifies, bool(arguments.get("pre_norm")), missing),
        "```",
    ]
    for library, reason in missing.items():
        if reason:
            lines += ["", f"There is no file for {library}: {reason}"]
    return "\n".join(lines) + "\n"


def _usage(
    folder: str,
    classifies: bool,
    projects: bool,
    missing: dict[str, str | None],
) -> list[str]:
    """Returns the lines of code that load the model in each library."""
    kind = "AutoModelForImageClassification" if classifies else "AutoModel"
    if classifies and projects:
        kind = "CLIPVisionModelWithProjection"
    code = {
        KERAS: [
            "import keras",
            "import keras_vit",
            "",
            f'model = keras_vit.converters.load("{folder}")',
            f'model = keras.saving.load_model("{folder}/model.keras")',
        ],
        TIMM: [
            "",
            "import timm",
            "",
            f'model = timm.create_model("local-dir:{folder}", pretrained=True)',
        ],
        TRANSFORMERS: [
            "",
            f"from transformers import {kind}",
            "",
            f'model = {kind}.from_pretrained("{folder}")',
        ],
    }
    return [x for library in code if not missing[library] for x in code[library]]
