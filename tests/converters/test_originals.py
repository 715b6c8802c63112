"""Files of timm, transformers and torchvision: outputs at their own and other
image sizes, for which each library resamples the position embeddings in its own
way, and back bit for bit."""

import contextlib
import json

import numpy as np
import pytest

from keras_vit.converters import load, open_checkpoint, save
from keras_vit.weights.files import read, write
from keras_vit.weights.formats.huggingface import HuggingFace
from keras_vit.weights.formats.timm import Timm
from keras_vit_programs import convert as _cli
from tests import golden_data, originals
from tests.harness import numpy
from tests.markers import on_all

# Of each way of resampling, and of each code base, one on every backend.
ON_ALL_BACKENDS = (
    *("transformers-vit", "transformers-dinov2", "transformers-dinov3-gated"),
    *("transformers-siglip", "transformers-clip-projection"),
    *("timm-token", "timm-registers-positioned", "timm-dinov3"),
)
# The files' own size is 32 x 32.
SIZES = ((32, 32), (48, 48), (16, 16), (40, 24), (16, 48))
TOLERANCE = 3e-5
# At its own size, rounding makes up to 3e-6, and the other GELU 1.4e-5.
OWN_TOLERANCE = 1e-5


def left_out(count):
    if not count:
        return contextlib.nullcontext()
    return pytest.warns(UserWarning, match=f"holds {count} arrays that are no")


@pytest.mark.parametrize("name", on_all(originals.CASES, ON_ALL_BACKENDS))
@pytest.mark.usefixtures("eager")
def test_outputs_match_and_bits_are_written_back(name, tmp_path, record_error):
    case = originals.CASES[name]
    original = originals.build(case)
    path, given = originals.save(case, original, tmp_path)

    def assert_alike(model, size, what):
        x = originals.images(*size)
        expected = originals.output(case, original, x)
        found = numpy(model(x, training=False))
        assert np.ptp(expected, axis=0).max() > 0.01
        assert found.shape == expected.shape
        is_tower = "siglip" in name or "clip" in name
        limit = TOLERANCE
        if is_tower or (size == SIZES[0] and "dinov3" not in name):
            limit = OWN_TOLERANCE
        error = np.abs(found - expected).max()
        record_error("originals", f"{name} {what} {size}", error, limit)

    with left_out(case.left_out):
        model = load(path, input_shape=(None, None, 3), **given)
    for size in SIZES if case.format != "torchvision" else SIZES[:1]:
        assert_alike(model, size, "of any size")
    # The last size again, with positions resampled while loading.
    with left_out(case.left_out):
        assert_alike(load(path, input_shape=(*size, 3), **given), size, "fixed")
        model = load(path, **given)
    back = tmp_path / ("back" if case.format is None else "back.safetensors")
    save(model, back, case.format)
    arrays, found = read(path), read(back)
    if "msn" in name:  # transformers 5 leaves the prefix of blocks out
        arrays = HuggingFace().normalize(arrays)
    if given.get("pooling", True):  # else without their pooler or decoder
        assert len(found) == len(arrays) - case.left_out
    if given.get("pooling", True) and not case.left_out:
        golden_data.assert_same(found, arrays)
    if case.format is None:
        assert_reads(case, original, back)


def assert_reads(case, original, folder):
    """transformers loads what was written as the same model."""
    transformers = pytest.importorskip("transformers")
    original = getattr(original, "vit", original) if case.given else original
    kind = type(original).__name__.replace("MSN", "")  # the arrays are the same
    if kind in ("SiglipModel", "CLIPModel"):  # of which a tower is written
        kind = {"S": "SiglipVisionModel", "C": "CLIPVisionModelWithProjection"}[kind[0]]
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == [kind]
    again, report = getattr(transformers, kind).from_pretrained(
        folder, output_loading_info=True
    )
    # A model without a head has a pooler, which was not loaded.
    spare = ("pooler.dense.weight", "pooler.dense.bias", "mask_token")
    problems = {x for found in report.values() for x in found}
    problems = {x for x in problems if not case.given or not x.endswith(spare)}
    if not case.left_out:
        assert not problems
        x = originals.images(*SIZES[0])
        found, expected = (
            originals.output(case, model.cpu().eval(), x) for model in (again, original)
        )
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def new_head(*layers, bias=True):
    """A head as tutorials replace it: a linear layer, after other layers."""
    nn = pytest.importorskip("torch").nn
    linear = nn.Linear(32, 4, bias=bias)
    made = [getattr(nn, layer)() for layer in layers]
    return nn.Sequential(*made, linear) if made else linear


