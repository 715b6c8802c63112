"""Helpers of the package and of its programs: text, files, logging, optional imports.

They are not part of the interface that versions keep stable.
"""
