from keras_vit.downloads.cache import Source as Source
from keras_vit.downloads.cache import cache_dir as cache_dir
from keras_vit.downloads.cache import fetch as fetch
from keras_vit.downloads.cache import fetch_if_remote as fetch_if_remote
from keras_vit.downloads.cache import is_url as is_url
