"""Writes a report about what a model attends to; see `--help`."""

import os
import sys

if __name__ == "__main__":
    # Hide TensorFlow's start-up messages.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from keras_vit_programs.report import main

    sys.exit(main())
