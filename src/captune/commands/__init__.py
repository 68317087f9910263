"""The commands, one file each: its docstring is the help, `add_arguments` the options, `run` calls the Python API."""
