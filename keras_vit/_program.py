"""What the programs in `tools/` share; plain Python."""

import importlib
import sys
import warnings


def status(run, arguments):
    """Runs a program and returns its exit status: 0 done, 1 refused.

    What users can cause, and warnings, are said in a line each.
    """
    warnings.showwarning = _show
    try:
        return run(arguments)
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nerror: interrupted", file=sys.stderr)
        return 130


def _show(message, category, *where):
    print(f"warning: {message}", file=sys.stderr)


def require(module, extra):
    """Imports a module that only those need who installed an extra.

    Raises:
        ImportError: in one line that says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"This needs {module.split('.')[0]}, which cannot be imported "
            f"({error}). Install it with: pip install "
            f'"keras-vit-models[{extra}]"'
        ) from error
