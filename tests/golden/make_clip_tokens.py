"""Makes `clip_tokens`: the ids of a thousand texts by the tokenizer of open_clip.

    python -m tests.golden.make_clip_tokens

open_clip-torch 3.3.0 computes them, with the first 3,000 merges of its vocabulary
(of OpenAI's CLIP, MIT license). It is no dependency of the tests.
"""

import gzip
import pathlib

import numpy as np
from open_clip.tokenizer import SimpleTokenizer, default_bpe

from tests.text.texts import thousand

FOLDER = pathlib.Path(__file__).parent / "clip_tokens"
MERGES = 3000

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / "bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.open(default_bpe()).read().decode("utf-8").split("\n")[: MERGES + 1]
    path.write_bytes(gzip.compress("\n".join(lines).encode("utf-8"), mtime=0))
    ids = SimpleTokenizer(str(path))(thousand()).numpy()
    np.savez_compressed(FOLDER / "ids.npz", ids=ids.astype("uint16"))
