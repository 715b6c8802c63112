"""Trains an image tower and a text tower on images and their texts.

The methods are CLIP (https://arxiv.org/abs/2103.00020), SigLIP
(https://arxiv.org/abs/2303.15343) and LiT (https://arxiv.org/abs/2111.07991);
docs/text.md contains measurements.

  python recipes/pretrain_pairs.py --output runs/pairs
      trains on handwritten digits and "a photo of the digit seven", in minutes
      on 2 CPU cores, without a download
  python recipes/pretrain_pairs.py --dataset pairs.csv
      trains on a CSV file with the columns image, a path, and text
  python recipes/pretrain_pairs.py --weights runs/digits --train text
      trains the text tower, with the image tower of a trained model (LiT)

The accuracy is the fraction of the evaluated images whose own text is the
nearest among all different texts. The small text tower has words as tokens. The
output folder contains model.keras, a `keras_vit.DualEncoder` with its
tokenizer, metrics.csv, curves.png and config.json. Runs resume.
"""

import dataclasses
import math
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import keras
import numpy as np

import keras_vit
from keras_vit.config import TextConfig
from keras_vit_programs import building, defaults, flags, setup

DIGITS = "zero one two three four five six seven eight nine".split()

# The defaults, in the order in which they are set.
DEFAULTS = (
    flags.Rule(
        "model",
        "the architecture of --weights, or without them compact-vit (4 layers of "
        "width 64)",
    ),
    defaults.SPEC,
    flags.Rule(
        "image_size",
        "that of the dataset, else of the model, else 64",
        lambda s, data: defaults.first(data.image_size, s.spec["image_size"], 64),
    ),
    defaults.PATCH_SIZE,
    *defaults.batch_size(64),
    defaults.steps("1200", lambda s, data: 1200),
    defaults.NO_EPOCHS,
    defaults.evaluate_every(5),
    defaults.constant("learning_rate", 0.003),
    defaults.constant("weight_decay", 0.05),
    defaults.constant("warmup", 0.1),
    defaults.constant("keep", "last"),
    defaults.constant("protocol", "simple"),
    flags.Rule(
        "template",
        "'a photo of the digit {}' for digits, else '{}'",
        lambda s, data: "a photo of the digit {}" if s.dataset == "digits" else "{}",
    ),
    defaults.MODE,
)


@dataclasses.dataclass(frozen=True)
class Config(
    flags.Weights,
    flags.Patches,
    flags.Epochs,
    flags.Keep,
    flags.Warmup,
    flags.Holdout,
    flags.Dataset,
):
    method: str = flags.flag(
        "loss: clip (softmax over a batch) or siglip (sigmoid of each pair)",
        "clip",
        choices=("clip", "siglip"),
    )
    train: str = flags.flag(
        "trainable weights: all, or text (all except those of the image tower below "
        "its new projection)",
        "all",
        choices=("all", "text"),
    )
    template: str | None = flags.flag("text, with {} for the text of the dataset")
    text_layers: int = flags.flag("layers of the text tower", 2, minimum=1)
    text_width: int = flags.flag("its width, a multiple of 16", 64, minimum=16)
    embedding_size: int = flags.flag("channels of the embeddings", 64, minimum=1)

    defaults = DEFAULTS
    others = {"--accumulate": "splits a batch, on all of which the loss depends"}

    def __post_init__(self):
        super().__post_init__()
        if self.train == "text" and self.weights is None:
            raise ValueError("--train text needs an image tower: give --weights.")


def main(config):
    setup.launch(config, flags.fill, train, load)


def load(config):
    """Returns the images, whose classes are their different texts."""
    if not config.dataset.endswith(".csv"):
        data = setup.load_run_data(config)
        names = DIGITS if config.dataset == "digits" else data.class_names
        return dataclasses.replace(data, class_names=names)
    return keras_vit.data.from_csv(
        config.dataset,
        label_column="text",
        multi_label=False,
        holdout=config.holdout or 0.0,
        skip_bad_images=config.skip_bad_images,
    )


