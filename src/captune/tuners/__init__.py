"""Trainable parts on a frozen backbone; the file name is the name of the tuner."""
