"""Oxford-IIIT Pet: photographs of 37 breeds of cats and dogs, in train and test folders by breed."""

from __future__ import annotations

from captune.benchmark.datasets import base


class Pets(base.Dataset):
    """The pool is the train folder; a part of the published images, 60 and 40 per breed."""

    facts = base.FACTS["pets"]
    layouts = (base.Layout(("train", "test"), base.read_train_and_test),)
