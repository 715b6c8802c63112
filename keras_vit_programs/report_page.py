"""Report about a model: an HTML page, and its figures as PNG files."""

import base64
import dataclasses
import html
import importlib.resources
import io
import string
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_vit import __version__
from keras_vit.inspection import attention, features, filters, plots, tokens
from keras_vit.inspection.relevance import relevance
from keras_vit.layers import AddPositionEmbs, PatchEmbedding
from keras_vit.models import config_of
from keras_vit.models.graph import Graph, output_activation
from keras_vit.preprocessing import decode_predictions
from keras_vit.preprocessing.labels import default_names
from keras_vit.utils.logging import logger
from keras_vit.utils.scaling import Mode
from keras_vit.utils.text import printable
from keras_vit.utils.types import Array, StrPath
from keras_vit.weights.checkpoint import Checkpoint
from keras_vit_programs.images import make_batches, thumbnail

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NUM_SHOWN = 8  # images in figures; distances are averaged over all images
FIGURES = (
    "objects.png",
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
    `decode_predictions`, or None for ImageNet's names if the number of classes matches,
    otherwise for numbers. `objects` is a figure of what a detector finds; the attention
    of its tokens is not shown.
    """

    def __init__(
        self,
        model: keras.Model,
        checkpoint: Checkpoint,
        images: Sequence[Array],
        names: Sequence[str],
        size: tuple[int, int],
        mode: Mode,
        keep_aspect: bool = False,
        labels: StrPath | Sequence[str] | None = None,
        objects: "Figure | None" = None,
    ) -> None:
        self.objects = objects
        self.model, self.checkpoint = model, checkpoint
        self.images, self.names = images, names[:NUM_SHOWN]
        self.size, self.mode, self.labels = size, mode, labels
        self.figures: dict[str, bytes] = {}
        self.sections: list[str] = []
        patch = (1, 1)
        is_detector = isinstance(model.output, dict)
        embedding = tokens.find_layer(model, PatchEmbedding)
        self.has_patches = not is_detector and embedding is not None
        if self.has_patches:
            patch = tokens.token_layout(model, size).patch_size
        self.batches = make_batches(images, size, patch, mode, keep_aspect)
        self.few = [batch[:NUM_SHOWN] for batch in self.batches[:NUM_SHOWN]]
        self.small = [
            thumbnail(x, _MAX_SIDE).astype("uint8") for x in images[:NUM_SHOWN]
        ]

    def build(self) -> dict[str, bytes]:
        """Returns the files as `{name: bytes}`, the page last."""
        attends = bool(self.images) and self.has_patches
        self._section("The model", "", _table(self._properties()))
        if self.images and any(x.name == "head" for x in self.model.layers):
            self._predictions()
        if self.objects is not None:
            caption = "The objects that the model finds, with their scores."
            picture = self._draw("objects.png", self.objects, caption)
            self._section("Objects", "", picture)
        if attends:
            self._attention()
            self._features()
        self._section(
            "Filters, positions, attention distance",
            "The three panels of the paper's Figure 7.",
            '<div class="row">',
            *self._figure_7(),
            "</div>",
        )
        if attends:
            self._norms()
        folder = importlib.resources.files("keras_vit_programs")
        page = string.Template((folder / PAGE).read_text()).substitute(
            title=html.escape(
                f"Inside {'/'.join(self.checkpoint.path.split('/')[-2:])}"
            ),
            subtitle=f"keras_vit {__version__}, Keras {keras.__version__} on "
            f"{keras.backend.backend()}",
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

    def _draw(self, name: str, figure: "Figure", caption: str) -> str:
        """Keeps a figure as PNG, and returns its HTML."""
        logger.info(f"  {name}")
        buffer = io.BytesIO()
        figure.savefig(buffer, bbox_inches="tight", pad_inches=0.05)
        self.figures[name] = buffer.getvalue()
        data = base64.b64encode(buffer.getvalue()).decode("ascii")
        return (
            f'<figure>\n<img alt="{name}" src="data:image/png;base64,{data}">\n'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )

    def _section(self, heading: str, text: str, *parts: str) -> None:
        """Adds a heading, a paragraph and parts, which are HTML."""
        self.sections += [
            f"<section>\n<h2>{html.escape(heading)}</h2>",
            f"<p>{html.escape(text)}</p>",
            *parts,
            "</section>",
        ]

    def _properties(self) -> Iterator[tuple[str, object]]:
        """Yields the names and values of the model's properties."""
        model = self.model
        yield "File", self.checkpoint.path
        yield "Format", format_name(self.checkpoint)
        yield "Parameters", f"{model.count_params():,}"
        height, width = self.size
        yield (
            "Images",
            f"{height} × {width} pixels, channels: "
            f"{model.inputs[0].shape[-1]}, preprocess_input mode {self.mode!r}",
        )
        if self.has_patches:
            layout = tokens.token_layout(model, self.size)
            rows, columns = layout.grid
            names = [f"{layout.prefix.count(x)} {x}" for x in layout.prefix]
            patches = f"{rows} × {columns} patches"
            yield "Tokens", " + ".join([*dict.fromkeys(names), patches])
            positions = tokens.find_positions(model)
            if getattr(positions, "kind", "none") not in ("none", "sincos2d"):
                grid = " × ".join(map(str, positions.built_grid))
                yield "Learned positions", f"for {grid} patches"
        try:
            config = config_of(model)
            for field in dataclasses.fields(config):
                value = getattr(config, field.name)
                if value != field.default:
                    yield field.name, value
        except ValueError as error:  # of blocks that differ
            yield "Config", error

    def _predictions(self) -> None:
        """Adds the top classes of the images."""
        graph = Graph(self.model)
        outputs = [
            tokens.compute_tensors(graph, [graph.outputs], batch)[0]
            for batch in self.few
        ]
        scores = np.concatenate(outputs).astype("float32")
        if output_activation(self.model) == "linear":
            scores = keras.ops.convert_to_numpy(keras.ops.softmax(scores))
        labels = self.labels
        text = "The top classes of each image, which is resized as in the figures."
        if (self.checkpoint.resizing or {}).get("crop_pct", 1) < 1:
            text += " `keras-vit predict` also crops it as the model's files say."
        if labels is None:
            labels = default_names(scores.shape[1])
            text += " Name the classes with --labels."
        if (np.ptp(scores, axis=1) == 0).all():
            text += " All have one score: the head is zero, as in a new model."
        rows = []
        decoded = decode_predictions(scores, 5, labels)
        for name, found in zip(self.names, decoded, strict=False):
            best = [f"{printable(x)} {score:.1%}" for _, x, score in found]
            rows.append((name, ", ".join(best)))
        self._section("Predictions", text, _table(rows))

    def _attention(self) -> None:
        """Adds the heat maps, the heads of the last block and all maps."""
        heads = self._of_images(attention.attention_heads)
        columns = {
            "last block": [maps.mean(axis=0) for maps in heads],
            "rollout": self._of_images(attention.attention_heatmap, outliers="mask"),
        }
        caption = "Colors range from the 2nd to the 98th percentile of each map."
        try:
            columns["relevance"] = self._of_images(relevance)
        except ValueError as error:  # of a quantized head, for example
            logger.info(f"  no relevance: {error}")
        has_head = any(x.name == "head" for x in self.model.layers)
        target = "score of the most likely class" if has_head else "features"
        self._section(
            "Attention and relevance",
            "The attention of the pooled output to the image: in the last "
            "block, as the mean of its heads, and by attention rollout "
            "through all blocks, as in the paper's Figure 6. The rollout "
            "leaves out patches that receive more than 10 times the mean "
            "attention of a block. Relevance is how much the image's "
            f"{target} depends on each patch, by gradient rollout.",
            self._draw(
                "attention.png",
                plots.plot_attention_heatmap(self.small, columns, self.names),
                caption,
            ),
        )
        self._section(
            "Heads of the last block",
            "What each head of the last block attends to, and their mean.",
            self._draw(
                "attention_heads.png",
                plots.plot_attention_heads(self.small, heads, self.names),
                "Colors range from the 2nd to the 98th percentile of each map.",
            ),
        )
        one = self.few[0][:1]
        layout = tokens.token_layout(self.model, one.shape[1:3])
        maps = attention.attention_maps(self.model, one)
        query = (*layout.prefix, "mean patch")[0].replace("_", " ")
        self._section(
            "Layer by layer, head by head",
            f"Attention of the {query} in {self.names[0]}.",
            self._draw(
                "attention_maps.png",
                plots.plot_attention_maps(maps, layout),
                "Each row is a layer, and each column a head.",
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
            "alike. The sign of the first component of all patches separates "
            "them from the background, which is dark.",
            self._draw(
                "feature_pca.png",
                plots.plot_feature_pca(self.small, found, self.names),
                f"{share:.0%} of the patches are foreground, and the "
                f"components have {found.explained.sum():.0%} of its variance.",
            ),
        )

    def _figure_7(self) -> Iterator[str]:
        """Yields the panels of the paper's Figure 7."""
        kernels = filters.embedding_filters(self.model)
        yield self._draw(
            "embedding_filters.png",
            plots.plot_embedding_filters(kernels),
            f"The first {len(kernels)} principal components of the filters of "
            "the first layer.",
        )
        positions = tokens.find_layer(self.model, AddPositionEmbs)
        if positions is not None and positions.kind != "none":
            similar = filters.position_similarity(self.model)
            yield self._draw(
                "position_similarity.png",
                plots.plot_position_similarity(similar),
                "Cosine similarity of the position embedding of each patch "
                f"with those of all patches, {similar.mean():.2f} on average.",
            )
        if not (self.images and self.has_patches):
            return
        totals = [
            len(batch) * attention.attention_distance(self.model, batch)
            for batch in self.batches
        ]
        distances = np.sum(totals, axis=0) / len(self.images)
        layout = tokens.token_layout(self.model, self.batches[0].shape[1:3])
        uniform = attention.patch_distances(layout).mean()
        means = distances.mean(axis=1)
        yield self._draw(
            "attention_distance.png",
            plots.plot_attention_distance(distances, uniform),
            f"Attention distance of each head, mean over {len(self.images)} "
            f"images: {means[0]:.0f} pixels in the first layer and "
            f"{means[-1]:.0f} in the last.",
        )

    def _norms(self) -> None:
        """Adds the norms of tokens."""
        batch = self.few[0]
        layout = tokens.token_layout(self.model, batch.shape[1:3])
        norms = attention.token_norms(self.model, batch)
        found = attention.outlier_tokens(norms, layout).any(axis=0)
        patches = norms[:, :, layout.num_prefix :]
        ratio = (patches / np.median(patches, axis=2, keepdims=True)).max()
        self._section(
            "Norms of tokens",
            "Large models without registers store global information in a few "
            "patches of little content, whose tokens have much larger L2 "
            f"norms. Here the largest is {ratio:.1f} times the median of its "
            f"layer; {found.sum()} of {patches[0].size} patches are outliers, "
            "of 3 times the median or more after some layer.",
            self._draw(
                "token_norms.png",
                plots.plot_token_norms(norms, layout),
                f"Right: patches of {self.names[0]}.",
            ),
        )


def _table(rows: Iterable[tuple[str, object]]) -> str:
    """Returns the HTML of a table of names and values."""
    cells = "\n".join(
        f'<tr><th scope="row">{html.escape(name)}</th>'
        f"<td>{html.escape(str(value))}</td></tr>"
        for name, value in rows
    )
    return f"<table>\n{cells}\n</table>"


def format_name(checkpoint: Checkpoint) -> str:
    """Returns the name of a checkpoint's format."""
    if checkpoint.format == "keras":
        return "Keras"
    variant = checkpoint.weight_map.variant
    return ":".join(filter(None, (checkpoint.format, variant)))
