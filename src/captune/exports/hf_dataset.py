"""Images in a folder per split (train, validation, test) and class, as the library datasets and the Hub read them."""

from __future__ import annotations

from captune.exports._datasets import ImageDataset


class HubDataset(ImageDataset):
    """The data card is the README of the data set on the Hub."""

    target = "hf-dataset"
    split_names = ("train", "validation", "test")
    usage = 'datasets.load_dataset("imagefolder", data_dir="FOLDER")'
