"""tools/export.py: exports match Keras; those that differ are removed."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import runpy
import sys

import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import exporting
from keras_vit.layers import _kernels
from keras_vit_programs import export as export_program
from keras_vit_programs.building import build_model
from tests.small import bit, hybrid, images, randomize, tiny

ROOT = pathlib.Path(__file__).parents[2]
BACKEND = keras.config.backend()
NEEDS = {
    "saved_model": {"tensorflow": ["tensorflow"], "jax": ["tensorflow"]},
    "onnx": {
        "tensorflow": ["tf2onnx", "onnxruntime"],
        "jax": ["jax2onnx", "onnxruntime"],
        "torch": ["onnxscript", "onnxruntime"],
    },
    "openvino": {
        "tensorflow": ["tf2onnx", "openvino"],
        "jax": ["jax2onnx", "openvino"],
        "torch": ["onnxscript", "openvino"],
    },
    "litert": {"tensorflow": ["tensorflow"]},
    "torch": {"torch": ["torch"]},
}
HERE = [name for name, needs in NEEDS.items() if BACKEND in needs]
ELSEWHERE = sorted(NEEDS.keys() - HERE)


@pytest.fixture
def export(tmp_path, monkeypatch, capsys):
    """Runs the tool in a folder; returns its status and what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        status = export_program.main([str(x) for x in arguments])
        captured = capsys.readouterr()
        return status, captured.out + captured.err

    return run


@pytest.fixture
def model(tmp_path):
    """A model in model.keras."""
    return saved(tmp_path, num_layers=1)


def saved(folder, **arguments):
    model = tiny(**arguments)
    randomize(model)
    model.save(folder / "model.keras")
    return model


def target_of(name):
    return pathlib.Path("exported" + exporting.FORMATS[name].suffix)


def require(name):
    for module in NEEDS[name][BACKEND]:
        pytest.importorskip(module)


