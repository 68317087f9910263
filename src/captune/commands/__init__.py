"""The commands, a few of a kind in each file: declared by `@command`, they call the Python API."""
