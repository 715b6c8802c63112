from keras_vit.utils.downloads.cache import Source, cache_dir, fetch, fetch_if_remote
from keras_vit.utils.downloads.hub import check_repository, upload_folder

__all__ = [
    "cache_dir", "check_repository", "fetch", "fetch_if_remote", "Source",
    "upload_folder",
]  # fmt: skip
