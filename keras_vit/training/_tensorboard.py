"""Event files for TensorBoard, which are records of TensorFlow's."""

import time

import keras

from keras_vit.training._output import not_fatal
from keras_vit.training._tf_images import tensorflow


class EventFiles(keras.callbacks.Callback):
    """Writes the rows of `metrics.csv` for TensorBoard, on any backend.

    `keras.callbacks.TensorBoard` takes the step from its own epochs, and needs
    a package that TensorFlow does not install.

    Args:
        folder: Path of the folder for event files.
        metrics: `MetricsFile`, which comes before this in the callbacks.

    Raises:
        ImportError: if there is no TensorFlow.
    """

    def __init__(self, folder, metrics):
        super().__init__()
        self._tf = tensorflow()
        self._folder, self._metrics, self._file = folder, metrics, None
        self._write_new_row()

    def on_epoch_end(self, epoch, logs=None):
        self._write_new_row()

    def _write_new_row(self):
        """All rows go into a new file, also when the last one was refused:
        what is behind a record that is cut cannot be read."""
        with not_fatal(self._folder):
            try:
                rows = self._metrics.rows[-1:]
                if self._file is None:
                    self._open()
                    rows = self._metrics.rows
                for row in rows:
                    self._write_row(row)
            except self._tf.errors.OpError as error:
                self._file = None
                raise OSError(error.message) from error

    def _open(self):
        self._folder.mkdir(parents=True, exist_ok=True)
        self._file = self._tf.io.TFRecordWriter(str(self._next_path()))
        self._write(file_version="brain.Event:2")

    def _next_path(self):
        """The name has to say "tfevents", and to be the last of all, also when
        the clock was put back: TensorBoard goes from file to file by name."""
        begin = "events.out.tfevents."
        ends = [p.name[len(begin) :] for p in self._folder.glob(f"{begin}*")]
        last = max((int(end) for end in ends if end.isdecimal()), default=0)
        return self._folder / f"{begin}{max(time.time_ns(), last + 1):019}"

    def _write_row(self, row):
        proto = self._tf.compat.v1.Summary
        values = [
            proto.Value(tag=_tag(name), simple_value=value)
            for name, value in row.items()
            if name != "step"
        ]
        self._write(step=row["step"], summary=proto(value=values))

    def _write(self, **event):
        event = self._tf.compat.v1.Event(wall_time=time.time(), **event)
        self._file.write(event.SerializeToString())
        self._file.flush()


def _tag(name):
    """`loss/train` for `train_loss`: one chart for each of loss, accuracy."""
    part, _, what = name.partition("_")
    return f"{what}/{part}" if what in ("loss", "accuracy") else name
