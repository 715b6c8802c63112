"""Convert checkpoints between Keras, JAX and PyTorch; see `--help`.

`keras-vit convert` is the same program.
"""

import sys

if __name__ == "__main__":
    from keras_vit_programs.convert import main, skip_package_init

    skip_package_init()
    sys.exit(main())
