import hashlib
import re

from keras_vit.downloads import _hub
from keras_vit.downloads._fetch import Source
from keras_vit.downloads._fetch import fetch
from keras_vit.downloads._home import home


def is_address(path):
    """Whether a path is the address of something to download."""
    schemes = ("hf://", "https://", "http://", "gs://")
    return isinstance(path, str) and path.startswith(schemes)


def local(path):
    """Returns a path as it is, and for an address that of what it names, on
    this machine: downloaded once, and kept.

    Args:
        path: Path, or String: "https://...", "gs://bucket/...",
            "hf://owner/name" (a folder), "hf://owner/name/file". A digest
            to hold the file to can follow: "https://...#sha256:a1311bcf".

    Raises:
        OSError: if it could not be had.
    """
    if not is_address(path):
        return path
    address, _, digest = path.partition("#")
    digest = digest.lower()
    if digest and not re.fullmatch(r"(sha256|md5):[0-9a-f]{8,}", digest):
        raise ValueError(
            "A digest behind an address is #sha256:... or #md5:..., with 8 hex "
            f"digits or more. Received: {path!r}"
        )
    if address.startswith("gs://"):
        address = "https://storage.googleapis.com/" + address[5:]
    if address.startswith("hf://") and _hub.parse(address)[2] is None:
        if digest:
            raise ValueError(
                "A digest is for one file: name it behind the repository. "
                f"Received: {path!r}"
            )
        return _hub.download_repository(address, home() / "hub")
    # Two addresses can end in the same name.
    unique = hashlib.sha256(address.encode()).hexdigest()[:16]
    folder = home() / "addresses" / unique
    return fetch(folder, (Source(address, digest),), what=address)[0]
