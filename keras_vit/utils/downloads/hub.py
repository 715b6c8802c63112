"""Downloads from the Hugging Face hub, and uploads to it.

Addresses are hf://owner/name[@revision] for a repository, and
hf://owner/name[@revision]/path for a file.
"""

import contextlib
import pathlib
from collections.abc import Iterator

# What the readers of weights read next to them.
_CONFIGS = (
    *("config.json", "preprocessor_config.json", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json"),
)
# Patterns of the names of weight files, in order of preference. `hub.save` writes the
# first.
_WEIGHTS = (
    ("model.keras",),
    *(
        (f"{stem}.{suffix}", f"{stem}-*.{suffix}", f"{stem}.{suffix}.index.json")
        for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin"))
    ),
)
# A preset of keras-hub has these files, and models of open_clip and adapters of PEFT
# have the others.
_OTHERS = (
    ("model.weights.h5", "task.*", "image_converter.json"),
    ("open_clip_model.safetensors", "open_clip_config.json"),
    ("open_clip_pytorch_model.bin", "open_clip_config.json"),
    ("adapter_model.safetensors", "adapter_config.json"),
    ("adapter_model.bin", "adapter_config.json"),
)


def parse(address: str) -> tuple[str, str | None, str]:
    """Splits an address into its repository, revision and file path, which is "" for a
    whole repository."""
    owner, _, rest = address.removeprefix("hf://").partition("/")
    name, _, file = rest.partition("/")
    name, _, revision = name.partition("@")
    if not owner or not name:
        raise ValueError(
            "An address on the Hugging Face hub is hf://owner/name or "
            "hf://owner/name/path/of/a/file, optionally with @revision after "
            f"the name. Received: {address!r}"
        )
    return f"{owner}/{name}", revision or None, file


def download_file(address: str, folder: pathlib.Path) -> pathlib.Path:
    """Downloads one file into a folder and returns its path."""
    import huggingface_hub as hub
    from huggingface_hub.errors import HfHubHTTPError

    repository, revision, file = parse(address)
    with _translate_errors():
        # Without a network this fails at once, where the download would be
        # tried again for 24 seconds. Errors of the server are left to it.
        with contextlib.suppress(HfHubHTTPError):
            hub.get_hf_file_metadata(
                hub.hf_hub_url(repository, file, revision=revision)
            )
        return pathlib.Path(
            hub.hf_hub_download(repository, file, revision=revision, local_dir=folder)
        )


def download_repository(address: str, cache: pathlib.Path) -> pathlib.Path:
    """Downloads a repository's weights, or one file of it, with the configs next to
    it, and returns their folder in a cache of huggingface_hub, or the file's path."""
    import huggingface_hub as hub

    repository, revision, file = parse(address)
    place = file[: file.rfind("/") + 1]
    configs = [place + name for name in _CONFIGS]
    with _translate_errors(address):
        for names in ((file,),) if file else (*_WEIGHTS, *_OTHERS):
            folder = pathlib.Path(
                hub.snapshot_download(
                    repository,
                    revision=revision,
                    cache_dir=cache,
                    allow_patterns=[*configs, *names],
                )
            )
            if (folder / names[0]).exists() or (
                folder / f"{names[0]}.index.json"
            ).exists():
                return folder / file
        if file:
            raise OSError(
                f"{repository} has no {file!r}. Give the name of a file in it."
            )
        raise OSError(
            f"{repository} has no model.safetensors, pytorch_model.bin or "
            f"model.weights.h5. Name a file in it: hf://{repository}/FILE"
        )


def upload_folder(
    folder: pathlib.Path | str, repository: str, private: bool = False
) -> str:
    """Uploads a folder's files to a repository, which is created if needed, and
    returns its URL.

    The token is that of `hf auth login`, or of the environment variable HF_TOKEN.
    """
    import huggingface_hub

    with _translate_errors():
        client = huggingface_hub.HfApi()
        url = client.create_repo(repository, private=private, exist_ok=True)
        client.upload_folder(
            repo_id=repository,
            folder_path=folder,
            commit_message="Upload with keras_vit",
        )
        return str(url)


def check_repository(repository: str) -> None:
    """Raises a `ValueError` if a repository's name is not valid."""
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
        valid = repository.count("/") == 1
    except ValueError:
        valid = False
    if not valid:
        raise ValueError(
            "A repository on the Hugging Face hub is named OWNER/NAME. "
            f"Received: {repository!r}"
        )


@contextlib.contextmanager
def _translate_errors(address: str = "") -> Iterator[None]:
    """Converts errors to an `OSError` with the first line of the root cause."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:
        # Raised by this module or by the system, for example for a full disk.
        if type(error) is OSError or getattr(error, "errno", None) is not None:
            raise
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        line = str(cause).strip().partition("\n")[0]
        message = f"{line} ({type(error).__name__})"
        if address:
            message = (
                f"{address} could not be downloaded: {message}. Without a "
                "network, download the folder on another machine and give its "
                "path."
            )
        raise OSError(message) from error
