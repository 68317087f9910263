"""Frozen image-text encoder pairs; the file name is the source in `source:name`."""
