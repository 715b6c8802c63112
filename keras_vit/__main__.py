"""`python -m keras_vit` runs the command `keras-vit`."""

import runpy

# By its name: the library imports no programs.
runpy.run_module("keras_vit_programs", run_name="__main__", alter_sys=True)
