import os
import pathlib


def home():
    """Returns the folder that fetched files are kept in.

    It is `$KERAS_VIT_HOME` if that is set, otherwise the folder `keras_vit`
    of Keras's own (`$KERAS_HOME`, or `~/.keras`).
    """
    own = os.environ.get("KERAS_VIT_HOME")
    if own:
        return pathlib.Path(own).expanduser()
    keras_home = os.environ.get("KERAS_HOME") or "~/.keras"
    return pathlib.Path(keras_home).expanduser() / "keras_vit"
