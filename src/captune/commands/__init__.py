"""The commands of the command line, one file each: `add` declares its words, `run` does it with the Python API."""