def train(config, data, strategy, output):
    """Trains with settings that `flags.fill` has filled in."""
    with setup.open_run(config, data, strategy, output, config.method) as run:
        # 1. Data: batches of images and the numbers of their texts.
        train_batches = run.train_batches()
        several = strategy.num_devices > 1
        reading = {**config.batches(), "batch_size": config.batch_size}
        test = data.evaluation(**reading, shard=strategy.process, pad=several)

        # 2. Model, with its own loss, and optimizer.
        model = build_model(config, data)
        schedule = keras_vit.schedules.warmup_cosine(
            config.learning_rate, config.steps, config.warmup
        )
        model.compile(
            optimizer=setup.build_optimizer(config, schedule),
            jit_compile=keras_vit.training.jit_compile(strategy),
        )

        # 3. Training, from the last checkpoint if there is one.
        if strategy.is_main and not several:
            # A sharded model computes only if all processes call it.
            run.callbacks.append(ZeroShot(data, reading))
        model.fit(**run.resume(model, schedule, train_batches, test))

        # 4. Results: both towers, metrics, plots and settings.
        def write(model, output):
            model.dual.encoder.preprocess_mode = config.mode
            keras_vit.save(model.dual, output / "model.keras", overwrite=True)

        return run.save(model, write)


class Pairs(keras.Model):
    """A dual encoder that takes images and the numbers of their texts."""

    def __init__(self, dual, ids):
        super().__init__(name="dual_encoder")
        self.dual, self.ids = dual, ids
        self.built = True

    encoder = property(lambda self: self.dual.encoder)

    def call(self, images, training=False):
        return images  # the loss computes all

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        ids = keras.ops.take(keras.ops.convert_to_tensor(self.ids), y, axis=0)
        logits = self.dual({"images": x, "texts": ids}, training=training)
        return self.dual.compute_loss(y_pred=logits)


class ZeroShot(keras.callbacks.Callback):
    """Measures the accuracy of the nearest text after each evaluation."""

    def __init__(self, data, reading):
        super().__init__()
        self.data, self.reading = data, reading

    def on_epoch_end(self, epoch, logs):
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()
        dual = self.model.dual
        texts = dual.text_encoder.predict(self.model.ids, batch_size=256, verbose=0)
        texts = texts / np.linalg.norm(texts, axis=-1, keepdims=True)
        right = []
        for images, labels, _ in self.data.evaluation(**self.reading):
            found = dual.encoder.predict_on_batch(np.asarray(images)) @ texts.T
            right.extend(found.argmax(-1) == np.asarray(labels))
        logs["val_zero_shot_accuracy"] = float(np.mean(right))


def build_model(config, data):
    encoder = building.build_model(
        config.model,
        config.weights,
        config.patch_size,
        config.seed,
        input_shape=config.input_shape(data.channels),
        classes=config.embedding_size,
        remat=config.remat,
    )
    keras_vit.training.set_trainable(
        encoder, "all" if config.train == "all" else "head"
    )
    texts = [config.template.format(name) for name in data.class_names]
    tokenizer, vocabulary_size = tokenizer_of(texts)
    text = TextConfig(
        vocabulary_size=vocabulary_size,
        context_length=tokenizer.length,
        hidden_size=config.text_width,
        num_layers=config.text_layers,
        num_heads=config.text_width // 16,
        projection_size=config.embedding_size,
    )
    sigmoid = config.method == "siglip"
    dual = keras_vit.DualEncoder(
        encoder,
        keras_vit.text.TextEncoder(text),
        logit_scale=math.log(10 if sigmoid else 1 / 0.07),
        logit_bias=-10.0 if sigmoid else None,
        tokenizer=tokenizer,
    )
    return Pairs(dual, tokenizer(texts))


def tokenizer_of(texts):
    """Returns a tokenizer of words and its number of ids, the end of a text last."""
    tokenizers = flags.require("tokenizers")
    split = tokenizers.pre_tokenizers.Whitespace()
    lists = [[x for x, _ in split.pre_tokenize_str(text.lower())] for text in texts]
    words = sorted({word for each in lists for word in each})
    tokens = ["[PAD]", "[UNK]", *words, "[END]"]
    ids = {token: i for i, token in enumerate(tokens)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, "[UNK]"))
    tokenizer.pre_tokenizer = split
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="$A [END]", special_tokens=[("[END]", len(words) + 2)]
    )
    tokenizer.add_special_tokens(["[END]"])
    length = max(16, 1 + max(map(len, lists)))
    return keras_vit.text.Tokenizer(tokenizer.to_str(), length, 0, "lower"), len(tokens)


if __name__ == "__main__":
    flags.run(main, Config, __doc__)
