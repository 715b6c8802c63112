"""Finds the images that show what a text says, or that look like another image.

  keras-vit search photos "a red car" --weights clip-vit-base-patch32
  keras-vit search photos --like photos/car.jpg --weights runs/photos

A text needs both towers of CLIP or SigLIP; for an image, any model will do.
Folders are searched for image files. The output folder contains search.csv and
search.png, the images with the highest cosines. The embeddings are kept in
--cache, one file for each model, by the content of the images: another search
computes those of new images only.
"""

import dataclasses
import hashlib
import pathlib
from collections.abc import Sequence

import keras
import numpy as np

import keras_vit
from keras_vit_programs import charts, classifiers, console, defaults, flags, run_folder


@dataclasses.dataclass(frozen=True)
class Config(flags.Trained):
    images: tuple[str, ...] = flags.flag(
        "image files and folders of image files", (), "PATH"
    )
    text: str | None = flags.flag("what the images show, such as 'a red car'")
    like: str | None = flags.flag("an image that they look like", metavar="PATH")
    top: int = flags.flag("number of images", 12, minimum=1)
    cache: str = flags.flag("folder of embeddings", "runs/embeddings", "DIR")

    defaults = (
        flags.Rule("protocol", "as in training if that is known, else vit_jax"),
        defaults.constant("batch_size", 32),
        flags.Rule("output", "runs/search, else with -2, -3, ..."),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.images or (self.text is None) == (self.like is None):
            raise ValueError("Give --images, and either --text or --like.")


def search(config: Config) -> None:
    """Writes the images that are nearest to a text or to an image."""
    with flags.user_errors():
        flags.require("matplotlib")
        config = flags.fill(config)
        trained = classifiers.load_trained(config)
        whole = None if config.model else keras_vit.load(str(config.weights))
        tower, query, like = trained.model, None, None
        if not isinstance(whole, keras_vit.DualEncoder):
            tower = keras_vit.evaluation.feature_model(tower)
        if config.like:
            like = pathlib.Path(config.like).expanduser()
        elif isinstance(whole, keras_vit.DualEncoder):
            query = keras.ops.convert_to_numpy(whole.encode_texts([config.text]))[0]
        else:
            raise ValueError(
                f"{config.weights!r} has no text tower, which --text takes. Give "
                "--like instead, or the files of CLIP or SigLIP."
            )
        paths = [*config.images, *filter(None, [like])]
        data, files = keras_vit.data.load_files(paths, config.skip_bad_images)
        folder, replace = config.output, config.overwrite
        output = run_folder.results_folder(folder, "runs/search", replace)
        reading = trained.reading(data, flags.filled(config.batch_size))
        settings = f"{keras_vit.config_of(trained.model)} {reading}"
        digest = hashlib.sha256(settings.encode())
        for weight in tower.weights:
            digest.update(keras.ops.convert_to_numpy(weight).tobytes())
        cache = pathlib.Path(config.cache).expanduser() / f"{digest.hexdigest()}.npz"
        known: dict[str, np.ndarray] = {}
        if cache.is_file():
            with np.load(cache) as stored:
                known = dict(zip(stored["keys"], stored["vectors"], strict=True))
        keys = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
        new = {k: path for k, path in zip(keys, files, strict=True) if k not in known}
        print(f"images    {len(files)}, of which {len(new)} are new")
        if new:
            data = keras_vit.data.load_files(new.values())[0]
            batches = keras_vit.evaluation.fitted(data, trained).test(**reading)
            tower = trained.for_batches(tower)
            found = keras_vit.evaluation.predict_dataset(tower, batches, len(new))[0]
            found /= np.linalg.norm(found, axis=-1, keepdims=True)
            known |= zip(new, found, strict=True)
            with run_folder.atomic_write(cache) as temporary:
                np.savez(temporary, keys=[*known], vectors=[*known.values()])
    vectors = np.stack([known[key] for key in keys])
    cosines = vectors @ (vectors[files.index(like)] if like else query)
    best = [i for i in np.argsort(-cosines) if files[i] != like][: config.top]
    rows = [{"file": files[i], "cosine": f"{cosines[i]:.4f}"} for i in best]
    run_folder.save_csv(rows, output / "search.csv")
    figure = charts.plot_found(
        [keras_vit.data.load_thumbnail(files[i]) for i in best],
        [f"{cosines[i]:.3f}  {files[i].name}" for i in best],
        f"{len(best)} of {len(files)} images: {config.text or config.like}",
    )
    with run_folder.atomic_write(output / "search.png") as temporary:
        figure.savefig(temporary)
    for row in rows:
        print(f"{row['cosine']:>7}  {console.printable(row['file'])}")
    print(f"\n  {output / 'search.csv'}\n  {output / 'search.png'}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit status."""
    flags.run(search, Config, str(__doc__), argv)
    return 0
