"""Processes that download the same weights concurrently from a slow server:

    python -m tests.load --processes 16

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


def ask(count, body, folder, case, seconds):
    """Runs a case of `CASES` with this number of processes, to which the
    server sends the file within these seconds."""
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
        command = [sys.executable, "-c", _FILE, str(folder)]
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
    errors = [err.strip() for out, err in outputs if out.strip() != digest]
    return Outcome(len(outputs) - len(errors), errors, server.hits, sum(sent))


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
}


def problem(case, count, found, size, folder):
    """Returns a description of a failure, or None."""
    if case == "wrong bytes only":
        reported = ["could not be downloaded" in x for x in found.errors]
        if found.good or not all(reported):
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
    parser = argparse.ArgumentParser(prog="python -m tests.load")
    parser.add_argument("--processes", type=int, default=16)
    count, body = parser.parse_args().processes, os.urandom(8_000_000)
    failed = False
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            found = ask(count, body, folder, case, seconds=5)
            wrong = problem(case, count, found, len(body), folder)
        failed |= wrong is not None
        print(f"{case}: {wrong or 'as it should be'}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
