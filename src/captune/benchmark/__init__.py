"""Splits, data sets and tables that compare methods."""
