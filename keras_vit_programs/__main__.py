"""`python -m keras_vit_programs` runs the command `keras-vit`."""

import sys

from keras_vit_programs.command import main

if __name__ == "__main__":
    sys.exit(main())
