"""Processes that download the same weights concurrently from a slow server:

    python -m tests.load                      # 16 processes, files alone
    python -m tests.load --models             # each builds ViT-Ti/16 of them
    python -m tests.load --small-disk /mnt    # an own file system of some MB

Each case prints the requests to the server and the results of the processes.
The exit status is 1 if a case fails.
"""

import argparse
import dataclasses
import hashlib
import os
import pathlib
import subprocess
import sys
import tempfile
import time

from tests import server as web

ROOT = pathlib.Path(__file__).parents[1]
NAME = "w.npz"
# Keras, which takes seconds to import, is not needed to download.
_FILE = f"""
import hashlib, sys, types
package = types.ModuleType("keras_vit")
package.__path__ = [{str(ROOT / "keras_vit")!r}]
sys.modules["keras_vit"] = package
from keras_vit.downloads import Source, fetch
folder, digest, *addresses = sys.argv[1:]
path, _ = fetch(folder, tuple(Source(x, digest) for x in addresses))
print(hashlib.sha256(path.read_bytes()).hexdigest())
"""
_MODEL = f"""
import hashlib, sys
sys.path.insert(0, {str(ROOT)!r})
import keras_vit
from keras_vit.downloads import Source
from keras_vit.weights.released import RELEASED
from keras_vit.weights.released import ReleasedWeights
folder, digest, *addresses = sys.argv[1:]
files = tuple((Source(x, digest), "vit_jax") for x in addresses)
arguments = RELEASED["ViTTi16", "augreg-imagenet21k"].arguments
RELEASED["ViTTi16", "load"] = ReleasedWeights(files, 224, 5, "tf", arguments)
model = keras_vit.ViTTi16(weights="load")
found = hashlib.sha256()
for weight in model.get_weights():
    found.update(weight.tobytes())
print(found.hexdigest())
"""


class Drip:
    """A file object of a handler that writes slowly and counts the bytes."""

    def __init__(self, file, seconds, sent):
        self.file, self.seconds, self.sent = file, seconds, sent

    def write(self, data):
        if len(data) < 10_000:
            return self.file.write(data)
        step = len(data) // 40 + 1
        for i in range(0, len(data), step):
            self.file.write(data[i : i + step])
            self.sent.append(len(data[i : i + step]))
            time.sleep(self.seconds / 40)

    def __getattr__(self, name):
        return getattr(self.file, name)


def slow(seconds, sent, answer=web.serve):
    """Sends `answer` in this number of seconds, and records the bytes in
    `sent`."""

    def behave(handler, body):
        handler.wfile = Drip(handler.wfile, seconds, sent)
        answer(handler, body)

    return behave


@dataclasses.dataclass
class Outcome:
    good: int
    errors: list  # what the others wrote to stderr, the killed one left out
    requests: list  # of (path, range)
    sent: int  # bytes of bodies


def ask(count, body, folder, case, seconds, program=_FILE, expected=None):
    """Runs a case.

    Args:
        count: Integer, processes.
        body: Bytes of the file.
        folder: Path for what is downloaded.
        case: Name in `CASES`.
        seconds: Float. How long the server takes for the whole file.
        program: String of Python.
        expected: String that a good process prints; the file's digest if None.
    """
    answers, kill = CASES[case]
    digest = hashlib.sha256(body).hexdigest()
    sent, environment = [], {**os.environ, "no_proxy": "127.0.0.1"}
    environment["KERAS_VIT_HOME"] = str(folder)
    with web.running() as server:
        addresses = []
        for i, answer in enumerate(answers):
            path = f"{i}/{NAME}"
            server.files[path] = body
            server.behave[path] = slow(seconds, sent, answer())
            addresses.append(server.url + path)
        command = [sys.executable, "-c", program, str(folder)]
        command += [f"sha256:{digest}", *addresses]

        def start():
            pipe = subprocess.PIPE
            return subprocess.Popen(
                command, stdout=pipe, stderr=pipe, text=True, env=environment
            )

        first = start()
        while kill and not arrived(folder) and first.poll() is None:
            time.sleep(0.01)
        processes = [start() for _ in range(count - 1)]
        if kill:
            while arrived(folder) < len(body) // 4 and first.poll() is None:
                time.sleep(0.01)
            first.kill()
            first.communicate()
        else:
            processes.append(first)
        try:
            outputs = [
                process.communicate(timeout=900) for process in processes
            ]
        finally:
            for process in processes:
                process.kill()
    good = sum(out.strip() == (expected or digest) for out, _ in outputs)
    errors = [
        err.strip()
        for out, err in outputs
        if out.strip() != (expected or digest)
    ]
    return Outcome(good, errors, server.hits, sum(sent))


