"""Splits: what a method sees in each learning setting, long tails, and images on both sides of a split."""

from __future__ import annotations

import inspect
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from toys import write_images

from captune.benchmark.datasets.base import LoadedDataset
from captune.benchmark.splits import (
    PUBLISHED_SPLIT_SEEDS,
    Split,
    SplitSettings,
    Truth,
    long_tail,
    make_split,
    shared_images,
)
from captune.core import registry
from captune.core.errors import InputError
from captune.data.images import ImageCollection, find_images
from captune.data.precomputed import Embeddings
from captune.data.task import AdaptationTask
from captune.methods.base import Context
from captune.plan import plan_for_task

EUROSAT = (
    "annual crop land",
    "forest",
    "brushland or shrubland",
    "highway or road",
    "industrial buildings or commercial buildings",
    "pasture land",
    "permanent crop land",
    "residential buildings or homes or apartments",
    "river",
    "lake or sea",
)


def dataset(n_classes: int = 10, per_class: int = 12, names: tuple[str, ...] = EUROSAT) -> LoadedDataset:
    """Return a dataset whose files need not exist; the classes are mixed, as in official lists."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(n_classes), per_class)).astype(np.int64)
    n_pool = len(labels)
    paths = [
        *(Path(f"/all/pool/{i}.jpg") for i in range(n_pool)),
        *(Path(f"/all/test/{c}.jpg") for c in range(n_classes)),
    ]
    both = ImageCollection(paths, Path("/all"))  # as readers that draw a split have them
    pool, test = both.subset(range(n_pool)), both.subset(range(n_pool, len(paths)))
    return LoadedDataset(names, pool, labels, test, np.arange(n_classes, dtype=np.int64)[::-1].copy())


def positions(images: ImageCollection) -> list[int]:
    return [int(path.stem) for path in images.paths]


def test_unsupervised_learning_sees_the_whole_pool_and_no_label() -> None:
    data = dataset()
    split = make_split(data, "ul", seed=3)
    assert split.task.unlabeled == data.pool
    assert len(split.task.labeled) == 0
    assert split.task.target_classes.tolist() == list(range(10))
    assert not split.truth.is_transductive
    assert (split.truth.unlabeled_labels == data.pool_labels).all()


def test_semi_supervised_labels_are_those_of_the_published_tables() -> None:
    data = dataset()
    task = make_split(data, "ssl", seed=PUBLISHED_SPLIT_SEEDS["ssl"]).task
    expected = []
    for c in range(10):
        np.random.seed(0)  # the rule, said literally: the global legacy generator, seeded anew for each class
        expected += np.random.choice(np.where(data.pool_labels == c)[0], size=2, replace=False).tolist()
    assert positions(task.labeled.images) == expected
    assert task.labeled.labels.tolist() == data.pool_labels[expected].tolist() == sorted(list(range(10)) * 2)
    assert positions(task.unlabeled) == [i for i in range(120) if i not in expected]
    assert task.target_classes.tolist() == list(range(10))


SEEN = {  # the seen classes of EuroSAT as published with GRIP (BatsResearch/menghini-neurips23-code, data_splits)
    500: (4, 2, 9, 3, 0, 5),
    0: (2, 8, 4, 9, 1, 6),
    200: (8, 3, 5, 6, 1, 7),
}


@pytest.mark.parametrize("seed", SEEN)
def test_seen_classes_are_those_of_the_published_tables(seed: int) -> None:
    data = dataset()
    split = make_split(data, "trzsl", seed)
    assert split.truth.seen_classes.tolist() == sorted(SEEN[seed])
    assert split.task.seen_classes.tolist() == sorted(SEEN[seed])
    assert sorted(set(split.task.labeled.labels.tolist())) == sorted(SEEN[seed])
    assert len(split.task.labeled) == 6 * 12
    assert set(split.truth.unlabeled_labels.tolist()) == set(split.task.target_classes.tolist())
    assert split.truth.is_transductive


@pytest.mark.parametrize(("n_classes", "n_seen"), [(102, 63), (45, 27), (47, 29), (10, 6), (200, 124), (100, 62)])
def test_the_number_of_seen_classes_is_published(n_classes: int, n_seen: int) -> None:
    data = dataset(n_classes, 2, tuple(f"class {c}" for c in range(n_classes)))
    assert len(make_split(data, "trzsl", 500).truth.seen_classes) == n_seen


def test_a_share_of_the_unlabeled_images_is_nested_and_leaves_the_labels_alone() -> None:
    data = dataset()
    whole, half, third = (make_split(data, "ssl", 0, SplitSettings(unlabeled_share=share)) for share in (1.0, 0.5, 0.3))
    assert np.bincount(half.truth.unlabeled_labels).tolist() == [5] * 10
    assert np.bincount(third.truth.unlabeled_labels).tolist() == [3] * 10
    assert set(third.task.unlabeled.paths) < set(half.task.unlabeled.paths) < set(whole.task.unlabeled.paths)
    assert half.task.labeled.images == whole.task.labeled.images
    assert positions(half.task.unlabeled) == sorted(positions(half.task.unlabeled))
    assert (half.truth.unlabeled_labels == data.pool_labels[positions(half.task.unlabeled)]).all()


def test_a_long_tail_is_drawn_from_the_unlabeled_images_alone() -> None:
    data = dataset()
    flat, tail = make_split(data, "ssl", 0), make_split(data, "ssl", 0, SplitSettings(imbalance=10))
    counts = sorted(np.bincount(tail.truth.unlabeled_labels, minlength=10).tolist())
    assert (counts[0], counts[-1]) == (1, 10)
    assert tail.task.labeled.images == flat.task.labeled.images
    assert (tail.truth.unlabeled_labels == data.pool_labels[positions(tail.task.unlabeled)]).all()


@pytest.mark.parametrize("imbalance", [1.0, 10.0, 50.0])
@pytest.mark.parametrize("setting", ["ul", "ssl", "trzsl"])
def test_any_setting_may_have_a_long_tail(setting: Any, imbalance: float) -> None:
    data = dataset(per_class=30)
    split, flat = make_split(data, setting, 3, SplitSettings(imbalance=imbalance)), make_split(data, setting, 3)
    counts = np.bincount(split.truth.unlabeled_labels, minlength=10)[split.task.target_classes]
    largest = 28 if setting == "ssl" else 30
    assert counts.max() == largest
    assert counts.min() == max(1, round(largest / imbalance))  # one image at 50
    assert split.task.labeled.images == flat.task.labeled.images
    assert split.task.labeled.labels.tolist() == flat.task.labeled.labels.tolist()
    assert split.test == flat.test
    assert set(split.task.unlabeled.paths) <= set(flat.task.unlabeled.paths)
    assert not set(split.task.unlabeled.paths) & set(split.task.labeled.images.paths)


def test_a_class_may_have_no_more_images_than_labels() -> None:
    data = dataset()
    kept = np.sort(np.concatenate([np.flatnonzero(data.pool_labels == 4)[:2], np.flatnonzero(data.pool_labels != 4)]))
    small = LoadedDataset(data.names, data.pool.subset(kept), data.pool_labels[kept], data.test, data.test_labels)
    split = make_split(small, "ssl", 0, SplitSettings(unlabeled_share=0.5, imbalance=50))
    assert np.bincount(split.task.labeled.labels).tolist() == [2] * 10
    assert 4 not in split.truth.unlabeled_labels


@pytest.mark.parametrize(
    ("setting", "options", "words"),
    [
        ("sll", {}, "'sll'.* ul, ssl, trzsl"),
        ("ssl", {"n_labels": 13}, "n_labels = 13: expected 1 to 12"),
        ("trzsl", {"seen_share": 1.0}, "seen_share = 1.0"),
        ("trzsl", {"seen_share": 0.05}, "seen_share = 0.05"),
        ("ssl", {"n_labels": 12}, "n_labels = 12"),
    ],
)
def test_what_cannot_be_is_said(setting: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make_split(dataset(), setting, 0, SplitSettings(**options))


def reachable(value: object) -> Iterator[object]:
    """Yield everything that a value leads to, private parts and the arrays behind views among it."""
    yield value
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from reachable(part)
    elif isinstance(value, np.ndarray) and value.base is not None:
        yield from reachable(value.base)
    elif hasattr(value, "__dict__"):
        for part in vars(value).values():
            yield from reachable(part)


@pytest.mark.parametrize("setting", ["ul", "ssl", "trzsl"])
def test_nothing_in_a_task_leads_to_the_truth_or_to_a_test_image(setting: Any) -> None:
    data = dataset()
    split = make_split(data, setting, 0)
    found = list(reachable(split.task))
    assert not [part for part in found if isinstance(part, (Truth, Split, LoadedDataset))]
    arrays = [part for part in found if isinstance(part, np.ndarray)]
    assert not any(array is data.pool_labels or np.array_equal(array, data.test_labels) for array in arrays)
    assert not any(
        np.shares_memory(array, hidden) for array in arrays for hidden in (data.pool_labels, data.test_labels)
    )
    names = [part for part in found if isinstance(part, str)]
    assert any("pool/" in name for name in names)  # the names of images are looked at
    assert not any("test/" in name for name in names)
    known = {int(label) for label in split.task.labeled.labels}
    assert (setting == "ul") == (not known)


@pytest.mark.parametrize("name", registry.names("methods"))
def test_no_method_takes_anything_that_could_carry_the_truth(name: str) -> None:
    adapt = registry.load("methods", name).adapt
    hints = get_type_hints(adapt)
    taken = [hints[parameter] for parameter in list(inspect.signature(adapt).parameters)[1:]]
    assert taken[0] is AdaptationTask
    assert taken[2] is Context
    assert len(taken) == 3


@pytest.mark.parametrize("wrong", ["split", "truth"])
def test_a_split_or_a_truth_is_refused_where_a_task_belongs(wrong: str) -> None:
    split = make_split(dataset(), "ul", 0)
    with pytest.raises(InputError, match="AdaptationTask"):
        plan_for_task(split if wrong == "split" else split.truth, {})  # type: ignore[arg-type]


@pytest.mark.slow  # the type checker takes its time
def test_the_type_checker_refuses_the_truth(tmp_path: Path) -> None:
    from mypy import api

    wrong = ("split", "split.truth", "split.truth.test_labels", "data")
    lines = [f"    method.adapt({value}, backbone, context)" for value in ("split.task", *wrong)]
    source = f"""
