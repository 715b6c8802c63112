"""Downloads from the Hugging Face hub, and uploads to it.

Addresses are hf://owner/name[@revision] for a repository, and
hf://owner/name[@revision]/path for a file.
"""

import contextlib
import os

# Patterns of the names of weight files, in order of preference.
_WEIGHTS = tuple(
    (f"{stem}.{suffix}", f"{stem}-*.{suffix}", f"{stem}.{suffix}.index.json")
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin"))
)
# Of a preset of keras-hub.
_PRESET = ("model.weights.h5", "task.*", "image_converter.json")


def parse(address):
    """Splits an address into `(repository, revision, file)`.

    Args:
        address: String: hf://owner/name[@revision][/path].

    Returns:
        Tuple of strings. The revision and the file are None if they are not in
        the address.

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
    """Downloads one file into a folder and returns its path.

    Args:
        address: String: hf://owner/name[@revision]/path.
        folder: Path of the folder.

    Raises:
        OSError: if the download failed.
    """
    repository, revision, file = parse(address)
    hub = _hub()
    from huggingface_hub.errors import HfHubHTTPError

    with _translate_errors():
        # Without a network this fails at once, where the download would be
        # tried again for 24 seconds. Errors of the server are left to it.
        with contextlib.suppress(HfHubHTTPError):
            hub.get_hf_file_metadata(
                hub.hf_hub_url(repository, file, revision=revision)
            )
        return hub.hf_hub_download(
            repository, file, revision=revision, local_dir=folder
        )


def download_repository(address, cache):
    """Downloads a repository's config and weights and returns their folder.

    Args:
        address: String: hf://owner/name[@revision].
        cache: Path of a cache folder of huggingface_hub, which may contain
            several revisions.

    Raises:
        OSError: if the download failed, or the repository has no weights.
    """
    repository, revision, _ = parse(address)
    hub = _hub()
    with _translate_errors(address):
        for names in (*_WEIGHTS, _PRESET):
            folder = hub.snapshot_download(
                repository,
                revision=revision,
                cache_dir=cache,
                allow_patterns=["config.json", *names],
            )
            if any(
                os.path.exists(os.path.join(folder, name))
                for name in (names[0], f"{names[0]}.index.json")
            ):
                return folder
        raise OSError(
            f"{repository} has no {_WEIGHTS[0][0]}, {_WEIGHTS[1][0]} or "
            f"{_PRESET[0]}. "
            f"Name a file of it: hf://{repository}/FILE"
        )


def upload_folder(folder, repository, private=False):
    """Uploads a folder's files to a repository, which is created if needed.

    The token is that of `hf auth login`, or the environment variable HF_TOKEN.

    Args:
        folder: Path of the folder.
        repository: String: owner/name.
        private: Boolean. Whether a new repository is private.

    Returns:
        String. The URL of the repository.

    Raises:
        OSError: if the upload failed.
    """
    with _translate_errors():
        client = _hub().HfApi()
        url = client.create_repo(repository, private=private, exist_ok=True)
        client.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message="Upload with keras_vit",
        )
        return str(url)


def check_repository(repository):
    """Checks that uploads are possible and a repository's name is valid.

    Args:
        repository: String: owner/name.

    Raises:
        OSError: if huggingface_hub is not installed.
        ValueError: if the name is not valid.
    """
    try:
        _hub()
        from huggingface_hub.utils import validate_repo_id

        validate_repo_id(repository)
        valid = repository.count("/") == 1
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(
            "A repository on the Hugging Face hub is named OWNER/NAME. "
            f"Received: {repository!r}"
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
    """Converts errors to an `OSError` with the first line of the root cause."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        # Raised by this module or by the system, for example for a full disk.
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
