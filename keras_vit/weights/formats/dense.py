"""What the folders of transformers' detectors and segmenters have in common."""

from typing import Any, ClassVar

from keras_vit.utils.scaling import Mode
from keras_vit.utils.types import Array, Config
from keras_vit.weights.formats import huggingface
from keras_vit.weights.formats.format import Checkpoint, Format, check_option
from keras_vit.weights.formats.huggingface_config import (
    check_config,
    model_config,
    read_arguments,
)


class Dense(Format):
    """A detector or a segmenter of transformers.

    Its name is transformers' `model_type`. Beside the encoder's arguments it has
    those of its head, which `models` of the family describe, and `loss_options`.
    """

    config_key = "model_type"
    folder_files = huggingface.FOLDER_FILES
    # The class of the model in transformers, and that of its image processor.
    architecture: ClassVar[str]
    processor: ClassVar[str]
    # What transformers takes if config.json does not have it.
    defaults: ClassVar[Config]
    # Options of the loss: their names and defaults in config.json.
    loss_options: ClassVar[dict[str, tuple[str, Any]]]

    def read_config(self, config: Config) -> Config:
        kind = config.get("model_type")
        check_option(kind == self.name, "model_type", kind, repr(self.name))
        options = {x: config.get(*theirs) for x, theirs in self.loss_options.items()}
        arguments = read_arguments({**self.defaults, **config})
        return {**arguments, "loss_options": options}

    def check_config(self, config: Config, weights: dict[str, Array]) -> None:
        check_config(config, weights)
        config = {**self.defaults, **config}
        for name, value in self.in_arrays(config, weights).items():
            fits = config[name] == value
            check_option(fits, name, config[name], f"{value!r}, as in its arrays")

    @staticmethod
    def in_arrays(config: Config, weights: dict[str, Array]) -> Config:
        """Returns the entries of config.json that the arrays decide."""
        raise NotImplementedError

    @staticmethod
    def head_config(arguments: Config) -> Config:
        """Returns the entries of config.json that describe the head."""
        raise NotImplementedError

    def refusals(self, arguments: Config, variant: str, folder: bool) -> list[str]:
        wrong = super().refusals(arguments, variant, folder)
        if not folder:
            wrong.append("its options are in the config.json of a folder")
        return wrong

    def folder_configs(
        self,
        arguments: Config,
        variant: str,
        dtype: str,
        source: Checkpoint | None = None,
        preprocess_mode: Mode | None = None,
    ) -> dict[str, Config]:
        a, options = arguments, arguments["loss_options"]
        config = {
            "model_type": self.name,
            "architectures": [self.architecture],
            **model_config(a, self.name),
            **self.head_config(a),
            **{
                theirs: options.get(name, default)
                for name, (theirs, default) in self.loss_options.items()
            },
            **huggingface.label_entries(a["class_names"]),
            "dtype": dtype,
        }
        processor = {"image_processor_type": self.processor}
        if preprocess_mode is None:
            return {"config.json": config}
        processor |= huggingface.scaling(preprocess_mode, a["channels"])
        return {"config.json": config, "preprocessor_config.json": processor}