CLIP_CLASSIFIER = originals.Case("CLIPForImageClassification", {}, {}, None)
# A case or its name, that of the head, and the arguments of `new_head`
NEW_HEADS = {
    "linear": ("torchvision-", "heads", (), {}),
    "dropout": ("torchvision-", "heads", ("Dropout",), {}),
    "in its head": ("torchvision-", "heads.head", ("Dropout",), {}),
    "no bias": ("torchvision-", "heads.head", (), {"bias": False}),
    "timm": ("timm-token", "head", ("Dropout",), {}),
    "timm, mean": ("timm-gap", "head", ("Flatten",), {}),
    "timm, no bias": ("timm-token", "head", (), {"bias": False}),
    "transformers": ("transformers-vit", "classifier", ("Dropout",), {}),
    "transformers, no bias": ("transformers-deit", "classifier", (), {"bias": False}),
    "clip": (CLIP_CLASSIFIER, "classifier", ("Dropout",), {}),
    "siglip": ("transformers-siglip-unread-pooling", "classifier", ("Dropout",), {}),
}


@pytest.mark.parametrize("name", on_all(NEW_HEADS, ("dropout", "no bias")))
@pytest.mark.filterwarnings(
    "ignore:.*that are not part of", "ignore:.*64 channels each"
)
def test_new_heads_are_read(name, tmp_path):
    case, attribute, layers, options = NEW_HEADS[name]
    case = originals.CASES[case] if isinstance(case, str) else case
    original = originals.build(case)
    head = new_head(*layers, **options)
    originals.shake(head)
    original.set_submodule(attribute, head)
    torch = pytest.importorskip("torch")
    path, given = tmp_path / "model.ckpt", {"num_heads": 2, **case.given}
    torch.save({"net": original.state_dict()}, path)
    if options:
        with pytest.warns(UserWarning, match="head of .* has no bias"):
            model = load(path, **given)
    else:
        model = load(path, **given)
    expected = originals.run(original.eval(), originals.images(32, 32))
    assert_output(model, (32, 32), expected)


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pooling", ["token", "gap"])
def test_heads_beside_an_encoder_read_what_is_said(pooling, tmp_path, capsys):
    """And `--verify` runs the model as transformers knows it."""
    torch = pytest.importorskip("torch")
    encoder = originals.build(originals.HUGGINGFACE["vit"]).vit
    head = new_head("Dropout")
    originals.shake(head)
    wrapped = torch.nn.ModuleDict({"backbone": encoder, "fc": head.eval()})
    torch.save(
        {"net": wrapped.state_dict(), "loss.a": torch.ones(2)}, tmp_path / "a.pt"
    )
    given = {} if pooling == "token" else {"pooling": pooling}
    with pytest.warns(UserWarning) as caught:
        model = load(tmp_path / "a.pt", num_heads=2, **given)
    said = " ".join(str(warning.message) for warning in caught)
    assert "left out: loss.a" in said and "'net.fc.1.weight'" in said
    x = originals.images(32, 32)
    tokens = torch.from_numpy(originals.run(encoder, x, "last_hidden_state"))
    features = tokens[:, 0] if pooling == "token" else tokens[:, 1:].mean(1)
    with torch.no_grad():
        assert_output(model, (32, 32), head(features).numpy())
    if pooling == "token":
        options = ["--to", "timm", "--set", "num_heads=2", "--verify"]
        target = str(tmp_path / "b.safetensors")
        assert _cli.main([str(tmp_path / "a.pt"), target, *options]) == 0
        assert "a.pt in transformers" in capsys.readouterr().out


