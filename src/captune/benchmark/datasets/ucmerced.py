"""UC Merced Land Use: 21 classes of aerial photographs, in train and test folders by class."""

from __future__ import annotations

from captune.benchmark.datasets import base


class UCMerced(base.Dataset):
    """The pool is the train folder, 60 images per class."""

    facts = base.FACTS["ucmerced"]
    layouts = (base.Layout(("train", "test"), base.read_train_and_test),)
