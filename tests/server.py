"""A web server on loopback with configurable failures."""

import contextlib
import hashlib
import http.server
import json
import random
import socket
import threading
import time
import urllib.parse

COMMIT = "a" * 40  # of every repository on our hub


class Server:
    """Serves `files`, `{path: bytes}`; `behave` maps a path to a function of
    the handler and the body that answers in some other way."""

    def __init__(self):
        self.files, self.behave, self.hits = {}, {}, []
        self.http = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), type("Bound", (Handler,), {"site": self})
        )
        self.url = f"http://127.0.0.1:{self.http.server_port}/"

    def paths(self):
        return [path for path, _ in self.hits]


@contextlib.contextmanager
def running():
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.http.shutdown()
        thread.join()
        server.http.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    site = None

    def do_HEAD(self):  # noqa: N802
        self.do_GET()

    def do_GET(self):  # noqa: N802
        path = urllib.parse.unquote(self.path.partition("?")[0].lstrip("/"))
        self.site.hits.append((path, self.headers.get("Range")))
        body = self.site.files.get(path)
        behave = self.site.behave.get(path)
        try:
            if behave is not None:
                behave(self, body)
            elif body is None:
                status(404)(self, body)
            else:
                serve(self, body)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the other side had enough

    def log_message(self, *arguments):
        pass


def unused_addresses(count):
    """Returns addresses on loopback on which no process listens.

    Systems choose ports from 32768 on by themselves: none of these is given to
    another process before it is used.
    """
    found = set()
    while len(found) < count:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("127.0.0.1", port))
            found.add(f"127.0.0.1:{port}")
    return list(found)


def etag(body):
    return f'"{hashlib.sha256(body).hexdigest()}"'


def serve(handler, body, tag=None, cut=None, **headers):
    """Answers as a good server: ranges, ETag. `cut` ends the answer early."""
    tag = tag or etag(body)
    start, wanted = 0, handler.headers.get("Range")
    if wanted and handler.headers.get("If-Range", tag) == tag:
        start = int(wanted.removeprefix("bytes=").split("-")[0])
    handler.send_response(206 if start else 200)
    if start:
        span = f"bytes {start}-{len(body) - 1}/{len(body)}"
        handler.send_header("Content-Range", span)
    handler.send_header("Content-Length", str(len(body) - start))
    handler.send_header("ETag", tag)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    if handler.command == "GET":
        handler.wfile.write(body[start:cut])


def status(code):
    """Answers with a status and a page."""

    def behave(handler, body):
        page = b"<html>an error</html>"
        handler.send_response(code)
        handler.send_header("Content-Type", "text/html")
        handler.send_header("Content-Length", str(len(page)))
        handler.end_headers()
        handler.wfile.write(page)

    return behave


def page(handler, body):
    """A login page with status 200, as sent by captive portals."""
    handler.send_response(200)
    handler.send_header("Content-Type", "text/html; charset=utf-8")
    handler.end_headers()
    handler.wfile.write(b"<!DOCTYPE html><html>Sign in</html>")


def disguised_page(handler, body):
    """The same page with the headers of a file."""
    serve(handler, b"<!DOCTYPE html><html>Sign in</html>")


class Truncated:
    """Ends the connection after half of the requested bytes, a number of
    times."""

    def __init__(self, times):
        self.left = times

    def __call__(self, handler, body):
        if not self.left:
            serve(handler, body)
            return
        self.left -= 1
        wanted = handler.headers.get("Range") or "bytes=0-"
        start = int(wanted.removeprefix("bytes=").split("-")[0])
        serve(handler, body, cut=(start + len(body)) // 2)
        handler.close_connection = True


def slowly(seconds, pieces=5):
    """Sends a file in pieces with pauses between them."""

    def behave(handler, body):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        step = len(body) // pieces + 1
        for i in range(0, len(body), step):
            handler.wfile.write(body[i : i + step])
            time.sleep(seconds / pieces)

    return behave


def publish(server, repository, files):
    """Puts a repository on the hub."""
    tree = [
        {"type": "file", "path": name, "size": len(body), "oid": etag(body)}
        for name, body in files.items()
    ]
    api = f"api/models/{repository}"
    for revision in ("main", COMMIT):
        siblings = [{"rfilename": name} for name in files]
        info = {"id": repository, "sha": COMMIT, "siblings": siblings}
        server.files[f"{api}/revision/{revision}"] = json.dumps(info).encode()
        server.files[f"{api}/tree/{revision}"] = json.dumps(tree).encode()
        for name, body in files.items():
            path = f"{repository}/resolve/{revision}/{name}"
            server.files[path] = body
            server.behave[path] = lambda handler, body: serve(
                handler, body, X_Repo_Commit=COMMIT
            )
