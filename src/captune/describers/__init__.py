"""Providers of class descriptions; the file name is the provider in `provider:argument`."""
