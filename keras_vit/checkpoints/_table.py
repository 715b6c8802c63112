"""The table of released weights, by variant and tag."""

import itertools

from keras_vit.checkpoints import _google_files
from keras_vit.checkpoints import _meta_files

TABLE = dict(
    itertools.chain(
        _google_files.paper(),
        _google_files.augreg(),
        _google_files.imagenet(),
        _google_files.bit(),
        _meta_files.deit(),
        _meta_files.dinov2(),
        _meta_files.mae(),
    )
)
ALIASES = {"imagenet": "imagenet21k+imagenet2012"}


def tags_of(variant):
    """Lists the tags that a variant has weights for."""
    return [tag for name, tag in TABLE if name == variant]
