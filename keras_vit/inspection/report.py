"""Report about a model: an HTML page, and its figures as PNG files."""

import base64
import html
import importlib.resources
import io
import string
from collections.abc import Callable
from collections.abc import Sequence
from typing import TYPE_CHECKING
from typing import Any

import keras
import numpy as np

from keras_vit._logging import logger
from keras_vit._program import printable
from keras_vit._types import Array
from keras_vit._types import StrPath
from keras_vit._version import __version__
from keras_vit.config import ResNetConfig
from keras_vit.config import ViTConfig
from keras_vit.inspection import attention
from keras_vit.inspection import features
from keras_vit.inspection import plots
from keras_vit.inspection import tokens
from keras_vit.inspection import weights
from keras_vit.inspection.images import make_batches
from keras_vit.inspection.images import thumbnail
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import PatchEmbedding
from keras_vit.layers import RotaryPositionEmbs
from keras_vit.models import config_of
from keras_vit.preprocessing import decode_predictions
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit.weights.files import class_names_of
from keras_vit.weights.files import read_config
from keras_vit.weights.infer import placement

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_SHOWN = 8  # images in figures; distances are averaged over all images
FIGURES = (
    "attention.png",
    "attention_heads.png",
    "attention_maps.png",
    "feature_pca.png",
    "embedding_filters.png",
    "position_similarity.png",
    "attention_distance.png",
    "token_norms.png",
)
PAGE = "report.html"
_MAX_SIDE = 480  # maximum height and width of an image in a figure, in pixels


