"""The commands of the command line, one file each: `add` declares its options, `run` calls the Python API."""
