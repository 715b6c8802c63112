"""Broken checkpoints, made by the thousand: `python -m tests.fuzzing`."""
