"""Examples of bad input: the mistake, the command, and key phrases of the error message."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from captune.core.files import add_digest

ADAPT = ("adapt", "photos", "--classes", "cat,dog", "--backbone", "hf:model", "--workers", "0", "--out", "new-run")


@dataclass(frozen=True)
class Case:
    """One mistake: a setup step, the command, and key phrases of the error message."""

    what: str
    command: tuple[str, ...]
    words: tuple[str, ...]
    prepare: Callable[[], object] = lambda: None


def adapt(
    *changes: str, images: str = "photos", classes: str = "cat,dog", backbone: str = "hf:model"
) -> tuple[str, ...]:
    """Return the arguments of a valid `captune adapt`, with some changed."""
    replaced = {"photos": images, "cat,dog": classes, "hf:model": backbone}
    return (*(replaced.get(word, word) for word in ADAPT), *changes)


def write(path: str, content: str | bytes) -> Callable[[], object]:
    """Return the step that writes a file."""
    data = content.encode() if isinstance(content, str) else content

    def step() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    return step


def embeddings(*changes: str, images: str = "vectors.npz", classes: str = "texts.npz") -> tuple[str, ...]:
    """Return the arguments of a valid `captune adapt` on embeddings, with some changed."""
    return ("adapt", images, "--classes", classes, "--out", "new-run", *changes)


def arrays(change: Callable[[dict[str, NDArray[Any]]], object] = lambda arrays: None) -> Callable[[], object]:
    """Return the step that writes embeddings of images and class texts, after a change."""

    def step() -> None:
        vectors = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
        content = {"vectors": vectors[:6], "texts": vectors[6:], "names": np.array(["cat", "dog"])}
        change(content)
        np.savez("texts.npz", names=content.pop("names"), texts=content.pop("texts"))
        np.savez("vectors.npz", **content)

    return step


def _tamper() -> None:
    path = Path("tampered/classifier/classifier.safetensors")
    shutil.copytree("run", "tampered")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def _age() -> None:
    shutil.copytree("run", "future")
    card = json.loads(Path("future/run.json").read_text())
    Path("future/run.json").write_text(json.dumps({**card, "version": 9}))


def _swap_model() -> None:
    shutil.copytree("run", "moved")
    card = json.loads(Path("moved/classifier/classifier.json").read_text())
    card["backbone_fingerprint"] = "another model"
    Path("moved/classifier/classifier.json").write_text(json.dumps(add_digest(card)))


def _swap_names() -> None:
    shutil.copytree("run", "swapped")
    card = json.loads(Path("swapped/classifier/classifier.json").read_text())
    card["names"].reverse()
    Path("swapped/classifier/classifier.json").write_text(json.dumps(card))


def _cut_weights() -> None:
    shutil.copytree("model", "cut-model")
    path = Path("cut-model/model.safetensors")
    path.write_bytes(path.read_bytes()[:1000])


def _unreadable_only() -> None:
    Path("damaged").mkdir()
    Path("damaged/empty.jpg").write_bytes(b"")
    Path("damaged/text.png").write_bytes(b"this is text")
    Path("damaged/cut.png").write_bytes(Path("photos/cat/0.png").read_bytes()[:200])


def _foreign_onnx() -> None:
    """Write a valid ONNX file that captune did not export."""
    import onnx

    pixels, same = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "foreign", [pixels], [same])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9), "m.onnx")


def _rename_class() -> None:
    shutil.copytree("run", "other")
    card = json.loads(Path("other/run.json").read_text())
    Path("other/run.json").write_text(json.dumps({**card, "classes": ["cat", "cow"]}))
    for path in Path("other").glob("*.csv"):
        path.write_text(re.sub(r",dog(?=[,\r\n])", ",cow", path.read_text()))


def _lose_images() -> None:
    shutil.copytree("run", "lost")
    card = json.loads(Path("lost/run.json").read_text())
    Path("lost/run.json").write_text(json.dumps({**card, "image_root": "gone"}))


EXPORT = ("export", "run", "--format")
SUITE = "datasets: {patterns: }\nsettings: [ul]\nmethods: {zero_shot: }\ndefaults: {backbone: embedded:patterns}\n"
CASES = (
    Case("images: no such folder", adapt(images="fotos"), ("'fotos'",)),
    Case("images: an empty folder", adapt(images="void"), ("'void'",), lambda: Path("void").mkdir()),
    Case("images: not one can be read", adapt(images="damaged"), ("3 images",), _unreadable_only),
    Case("manifest: no path column", adapt(images="m.csv"), ("'path'", "id"), write("m.csv", "id\n1\n")),
    Case(
        "manifest: paths that leave the root",
        adapt("--root", "photos", images="out.csv"),
        ("secret.png",),
        write("out.csv", "path\nphotos/cat/0.png\n../secret.png\n"),
    ),
    Case(
        "manifest: empty and repeated rows",
        adapt(images="rows.csv"),
        ("row 1", "photos/cat/0.png'"),
        write("rows.csv", "path,n\n,1\nphotos/cat/0.png,2\nphotos/cat/0.png,3\n"),
    ),
    Case(
        "manifest: one file under two names",
        adapt(images="twice.csv"),
        ("photos/cat/0.png'",),
        write("twice.csv", "path\nphotos/cat/0.png\nphotos/dog/../cat/0.png\n"),
    ),
    Case(
        "manifest: not a Parquet file",
        adapt(images="m.parquet"),
        ("'m.parquet'",),
        write("m.parquet", "x"),
    ),
    Case("manifest: an image instead of a list", adapt(images="photos/cat/0.png"), ("captune predict",)),
    Case("classes: file not found", adapt(classes="classes.txt"), ("'classes.txt'",)),
    Case(
        "classes: only one",
        adapt(classes="one.txt"),
        ("got 1",),
        write("one.txt", "cat\n"),
    ),
    Case(
        "classes: empty and repeated names",
        adapt(classes="cat,,Cat"),
        ("class name 1", "'cat'"),
    ),
    Case(
        "classes: YAML turns a name into a truth",
        adapt(classes="c.yaml"),
        ("True",),
        write("c.yaml", "[yes, cat]"),
    ),
    Case(
        "classes: YAML with aliases",
        adapt(classes="c.yaml"),
        ("'c.yaml'", "*a"),
        write("c.yaml", "- &a cat\n- *a\n"),
    ),
    Case("classes: names that look the same", adapt(classes="cat,cat\u200b"), (r"'cat\u200b'",)),
    Case("classes: a control character", adapt(classes="cat,\x1b[31mdog"), (r"\x1b[31mdog",)),
    Case("template without a placeholder", adapt("--template", "a photo"), ("'a photo'", "{}")),
    Case("method: misspelt", adapt("--method", "zeroshot"), ("'zero_shot'",)),
    Case("backbone: unknown source", adapt(backbone="duel:model"), ("'dual'",)),
    Case("backbone: an id without a source", adapt(backbone="openai/clip"), ("source:name",)),
    Case("backbone: no such model", adapt(backbone="hf:no/such-model"), ("'no/such-model'",)),
    Case("backbone: a folder without a dual encoder", adapt(backbone="dual:photos"), ("dual_encoder.json",)),
    Case("backbone: damaged weights", adapt(backbone="hf:cut-model"), ("cut-model",), _cut_weights),
    Case(
        "settings: several wrong at once",
        adapt("--set", "batch_size=many", "--set", "sead=3", "--set", "workers=-7"),
        ("batch_size = 'many'", "'sead'", "'seed'", "workers = -7"),
    ),
    Case("settings: not key=value", adapt("--set", "seed"), ("'seed'", "key=value")),
    Case(
        "settings file: a duplicate key",
        adapt("--config", "s.yaml"),
        ("'s.yaml'", "'seed'"),
        write("s.yaml", "seed: 1\nseed: 2\n"),
    ),
    Case("settings file: not found", adapt("--config", "gone.yaml"), ("gone.yaml",)),
    Case("seed: negative", adapt("--seed", "-1"), ("seed = -1",)),
    Case(
        "several things wrong at once",
        adapt("--method", "capp", "--template", "photo", images="fotos", classes="cat,cat"),
        ("'capp'", "'photo'", "'cat'", "'fotos'"),
    ),
    Case(
        "labels: names that are no class",
        adapt("--labels", "labels.csv"),
        ("'lion'", "'gone.png'"),
        write("labels.csv", "path,label\nphotos/cat/0.png,lion\ngone.png,cat\n"),
    ),
    Case(
        "labels: all empty",
        adapt("--labels", "labels.csv"),
        ("'labels.csv'",),
        write("labels.csv", "path,label\nphotos/cat/0.png,\n"),
    ),
    Case(
        "output: a folder with other files",
        adapt("--out", "photos"),
        ("'photos'", "--out"),
    ),
    Case("output: an existing run", adapt("--out", "run"), ("'run'", "--overwrite")),
    Case("predict: not a run folder", ("predict", "photos", "photos"), ("'photos'", "captune adapt")),
    Case("predict: a tampered classifier", ("predict", "tampered", "photos"), ("classifier.safetensors",), _tamper),
    Case("predict: a run of a newer version", ("predict", "future", "photos"), ("version 9",), _age),
    Case("predict: other model weights", ("predict", "moved", "photos"), ("moved/classifier",), _swap_model),
    Case("predict: swapped class names", ("predict", "swapped", "photos"), ("classifier.json",), _swap_names),
    Case("predict: no class to show", ("predict", "run", "photos", "--top-k", "0"), ("--top-k",)),
    Case(
        "evaluate: folders that are no classes",
        ("evaluate", "run", "damaged", "--labels", "folders"),
        ("'damaged'", "3"),
        _unreadable_only,
    ),
    Case(
        "evaluate: no labels at all",
        ("evaluate", "run", "photos", "--labels", "none.csv"),
        ("'none.csv'",),
    ),
    Case(
        "predict: a file that is no ONNX file",
        ("predict", "m.onnx", "photos"),
        ("'m.onnx'",),
        write("m.onnx", "text"),
    ),
    Case(
        "predict: an ONNX file of another program",
        ("predict", "m.onnx", "photos"),
        ("'m.onnx'", "captune export RUN --format onnx"),
        _foreign_onnx,
    ),
    Case(
        "predict: a file that is not a classifier",
        ("predict", "photos/cat/0.png", "photos"),
        ("'photos/cat/0.png'",),
    ),
    Case("export: no such format", (*EXPORT, "onx"), ("'onx'", "'onnx'")),
    Case("export: not a run folder", ("export", "photos", "--format", "csv"), ("'photos'",)),
    Case("export: an option of another format", (*EXPORT, "csv", "--int8"), ("csv", "--int8")),
    Case(
        "export: an impossible confidence",
        (*EXPORT, "csv", "--min-confidence", "2"),
        ("min_confidence = 2.0",),
    ),
    Case(
        "export: an existing file",
        (*EXPORT, "csv", "--out", "labels.csv"),
        ("'labels.csv'", "--overwrite"),
        write("labels.csv", "mine"),
    ),
    Case(
        "export: a folder of other files",
        (*EXPORT, "cleanlab", "--out", "photos"),
        ("'photos'", "--out"),
    ),
    Case(
        "export: the images are gone",
        ("export", "lost", "--format", "onnx"),
        ("'gone'", "--images"),
        _lose_images,
    ),
    Case("serve: not a run folder", ("serve", "photos", "--port", "0"), ("'photos'",)),
    Case(
        "serve: several wrong at once",
        ("serve", "run", "--max-bytes", "0", "--concurrency", "0", "--timeout", "0"),
        ("--max-bytes", "--concurrency", "--timeout"),
    ),
    Case("serve: no such port", ("serve", "run", "--port", "99999"), ("--port", "99999", "65535")),
    Case(
        "serve: no such address",
        ("serve", "run", "--host", "no.such.host.invalid"),
        ("--host", "'no.such.host.invalid'"),
    ),
    Case("report: not a run folder", ("report", "photos"), ("'photos'",)),
    Case("report: no labels at all", ("report", "run", "--labels", "none.csv"), ("'none.csv'",)),
    Case("report: a folder as the page", ("report", "run", "--out", "photos"), ("'photos'",)),
    Case(
        "report: runs with different classes",
        ("report", "run", "other", "--out", "both.html"),
        ("classes",),
        _rename_class,
    ),
    Case("benchmark: no such suite", ("benchmark", "gone.yaml"), ("gone.yaml",)),
    Case(
        "benchmark: an unknown word in a suite",
        ("benchmark", "s.yaml"),
        ("'s.yaml'", "'color'"),
        write("s.yaml", "color: red\n" + SUITE),
    ),
    Case(
        "benchmark: several mistakes in a suite",
        ("benchmark", "s.yaml"),
        ("'zeroshot'", "'zero_shot'", "'pattern'"),
        write("s.yaml", SUITE.replace("zero_shot", "zeroshot").replace("patterns: }", "pattern: }")),
    ),
    Case(
        "benchmark: an axis that is not there",
        ("benchmark", "s.yaml", "--only", "color=red"),
        ("color",),
        write("s.yaml", SUITE),
    ),
    Case(
        "benchmark: a wrong part",
        ("benchmark", "s.yaml", "--shard", "3/2", "--dry-run"),
        ("3/2",),
        write("s.yaml", SUITE),
    ),
    Case(
        "embeddings: values that are not finite",
        embeddings(),
        ("row 2",),
        arrays(lambda content: content["vectors"].__setitem__((2, 0), np.nan)),
    ),
    Case(
        "embeddings: a row of zeros",
        embeddings(),
        ("row 5",),
        arrays(lambda content: content["vectors"].__setitem__(5, 0)),
    ),
    Case(
        "embeddings: another width than the class texts",
        embeddings(),
        ("width 3", "width 4"),
        arrays(lambda content: content.update(vectors=content["vectors"][:, :3])),
    ),
    Case(
        "embeddings: the preset full",
        embeddings("--method", "cap", "--preset", "full"),
        ("'quick'",),
        arrays(),
    ),
    Case("embeddings: class names alone", embeddings(classes="cat,dog"), ("captune.ClassTexts",), arrays()),
    Case(
        "embeddings: several arrays that could be meant",
        embeddings(),
        ("train, test", "vectors.npz:train"),
        arrays(lambda content: content.update(train=content["vectors"], test=content.pop("vectors"))),
    ),
    Case(
        "embeddings: another number of labels",
        embeddings("--labels", "vectors.npz:labels"),
        ("6 labels", "got 2"),
        arrays(lambda content: content.update(labels=np.array([0, 1]))),
    ),
)
