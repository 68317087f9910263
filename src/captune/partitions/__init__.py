"""Embedding and predicting any number of images, by partitions of the output."""