from captune.backbones.base import Backbone
from captune.benchmark.datasets.base import LoadedDataset
from captune.benchmark.splits import Split
from captune.methods.base import Context, Method

def leak(method: Method, split: Split, data: LoadedDataset, backbone: Backbone, context: Context) -> None:
{chr(10).join(lines)}
"""
    (tmp_path / "leak.py").write_text(source)
    said, _, _ = api.run(
        [str(tmp_path / "leak.py"), "--config-file", str(Path(__file__).parents[3] / "pyproject.toml")]
    )
    errors = [line for line in said.splitlines() if "leak.py" in line and "error:" in line]
    assert len(errors) == len(wrong)
    assert all('Argument 1 to "adapt" of "Method"' in line for line in errors)


LABELS = np.repeat(np.arange(5), 80)


def test_sizes_follow_the_rule() -> None:
    kept = long_tail(LABELS, 16, seed=3)
    sizes = sorted(np.bincount(LABELS[kept]).tolist(), reverse=True)
    assert sizes == [80, 40, 20, 10, 5]  # 80 * 16^(-i/4)


def test_the_seed_draws_the_order_of_classes_and_their_images() -> None:
    assert np.array_equal(long_tail(LABELS, 10, seed=1), long_tail(LABELS, 10, seed=1))
    counts = {tuple(np.bincount(LABELS[long_tail(LABELS, 10, seed=s)]).tolist()) for s in range(6)}
    assert len(counts) > 1
    first = [long_tail(LABELS, 10, seed=s) for s in range(2)]
    assert not np.array_equal(*first)


def test_a_ratio_of_one_keeps_all_and_less_is_refused() -> None:
    assert np.array_equal(long_tail(LABELS, 1), np.arange(len(LABELS)))
    assert long_tail(np.zeros(0, dtype=np.int64), 10).size == 0
    for wrong in (0.5, float("nan")):
        with pytest.raises(InputError, match="ratio"):
            long_tail(LABELS, wrong)


def test_a_small_class_gives_what_it_has() -> None:
    labels = np.array([0] * 30 + [1] * 2 + [7] * 30)
    kept = long_tail(labels, 1.5, seed=0)
    assert (labels[kept] == 1).sum() == 2
    assert len(long_tail(np.array([4, 4, 4]), 50)) == 3  # a single class is the largest


@given(st.lists(st.integers(0, 6), min_size=1, max_size=120), st.floats(1, 200), st.integers(0, 50))
def test_every_class_stays_and_steeper_tails_are_parts(labels: list[int], ratio: float, seed: int) -> None:
    truth = np.array(labels)
    kept, steeper = long_tail(truth, ratio, seed), long_tail(truth, ratio * 2, seed)
    assert len(np.unique(kept)) == len(kept)
    assert (np.diff(kept) > 0).all()
    assert set(truth[kept]) == set(labels)
    assert set(steeper) <= set(kept)


def test_a_copy_under_another_name_is_found(tmp_path: Path) -> None:
    pool, test = write_images(tmp_path / "pool", 5), write_images(tmp_path / "test", 3, seed=1)
    assert shared_images(find_images(pool), find_images(test)) == []
    shutil.copy(pool / "003.png", test / "zebra.png")
    shutil.copy(pool / "001.png", test / "apple.png")
    shutil.copy(pool / "001.png", pool / "twin.png")  # twice in the pool counts once
    assert shared_images(find_images(pool), find_images(test)) == [(1, 3), (3, 4)]


def test_files_of_the_same_size_are_not_mistaken(tmp_path: Path) -> None:
    for part, content in (("pool", b"abcd"), ("test", b"abce")):
        (tmp_path / part).mkdir()
        (tmp_path / part / "x.jpg").write_bytes(content)
    assert shared_images(find_images(tmp_path / "pool"), find_images(tmp_path / "test")) == []


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    gone = ImageCollection((tmp_path / "gone.jpg",), tmp_path)
    with pytest.raises(InputError, match="gone"):
        shared_images(gone, gone)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_variants_have_exactly_these_images(seed: int) -> None:
    data = dataset()
    few = make_split(data, "ul", seed, SplitSettings(images_per_class=4))
    assert np.bincount(few.truth.unlabeled_labels).tolist() == [4] * 10
    assert (data.pool_labels[positions(few.task.unlabeled)] == few.truth.unlabeled_labels).all()
    two = make_split(data, "ul", seed, SplitSettings(images_per_class=2))
    assert set(positions(two.task.unlabeled)) < set(positions(few.task.unlabeled))
    tail = make_split(data, "ul", seed, SplitSettings(imbalance=10))
    assert sorted(np.bincount(tail.truth.unlabeled_labels)) == sorted(round(12 * 10 ** (-i / 9)) for i in range(10))
    third = make_split(data, "ul", seed, SplitSettings(absent_share=0.334))
    counts = np.bincount(third.truth.unlabeled_labels, minlength=10)
    assert sorted(counts) == [0] * 3 + [12] * 7
    assert len(third.task.vocabulary) == 10  # the names stay
    assert sorted(third.truth.test_labels.tolist()) == np.flatnonzero(counts).tolist()
    assert [int(path.stem) for path in third.test.paths] == [9 - c for c in third.truth.test_labels]
    for one in (few, tail, third):
        assert len(one.truth.unlabeled_labels) == len(one.task.unlabeled)


def test_variants_differ_by_seed_and_repeat_by_seed() -> None:
    data = dataset()
    for options in (SplitSettings(images_per_class=4), SplitSettings(absent_share=0.5)):
        found = [positions(make_split(data, "ul", seed, options).task.unlabeled) for seed in (0, 1, 0)]
        assert found[0] == found[2] != found[1]


def embedded(width: int = 3) -> LoadedDataset:
    """Return the same classes as embeddings."""
    data, generator = dataset(), np.random.default_rng(0)
    parts = []
    for images in (data.pool, data.test):
        parts.append(Embeddings(generator.normal(size=(len(images), width)), map(images.name, range(len(images)))))
    return replace(data, pool=parts[0], test=parts[1])


@pytest.mark.parametrize("setting", ["ul", "ssl", "trzsl"])
def test_embeddings_are_split_like_images(setting: Any) -> None:
    data, images = embedded(), make_split(dataset(), setting, 0, SplitSettings(imbalance=3))
    split = make_split(data, setting, 0, SplitSettings(imbalance=3))
    for found, expected in (
        (split.task.unlabeled, images.task.unlabeled),
        (split.task.labeled.images, images.task.labeled.images),
    ):
        rows = positions(expected)
        assert isinstance(found, Embeddings) or not rows
        assert positions(found) == rows
        if rows:
            assert np.array_equal(found.vectors, data.pool.vectors[rows])  # type: ignore[attr-defined]
    everything = split.task.unlabeled + split.task.labeled.images
    assert len(everything) == len(split.task.unlabeled) + len(split.task.labeled)
    assert len(split.task.unlabeled.items) <= len(everything)  # type: ignore[attr-defined]


def test_embeddings_on_both_sides_are_found() -> None:
    data = embedded()
    test = Embeddings(np.concatenate([data.test.vectors, data.pool.vectors[[5, 7]]]))  # type: ignore[attr-defined]
    assert shared_images(data.pool, test) == [(5, 10), (7, 11)]


@pytest.mark.parametrize(
    ("setting", "options", "problem"),
    [
        ("ssl", SplitSettings(absent_share=0.3), "absent_share: expected 0"),
        ("ul", SplitSettings(leaky=True), "leaky: expected false"),
    ],
)
def test_variants_that_cannot_be(setting: Any, options: SplitSettings, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        make_split(embedded(), setting, 0, options)
