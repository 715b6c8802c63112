"""Conversion of texts to token ids, with the library `tokenizers`."""

import gzip
import html
import json
import pathlib
import re
import string
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from keras_vit.utils.checks import one_of
from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, Config, StrPath
from keras_vit.utils.warnings import warn
from keras_vit.weights.files import read_config
from keras_vit.weights.formats.format import write_folder

CLEANINGS = (None, "clip", "siglip", "lower")
_TOKENIZER, _CONFIG = "tokenizer.json", "tokenizer_config.json"
# The class of transformers with a cleaning.
_CLASSES = {
    None: "CLIPTokenizer",
    "clip": "CLIPTokenizer",
    "siglip": "SiglipTokenizer",
    "lower": "Siglip2Tokenizer",
}
_START, _END = "<|startoftext|>", "<|endoftext|>"
_MERGES = 49152 - 256 - 2  # of CLIP's file, which has more
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


class Tokenizer:
    """Maps texts to token ids of one length, as a text tower takes them.

    It needs the package `tokenizers`, and with `cleaning="clip"` also `ftfy`: `pip
    install tokenizers ftfy`.

    Args:
        model: String. Content of a tokenizer.json, the file format of the library
            `tokenizers`.
        length: Integer. Number of ids per text. A longer text is cut, with a warning,
            but keeps its end token.
        pad_id: Integer. Id that fills the places after the end of a text.
        cleaning: String. How a text is cleaned first: "clip", as in the code of OpenAI
            and open_clip (fixed by `ftfy`, HTML entities replaced, spaces merged, lower
            case); "siglip" (no punctuation, spaces merged, lower case); "lower" (lower
            case, as for SigLIP 2); None for no cleaning, as for CLIP in transformers,
            whose tokenizer.json includes it.

    Call arguments:
        texts: String or a sequence of strings.

    Returns:
        An array of int32 of shape `(number of texts, length)`.

    Raises:
        ImportError: if a package is missing.

    Example:

    >>> tokenizer = keras_vit.text.Tokenizer.of("clip-vit-base-patch32")
    >>> tokenizer(["a photo of a cat", "a diagram"]).shape
    (2, 77)
    """

    def __init__(
        self, model: str, length: int, pad_id: int, cleaning: str | None = None
    ) -> None:
        self.model = model
        self.length = length
        self.pad_id = pad_id
        self.cleaning = one_of("cleaning", cleaning, CLEANINGS)
        self._tokenizer: Any = None

    @classmethod
    def of(
        cls,
        path: StrPath,
        length: int | None = None,
        pad_id: int | None = None,
        cleaning: str | None = None,
    ) -> Self:
        """Reads a tokenizer.

        Args:
            path: String or path. A folder of transformers, with tokenizer.json or with
                vocab.json and merges.txt; or the file of CLIP's code and open_clip,
                `bpe_simple_vocab_16e6.txt.gz`.
            length: Integer. None for the length in the folder, or 77 for CLIP's file.
            pad_id: Integer. None for the id in the folder, or 0 for CLIP's file.
            cleaning: String. None for the cleaning of the folder, or "clip" for CLIP's
                file.

        Returns:
            A `Tokenizer`.

        Raises:
            FileNotFoundError: if there is no such file.
            ValueError: if the folder has only a sentencepiece file.
            ImportError: if the package `tokenizers` is missing.
        """
        path = pathlib.Path(path).expanduser()
        if path.is_dir():
            model, found = _of_folder(path)
        else:
            model, found = _of_clip_file(path)
        given = {"length": length, "pad_id": pad_id, "cleaning": cleaning}
        return cls(model, **found | {k: x for k, x in given.items() if x is not None})

    def get_config(self) -> Config:
        """Returns the arguments of the tokenizer as JSON values."""
        names = ("model", "length", "pad_id", "cleaning")
        return {name: getattr(self, name) for name in names}

    def save(self, folder: StrPath, overwrite: bool = False) -> None:
        """Writes tokenizer.json and tokenizer_config.json, as in a folder of
        transformers. Transformers does not apply the cleaning "clip".

        Args:
            folder: String or path.
            overwrite: Boolean. Whether existing files may be replaced.

        Raises:
            FileExistsError: if a file exists and `overwrite` is False.
        """
        content = json.loads(self.model)
        tokens = {i: token for token, i in _vocabulary(content).items()}
        config = {
            "tokenizer_class": _CLASSES[self.cleaning],
            "pad_token": tokens[self.pad_id],
            "model_max_length": self.length,
            "cleaning": self.cleaning,
        }
        files = {_TOKENIZER: content, _CONFIG: config}
        write_folder(pathlib.Path(folder), {}, files, overwrite)

    def __call__(self, texts: str | Sequence[str]) -> Array:
        texts = [texts] if isinstance(texts, str) else list(texts)
        if self._tokenizer is None:
            self._tokenizer = require("tokenizers", "text").Tokenizer.from_str(
                self.model
            )
            self._tokenizer.no_padding()
            self._tokenizer.enable_truncation(self.length)
        cleaned = [_clean(text, self.cleaning) for text in texts]
        found = self._tokenizer.encode_batch(cleaned)
        ids = np.full((len(texts), self.length), self.pad_id, "int32")
        for row, encoding in zip(ids, found, strict=True):
            row[: len(encoding.ids)] = encoding.ids
        cut = [t for t, x in zip(texts, found, strict=True) if x.overflowing]
        if cut:
            warn(
                f"{len(cut)} of {len(texts)} texts have more than {self.length} tokens "
                f"and are cut, such as {cut[0][:60]!r}. Give shorter ones."
            )
        return ids


