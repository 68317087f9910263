"""Datasets, learning settings and suites: how published tables are made again."""
