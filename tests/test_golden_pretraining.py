"""Pre-training models against the originals, with the masks they had."""

import numpy as np
import pytest

import keras_vit
from keras_vit import pretraining
from keras_vit.converters import open_checkpoint
from keras_vit.weights.files import read
from keras_vit_programs import convert as _cli
from tests import golden_data
from tests.harness import numpy

CASES = golden_data.PRETRAINING
GIVEN = ("noise", "bool_masked_pos")


def arguments(case):
    return dict(CASES[case][2])


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_loss_match_the_original(case, record_error):
    golden = golden_data.io(case)
    model = pretraining.load(golden_data.load_path(case), **arguments(case))
    images = golden["image"]
    if case == "hf_vit_mim":
        outputs = model(images, masked=golden["bool_masked_pos"])
        main = "reconstruction"
        found = {main: model.stages.unpatchify(outputs["prediction"])}
        found = {main: np.transpose(numpy(found[main]), (0, 3, 1, 2))}
    else:
        latent, masked, ids_restore = model.encode(images, golden["noise"])
        np.testing.assert_array_equal(numpy(ids_restore), golden["ids_restore"])
        np.testing.assert_array_equal(numpy(masked), golden["mask"])
        outputs = model(images, noise=golden["noise"])
        found = {"logits": numpy(outputs["prediction"])}
        if "latent" in golden:
            found["latent"] = numpy(latent)
    found["loss"] = numpy(model.compute_loss(x=images, y_pred=outputs))
    if "reconstruction_nhwc" in golden:
        joined = model.stages.unpatchify(outputs["prediction"])
        found["reconstruction_nhwc"] = numpy(joined)
    for name, array in found.items():
        assert array.shape == golden[name].shape
        error = np.abs(array - golden[name]).max()
        record_error(case, name, error, golden_data.TOLERANCE)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", CASES)
def test_keras_file_round_trip(case, tmp_path):
    """Convert the whole model to .keras with convert.py, and back bit for
    bit."""
    format, variant, given = CASES[case]
    middle = tmp_path / "model.keras"
    _cli.convert(golden_data.load_path(case), middle, settings=given)
    kind = "simmim" if case == "hf_vit_mim" else "mae"
    checkpoint = open_checkpoint(middle, decoder=True)
    assert checkpoint.arguments()["family"] == kind
    target = tmp_path / ("back" + golden_data.weights_path(case).suffix)
    _cli.convert(middle, target, to=f"{format}:{variant}")
    golden_data.assert_same(read(target), golden_data.normalized(case))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case,to", [("facebook_mae", "huggingface")])
def test_format_round_trip(case, to, tmp_path):
    """Convert to a folder of Hugging Face, which stores every option, and
    back."""
    format, _, given = CASES[case]
    given = {**given, "grid_size": (4, 4)}
    there, back = tmp_path / "there", tmp_path / "back.pth"
    _cli.convert(golden_data.load_path(case), there, to=to, settings=given)
    _cli.convert(there, back, to=format)
    golden_data.assert_same(read(back), golden_data.normalized(case))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", ["hf_vit_mae", "hf_vit_mim"])
def test_decoder_is_refused_by_other_formats(case, tmp_path):
    target = tmp_path / "model.safetensors"
    source = golden_data.load_path(case)
    with pytest.raises(ValueError, match="decoder/p"):
        _cli.convert(source, target, to="timm")
    assert not target.exists()
    if case == "hf_vit_mae":  # the other's mask token stays
        _cli.convert(source, target, to="timm", encoder=True)
        assert not any("decoder" in key for key in read(target))


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", CASES)
def test_load_reads_the_encoder(case):
    given = {k: v for k, v in arguments(case).items() if k == "num_heads"}
    path = golden_data.load_path(case)
    encoder = keras_vit.converters.load(path, **given)
    model = pretraining.load(path, **arguments(case))
    images = golden_data.io(case)["image"]
    np.testing.assert_allclose(
        numpy(encoder(images)), numpy(model.encoder(images)), atol=1e-6
    )
    with pytest.raises(ValueError, match="converters.load"):
        pretraining.load(golden_data.load_path("hf_vit"))


@pytest.mark.backends("torch")
def test_decoder_num_heads_must_be_given():
    path = golden_data.load_path("facebook_mae")
    with pytest.raises(ValueError, match="decoder_num_heads"):
        pretraining.load(path, num_heads=3)
