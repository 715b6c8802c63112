"""How well relevance maps show what a classifier looks at."""

import pathlib
from typing import Any

import numpy as np
from PIL import Image

LEVELS = 8  # numbers of patches that are replaced, from none to all


def read(paths: list[pathlib.Path], size: int) -> np.ndarray:
    """Returns images as the model takes them."""
    import keras_vit

    images = [Image.open(path).convert("RGB") for path in paths]
    images = [image.resize((size, size)) for image in images]
    return keras_vit.preprocess_input(np.stack(images), mode="torch")


def classifier(weights: str, sets: pathlib.Path, size: int) -> Any:
    """Returns the encoder with a linear head for the objects."""
    import keras
    from sklearn.linear_model import LogisticRegression

    import keras_vit

    encoder = keras_vit.converters.load(
        weights,
        input_shape=(size, size, 3),
        include_top=False,
        pooling="token",
    )
    # The order is that of the masks' values, of which the background is 0.
    names = (sets / "masks/classes.txt").read_text().split("\n")[1:]
    paths = sorted((sets / "objects/train").glob("*/*"))
    labels = [names.index(path.parent.name) for path in paths]
    features = encoder.predict(read(paths, size), batch_size=16)
    probe = LogisticRegression(max_iter=2000, C=0.1).fit(features, labels)
    head = keras.layers.Dense(len(names), name="head")
    model = keras.Model(encoder.input, head(encoder.output))
    head.set_weights([probe.coef_.T, probe.intercept_])
    return model


def maps_of(model: Any, image: np.ndarray, label: int) -> dict[str, np.ndarray]:
    """Returns the map of each method for one image, `(rows, columns)`."""
    from keras_vit import inspection

    layout = inspection.token_layout(model, image.shape[1:3])
    found = {
        method: inspection.relevance(model, image, label, method)[0]
        for method in ("legrad", "attention_gradients", "gradient_rollout")
    }
    last = inspection.attention_heads(model, image)
    found["attention of the last block"] = last[0].mean(0)
    maps = inspection.attention_maps(model, image)
    for name, outliers in (("rollout", "keep"), ("rollout, masked", "mask")):
        rolled = inspection.attention_rollout(maps, outliers=outliers)
        rolled = rolled[0, 0, layout.num_prefix :]
        found[name] = rolled.reshape(layout.grid)
    found["random"] = np.random.default_rng(label).random(layout.grid)
    return found


def areas(
    model: Any, image: np.ndarray, label: int, found: np.ndarray
) -> tuple[float, float]:
    """Returns the mean probabilities of deletion and of insertion."""
    from scipy.special import softmax

    rank = found.ravel().argsort()[::-1].argsort().reshape(found.shape)
    side = image.shape[1] // found.shape[0]
    rank = np.kron(rank, np.ones((side, side)))[..., None]
    counts = np.linspace(0, found.size, LEVELS + 1)
    kept = [rank >= count for count in counts] + [rank < n for n in counts]
    # 0 is the mean of the photographs that the encoder was trained on.
    logits = model.predict(image * np.stack(kept), batch_size=9, verbose=0)
    probabilities = softmax(logits, axis=1)
    deletion, insertion = probabilities[:, label].reshape(2, -1).mean(1)
    return float(deletion), float(insertion)


def relevance(sets: str, encoder: str, images: int = 40, image_size: int = 224) -> None:
    """How well relevance maps show what a classifier looks at.

    SETS/objects and SETS/masks are written by tools/transfer_sets.py: pictures
    on photographs, with masks of the pictures. A linear classifier is trained
    on the encoder's class token. For each method, the table has, as means over
    test images that are classified correctly:

    - inside: the share of positive relevance inside the object's mask, and of
      images whose most relevant patch is inside it;
    - deletion: the mean probability of the class while the most relevant
      patches are replaced by gray first (less is better);
    - insertion: the same while they are put on gray first (more is better).
    """
    folder = pathlib.Path(sets)
    model = classifier(encoder, folder, image_size)
    paths = sorted((folder / "masks/test/images").glob("*.png"))
    order = np.random.default_rng(0).permutation(len(paths))
    rows: dict[str, list[tuple[float, ...]]] = {}
    for path in [paths[i] for i in order]:
        mask = np.asarray(Image.open(path.parents[1] / "masks" / path.name))
        label = int(mask.max()) - 1
        image = read([path], image_size)
        if model.predict(image, verbose=0).argmax() != label:
            continue
        for method, found in maps_of(model, image, label).items():
            grid = Image.fromarray((mask > 0).astype("float32"))
            share = grid.resize(found.shape[::-1], Image.Resampling.BOX)
            inside, positive = np.asarray(share), np.maximum(found, 0)
            row = (inside * positive).sum() / positive.sum()
            hit = inside.ravel()[found.argmax()] >= 0.5
            rows.setdefault(method, []).append(
                (row, hit, *areas(model, image, label, found))
            )
        done = len(rows["random"])
        print(f"\r{done} of {images} images", end="", flush=True)
        if done == images:
            break
    print("\n| method | inside | hit | deletion | insertion |")
    print("|---|---|---|---|---|")
    for method, values in rows.items():
        means = np.mean(values, axis=0)
        print(f"| {method} |", " | ".join(f"{x:.3f}" for x in means), "|")