class Report:
    """Builds the page and the figures of a report.

    Images are uint8 arrays `(height, width, channels)`; `labels` are as in
    `decode_predictions`, or None for ImageNet's names if there are as many
    classes, else for numbers.
    """

    def __init__(
        self,
        model: keras.Model,
        checkpoint: Checkpoint,
        images: Sequence[Array],
        names: Sequence[str],
        size: tuple[int, int],
        mode: str,
        keep_aspect: bool = False,
        labels: StrPath | Sequence[str] | None = None,
    ) -> None:
        self.model, self.checkpoint = model, checkpoint
        self.images, self.names = images, names
        self.size, self.mode, self.labels = size, mode, labels
        self.keep_aspect = keep_aspect
        self.figures: dict[str, bytes] = {}
        self.sections: list[str] = []
        patch = (1, 1)
        self.has_patches = tokens.find_layer(model, PatchEmbedding) is not None
        if self.has_patches:
            patch = tokens.token_layout(model, size).patch_size
        self.batches = make_batches(images, size, patch, mode, keep_aspect)
        self.few = [batch[:NUM_SHOWN] for batch in self.batches[:NUM_SHOWN]]
        self.small = [thumbnail(x, _MAX_SIDE) for x in images[:NUM_SHOWN]]

    def build(self) -> dict[str, bytes]:
        """Returns the files as `{name: bytes}`, the page last."""
        self._model()
        if self.images and any(x.name == "head" for x in self.model.layers):
            self._predictions()
        if self.images and self.has_patches:
            self._attention()
            self._features()
        self._figure_7()
        if self.images and self.has_patches:
            self._norms()
        title = f"Inside {self.checkpoint.path.rsplit('/', 1)[-1]}"
        subtitle = (
            f"keras_vit {__version__}, Keras {keras.__version__} on "
            f"{keras.backend.backend()}"
        )
        folder = importlib.resources.files("keras_vit.inspection")
        page = string.Template((folder / PAGE).read_text()).substitute(
            title=html.escape(title),
            subtitle=html.escape(subtitle),
            body="\n".join(self.sections),
        )
        return {**self.figures, PAGE: page.encode()}

    def _of_images(self, compute: Callable[..., Array], **options: Any) -> list:
        """Returns what a function of the model computes for each shown image,
        whose sizes may differ."""
        return [
            values
            for batch in self.few
            for values in compute(self.model, batch, **options)
        ]

    def _draw(
        self, name: str, figure: "Figure", alt: str, caption: str = ""
    ) -> str:
        """Keeps a figure as PNG, and returns its HTML."""
        logger.info(f"  {name}")
        buffer = io.BytesIO()
        figure.savefig(buffer, bbox_inches="tight", pad_inches=0.05)
        self.figures[name] = buffer.getvalue()
        return _html_figure(buffer.getvalue(), alt, caption)

    def _section(self, heading: str, text: str, *parts: str) -> None:
        """Adds a heading, a paragraph and parts, which are HTML."""
        paragraph = [f"<p>{html.escape(text)}</p>"] if text else []
        inside = "\n".join([*paragraph, *parts])
        self.sections.append(
            f"<section>\n<h2>{html.escape(heading)}</h2>\n{inside}\n</section>"
        )

    def _model(self) -> None:
        """Adds the table of the model's properties."""
        rows = describe_model(self.model, self.checkpoint, self.size, self.mode)
        cells = "\n".join(
            f'<tr><th scope="row">{html.escape(name)}</th>'
            f"<td>{html.escape(str(value))}</td></tr>"
            for name, value in rows
        )
        self._section("The model", "", f"<table>\n{cells}\n</table>")

    def _predictions(self) -> None:
        """Adds the images with their top classes."""
        outputs = [
            tokens.compute_tensors(self.model, self.model.outputs, batch)[0]
            for batch in self.few
        ]
        guesses, note = _top_classes(
            np.concatenate(outputs), self.model, self.labels
        )
        cards = [
            _html_predictions(_png(image), name, guess)
            for image, name, guess in zip(
                self.small, self.names, guesses, strict=False
            )
        ]
        text = "The top classes of each image. " + note
        self._section("Predictions", text, _html_row(cards))

    def _attention(self) -> None:
        """Adds the heat maps, the heads of the last block and all maps."""
        heads = self._of_images(attention.attention_heads)
        rollout = self._of_images(attention.attention_heatmap, outliers="mask")
        mean = [maps.mean(axis=0) for maps in heads]
        names = self.names[:NUM_SHOWN]
        spots = "; ".join(
            f"{name}: {_describe_maximum(heat)}"
            for name, heat in zip(names, mean, strict=True)
        )
        scale = "Colors range from the 2nd to the 98th percentile of each map."
        self._section(
            "Attention",
            "The attention of the pooled output to the image: in the last "
            "block, as the mean of its heads, and by attention rollout "
            "through all blocks, as in the paper's Figure 6. The rollout "
            "leaves out patches that receive more than 10 times the mean "
            f"attention of a block. {scale} {_contrast(mean)}",
            self._draw(
                "attention.png",
                plots.plot_attention_heatmap(
                    self.small, {"last block": mean, "rollout": rollout}, names
                ),
                f"Attention over {len(mean)} images. Most attention of the "
                f"last block falls on {spots}.",
            ),
        )
        self._section(
            "Heads of the last block",
            "What each head of the last block attends to, and their mean. "
            + scale,
            self._draw(
                "attention_heads.png",
                plots.plot_attention_heads(self.small, heads, names),
                f"Attention of {len(heads[0])} heads over {len(heads)} images.",
            ),
        )
        one = self.few[0][:1]
        layout = tokens.token_layout(self.model, one.shape[1:3])
        maps = attention.attention_maps(self.model, one)
        query = layout.prefix[0].replace("_", " ") if layout.prefix else ""
        self._section(
            "Layer by layer, head by head",
            f"Attention of the {query} in {self.names[0]}."
            if query
            else f"Mean attention of the patches in {self.names[0]}.",
            self._draw(
                "attention_maps.png",
                plots.plot_attention_maps(maps, layout),
                f"Attention maps of {maps.shape[0]} layers, one a row, and "
                f"{maps.shape[2]} heads, one a column.",
            ),
        )

    def _features(self) -> None:
        """Adds the principal components of patches."""
        try:
            found = features.feature_pca(self.model, self.few)
        except ValueError:  # fewer than four patches in the foreground
            return
        share = np.mean([x.mean() for x in found.foreground])
        self._section(
            "Features of patches",
            "The first three principal components of the last block's "
            "features, as red, green and blue: patches of one color are "
            "alike."
            + (
                " The sign of the first component of all patches separates "
                "them from the background, which is dark."
            )
            * bool(share < 1),
            self._draw(
                "feature_pca.png",
                plots.plot_feature_pca(
                    self.small, found, self.names[:NUM_SHOWN]
                ),
                f"Components of {len(found.components)} images. "
                f"{share:.0%} of the patches are foreground, and the "
                f"components have {found.explained.sum():.0%} of its variance.",
            ),
        )

    def _figure_7(self) -> None:
        """Adds the three panels of the paper's Figure 7."""
        filters = weights.embedding_filters(self.model)
        count, height, width = filters.shape[:3]
        panels = [
            self._draw(
                "embedding_filters.png",
                plots.plot_embedding_filters(filters),
                f"{count} filters of {height} by {width} pixels.",
                f"The first {count} principal components of the filters of "
                "the first layer.",
            )
        ]
        positions = tokens.find_layer(self.model, AddPositionEmbs)
        if positions is not None and positions.kind != "none":
            panels.append(self._positions())
        if self.images and self.has_patches:
            panels.append(self._distance())
        self._section(
            "Filters, positions, attention distance",
            "The three panels of the paper's Figure 7.",
            _html_row(panels),
        )

    def _positions(self) -> str:
        """Returns the panel of position embeddings."""
        similar = weights.position_similarity(self.model)
        rows, columns = similar.shape[:2]
        nearest = similar[0, 0, 0, min(1, columns - 1)]
        return self._draw(
            "position_similarity.png",
            plots.plot_position_similarity(similar),
            f"Similarity of {rows} by {columns} position embeddings. That of "
            f"the first patch and its right neighbor is {nearest:.2f}, of it "
            f"and the last {similar[0, 0, -1, -1]:.2f}, of all "
            f"{similar.mean():.2f} on average.",
            "Cosine similarity of the position embedding of each patch with "
            "those of all patches.",
        )

    def _distance(self) -> str:
        """Returns the panel of attention distances."""
        totals = [
            len(batch) * attention.attention_distance(self.model, batch)
            for batch in self.batches
        ]
        distances = np.sum(totals, axis=0) / len(self.images)
        means = distances.mean(axis=1)
        size_text = f"{self.size[0]} × {self.size[1]} pixels"
        if self.keep_aspect:
            size_text = f"their own aspect ratio, of about {size_text}"
        size = self.batches[0].shape[1:3]
        layout = tokens.token_layout(self.model, size)
        uniform = attention.patch_distances(layout).mean()
        return self._draw(
            "attention_distance.png",
            plots.plot_attention_distance(distances, uniform),
            f"Mean attention distance of {distances.shape[1]} heads in "
            f"{len(means)} layers: {means[0]:.0f} pixels in the first layer, "
            f"{means[-1]:.0f} in the last; single heads from "
            f"{distances.min():.0f} to {distances.max():.0f}.",
            f"Attention distance of each head, mean over {len(self.images)} "
            "images of "
            f"{size_text}.",
        )

    def _norms(self) -> None:
        """Adds the norms of tokens."""
        batch = self.few[0]
        layout = tokens.token_layout(self.model, batch.shape[1:3])
        norms = attention.token_norms(self.model, batch)
        patches = norms[-1, :, layout.num_prefix :]
        ratio = patches.max() / np.median(patches)
        self._section(
            "Norms of tokens",
            "Large models without registers store global information in a few "
            "patches of little content, whose tokens have much larger L2 "
            f"norms. Here the largest is {ratio:.1f} times the median.",
            self._draw(
                "token_norms.png",
                plots.plot_token_norms(norms, layout),
                f"L2 norms of tokens in {len(norms)} layers. After the last, "
                f"those of patches have a median of {np.median(patches):.3g} "
                f"and a maximum of {patches.max():.3g}.",
                f"Right: patches of {self.names[0]}.",
            ),
        )


