"""Flowers102: 102 flower species of the United Kingdom, official split (Nilsback and Zisserman, 2008)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.benchmark.datasets import base
from captune.core.arrays import Ints
from captune.core.errors import InputError

SITE = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102/"
FOLDERS = ("flowers-102", "flowers102", "oxford_flowers")
COOP = "split_zhou_OxfordFlowers.json"
_NAMES = """\
pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold, tiger lily, moon orchid, bird
of paradise, monkshood, globe thistle, snapdragon, colt's foot, king protea, spear thistle, yellow iris, globe flower,
purple coneflower, peruvian lily, balloon flower, giant white arum lily, fire lily, pincushion flower, fritillary, red
ginger, grape hyacinth, corn poppy, prince of wales feathers, stemless gentian, artichoke, sweet william, carnation,
garden phlox, love in the mist, mexican aster, alpine sea holly, ruby-lipped cattleya, cape flower, great masterwort,
siam tulip, lenten rose, barbeton daisy, daffodil, sword lily, poinsettia, bolero deep blue, wallflower, marigold,
buttercup, oxeye daisy, common dandelion, petunia, wild pansy, primula, sunflower, pelargonium, bishop of llandaff,
gaura, geranium, orange dahlia, pink and yellow dahlia, cautleya spicata, japanese anemone, black-eyed susan,
silverbush, californian poppy, osteospermum, spring crocus, bearded iris, windflower, tree poppy, gazania, azalea,
water lily, rose, thorn apple, morning glory, passion flower, lotus, toad lily, anthurium, frangipani, clematis,
hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress, canna lily, hippeastrum, bee balm, air
plant, foxglove, bougainvillea, camellia, mallow, mexican petunia, bromelia, blanket flower, trumpet creeper,
blackberry lily
"""
NAMES = tuple(name.strip() for name in _NAMES.replace("\n", " ").split(","))
"""Class names in the order of their labels, as zero-shot benchmarks write them."""


def _official(folder: Path) -> base.LoadedDataset:
    """Read `setid.mat` (image numbers of train, val and test) and `imagelabels.mat` (labels from 1)."""
    labels = _numbers(folder / "imagelabels.mat", "labels", largest=len(NAMES))
    train, val, test = (
        [(f"image_{number:05d}.jpg", int(labels[number - 1]) - 1) for number in _numbers(path, key, len(labels))]
        for path, key in ((folder / "setid.mat", key) for key in ("trnid", "valid", "tstid"))
    )
    return base.from_lists(NAMES, folder / "jpg", train + val, test)


def _coop(folder: Path) -> base.LoadedDataset:
    return base.from_lists(NAMES, folder / "jpg", *base.read_coop(folder / COOP))


def _numbers(path: Path, key: str, largest: int) -> Ints:
    """Return a row of numbers from 1 to `largest` from a MATLAB file."""
    from scipy.io import loadmat

    try:
        values = np.asarray(loadmat(path, variable_names=[key])[key]).ravel().astype(np.int64)
    except Exception as error:  # scipy raises many kinds of errors for damaged files
        raise InputError(f"{str(path)!r} holds no numbers {key!r}: {type(error).__name__}: {error}.") from error
    if values.size == 0 or values.min() < 1 or values.max() > largest:
        raise InputError(f"{key!r} in {str(path)!r} must hold numbers from 1 to {largest}.")
    return values


class Flowers102(base.Dataset):
    """The pool is the official train and val."""

    facts = base.DatasetFacts(
        title="Flowers102",
        source=SITE,
        license="none stated; images from the web",
        n_classes=102,
        n_pool=2040,
        n_test=6149,
        domain="the flower {}",
        urls=(
            base.RemoteFile(SITE + "102flowers.tgz", "flowers-102/jpg", "52808999861908f626f3c1f4e79d11fa"),
            base.RemoteFile(
                SITE + "imagelabels.mat", "flowers-102/imagelabels.mat", "e0620be6f572b9609742df49c70aed4d"
            ),
            base.RemoteFile(SITE + "setid.mat", "flowers-102/setid.mat", "a5357ecc9cb78c4bef273ce3793fc85c"),
        ),
    )
    layouts = (
        base.Layout("official", FOLDERS, ("jpg", "imagelabels.mat", "setid.mat"), _official),
        base.Layout("CoOp", FOLDERS, ("jpg", COOP), _coop),
    )
