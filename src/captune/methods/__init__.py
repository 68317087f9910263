"""Adaptation methods; the file name is the name of the method."""
