"""Files and repositories of the Hugging Face hub: hf://owner/name[@revision]
and, for one file, hf://owner/name[@revision]/path."""

import contextlib
import os

# What is asked for first; the second kind is older.
_WEIGHTS = tuple(
    (f"{stem}.{suffix}", f"{stem}-*.{suffix}", f"{stem}.{suffix}.index.json")
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin"))
)


def parse(address):
    """Returns `(repository, revision, file)`; the last two may be None.

    Raises:
        ValueError: if the address does not name a repository.
    """
    owner, _, rest = address.removeprefix("hf://").partition("/")
    name, _, file = rest.partition("/")
    name, _, revision = name.partition("@")
    if not owner or not name:
        raise ValueError(
            "An address on the Hugging Face hub is hf://owner/name, or "
            "hf://owner/name/path/of/a/file, either with @revision behind the "
            f"name. Received: {address!r}"
        )
    return f"{owner}/{name}", revision or None, file or None


def download_file(address, folder):
    """Downloads one file into a folder and returns its path.

    Raises:
        OSError: if it could not be had; the message says why.
    """
    repository, revision, file = parse(address)
    with _told_plainly():
        return _hub().hf_hub_download(
            repository, file, revision=revision, local_dir=folder
        )


def download_repository(address, cache):
    """Downloads a repository's config and weights into the hub's own kind of
    cache, which holds several revisions, and returns the folder.

    Raises:
        OSError: if it could not be had; the message says why.
    """
    repository, revision, _ = parse(address)
    hub = _hub()
    with _told_plainly(address):
        for names in _WEIGHTS:
            folder = hub.snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache,
                allow_patterns=["config.json", *names],
            )
            there = set(os.listdir(folder) if os.path.isdir(folder) else ())
            if {names[0], names[2]} & there:
                return folder
        raise OSError(
            f"{repository} has neither {_WEIGHTS[0][0]} nor {_WEIGHTS[1][0]}. "
            f"Name a file of it: hf://{repository}/FILE"
        )


def _hub():
    try:
        import huggingface_hub
    except ImportError as error:
        raise OSError(
            f"hf:// addresses need huggingface_hub ({error}). Install it with: "
            "pip install huggingface_hub"
        ) from error
    return huggingface_hub


@contextlib.contextmanager
def _told_plainly(address=None):
    """Keeps of the hub's errors the first line of what caused them."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        # Ours already, or the machine's, such as a full disk.
        if type(error) is OSError or getattr(error, "errno", None) is not None:
            raise
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = str(cause).strip().splitlines() or [""]
        said = f"{lines[0]} ({type(error).__name__})"
        if address:
            said = (
                f"{address} could not be had: {said}. Without a network, "
                "download the folder elsewhere and give its path."
            )
        raise OSError(said) from error
