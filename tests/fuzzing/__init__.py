"""Damage small checkpoints at random and check how reading them ends.

`tests/converters/test_fuzzing.py` runs a small seeded sample of it, and
`python -m tests.fuzzing` any number of inputs. h5py itself is not fuzzed: HDF5
files are only cut off.
"""