def left():
    """The names in the folder, including hidden ones."""
    return sorted(os.listdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_exported_model_matches_keras(name, export, tmp_path):
    """The outputs match for any batch size and, where supported, any image
    size."""
    require(name)
    any_size = BACKEND in exporting.FORMATS[name].any_size
    model = saved(
        tmp_path,
        num_layers=1,
        input_shape=(None, None, 3) if any_size else (8, 12, 3),
        grid_size=(2, 3),
        # Without a class token, the number of tokens might be 0.
        pooling="gap" if any_size else "token",
    )
    model.class_names = [f"class {i}" for i in range(model.output.shape[1])]
    model.save("model.keras")
    target = target_of(name)
    status, printed = export("model.keras", target)
    assert status == 0 and "warning" not in printed.lower(), printed
    if name == "onnx":
        (found,) = pytest.importorskip("onnx").load(target).metadata_props
        assert json.loads(found.value) == model.class_names
    assert "3 x 8 x 12 x 3" in printed
    assert "\nreturns  logits of 5 classes: class 0, class 1," in printed
    assert ("1 x 8 x 24 x 3" in printed) == any_size
    files = map(str, exporting.FORMATS[name].files(target))
    assert left() == sorted([*files, "model.keras"])
    run = exporting.FORMATS[name].read(target)
    for shape in ((1, 8, 12), (2, 16, 8) if any_size else (5, 8, 12)):
        x = images(*shape, 3)
        np.testing.assert_allclose(run(x), model.predict_on_batch(x), atol=1e-4, rtol=0)


OPTIONS = {
    "rope": {"position_embedding": "rope", "preprocessing": "torch"},
    "features": {"activation": "gelu"},
    "chunked": {"input_shape": (8, 12, 3)},  # 7 tokens
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "case"),
    [
        # OpenVINO reads the file for ONNX.
        pytest.param(name, case, marks=[pytest.mark.nightly] * (name == "openvino"))
        for name in HERE
        for case in OPTIONS
        # Only TensorFlow loops over chunks; OpenVINO does not read its loop.
        if case != "chunked" or (BACKEND == "tensorflow" and name != "openvino")
    ],
)
def test_options_are_exported(name, case, tmp_path, monkeypatch):
    require(name)
    any_size = BACKEND in exporting.FORMATS[name].any_size
    if case == "chunked":
        monkeypatch.setattr(_kernels, "CHUNKED_MIN_QUERIES", 5)
        monkeypatch.setattr(_kernels, "QUERY_CHUNK", 3)
    model = tiny(
        **{
            "num_layers": 2,
            "input_shape": (None, None, 3) if any_size else (8, 12, 3),
            "grid_size": (2, 3),
            **OPTIONS[case],
        }
    )
    randomize(model)
    if case == "features":
        model = keras_vit.dense_features(model, blocks=(0, 1))
    target = tmp_path / target_of(name)
    flags = {} if any_size else {"image_size": (8, 12)}
    keras_vit.export(model, target, **flags)
    x = images(2, 8, 12, 3)
    for found, expected in zip(
        keras.tree.flatten(exporting.FORMATS[name].read(target)(x)),
        keras.tree.flatten(model.predict_on_batch(x)),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


def in_half_precision(policy, **options):
    """Returns a model, and one of float32 with its weights."""
    models = []
    for each in (policy, "float32"):
        keras.config.set_dtype_policy(each)
        models.append(tiny(num_layers=1, **options))
    for weight in (half := models[0]).weights:  # no rounding to half precision
        values = np.random.default_rng(0).integers(-32, 32, weight.shape) / 64
        weight.assign(values.astype("float32"))
    models[1].set_weights(half.get_weights())
    return models


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_half_precision_is_exported_in_float32(name, tmp_path):
    require(name)
    policies = "mixed_bfloat16", "mixed_float16", "bfloat16", "float16"
    policy = policies[sorted(NEEDS).index(name) % 4]
    half, full = in_half_precision(policy, activation="gelu")
    half.compile("adam", "mse")
    half.get_layer("block_0").attention.query.enable_lora(2)
    target = tmp_path / target_of(name)
    keras_vit.export(half, target)
    found = exporting.FORMATS[name].read(target)(images())
    np.testing.assert_allclose(found, full.predict_on_batch(images()), atol=2e-5)
    assert half.get_layer("block_0").compute_dtype in policy


@pytest.mark.slow
@pytest.mark.parametrize("build, flags", [(hybrid, []), (bit, ["--batch-size", 1])])
def test_onnx_of_models_with_a_resnet(build, flags, export):
    """On JAX it runs where jax2onnx is installed, which is not so in CI."""
    require("onnx")
    model = build(resnet_layers=(1,))
    randomize(model, 0.1)
    model.save("model.keras")
    status, printed = export("model.keras", "a.onnx", *flags)
    assert status == 0, printed


@pytest.mark.slow
@pytest.mark.backends("tensorflow")
def test_onnx_of_a_bit_of_any_size(export):
    """ONNX Runtime fuses a padding with zeros and a pooling as if the padding
    were minus infinity."""
    require("onnx")
    model = build_model(
        "compact-bit", None, None, input_shape=(None, None, 3), classes=3
    )
    randomize(model)
    model.save("model.keras")
    status, printed = export("model.keras", "a.onnx", "--batch-size", 1)
    assert status == 0, printed
    x = images(1, 32, 32, 3)
    found = exporting.FORMATS["onnx"].read("a.onnx")(x)
    expected = model.predict_on_batch(x)
    np.testing.assert_allclose(found, expected, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--int8-weights"]], ids=["", "int8"])
def test_large_weights_are_stored_in_the_onnx_file(flags, export, tmp_path):
    """The writers put weights of 1 MB and more into another file, hidden
    here."""
    require("onnx")
    saved(tmp_path, num_layers=1, hidden_size=96, mlp_dim=4096)
    status, printed = export("model.keras", "a.onnx", *flags)
    assert status == 0, printed
    assert left() == ["a.onnx", "model.keras"]
    onnx = pytest.importorskip("onnx")
    graph = onnx.load("a.onnx").graph
    assert [value.name for value in graph.input] == ["images"]
    assert [value.name for value in graph.output] == ["output"]
    least = 2 * 96 * 4096 * (1 if flags else 4)
    assert os.path.getsize("a.onnx") > least


@pytest.mark.slow
@pytest.mark.parametrize("name", HERE)
def test_int8_export_matches_keras(name, export, tmp_path):
    """Export with a fixed image and batch size, and with probabilities."""
    require(name)
    model = tiny(
        num_layers=1,
        hidden_size=96,
        mlp_dim=192,
        input_shape=(None, None, 3),
        grid_size=(2, 3),
    )
    # As in tests/models/test_serving.py, and logits of about 1.
    head = np.random.default_rng(0).normal(size=(96, 5)) / 10
    model.get_layer("head").kernel.assign(head)
    model.save(tmp_path / "model.keras")
    target = target_of(name)
    status, printed = export(
        *("model.keras", target, "--batch-size", 2, "--image-size", 8, 12),
        *("--int8-weights", "--softmax"),
    )
    assert status == 0, printed
    found = exporting.FORMATS[name].read(target)(images())
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    logits = model.predict_on_batch(images())
    expected = keras_vit.evaluation.softmax(logits)
    assert 1e-6 < np.abs(found - expected).max() < 0.1


@pytest.mark.backends("torch")
def test_products_as_jax_writes_them_are_quantized(tmp_path):
    """Their third operand is multiplied by 0."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    x, kernel = (rng.normal(size=(8, 8)).astype("float32") for _ in range(2))
    arrays = {"kernel": kernel, "none": np.zeros((), "float32")}
    shape = (onnx.TensorProto.FLOAT, (8, 8))
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gemm", ["x", *arrays], ["y"], beta=0.0)],
        "graph",
        [onnx.helper.make_tensor_value_info("x", *shape)],
        [onnx.helper.make_tensor_value_info("y", *shape)],
        [onnx.numpy_helper.from_array(a, name) for name, a in arrays.items()],
    )
    opset = onnx.helper.make_opsetid("", 17)
    model = onnx.helper.make_model(graph, ir_version=8, opset_imports=[opset])
    path = tmp_path / "a.onnx"
    onnx.save_model(model, path)
    exporting._quantize_onnx(path)
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert "MatMulInteger" in kinds and "Gemm" not in kinds
    found = exporting.FORMATS["onnx"].read(path)(x)
    np.testing.assert_allclose(found, x @ kernel, atol=0.3)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_unsupported_backend_error_names_a_supported_one(name, export, model):
    status, printed = export("model.keras", target_of(name))
    assert status == 1
    able = printed.partition("KERAS_BACKEND=")[2].partition(".")[0]
    assert able in NEEDS[name]
    assert left() == ["model.keras"]


@pytest.mark.backends("jax")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_missing_backend_is_named_with_its_installation(
    is_there, export, model, monkeypatch
):
    find = importlib.util.find_spec
    found = None if not is_there else find("torch")
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *given: found if name == "torch" else find(name, *given),
    )
    status, printed = export("model.keras", "page", "--to", "web")
    assert status == 1 and "run this with KERAS_BACKEND=torch. " in printed
    assert ("pip install torch" in printed) != is_there


@pytest.mark.backends("torch")
def test_all_missing_packages_are_named_before_the_model_is_read(export, monkeypatch):
    missing = ("onnx", "onnxscript", "onnxruntime")
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    for target in ("a.onnx", "page --to web"):
        status, printed = export("none.keras", *target.split())
        assert status == 1 and "Install with: pip install" in printed
        command = printed.partition("pip install ")[2].partition(". ")[0]
        assert sorted(command.split()) == sorted(missing)
    status, printed = export("none.keras", "a.onnx", "--no-check")
    assert "onnxruntime" not in printed


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    ("mode", "options", "takes", "returns"),
    [
        ("tf", {}, "pixels from -1 to 1", "logits of 7 classes: 0, 1, 2, 3, 4, ..."),
        (
            "torch",
            {"softmax": True},
            "pixels of keras_vit.preprocess_input, mode='torch'",
            "probabilities of 7 classes: 0, 1, 2, 3, 4, ...",
        ),
        (None, {"preprocessing": "torch"}, "pixels from 0 to 255", "features"),
    ],
)
def test_inputs_and_outputs_are_described(
    mode, options, takes, returns, tmp_path, caplog
):
    softmax = options.pop("softmax", False)
    model = tiny(num_layers=1, classes=7, **options)
    model.preprocess_mode = mode
    model.class_names = mode and tuple(map(str, range(7)))
    with caplog.at_level("INFO"):
        given = {"image_size": (8, 12), "softmax": softmax, "check": False}
        keras_vit.export(model, tmp_path / "a.pt2", **given)
    assert caplog.messages[-1] == f"takes    {takes}\nreturns  {returns}"


@pytest.mark.slow
def test_image_size_flag_resamples_positions(export, model):
    """Position embeddings are resampled, as in `converters.load`."""
    name = HERE[-1]
    require(name)
    target = target_of(name)
    status, printed = export("model.keras", target, "--image-size", 16, "--no-check")
    assert status == 0 and "checked" not in printed, printed
    other = keras_vit.converters.load("model.keras", input_shape=(16, 16, 3))
    x = images(2, 16, 16, 3)
    found = exporting.FORMATS[name].read(target)(x)
    np.testing.assert_allclose(found, other.predict_on_batch(x), atol=1e-4)


@pytest.mark.slow
def test_differing_export_is_removed(export, model, monkeypatch):
    name = HERE[-1]
    require(name)
    target = target_of(name)
    target.write_text("mine")
    monkeypatch.setitem(exporting.LIMITS, "float", -1.0)
    status, printed = export("model.keras", target, "--overwrite")
    assert status == 1 and "differs from Keras" in printed
    assert left() == sorted([str(target), "model.keras"])
    assert target.read_text() == "mine"


@pytest.mark.backends("torch")
def test_a_failed_writer_or_reader_names_other_backends(export, model, monkeypatch):
    def fail(*arguments):
        raise TypeError("symbolic\ndimensions")

    def write(model, path, shape, int8):
        path.write_text("")

    form = exporting.FORMATS["onnx"]
    for change in ({"write": fail}, {"write": write, "read": fail}):
        monkeypatch.setitem(
            exporting.FORMATS, "onnx", dataclasses.replace(form, **change)
        )
        status, printed = export("model.keras", "a.onnx")
        assert status == 1 and "symbolic" in printed, printed
        assert "try KERAS_BACKEND=tensorflow or KERAS_BACKEND=jax." in printed
        assert left() == ["model.keras"]


def test_other_keras_models_are_exported(export):
    """Models that do not come from this package are exported as well."""
    name = HERE[-1]
    require(name)
    inputs = keras.Input((6, 6, 3))
    outputs = keras.layers.Dense(2, activation="softmax")(
        keras.layers.Flatten()(inputs)
    )
    keras.Model(inputs, outputs).save("model.keras")
    status, printed = export("model.keras", target_of(name))
    assert status == 0, printed
    status, printed = export("model.keras", target_of(name), "--softmax")
    assert status == 1 and "--softmax" not in printed.partition("error")[0]


REFUSED = {
    "unknown ending": (["model.keras", "a.bin"], ".tflite"),
    "format and other ending": (
        ["model.keras", "a.onnx", "--to", "torch"],
        "contradict",
    ),
    "no model": (["other.keras", target_of(HERE[-1])], "other.keras"),
    "no folder": (["model.keras", f"no/{target_of(HERE[-1])}"], "Make it"),
    "existing": (["model.keras", "there.onnx"], "--overwrite"),
    "existing second file": (["model.keras", "there.xml"], "there.bin"),
    "folder of other files": (
        ["model.keras", "folder", "--to", HERE[0], "--overwrite"],
        "folder",
    ),
}


@pytest.mark.backends("torch")
@pytest.mark.parametrize("case", REFUSED)
def test_wrong_targets_are_refused(case, export, model):
    arguments, fragment = REFUSED[case]
    for name in ("there.onnx", "there.bin"):
        pathlib.Path(name).write_text("mine")
    pathlib.Path("folder").mkdir()
    pathlib.Path("folder/mine").write_text("mine")
    before = left()
    status, printed = export(*arguments)
    assert status == 1 and fragment in printed, printed
    assert "Traceback" not in printed
    assert left() == before
    assert pathlib.Path("folder/mine").read_text() == "mine"


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "flags",
    [["--batch-size", "0"], ["--batch-size", "any"], ["--image-size", "1", "2", "3"]],
)
def test_wrong_flags_exit_with_2(flags):
    with pytest.raises(SystemExit) as stopped:
        export_program.main(["model.keras", "a.onnx", *flags])
    assert stopped.value.code == 2


@pytest.mark.backends("torch")
def test_help_lists_the_formats(monkeypatch, capsys):
    """Run the program `tools/export.py` itself."""
    tool = str(ROOT / "tools" / "export.py")
    monkeypatch.setattr(sys, "argv", [tool, "--help"])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(tool, run_name="__main__")
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    needs = {**NEEDS, "web": {"torch": ()}}  # test_web.py tests the page
    assert exporting.FORMATS.keys() == needs.keys()
    for name, form in exporting.FORMATS.items():
        assert name in printed and form.suffix in printed
        assert needs[name].keys() == set(form.backends)
