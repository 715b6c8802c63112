"""A report: pictures of a model and one page that shows them."""

import io

import keras
import numpy as np

import keras_vit
from keras_vit import inspection
from keras_vit.inspection import _drawing
from keras_vit.inspection import _facts
from keras_vit.inspection import _html
from keras_vit.inspection import _images
from keras_vit.inspection import _parts
from keras_vit.inspection._maps import patch_distances
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers import PatchEmbedding

SHOWN = 8  # images that are drawn; distances are of all
PICTURES = (
    "attention.png",
    "attention_maps.png",
    "embedding_filters.png",
    "position_similarity.png",
    "attention_distance.png",
    "token_norms.png",
)
PAGE = "report.html"
_LONGEST = 480  # pixels of an image as it is drawn


class Report:
    """Collects pictures and parts of the page.

    Args:
        model: A model made by this package.
        checkpoint: The `Checkpoint` it was read from.
        settings: Dict of arguments that were given with it.
        images: List of uint8 arrays, as they were read.
        names: List of strings, their names.
        size: `(height, width)` that the model is given.
        mode: As in `preprocess_input`.
        keep_aspect: Boolean. Whether each image keeps its own.
        labels: As in `decode_predictions`, or None.
        say: Function of a string, for progress.
    """

    def __init__(
        self,
        model,
        checkpoint,
        settings,
        images,
        names,
        size,
        mode,
        keep_aspect=False,
        labels=None,
        say=print,
    ):
        self.model, self.checkpoint = model, checkpoint
        self.settings = settings
        self.images, self.names = images, names
        self.size, self.mode, self.labels = size, mode, labels
        self.pictures, self.parts, self.say = {}, [], say
        self.about = "their own aspect, about as large as " * keep_aspect
        patch = (1, 1)
        self.has_patches = _parts.part(model, PatchEmbedding) is not None
        if self.has_patches:
            patch = inspection.token_layout(model, size).patch_size
        self.batches = _images.batches(images, size, patch, mode, keep_aspect)
        self.few = [batch[:SHOWN] for batch in self.batches[:SHOWN]]
        self.small = [_images.thumbnail(x, _LONGEST) for x in images[:SHOWN]]

    def build(self):
        """Returns `{file name: bytes}`, the page last."""
        self._table()
        if self.images and any(x.name == "head" for x in self.model.layers):
            self._predictions()
        if self.images and self.has_patches:
            self._attention()
        self._figure_7()
        if self.images and self.has_patches:
            self._norms()
        title = f"Inside {self.checkpoint.path.rsplit('/', 1)[-1]}"
        subtitle = (
            f"keras_vit {keras_vit.__version__}, Keras {keras.__version__} on "
            f"{keras.backend.backend()}"
        )
        page = _html.page(title, subtitle, self.parts)
        return {**self.pictures, PAGE: page.encode()}

    def _draw(self, name, figure, alt, caption=""):
        self.say(f"  {name}")
        buffer = io.BytesIO()
        figure.savefig(buffer, bbox_inches="tight", pad_inches=0.05)
        self.pictures[name] = buffer.getvalue()
        return _html.figure(buffer.getvalue(), alt, caption)

    def _section(self, heading, text, *parts):
        self.parts.append(_html.section(heading, text, *parts))

    def _table(self):
        rows = _facts.table(
            self.model, self.checkpoint, self.settings, self.size, self.mode
        )
        self._section("The model", "", _html.table(rows))

    def _predictions(self):
        outputs = [
            _parts.run(self.model, self.model.outputs, batch)[0]
            for batch in self.few
        ]
        guesses, note = _facts.best_classes(
            np.concatenate(outputs), self.model, self.labels
        )
        cards = [
            _html.predictions(_png(image), name, guess)
            for image, name, guess in zip(
                self.small, self.names, guesses, strict=False
            )
        ]
        text = "The best classes of each image. " + note
        self._section("Predictions", text, _html.row(cards))

    def _attention(self):
        heat = [
            map_
            for batch in self.few
            for map_ in inspection.attention_heatmap(self.model, batch)
        ]
        figure = inspection.plot_attention_heatmap(
            self.small, heat, self.names[:SHOWN]
        )
        spots = "; ".join(
            f"{name}: {_place(x)}"
            for name, x in zip(self.names, heat, strict=False)
        )
        self._section(
            "Where it looks",
            "Attention rollout from what the head reads to the image, as in "
            "the paper's Figure 6: the image, what attention leaves of it, and "
            "the heat over it, whose colours run from an image's least "
            f"attention to its most. {_contrast(heat)}",
            self._draw(
                "attention.png",
                figure,
                f"Attention over {len(heat)} images. Most attention falls on "
                f"{spots}.",
            ),
        )
        one = self.few[0][:1]
        layout = inspection.token_layout(self.model, one.shape[1:3])
        maps = inspection.attention_maps(self.model, one)
        asks = layout.prefix[0].replace("_", " ") if layout.prefix else ""
        self._section(
            "Layer by layer, head by head",
            f"What the {asks} attends to in {self.names[0]}."
            if asks
            else f"What patches attend to in {self.names[0]}, on average.",
            self._draw(
                "attention_maps.png",
                inspection.plot_attention_maps(maps, layout),
                f"Attention maps of {maps.shape[0]} layers, one a row, and "
                f"{maps.shape[2]} heads, one a column.",
            ),
        )

    def _figure_7(self):
        filters = inspection.embedding_filters(self.model)
        count, height, width = filters.shape[:3]
        panels = [
            self._draw(
                "embedding_filters.png",
                inspection.plot_embedding_filters(filters),
                f"{count} filters of {height} by {width} pixels.",
                f"The first {count} principal components of the filters of "
                "the first layer.",
            )
        ]
        positions = _parts.part(self.model, AddPositionEmbs)
        if positions is not None and positions.kind != "none":
            panels.append(self._positions())
        if self.images and self.has_patches:
            panels.append(self._distance())
        self._section(
            "Filters, positions, reach",
            "The three panels of the paper's Figure 7.",
            _html.row(panels),
        )

    def _positions(self):
        similar = inspection.position_similarity(self.model)
        rows, columns = similar.shape[:2]
        nearest = similar[0, 0, 0, min(1, columns - 1)]
        return self._draw(
            "position_similarity.png",
            inspection.plot_position_similarity(similar),
            f"Similarity of {rows} by {columns} position embeddings. That of "
            f"the first patch and the one beside it is {nearest:.2f}, of it "
            f"and the last {similar[0, 0, -1, -1]:.2f}, of all "
            f"{similar.mean():.2f} on average.",
            "Cosine similarity of the position embedding of each patch with "
            "those of all patches.",
        )

    def _distance(self):
        totals = [
            len(batch) * inspection.attention_distance(self.model, batch)
            for batch in self.batches
        ]
        distances = np.sum(totals, axis=0) / len(self.images)
        means = distances.mean(axis=1)
        size = self.batches[0].shape[1:3]
        layout = inspection.token_layout(self.model, size)
        uniform = patch_distances(layout).mean()
        return self._draw(
            "attention_distance.png",
            inspection.plot_attention_distance(distances, uniform),
            f"Mean attention distance of {distances.shape[1]} heads in "
            f"{len(means)} layers: {means[0]:.0f} pixels in the first layer, "
            f"{means[-1]:.0f} in the last; single heads from "
            f"{distances.min():.0f} to {distances.max():.0f}.",
            f"How far each head looks; mean over {len(self.images)} images of "
            f"{self.about}{self.size[0]} × {self.size[1]} pixels.",
        )

    def _norms(self):
        batch = self.few[0]
        layout = inspection.token_layout(self.model, batch.shape[1:3])
        norms = inspection.token_norms(self.model, batch)
        patches = norms[-1, :, layout.num_prefix :]
        ratio = patches.max() / np.median(patches)
        self._section(
            "Length of tokens",
            "Large models without registers keep notes in a few patches of "
            "little content; their tokens stand out here by many times the "
            f"usual length. Here the longest has {ratio:.1f} times the "
            "median.",
            self._draw(
                "token_norms.png",
                inspection.plot_token_norms(norms, layout),
                f"Length of tokens in {len(norms)} layers. After the last, "
                f"patches have a median of {np.median(patches):.3g} and at "
                f"most {patches.max():.3g}.",
                f"Patches at the right: {self.names[0]}.",
            ),
        )


def _png(image):
    from PIL import Image

    small = _drawing.enlarged(_images.thumbnail(image, 192), 192)
    grey = small.shape[-1] == 1
    buffer = io.BytesIO()
    Image.fromarray(small[..., 0] if grey else small).save(buffer, "png")
    return buffer.getvalue()


def _contrast(heat):
    times = [1 / max(float(x.min()), 1e-6) for x in heat]
    return (
        f"The most is {min(times):.1f} to {max(times):.1f} times the least; "
        "below 1.5 there is little to see."
    )


def _place(heat):
    """Where the largest value is, in words."""
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    down = ("top", "middle", "bottom")[3 * row // heat.shape[0]]
    right = ("left", "centre", "right")[3 * column // heat.shape[1]]
    return f"{down} {right}"