@pytest.mark.backends("torch")
def test_deit3_format_writes_gamma_names(tmp_path):
    """Meta's own files use the name gamma_1; timm renames it when it reads
    them."""
    original = originals.build(originals.TIMM["deit3"])
    path, given = originals.save(originals.TIMM["deit3"], original, tmp_path)
    model, target = load(path, **given), tmp_path / "model.safetensors"
    save(model, target, "timm:deit3")
    module = pytest.importorskip("timm").models.vision_transformer
    arrays = originals.read(target)
    assert "blocks.0.gamma_1" in arrays
    renamed = module.checkpoint_filter_fn(arrays, original, adapt_layer_scale=True)
    golden_data.assert_same(
        {key: array.numpy() for key, array in renamed.items()}, read(path)
    )
    x = originals.images(32, 32)
    again = load(target, "timm:deit3", num_heads=2)
    np.testing.assert_array_equal(numpy(again(x)), numpy(model(x)))


def timm_file(folder, img_size, kind="VisionTransformer", **options):
    """Returns a file of timm for images of this size, and its output."""
    case = originals.Case(kind, options, {}, "timm")
    original = originals.build(case, img_size=img_size, depth=1)
    path, _ = originals.save(case, original, folder)
    return path, originals.run(original, originals.images(*img_size))


def assert_output(model, size, expected):
    found = numpy(model(originals.images(*size)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=OWN_TOLERANCE)


def write_config(folder, **config):
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.backends("torch")
def test_epsilon_of_timm_clip_models(tmp_path):
    case = originals.Case("vit_xsmall_patch16_clip_224", {}, {}, "timm")
    original = originals.build(case, mlp_ratio=4)
    # The norm's input is small: its epsilon matters.
    for weight in (
        original.patch_embed.proj.weight,
        original.pos_embed,
        original.cls_token,
    ):
        weight.data.mul_(0.01)
    path, _ = originals.save(case, original, tmp_path)
    write_config(tmp_path, architecture=case.kind)
    expected = originals.run(original, originals.images(32, 32))
    assert_output(load(path, num_heads=2), (32, 32), expected)


@pytest.mark.backends("torch")
def test_positions_that_fit_two_grids_raise(tmp_path):
    path, expected = timm_file(tmp_path, (24, 24), reg_tokens=4, no_embed_class=True)
    with pytest.raises(ValueError, match="read in two ways.*`converters.load`"):
        load(path, num_heads=2)
    model = load(path, num_heads=2, position_prefix="none")
    assert_output(model, (24, 24), expected)


@pytest.mark.backends("torch")
def test_layer_scale_with_ambiguous_positions_warns(tmp_path):
    """24 patches and a class token are 25 positions, as 5 x 5 patches are."""
    path, expected = timm_file(tmp_path, (24, 64), init_values=0.1)
    with pytest.warns(UserWarning, match="position_prefix='all'"):
        model = load(path, num_heads=2)
    assert model.input_shape == (None, 40, 40, 3)
    given = {"position_prefix": "all", "input_shape": (24, 64, 3)}
    assert_output(load(path, num_heads=2, **given), (24, 64), expected)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "architecture,prefix",
    [
        ("vit_small_patch14_dinov2", "all"),
        ("deit3_small_patch16_224", "none"),
        ("vit_medium_patch16_reg4_gap_256", "none"),
    ],
)
def test_position_prefix_is_inferred_from_a_timm_config(architecture, prefix, tmp_path):
    path, expected = timm_file(
        tmp_path,
        (24, 24),
        init_values=0.1,
        reg_tokens=4 * ("reg4" in architecture),
        no_embed_class=prefix == "none",
    )
    write_config(tmp_path, architecture=architecture)
    model = load(path, num_heads=2)
    assert model.input_shape == (None, 24, 24, 3)
    assert_output(model, (24, 24), expected)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "kind,size,args",
    [
        ("VisionTransformer", (32, 32), {"num_heads": 4}),
        (
            "VisionTransformer",
            (24, 24),
            {"num_heads": 2, "reg_tokens": 4, "no_embed_class": True},
        ),
        (
            "VisionTransformer",
            (24, 64),
            {"num_heads": 2, "init_values": 0.1, "no_embed_class": False},
        ),
        ("Eva", (32, 32), {"num_heads": 2, "rope_temperature": 50}),
    ],
)
def test_model_args_of_a_timm_config_are_read(kind, size, args, tmp_path):
    path, expected = timm_file(tmp_path, size, kind, **args)
    stored = {**args, "img_size": size, "patch_size": 8}
    write_config(tmp_path, architecture="vit_tiny", model_args=stored)
    given = {"pooling": "gap"} if kind == "Eva" else {}
    model = load(path, input_shape=(*size, 3), **given)
    assert_output(model, size, expected)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name,args",
    [
        ("vit_base_patch16_rope_ape_224", {}),
        ("vit_base_patch16_rpn_224", {}),
        ("vit_pe_core_base_patch16_224", {}),
        ("vit_tiny", {"pool_include_prefix": True}),
        ("vit_tiny", {"act_layer": "leaky_relu"}),
        ("vit_tiny", {"rope_type": "cat"}),
    ],
)
def test_other_models_with_these_arrays_are_refused(name, args):
    with pytest.raises(ValueError, match=r"its.* config\.json") as info:
        Timm().read_config({"architecture": name, "model_args": args})
    assert str(next(iter(args.values()), name)) in str(info.value)
    assert args or str(info.value).endswith("Use timm, which wrote it.")


