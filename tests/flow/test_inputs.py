"""Every kind of input gives the same run: rows are kinds of images, columns are adapt, predict and evaluate."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from toys import ToyBackbone, write_images

import captune
from captune.cli import main
from captune.core import runtime
from captune.core.errors import InputError
from captune.data.images import find_images
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_images
from captune.results.run import Run

NAMES, N = ["cat", "dog", "bird"], 9
LABELS = [NAMES[i % 3] for i in range(N)]


@dataclass(frozen=True)
class World:
    """The same images in the forms that the rows are made of."""

    folder: Path
    paths: list[Path]
    pixels: list[NDArray[np.uint8]]
    vectors: NDArray[np.float32]
    reference: Run


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = write_images(tmp_path_factory.mktemp("inputs") / "photos", N)
    paths = sorted(folder.glob("*.png"))
    cache = tmp_path_factory.mktemp("cache")
    embedded = embed_images(ToyBackbone(), find_images(folder), EmbeddingCache(cache), runtime.start(workers=0))
    pixels = [np.asarray(Image.open(path)) for path in paths]
    return World(folder, paths, pixels, embedded.vectors, run(folder))


def run(images: Any, classes: Any = NAMES, **settings: Any) -> Run:
    values = {"method": "zero_shot", "backbone": ToyBackbone(), "workers": 0, **settings}
    return captune.adapt(images, classes, quiet=True, **values)


class Items:
    """A map-style dataset, as torch.utils.data.Dataset is one."""

    def __init__(self, items: list[Any], fails: tuple[int, ...] = ()) -> None:
        self.items, self.fails = items, fails

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, position: int) -> Any:
        if position in self.fails:
            raise RuntimeError("the disk is gone")
        return self.items[position]


def torch_dataset(items: list[Any]) -> Any:
    from torch.utils.data import Dataset

    class Photos(Items, Dataset[Any]):
        pass

    return Photos(items)


def chw(pixels: NDArray[np.uint8]) -> Any:
    import torch

    return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255


def hf_dataset(world: World, column: str) -> Any:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({column: datasets.Image(), "n": datasets.Value("int64")})
    return datasets.Dataset.from_dict({column: [str(p) for p in world.paths], "n": list(range(N))}, features=features)


def frame(**columns: Any) -> Any:
    return pytest.importorskip("pandas").DataFrame(columns)


def arrow_table(**columns: Any) -> Any:
    return pytest.importorskip("pyarrow").table(columns)


def written(world: World, name: str) -> str:
    """Write the embeddings into a file and return how it is named on the command line."""
    path, key = world.folder.parent / name.partition(":")[0], name.partition(":")[2]
    if path.suffix == ".npy":
        np.save(path, world.vectors)
    elif path.suffix == ".npz":
        np.savez(path, **{key or "vectors": world.vectors, "texts": world.vectors[:3], "names": NAMES})
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file({"anything": world.vectors}, path)
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        table = arrow_table(path=[f"{i}.jpg" for i in range(N)], embedding=list(world.vectors))
        parquet.write_table(table, path)
    return str(path) + (f":{key}" if key else "")


ROWS: dict[str, Callable[[World], Any]] = {
    "folder": lambda w: w.folder,
    "collection": lambda w: find_images(w.folder),
    "paths": lambda w: [str(path) for path in w.paths],
    "pillow images": lambda w: [Image.open(path) for path in w.paths],
    "arrays": lambda w: w.pixels,
    "one array": lambda w: np.stack(w.pixels),
    "tensors": lambda w: [chw(image) for image in w.pixels],
    "encoded bytes": lambda w: [path.read_bytes() for path in w.paths],
    "dataset of pairs": lambda w: torch_dataset([(Image.open(path), 0) for path in w.paths]),
    "dataset of mappings": lambda w: torch_dataset([{"label": 0, "image": chw(image)} for image in w.pixels]),
    "hugging face dataset": lambda w: hf_dataset(w, "anything"),
    "pandas paths": lambda w: frame(label=[0] * N, path=[str(path) for path in w.paths]),
    "pandas images": lambda w: frame(image=w.pixels),
    "pandas series": lambda w: frame(where=w.paths)["where"],
    "arrow paths": lambda w: arrow_table(file=[str(path) for path in w.paths]),
    "arrow bytes": lambda w: arrow_table(image=[path.read_bytes() for path in w.paths]),
    "embeddings": lambda w: captune.Embeddings(w.vectors),
    "embeddings with names": lambda w: captune.Embeddings(w.vectors, [path.name for path in w.paths]),
    "npy": lambda w: written(w, "vectors.npy"),
    "npz": lambda w: written(w, "vectors.npz"),
    "npz with key": lambda w: written(w, "keyed.npz:train_images"),
    "safetensors": lambda w: written(w, "vectors.safetensors"),
    "parquet": lambda w: written(w, "vectors.parquet"),
}


@pytest.mark.parametrize("kind", ROWS)
def test_adapt(kind: str, world: World) -> None:
    found = run(ROWS[kind](world))
    np.testing.assert_allclose(
        found.predictions.probabilities, world.reference.predictions.probabilities, rtol=1e-4, atol=1e-5
    )
    assert not found.skipped


@pytest.mark.parametrize("kind", ROWS)
def test_predict(kind: str, world: World) -> None:
    expected = [NAMES[label] for label in world.reference.predictions.labels]
    assert world.reference.classifier.predict(ROWS[kind](world)) == expected
    assert world.reference.classifier.predict_proba(ROWS[kind](world)).shape == (N, len(NAMES))


@pytest.mark.parametrize("kind", ROWS)
def test_evaluate(kind: str, world: World) -> None:
    right = np.mean([NAMES[label] == truth for label, truth in zip(predicted(world), LABELS, strict=True)])
    assert world.reference.classifier.evaluate(ROWS[kind](world), LABELS).accuracy == pytest.approx(right)


def predicted(world: World) -> list[int]:
    return world.reference.predictions.labels.tolist()


def test_one_image_is_predicted(world: World) -> None:
    classifier = world.reference.classifier
    for one in (world.paths[0], str(world.paths[0]), Image.open(world.paths[0]), world.pixels[0]):
        assert classifier.predict(one) == [NAMES[predicted(world)[0]]]
    assert classifier.predict([]) == []


def test_a_column_is_named(world: World) -> None:
    table = frame(where=[str(path) for path in world.paths], other=[0] * N)
    with pytest.raises(InputError, match="Which column"):
        run(table)
    assert run(table, image_column="where").predictions.labels.tolist() == predicted(world)
    assert world.reference.classifier.predict(hf_dataset(world, "b"), image_column="b")


LABEL_ROWS: dict[str, Callable[[World], Any]] = {
    "names": lambda w: ["cat", None, "dog", *[None] * 6],
    "ids": lambda w: np.array([0, -1, 1, *[-1] * 6]),
    "floats with NaN": lambda w: np.array([0.0, np.nan, 1.0, *[np.nan] * 6]),
    "mapping of names": lambda w: {"000.png": "cat", "002.png": "dog"},
    "mapping of positions": lambda w: {0: "cat", 2: 1},
    "mapping of paths": lambda w: {w.paths[0]: "cat", str(w.paths[2]): "dog"},
    "series": lambda w: frame(label=["cat", None, "dog", *[None] * 6])["label"],
    "series by name": lambda w: pytest.importorskip("pandas").Series({"000.png": "cat", "002.png": "dog"}),
    "tensor": lambda w: __import__("torch").tensor([0, -1, 1, *[-1] * 6]),
}


@pytest.mark.parametrize("kind", LABEL_ROWS)
def test_labels(kind: str, world: World) -> None:
    from captune.plan import make_plan

    task = make_plan(world.folder, NAMES, LABEL_ROWS[kind](world), {"method": "zero_shot"}).task
    assert [task.labeled.images.name(i) for i in range(len(task.labeled))] == ["000.png", "002.png"]
    assert task.labeled.labels.tolist() == [0, 1]


@pytest.mark.parametrize("labels", [["cat"] * (N - 1), {"gone.png": "cat"}, {N: "cat"}, ["horse"] * N, 3.5])
def test_wrong_labels_are_one_clear_error(labels: Any, world: World) -> None:
    with pytest.raises(InputError, match="label"):
        run(world.folder, labels=labels)


def texts(world: World) -> Any:
    return captune.ClassTexts(NAMES, world.vectors[:3] * 2, logit_scale=50)


@pytest.mark.parametrize("method", ["zero_shot", "cap", "transductive"])
def test_embeddings_and_class_texts_need_no_model(method: str, world: World, tmp_path: Path) -> None:
    quick = {"epochs": 2, "iterations": 2, "k": 2} if method == "cap" else {}
    images = captune.Embeddings(world.vectors)
    adapted = captune.adapt(images, texts(world), method=method, out=tmp_path / "run", quiet=True, **quick)
    loaded = captune.load(tmp_path / "run")
    np.testing.assert_allclose(loaded.predict_proba(images), adapted.predictions.probabilities, rtol=1e-4, atol=1e-5)
    assert loaded.evaluate(images, dict(enumerate(LABELS))).n_images == N
    with pytest.raises(captune.CaptuneError, match="no image encoder"):
        loaded.predict(world.folder)


def test_images_with_class_texts_use_the_backbone_for_images_only(world: World, tmp_path: Path) -> None:
    adapted = run(world.folder, texts(world), out=tmp_path / "run")
    expected = (world.vectors @ world.vectors[:3].T).argmax(axis=1)
    assert adapted.predictions.labels.tolist() == expected.tolist()
    assert adapted.classifier.predict(world.pixels) == [NAMES[label] for label in expected]


def test_descriptions_in_memory(world: World) -> None:
    described = {"cat": ["a small striped animal"], "dog": "a friend", "bird": None}
    mapped = run(world.folder, described)
    assert mapped.classifier.vocabulary.descriptions == {0: ("a small striped animal",), 1: ("a friend",)}
    by_mapping = run(world.folder, describer={"cat": ["x y"], "dog": ["z"]}, describe="all")
    by_function = run(world.folder, describer={"cat": "x y", "dog": ["z"]}.get, describe="all")
    assert by_mapping.classifier.vocabulary.descriptions[0][-1] == "x y"
    np.testing.assert_array_equal(by_mapping.predictions.probabilities, by_function.predictions.probabilities)


def test_a_describer_that_raises_leaves_the_class_its_name(world: World) -> None:
    def describe(name: str) -> str:
        return {"cat": "whiskers"}[name]

    found = run(world.folder, describer=describe, describe="all").classifier.vocabulary.descriptions
    assert list(found) == [0]


@pytest.fixture(scope="module", params=["clip", "siglip"])
def wrapped(request: pytest.FixtureRequest, model_folder: Callable[[str], Path]) -> Any:
    from transformers import AutoModel, AutoProcessor

    folder = model_folder(str(request.param))
    model = AutoModel.from_pretrained(folder)
    return captune.wrap(model, AutoProcessor.from_pretrained(folder)), folder


def test_a_model_in_memory_is_the_model_on_disk(wrapped: Any, world: World) -> None:
    backbone, folder = wrapped
    found = run(world.folder, backbone=backbone).predictions.probabilities
    np.testing.assert_array_equal(found, run(world.folder, backbone=f"hf:{folder}").predictions.probabilities)


def test_random_weights_are_loaded_again_with_the_model(wrapped: Any, world: World, tmp_path: Path) -> None:
    backbone, folder = wrapped
    from transformers import AutoConfig, AutoModel, AutoProcessor

    model = AutoModel.from_config(AutoConfig.from_pretrained(folder))
    model.name_or_path = ""
    backbone = captune.wrap(model, AutoProcessor.from_pretrained(folder))
    expected = run(world.folder, backbone=backbone, out=tmp_path / "run").predictions.labels
    with pytest.raises(captune.CaptuneError, match="memory"):
        captune.load(tmp_path / "run")
    loaded = captune.load(tmp_path / "run", backbone=backbone)
    assert loaded.predict(world.folder) == [NAMES[label] for label in expected]


BAD: dict[str, tuple[Callable[[World], Any], str]] = {
    "NaN": (lambda w: captune.Embeddings(np.where(np.eye(N, 12) > 0, np.nan, 1.0)), "row 0, 1"),
    "zeros": (lambda w: captune.Embeddings(np.vstack([w.vectors, np.zeros((1, 12))])), rf"row {N}"),
    "one axis": (lambda w: captune.Embeddings(w.vectors[0]), r"shape \(12,\)"),
    "names": (lambda w: captune.Embeddings(w.vectors, ["a"] * N), "'a' .9 times"),
    "names of another length": (lambda w: captune.Embeddings(w.vectors, ["a"]), "got 1"),
    "another width": (lambda w: run(captune.Embeddings(w.vectors[:, :8]), texts(w)), "width 8.*width 12"),
    "width of the model": (lambda w: run(captune.Embeddings(w.vectors[:, :8])), "width 8.*width 12"),
    "no texts": (lambda w: captune.adapt(captune.Embeddings(w.vectors), NAMES), "ClassTexts"),
    "no backbone": (lambda w: captune.adapt(w.folder, texts(w)), "backbone"),
    "full": (lambda w: run(captune.Embeddings(w.vectors), method="cap", preset="full"), "'quick'"),
    "describer": (lambda w: run(captune.Embeddings(w.vectors), texts(w), describer={"cat": "x"}), "text encoder"),
    "template": (lambda w: run(captune.Embeddings(w.vectors), texts(w), template="a {}"), "template"),
    "matrix": (lambda w: run(w.vectors), r"captune\.Embeddings"),
    "one image": (lambda w: run(w.pixels[0]), "several images"),
    "number": (lambda w: run(3), "got int"),
    "nothing": (lambda w: run([]), "No images"),
    "repeated path": (lambda w: run([w.paths[0], w.paths[0]]), "listed 2 times"),
    "class texts": (lambda w: captune.ClassTexts(NAMES, w.vectors[:2]), "got 2 for 3 names"),
    "logit scale": (lambda w: captune.ClassTexts(NAMES, w.vectors[:3], logit_scale=0), "logit_scale is 0"),
    "failing dataset": (lambda w: run(Items(w.pixels, fails=tuple(range(N)))), "RuntimeError: the disk is gone"),
    "normalized tensors": (lambda w: run([chw(image) - 0.5 for image in w.pixels]), "negative pixels"),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_clear_error(kind: str, world: World) -> None:
    attempt, words = BAD[kind]
    with pytest.raises(captune.CaptuneError, match=f"(?s){words}"):
        attempt(world)


def test_an_item_that_fails_is_skipped_and_the_others_are_kept(world: World) -> None:
    found = run(Items(world.pixels, fails=(4,)))
    assert found.predictions.image_index.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]
    assert found.skipped == {4: "the dataset raised RuntimeError: the disk is gone"}


def test_bad_images_do_not_replace_a_run(world: World, tmp_path: Path) -> None:
    run(world.folder, out=tmp_path / "run")
    for bad in (Items(world.pixels, fails=tuple(range(N))), captune.Embeddings(world.vectors[:, :8])):
        with pytest.raises(captune.CaptuneError):
            run(bad, out=tmp_path / "run", overwrite=True)
    kept = captune.load(tmp_path / "run", backbone=ToyBackbone())
    assert kept.predict(world.folder) == [NAMES[label] for label in predicted(world)]
    with pytest.raises(InputError, match=r"9 labels.*8"):
        kept.evaluate(world.folder, LABELS[1:])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda vectors: vectors[:, :, None], "2 axes"),
        (lambda vectors: vectors[:0], r"(0, 12)"),
    ],
    ids=["axes", "nothing"],
)
def test_bad_files_are_one_clear_error(
    change: Callable[[Any], Any], words: str, world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "images.npz", vectors=change(world.vectors))
    np.savez(tmp_path / "texts.npz", names=NAMES, texts=world.vectors[:3])
    out = tmp_path / "run"
    adapt = ["adapt", f"{tmp_path}/images.npz", "--classes", f"{tmp_path}/texts.npz", "--out", str(out)]
    assert main(adapt) == 2
    assert words in capsys.readouterr().err
    assert not out.exists()


def test_other_lengths_are_normalized_and_said_once(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    values = {"method": "cap", "workers": 0, "backbone": ToyBackbone(), "epochs": 1, "iterations": 1, "k": 1}
    found = captune.adapt(captune.Embeddings(7 * world.vectors), NAMES, **values)
    assert capfd.readouterr().err.count("normalized") == 1
    assert found.predictions.probabilities.shape == (N, len(NAMES))


@pytest.fixture(scope="module")
def embedded_run(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that the command line made from two files of arrays, which are beside it."""
    folder = tmp_path_factory.mktemp("command")
    np.savez(folder / "images.npz", images=world.vectors.astype(np.float16), labels=np.arange(N) % 3)
    np.savez(folder / "texts.npz", names=NAMES, texts=world.vectors[:3], logit_scale=np.float32(50))
    words = ["adapt", f"{folder}/images.npz", "--classes", f"{folder}/texts.npz", "--method", "cap"]
    quick = [word for pair in ("epochs=2", "iterations=2", "k=2") for word in ("--set", pair)]
    assert main([*words, "--preset", "quick", "--out", str(folder / "run"), *quick]) == 0
    return folder


