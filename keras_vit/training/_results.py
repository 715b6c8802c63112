"""What a training leaves in its output folder."""

import keras

import keras_vit
from keras_vit.training._models import layout_of
from keras_vit.training._output import replacing
from keras_vit.training._pictures import save_predictions
from keras_vit.training._pictures import spread_out

FILES = (
    "model.keras",
    "model.npz",
    "metrics.csv",
    "curves.png",
    "predictions.png",
    "config.json",
)


def save_model(model, output):
    """Writes `model.keras`, and its weights for the next `--weights`."""
    with replacing(output / "model.keras") as temporary:
        # Without its optimizer, `import keras_vit` is enough to read it.
        keras.Model(model.input, model.output, name=model.name).save(temporary)
    # What Google's layouts do not tell is in Keras's file: another GELU, ...
    layout = layout_of(model)
    weights = output / ("model.npz" if layout else "model.weights.h5")
    keras_vit.converters.save(model, weights, layout, overwrite=True)


def title_of(job, facts):
    """Returns what the pictures of a run are headed with."""
    accuracy = facts[f"{job.part}_accuracy"]
    name = facts["model"]["name"]
    return f"{name} on {job.data.name}: {job.part} accuracy {accuracy:.2%}"


def save_predictions_of(job, model, facts, output):
    """Draws predictions for some of the images that were evaluated on."""
    batches = job.evaluation(batch_size=min(job.config.batch_size, job.total))
    images, labels = spread_out(batches, job.total)
    save_predictions(
        model,
        images,
        labels,
        job.data.class_names,
        output / "predictions.png",
        f"{title_of(job, facts)}, {len(images)} of {job.total} images",
    )


def print_results(facts, output):
    """Says how well it went, where the files are, and how to use them."""
    part = "dev" if "dev_accuracy" in facts else "test"
    print(
        f"\n{part} accuracy {facts[f'{part}_accuracy']:.4f} after "
        f"{facts['seconds']:.0f} seconds"
    )
    for name in (*FILES, "model.weights.h5"):
        if (output / name).exists():
            print(f"  {output / name}")
    print(
        "To use it in Python, for logits, on images after "
        f"keras_vit.preprocess_input(images, mode={facts['config']['mode']!r})"
        ":\n  import keras, keras_vit\n"
        f"  model = keras.models.load_model({str(output / 'model.keras')!r})"
    )
