"""Tokenizers give the ids of open_clip's and transformers'."""

import json

import numpy as np
import pytest

import keras_vit
from keras_vit.config import TextConfig
from keras_vit.text import Tokenizer
from tests import golden_data
from tests.small import tiny
from tests.text.texts import SENTENCES, thousand

pytestmark = pytest.mark.backends("torch")

FILE = "bpe_simple_vocab_16e6.txt.gz"


@pytest.fixture(scope="module")
def clip():
    pytest.importorskip("tokenizers")
    return Tokenizer.of(golden_data.folder("clip_tokens") / FILE)


def test_a_thousand_texts_match_open_clip(clip):
    pytest.importorskip("ftfy")
    expected = np.load(golden_data.folder("clip_tokens") / "ids.npz")["ids"]
    with pytest.warns(UserWarning, match="of 1000 texts have more than 77 tokens"):
        found = clip(thousand())
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == "int32"


@pytest.mark.nightly
def test_real_vocabulary_matches_open_clip():
    """Where open_clip is installed, which is no dependency of the tests."""
    module = pytest.importorskip("open_clip.tokenizer", exc_type=ImportError)
    with pytest.warns(UserWarning, match="are cut"):
        found = Tokenizer.of(module.default_bpe())(thousand())
    expected = module.SimpleTokenizer()(thousand()).numpy()
    np.testing.assert_array_equal(found, expected)


def saved_by_transformers(clip, folder, **options):
    """The same vocabulary in a folder of transformers."""
    transformers = pytest.importorskip("transformers")
    model = json.loads(clip.model)["model"]
    names = {"<start_of_text>": "<|startoftext|>", "<end_of_text>": "<|endoftext|>"}
    vocabulary = {names.get(x, x): i for x, i in model["vocab"].items()}
    merges = [tuple(x) for x in model["merges"]]
    tokenizer = transformers.CLIPTokenizer(vocabulary, merges, **options)
    tokenizer.save_pretrained(folder)
    return tokenizer, vocabulary, merges


@pytest.mark.parametrize("pad", ["<|endoftext|>", "!"])
def test_folder_of_transformers(clip, pad, tmp_path):
    theirs, *_ = saved_by_transformers(clip, tmp_path, pad_token=pad)
    options = {"padding": "max_length", "truncation": True, "max_length": 77}
    expected = theirs(list(SENTENCES), **options)["input_ids"]
    with pytest.warns(UserWarning, match="are cut, such as 'word word"):
        found = Tokenizer.of(tmp_path)(SENTENCES)
    np.testing.assert_array_equal(found, expected)


def test_is_saved_with_the_model(clip, tmp_path):
    text = TextConfig(hidden_size=8, num_layers=1, num_heads=1, projection_size=5)
    tower = tiny(
        pooling="token", pre_norm=True, patch_bias=False, input_shape=(8, 8, 3)
    )
    model = keras_vit.DualEncoder(tower, keras_vit.text.TextEncoder(text))
    model.tokenizer = clip
    keras_vit.save(model, tmp_path / "folder")
    model.save(tmp_path / "model.keras")
    for name in ("folder", "model.keras"):
        found = keras_vit.load(tmp_path / name).tokenizer
        assert found.get_config() | {"model": ""} == clip.get_config() | {"model": ""}
        assert json.loads(found.model) == json.loads(clip.model)
    with pytest.raises(FileExistsError):
        clip.save(tmp_path / "folder")


def test_vocabulary_and_merges_in_two_files(clip, tmp_path):
    """As in folders of before transformers 5."""
    theirs, vocabulary, merges = saved_by_transformers(clip, tmp_path)
    options = {"padding": "max_length", "truncation": True, "max_length": 77}
    expected = theirs(list(SENTENCES), **options)["input_ids"]
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    lines = ["#version: 0.2", *(" ".join(x) for x in merges)]
    (tmp_path / "merges.txt").write_text("\n".join(lines))
    with pytest.warns(UserWarning, match="are cut"):
        found = Tokenizer.of(tmp_path)(SENTENCES)
    np.testing.assert_array_equal(found, expected)


def unigram(folder, kind):
    """A small tokenizer.json with the post-processor of SigLIP's."""
    t = pytest.importorskip("tokenizers")
    letters = [(x, -2.0) for x in "▁abcdefghijklmnopqrstuvwxyz'."]
    vocabulary = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *letters]
    tokenizer = t.Tokenizer(t.models.Unigram(vocabulary, unk_id=2))
    tokenizer.pre_tokenizer = t.pre_tokenizers.Metaspace()
    template = {"single": "$A </s>", "special_tokens": [("</s>", 1)]}
    tokenizer.post_processor = t.processors.TemplateProcessing(**template)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": kind, "pad_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"model_type": "siglip"}))
    return tokenizer


def test_siglip_has_no_punctuation_and_no_upper_case(tmp_path):
    theirs = unigram(tmp_path, "SiglipTokenizer")
    found = Tokenizer.of(tmp_path)(["It's a_Cat.", ""])
    assert found.shape == (2, 64)
    expected = theirs.encode("its a cat").ids
    assert found[0].tolist() == expected + [1] * (64 - len(expected))
    assert set(found[1]) == {1}


def test_siglip_2_has_lower_case(tmp_path):
    theirs = unigram(tmp_path, "GemmaTokenizer")
    found = Tokenizer.of(tmp_path, length=20)(["It's a Cat."])
    expected = theirs.encode("it's a cat.").ids
    assert found[0].tolist() == expected + [1] * (20 - len(expected))


def test_a_long_text_keeps_its_end(clip):
    pytest.importorskip("ftfy")
    short = Tokenizer(clip.model, 5, 0)
    with pytest.warns(UserWarning, match="1 of 2 texts have more than 5 tokens"):
        found = short(["a b c d e f", "a"])
    start, end = found[0, 0], found[0, -1]
    assert found[1].tolist() == [start, found[0, 1], end, 0, 0]


def test_what_cannot_be_read(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="no tokenizer.json, and no vocab.json"):
        Tokenizer.of(tmp_path)
    with pytest.raises(FileNotFoundError):
        Tokenizer.of(tmp_path / "none.gz")
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install tokenizers.*\[text\]"):
        Tokenizer("{}", 4, 0)(["a"])
