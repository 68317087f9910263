"""Below everything: errors, arrays, files, settings, runtime and processes that work together."""
