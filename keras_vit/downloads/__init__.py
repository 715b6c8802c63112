from keras_vit.downloads._fetch import Source as Source
from keras_vit.downloads._fetch import fetch as fetch
from keras_vit.downloads._home import home as home
from keras_vit.downloads._local import is_address as is_address
from keras_vit.downloads._local import local as local
