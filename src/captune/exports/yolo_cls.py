"""Images in a folder per split (train, val, test) and class, as Ultralytics reads them for classification."""

from __future__ import annotations

from captune.exports._datasets import ImageDataset


class YoloClassification(ImageDataset):
    """The folder itself is the `data` of a classification model."""

    target = "yolo-cls"
    usage = "yolo classify train data=FOLDER model=yolo11n-cls.pt"