def test_the_command_line_takes_embeddings(embedded_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_folder, images = str(embedded_run / "run"), str(embedded_run / "images.npz")
    assert main(["predict", run_folder, images]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "path,label,confidence"
    assert [row.split(",")[0] for row in rows[1:]] == [f"image-{i}" for i in range(N)]
    assert main(["evaluate", run_folder, images, "--labels", images, "--json"]) == 0
    right = np.mean([row.split(",")[1] == label for row, label in zip(rows[1:], LABELS, strict=True)])
    assert json.loads(capsys.readouterr().out)["accuracy"] == pytest.approx(right, abs=1e-4)
    assert main(["report", run_folder, "--labels", images]) == 0
    assert "made from embeddings, so there are no pictures" in (embedded_run / "run" / "report.html").read_text()
    audit = ["audit", images, "--classes", str(embedded_run / "texts.npz"), "--labels", images]
    assert main([*audit, "--out", str(embedded_run / "audit"), "--set", "k=2"]) == 0
    assert json.loads((embedded_run / "audit" / "run.json").read_text())["n_images"] == N
    for form in ("csv", "coco", "label-studio", "cleanlab"):
        assert main(["export", run_folder, "--format", form]) == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["export", "{run}", "--format", "onnx"], "no image encoder"),
        (
            ["adapt", "{images}", "--classes", "{texts}", "--method", "cap", "--preset", "full", "--out", "{run}-full"],
            "'quick'",
        ),
        (["adapt", "{images}:gone", "--classes", "{texts}", "--out", "{run}-key"], "'gone'"),
        (["adapt", "{images}", "--classes", "{images}", "--out", "{run}-names"], "images.npz"),
        (["evaluate", "{run}", "{texts}", "--labels", "{images}"], "3 labels"),
    ],
)
def test_what_embeddings_cannot_do_is_one_sentence(
    words: list[str], expected: str, embedded_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if "onnx" in words:
        pytest.importorskip("onnx")
    places = {"run": embedded_run / "run", "images": embedded_run / "images.npz", "texts": embedded_run / "texts.npz"}
    assert main([word.format(**places) for word in words]) == 2
    assert expected in capsys.readouterr().err