def _png(image: Array) -> bytes:
    """Returns a small image as a PNG file."""
    from PIL import Image

    small = plots.enlarge(thumbnail(image, 192), 192)
    grey = small.shape[-1] == 1
    buffer = io.BytesIO()
    Image.fromarray(small[..., 0] if grey else small).save(buffer, "png")
    return buffer.getvalue()


def _contrast(heat: list[Array]) -> str:
    """Returns a sentence that tells whether colors exaggerate differences."""
    ends = [np.percentile(x, (2, 98)) for x in heat]
    times = [high / max(low, 1e-12) for low, high in ends]
    return (
        f"Between these ends, attention differs {min(times):.1f} to "
        f"{max(times):.1f} times; below 1.5, differences are small."
    )


def _describe_maximum(heat: Array) -> str:
    """Returns where the largest value is, such as "top left"."""
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    down = ("top", "middle", "bottom")[3 * row // heat.shape[0]]
    right = ("left", "center", "right")[3 * column // heat.shape[1]]
    return f"{down} {right}"


def format_name(checkpoint: Checkpoint) -> str:
    """Returns the name of a checkpoint's format."""
    if checkpoint.layout == "keras":
        return "Keras"
    variant = checkpoint.weight_map.variant
    return ":".join(filter(None, (checkpoint.layout, variant)))


def describe_model(
    model: keras.Model,
    checkpoint: Checkpoint,
    size: tuple[int, int],
    mode: str,
) -> list[tuple[str, str]]:
    """Returns the properties of a model as `[(name, value), ...]`."""
    config = config_of(model)
    pixels, channels = f"{size[0]} × {size[1]}", model.inputs[0].shape[-1]
    rows = [
        ("File", checkpoint.path),
        ("Format", format_name(checkpoint)),
        ("Parameters", f"{model.count_params():,}"),
        ("Images", f"{pixels} pixels, channels: {channels}"),
        ("Preprocessing", _MODES[mode]),
    ]
    if isinstance(config, ResNetConfig):
        units = ", ".join(map(str, config.resnet_layers)) or "the root only"
        width = f"{config.width_factor:g}"
        rows.append(("ResNet", f"units per stage: {units}; width {width}"))
    if isinstance(config, ViTConfig):
        rows += _describe_encoder(model, config, size)
    if any(layer.name == "head" for layer in model.layers):
        rows.append(("Classes", f"{model.outputs[0].shape[-1]:,}"))
    return rows


_MODES = {
    "tf": "scaled to [-1, 1]",
    "torch": "ImageNet's mean and standard deviation",
    "clip": "CLIP's mean and standard deviation",
}
_POOLING = {
    "token": "the class token",
    "gap": "the mean of the patches",
    "token_gap": "the class token and the mean of the patches",
    "first_patch": "the first patch",
    "map": "attention pooling of the patches",
    None: "all tokens",
}


def _describe_encoder(
    model: keras.Model, config: ViTConfig, size: tuple[int, int]
) -> list[tuple[str, str]]:
    """Returns the properties of a transformer."""
    layout = tokens.token_layout(model, size)
    rows, columns = layout.grid
    names = [name.replace("_", " ") for name in layout.prefix]
    counts = [f"{names.count(name)} {name}" for name in dict.fromkeys(names)]
    counts.append(f"{rows * columns} patches")
    patch = " × ".join(map(str, layout.patch_size))
    layer = tokens.find_positions(model)
    rotary = isinstance(layer, RotaryPositionEmbs)
    positions = getattr(layer, "kind", "rope" if rotary else "relative")
    if (where := placement(layer.name)) != "stem":
        positions += f" in {where.replace('_', ' ')}"
    if layer.embedding_variables():
        grid = " × ".join(map(str, layer.built_grid))
        positions += f", for {grid} patches; resampling: {layer.resampling}"
    return [
        ("Patches", f"{patch} pixels, a grid of {rows} × {columns}"),
        ("Tokens", " + ".join(counts)),
        (
            "Encoder",
            f"{config.num_layers} layers of width {config.hidden_size}, "
            f"{config.num_heads} heads, MLP of width {config.mlp_dim}",
        ),
        ("Activation", config.activation),
        ("Epsilon of the norms", f"{config.norm_epsilon:g}"),
        ("Positions", positions),
        ("Output", _POOLING[config.pooling]),
    ]


def infer_mode(checkpoint: Checkpoint, channels: int) -> str:
    """Infers the `mode` of `preprocess_input` from a checkpoint."""
    if channels != 3:
        return "tf"
    return checkpoint.preprocess_mode or "tf"


def class_names(checkpoint: Checkpoint, classes: int) -> list[str] | None:
    """Returns class names from the config next to a checkpoint, or None."""
    try:
        return class_names_of(read_config(checkpoint.path), classes)
    except (ValueError, OSError):
        return None


def _top_classes(
    outputs: Array,
    model: keras.Model,
    labels: StrPath | Sequence[str] | None,
    top: int = 5,
) -> tuple[list[list[tuple[str, float]]], str]:
    """Returns `(name, probability)` of the top classes of each image, and a
    note about the names for the report's reader, or ""."""
    outputs = np.asarray(outputs, "float32")
    activation = model.get_layer("head").activation
    if activation in (None, keras.activations.linear):
        outputs = keras.ops.convert_to_numpy(keras.ops.softmax(outputs))
    classes = outputs.shape[1]
    note = ""
    if labels is None and classes in (1000, 21843):
        note = f"Names are ImageNet's, which also has {classes} classes."
        try:
            decode_predictions(outputs[:1])
        except (OSError, ValueError):
            note = "ImageNet's names could not be fetched: classes are numbers."
            labels = _numbers(classes)
    elif labels is None:
        labels = _numbers(classes)
        note = "Classes are numbered; name them with --labels."
    if (np.ptp(outputs, axis=1) == 0).all():
        note = (
            "All classes have the same score: the head is zero, as before "
            "fine-tuning. " + note
        )
    decoded = decode_predictions(outputs, min(top, classes), labels)
    return [
        [(printable(name), score) for _, name, score in x] for x in decoded
    ], note


def _numbers(classes: int) -> list[str]:
    """Returns names for classes without names."""
    return [f"class {index}" for index in range(classes)]


def _html_row(parts: Sequence[str]) -> str:
    """Returns HTML of parts next to each other."""
    return '<div class="row">\n' + "\n".join(parts) + "\n</div>"


def _html_figure(png: bytes, alt: str, caption: str = "") -> str:
    """Returns HTML of an image and its caption."""
    if caption:
        caption = f"<figcaption>{html.escape(caption)}</figcaption>"
    return f"<figure>\n{_html_image(png, alt)}\n{caption}</figure>"


def _html_image(png: bytes, alt: str) -> str:
    """Returns HTML of an image that is part of the page."""
    data = base64.b64encode(png).decode("ascii")
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


def _html_predictions(
    png: bytes, name: str, guesses: Sequence[tuple[str, float]]
) -> str:
    """Returns HTML of an image and its `[(class, probability), ...]`."""
    items = "\n".join(
        f"<li><span>{html.escape(label)}</span><span>{probability:.1%}</span>"
        f'<i style="background-size:{100 * probability:.1f}% 100%"></i></li>'
        for label, probability in guesses
    )
    return (
        f'<div class="card">{_html_image(png, name)}\n<div>'
        f"<strong>{html.escape(name)}</strong>\n<ol>\n{items}\n</ol></div></div>"
    )
