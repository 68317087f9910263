"""Losses, the training loop and checkpoints."""
