"""Images in a folder per split (train, val, test) and class, as torchvision's ImageFolder reads them."""

from __future__ import annotations

from captune.exports._datasets import ImageDataset


class ImageFolder(ImageDataset):
    """Class ids of the reader follow the alphabet."""

    target = "imagefolder"
    usage = 'torchvision.datasets.ImageFolder("train")'
