"""Writing of ONNX by PyTorch, and ONNX Runtime."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from keras_vit.utils.optional import require
from keras_vit.utils.types import Array, StrPath, Tensor


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses the logs, warnings and printed output of converters."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def trace(
    function: Callable[..., Any],
    inputs: dict[str, Tensor],
    axes: tuple[dict[int, str] | None, ...],
    **options: Any,
) -> Any:
    """Returns PyTorch's ONNX program of a function of tensors; `axes` has, for
    each input, the names of its axes of any length."""
    torch = require("torch", "export")
    require("onnxscript", "export")

    class Module(torch.nn.Module):
        def forward(self, *inputs: Tensor) -> Any:
            return function(*inputs)

    with quiet(), torch.no_grad():
        return torch.onnx.export(
            Module().eval(),
            tuple(inputs.values()),
            dynamo=True,
            input_names=list(inputs),
            dynamic_shapes=(axes,),
            verbose=False,
            **options,
        )


def read(path: StrPath) -> Callable[..., dict[str, Array]]:
    """Returns a function of the inputs of a file, which returns its outputs by
    name."""
    runtime = require("onnxruntime", "export")
    options = runtime.SessionOptions()
    options.log_severity_level = 3  # no warnings of operations not folded
    session = runtime.InferenceSession(
        str(path), options, providers=["CPUExecutionProvider"]
    )
    inputs = [x.name for x in session.get_inputs()]
    outputs = [x.name for x in session.get_outputs()]

    def run(*arrays: Array) -> dict[str, Array]:
        feeds = dict(zip(inputs, arrays, strict=True))
        return dict(zip(outputs, session.run(None, feeds), strict=True))

    return run
