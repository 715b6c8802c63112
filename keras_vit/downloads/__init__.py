from keras_vit.downloads.cache import Source as Source
from keras_vit.downloads.cache import cache_dir as cache_dir
from keras_vit.downloads.cache import fetch as fetch
from keras_vit.downloads.cache import fetch_if_remote as fetch_if_remote
from keras_vit.downloads.hub import check_repository as check_repository
from keras_vit.downloads.hub import upload_folder as upload_folder