@pytest.mark.backends("torch")
def test_verification_runs_what_the_config_says(tmp_path, capsys):
    args = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1}
    args |= {"num_heads": 4, "mlp_ratio": 2}
    args |= {"checkpoint_path": str(tmp_path / "none.pth")}  # is not opened
    path, _ = timm_file(tmp_path, (32, 32), num_heads=4)
    write_config(tmp_path, architecture="vit_tiny_patch16_224", model_args=args)
    (tmp_path / "a").mkdir()  # without the config.json
    command = [str(path), str(tmp_path / "a" / "b.npz"), "--verify"]
    assert _cli.main([*command, "--to", "vit_jax"]) == 0, capsys.readouterr()
    wrong = ["--to", "vit_jax", "--overwrite", "--set", "num_heads=2"]
    assert _cli.main([*command, *wrong]) == 1
    assert "in timm" in capsys.readouterr().out
    args["of_another_timm"] = 1
    write_config(tmp_path, architecture="vit_tiny_patch16_224", model_args=args)
    _cli.main([*command, "--to", "vit_jax", "--overwrite"])
    assert "'of_another_timm'" in capsys.readouterr().out


@pytest.mark.backends("torch")
def test_clip_classifier_reads_patches_without_the_norm(tmp_path):
    case = CLIP_CLASSIFIER
    original = originals.build(case)
    path, _ = originals.save(case, original, tmp_path / "clip")
    with left_out(2):
        model = load(path)
    expected = originals.output(case, original, originals.images(32, 32))
    assert_output(model, (32, 32), expected)
    # The norm is gone, which transformers' file needs.
    with pytest.raises(ValueError, match="final_norm"):
        save(model, tmp_path / "back")


@pytest.mark.backends("torch")
@pytest.mark.parametrize("pooling", ["max", "avgmax", ["avg"]])
def test_unsupported_timm_pooling_is_refused(pooling, tmp_path):
    path, _ = timm_file(tmp_path, (32, 32))
    write_config(tmp_path, architecture="vit_tiny", global_pool=pooling)
    with pytest.raises(ValueError, match="'global_pool' in its config.json"):
        load(path, num_heads=2)


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name",
    ["siglip", "clip-projection", "clip", "clip-two-towers"],
)
@pytest.mark.filterwarnings("ignore:.*arrays that are not part of")
def test_every_library_that_has_the_tower_verifies_it(name, tmp_path, capsys):
    pytest.importorskip("timm")
    case = originals.HUGGINGFACE[name]
    source, _ = originals.save(case, originals.build(case), tmp_path / "a")
    target, format = str(tmp_path / "b.safetensors"), "timm"
    if name == "siglip":
        target, format = str(tmp_path / "b.npz"), "big_vision"
    options = ["--to", format, "--verify"]
    assert _cli.main([str(source), target, *options]) == 0
    lines = capsys.readouterr().out.splitlines()
    ran = [line for line in lines if line.endswith("same")]
    for library in ("keras_vit", "transformers", "timm"):
        assert any(f"in {library}" in line for line in ran), lines
    # Back, with what the format does not store.
    settings = {"num_heads": 2}
    if name != "siglip":
        settings |= {"activation": "quick_gelu", "norm_epsilon": 1e-5}
    _cli.convert(target, tmp_path / "back", to="huggingface", settings=settings)
    dropped = ("text_model.", "text_projection.", "logit_scale")
    arrays = {
        key: array for key, array in read(source).items() if not key.startswith(dropped)
    }
    golden_data.assert_same(read(tmp_path / "back"), arrays)