def _of_folder(folder: pathlib.Path) -> tuple[str, Config]:
    """Returns the tokenizer.json of a folder of transformers, and the arguments that
    its other files imply."""
    config = read_config(folder, _CONFIG)
    kind = str(config.get("tokenizer_class"))
    model_type = str(read_config(folder).get("model_type"))
    if (folder / _TOKENIZER).is_file():
        model = (folder / _TOKENIZER).read_text("utf-8")
    elif (folder / "vocab.json").is_file():
        vocabulary = json.loads((folder / "vocab.json").read_text("utf-8"))
        lines = (folder / "merges.txt").read_text("utf-8").split("\n")[1:]
        model = _clip_model(vocabulary, lines, (_START, _END), normalize=True)
    else:
        raise ValueError(
            f"{str(folder)!r} has no tokenizer.json, and no vocab.json. Let "
            "transformers write it: `AutoTokenizer.from_pretrained(...)."
            "save_pretrained(...)`, with sentencepiece installed."
        )
    clip, cleaning = "siglip" not in (kind + model_type).lower(), None
    if not clip:
        # Files of SigLIP 2 with a fixed size are of the model type of SigLIP.
        cleaning = "siglip" if kind.startswith(("SiglipT", "T5")) else "lower"
    pad = config.get("pad_token") or (_END if clip else "</s>")
    pad = pad["content"] if isinstance(pad, dict) else pad
    return model, {
        "length": 77 if clip else 64,
        "pad_id": _vocabulary(json.loads(model)).get(pad, 0 if clip else 1),
        "cleaning": config.get("cleaning", cleaning),
    }


def _vocabulary(content: Config) -> dict[str, int]:
    """Returns the ids of tokens in a tokenizer.json."""
    found = content["model"]["vocab"]
    if not isinstance(found, dict):  # of sentencepiece, with scores
        found = {token: i for i, (token, _) in enumerate(found)}
    return {**found, **{x["content"]: x["id"] for x in content["added_tokens"]}}


def _of_clip_file(path: pathlib.Path) -> tuple[str, Config]:
    """Returns the tokenizer.json of the file of merges in the code of CLIP."""
    lines = gzip.decompress(path.read_bytes()).decode("utf-8").split("\n")
    lines = lines[1 : _MERGES + 1]
    letters = _letters_of_bytes()
    tokens = letters + [f"{x}</w>" for x in letters]
    tokens += [x.replace(" ", "") for x in lines]
    ends = ("<start_of_text>", "<end_of_text>")
    vocabulary = {token: i for i, token in enumerate((*tokens, *ends))}
    model = _clip_model(vocabulary, lines, ends, normalize=False)
    return model, {"length": 77, "pad_id": 0, "cleaning": "clip"}


def _letters_of_bytes() -> list[str]:
    """Returns the letters that stand for bytes, in the order of their ids."""
    spans = (("!", "~"), ("¡", "¬"), ("®", "ÿ"))
    shown = [n for first, last in spans for n in range(ord(first), ord(last) + 1)]
    return [chr(n) for n in (*shown, *range(256, 512 - len(shown)))]


def _clip_model(
    vocabulary: dict[str, int],
    lines: Sequence[str],
    ends: tuple[str, str],
    normalize: bool,
) -> str:
    """Returns the tokenizer.json of CLIP with a vocabulary and lines of two tokens
    that are merged, as transformers writes it with `normalize`."""
    t = require("tokenizers", "text")
    words = "|".join([*map(re.escape, ends), _WORDS])
    merges = [tuple(line.split()) for line in lines if line]
    tokenizer = t.Tokenizer(
        t.models.BPE(vocabulary, merges, end_of_word_suffix="</w>", unk_token=ends[1])
    )
    if normalize:
        n = t.normalizers
        space = n.Replace(t.Regex(r"\s+"), " ")
        tokenizer.normalizer = n.Sequence([n.NFC(), space, n.Lowercase()])
    split = t.pre_tokenizers.Split(t.Regex(words), "removed", invert=True)
    as_letters = t.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = t.pre_tokenizers.Sequence([split, as_letters])
    tokenizer.post_processor = t.processors.RobertaProcessing(
        *((x, vocabulary[x]) for x in reversed(ends)), False, False
    )
    tokenizer.add_special_tokens([*ends])
    return tokenizer.to_str()


def _clean(text: str, cleaning: str | None) -> str:
    """Returns a text as the original code changes it before it is split."""
    if cleaning == "clip":
        text = require("ftfy", "text").fix_text(text)
        text = html.unescape(html.unescape(text))
        return " ".join(text.split()).lower()
    if cleaning == "siglip":
        text = text.replace("_", " ").translate(_PUNCTUATION)
        return " ".join(text.lower().split())
    return text.lower() if cleaning == "lower" else text
