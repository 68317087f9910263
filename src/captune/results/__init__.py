"""Classifiers, runs and the numbers that judge them."""