@pytest.mark.backends("torch")
def test_three_code_bases_of_siglip_are_one_model(tmp_path):
    case = "big_vision_siglip_img"
    path, golden = golden_data.weights_path(case), golden_data.io(case)
    shape = golden["image"].shape[1:]
    grid = {"grid_size": tuple(size // 8 for size in shape[:2])}
    theirs = tmp_path / "model.safetensors"
    _cli.convert(path, theirs, to="huggingface", settings=grid)
    format = "huggingface:tower"
    model = load(theirs, format, num_heads=3, input_shape=shape)
    pooled = next(name for name in ("pooled", "pre_logits") if name in golden)
    error = np.abs(numpy(model(golden["image"])) - golden[pooled]).max()
    assert error < golden_data.TOLERANCE
    settings = {"num_heads": 3, **grid}
    target = tmp_path / "a.npz"
    _cli.convert(theirs, target, format, to="big_vision", settings=settings)
    golden_data.assert_same(read(target), golden_data.normalized(case))
    # Released files have both towers.
    names = ("params/txt/head/kernel", "params/t", "params/b")
    more = {name: np.ones((1, 1), "float32") for name in names}
    write({**golden_data.arrays(case), **more}, tmp_path / "both.npz")
    with left_out(3):
        found = open_checkpoint(tmp_path / "both.npz")
    golden_data.assert_same(found.weights, open_checkpoint(path).weights)


@pytest.mark.backends("torch")
def test_trained_bias_of_a_projection_is_not_dropped(tmp_path):
    case = originals.HUGGINGFACE["clip-projection"]
    path, _ = originals.save(case, originals.build(case), tmp_path / "clip")
    model = load(path)
    head = model.get_layer("head")
    assert not numpy(head.bias).any()
    head.bias.assign(head.bias + 0.5)
    with pytest.raises(ValueError, match="largest value is 0.5"):
        save(model, tmp_path / "back")
    assert not (tmp_path / "back").exists()
    save(model, tmp_path / "a.safetensors", "timm")
    assert (read(tmp_path / "a.safetensors")["head.bias"] == 0.5).all()


@pytest.mark.backends("torch")
@pytest.mark.parametrize(
    "name,activation",
    [
        ("vit_base_patch16_siglip_224", None),
        ("vit_so400m_patch14_siglip_gap_378", None),
        ("vit_base_patch32_siglip_256", "gelu_tanh"),
        ("vit_large_patch16_siglip_512", "gelu_tanh"),
        ("vit_large_patch16_siglip_384", None),
        ("vit_so400m_patch16_siglip_gap_512", "gelu_tanh"),
        ("vit_giantopt_patch16_siglip_256", "gelu_tanh"),
        ("vit_base_patch32_clip_quickgelu_224", "quick_gelu"),
    ],
)
def test_activation_follows_the_name_of_timms_tower(name, activation):
    found = Timm().read_config({"architecture": name})
    assert found.get("activation") == activation
    expected = {"gelu_tanh": "GELUTanh", "quick_gelu": "QuickGELU"}
    module = pytest.importorskip("timm").create_model(
        name, depth=1, embed_dim=32, num_heads=2, img_size=64
    )
    kind = type(module.blocks[0].mlp.act).__name__
    assert kind == expected.get(activation, "GELU")
