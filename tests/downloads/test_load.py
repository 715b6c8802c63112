"""Processes that download the same file at the same time."""

import hashlib
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tests import server as web

pytestmark = [pytest.mark.backends("torch"), pytest.mark.slow]

ROOT = pathlib.Path(__file__).parents[2]
BODY = os.urandom(300_000)
DIGEST = hashlib.sha256(BODY).hexdigest()
# Keras, which takes seconds to import, is not needed to download.
FETCH = f"""
import hashlib, sys, types
package = types.ModuleType("keras_vit")
package.__path__ = [{str(ROOT / "keras_vit")!r}]
sys.modules["keras_vit"] = package
from keras_vit.utils.downloads import Source, fetch
folder, digest, *addresses = sys.argv[1:]
path, _ = fetch(folder, tuple(Source(x, digest) for x in addresses))
print(hashlib.sha256(path.read_bytes()).hexdigest())
"""
# The answers of the sources, and how often one is asked.
CASES = {
    "slow": ([web.slowly(0.4)], 1),
    # It must be killed before the server has sent all.
    "killed": ([web.slowly(2)], 2),
    "404": ([web.status(404), web.serve], 2),
    "wrong bytes": ([lambda h, body: web.serve(h, bytes(len(body)))], None),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [4, pytest.param(16, marks=pytest.mark.nightly)])
def test_concurrent_processes_download_once(case, count, tmp_path, server):
    """The next process continues if the one that downloads is killed, and no
    process has wrong bytes."""
    answers, asked = CASES[case]
    command = [sys.executable, "-c", FETCH, tmp_path, f"sha256:{DIGEST}"]
    for i, answer in enumerate(answers):
        server.files[f"{i}/w.npz"] = BODY
        server.behave[f"{i}/w.npz"] = answer
        command.append(f"{server.url}{i}/w.npz")

    def start():
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)

    def arrived():
        found = tmp_path.rglob("*")
        return sum(x.stat().st_size for x in found if x.is_file())

    processes = [start()]
    if case == "killed":
        while not arrived() and processes[0].poll() is None:
            time.sleep(0.01)
    processes += [start() for _ in range(count - 1)]
    if case == "killed":
        processes[0].kill()
        processes.pop(0).communicate()
    outputs = [process.communicate(timeout=900) for process in processes]
    if case == "wrong bytes":
        assert all("could not be downloaded" in error for _, error in outputs)
        assert not arrived()
    else:
        assert [out.strip() for out, _ in outputs] == [DIGEST] * len(outputs)
        assert len(server.hits) == asked
