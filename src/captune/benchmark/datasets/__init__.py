"""Benchmark datasets; a file here is a dataset of its name."""
