"""Downloads from the Hugging Face hub: repositories, hf://owner/name[@revision],
and single files, hf://owner/name[@revision]/path."""

import contextlib
import os

# Patterns of weight files, the preferred format first.
_WEIGHTS = tuple(
    (f"{stem}.{suffix}", f"{stem}-*.{suffix}", f"{stem}.{suffix}.index.json")
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin"))
)


def parse(address):
    """Return `(repository, revision, file)`; the last two may be None.

    Raises:
        ValueError: if the address does not name a repository.
    """
    owner, _, rest = address.removeprefix("hf://").partition("/")
    name, _, file = rest.partition("/")
    name, _, revision = name.partition("@")
    if not owner or not name:
        raise ValueError(
            "An address on the Hugging Face hub is hf://owner/name or "
            "hf://owner/name/path/of/a/file, optionally with @revision after "
            f"the name. Received: {address!r}"
        )
    return f"{owner}/{name}", revision or None, file or None


def download_file(address, folder):
    """Download one file into a folder and return its path.

    Raises:
        OSError: if the download failed.
    """
    repository, revision, file = parse(address)
    with _translate_errors():
        return _hub().hf_hub_download(
            repository, file, revision=revision, local_dir=folder
        )


def download_repository(address, cache):
    """Download a repository's config and weights and return their folder.

    Args:
        address: String, hf://owner/name[@revision].
        cache: Path of a cache in the format of huggingface_hub, which holds
            several revisions.

    Raises:
        OSError: if the download failed, or the repository has no weights.
    """
    repository, revision, _ = parse(address)
    hub = _hub()
    with _translate_errors(address):
        for names in _WEIGHTS:
            folder = hub.snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache,
                allow_patterns=["config.json", *names],
            )
            if any(
                os.path.exists(os.path.join(folder, name))
                for name in (names[0], names[2])
            ):
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
def _translate_errors(address=None):
    """Raise an `OSError` with the first line of the root cause."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        # Raised above, or by the system, such as for a full disk.
        if type(error) is OSError or getattr(error, "errno", None) is not None:
            raise
        cause = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        lines = str(cause).strip().splitlines() or [""]
        message = f"{lines[0]} ({type(error).__name__})"
        if address:
            message = (
                f"{address} could not be downloaded: {message}. Without a "
                "network, download the folder on another machine and give its "
                "path."
            )
        raise OSError(message) from error
