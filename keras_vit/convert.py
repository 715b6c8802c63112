"""`python -m keras_vit.convert`, for those who installed the package."""

import sys

from keras_vit.converters._cli import main

if __name__ == "__main__":
    sys.exit(main())