def arrived(folder):
    """Returns the bytes on the disk: sent bytes may arrive much later."""
    return sum(x.stat().st_size for x in folder.rglob(NAME))


def wrong_bytes():
    return lambda handler, body: web.serve(handler, bytes(len(body)))


# Functions that make the answers of the sources, and whether the first process
# is killed during its download.
CASES = {
    "slow": ([lambda: web.serve], False),
    "killed": ([lambda: web.serve], True),
    "wrong bytes, then good": ([wrong_bytes, lambda: web.serve], False),
    "404, then good": ([lambda: web.status(404), lambda: web.serve], False),
    "wrong bytes only": ([wrong_bytes], False),
    "disk full": ([lambda: web.serve], False),
}
_REFUSED = {
    "wrong bytes only": "could not be downloaded",
    "disk full": "No space left",
}


def problem(case, count, found, size, folder):
    """Returns a description of a failure, or None."""
    if case in _REFUSED:
        if found.good or not all(_REFUSED[case] in x for x in found.errors):
            return "not every process reported the error"
        left = [
            p for p in folder.rglob("*") if p.is_file() and p.stat().st_size
        ]
        return f"left behind: {left}" if left else None
    wanted = count - CASES[case][1]
    if found.good != wanted:
        return f"{found.good} of {wanted} are good: {found.errors[:1]}"
    whole = 2 if case.startswith("wrong") else 1
    if not whole * size <= found.sent < (whole + 1) * size:
        return f"{found.sent / size:.2f} times the file was sent"
    return None


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.load",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--small-disk", type=pathlib.Path, metavar="FOLDER")
    arguments = parser.parse_args()
    body, program, expected = os.urandom(8_000_000), _FILE, None
    if arguments.models:
        program = _MODEL
        body, expected = released()
    failed = False
    for case in arguments.cases:
        if case == "disk full" and arguments.small_disk is None:
            print(f"{case}: left out (--small-disk)")
            continue
        start = time.monotonic()
        with tempfile.TemporaryDirectory(
            dir=arguments.small_disk if case == "disk full" else None
        ) as folder:
            folder = pathlib.Path(folder)
            found = ask(
                arguments.processes,
                body,
                folder,
                case,
                arguments.seconds,
                program,
                expected,
            )
            wrong = problem(case, arguments.processes, found, len(body), folder)
        failed |= wrong is not None
        print(
            f"{case}: {found.good} good, {len(found.errors)} refused, "
            f"{len(found.requests)} requests, {found.sent / len(body):.2f} "
            f"times the file, {time.monotonic() - start:.0f} s: "
            f"{wrong or 'as it should be'}",
            flush=True,
        )
    return int(failed)


def released():
    """Returns a file of ViT-Ti/16, and the digest of the model's weights."""
    import keras_vit

    model = keras_vit.ViTTi16(classes=5)
    found = hashlib.sha256()
    for weight in model.get_weights():
        found.update(weight.tobytes())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / NAME
        keras_vit.converters.save(model, path, "vit_jax")
        return path.read_bytes(), found.hexdigest()


if __name__ == "__main__":
    sys.exit(main())
