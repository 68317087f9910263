"""Mutants are given to captune in a process with limits: `python -m faults.trying FOLDER KINDS FIRST LAST`.

The process forks for its work, so that a crash or a hang costs one mutant; each mutant's answer is a line of JSON.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from faults.dying import changed_path
from faults.mutating import mutate, mutate_json

SECONDS = float(os.environ.get("CAPTUNE_FAULTS_SECONDS", "60"))
MEMORY = 2 << 30


class Seeded(random.Random):
    """The random numbers of one mutant."""

    def __init__(self, kind: str, number: int) -> None:
        super().__init__(f"{kind} {number}")
        self.number = number


def change(path: Path, generator: Seeded) -> None:
    """Mutate a file in place; mutant -1 is the good file."""
    if generator.number < 0:
        return
    mutator = mutate_json if path.suffix == ".json" else mutate
    path.write_bytes(mutator(path.read_bytes(), generator))


def look(folder: Path, images: Any) -> None:
    """Decode a collection as a run does, with both views; what is skipped is a sentence."""
    from captune.data.loading import load_batches
    from captune.data.views import Preprocessing, strong_view, view_generator, weak_view

    preprocessing = Preprocessing(16, 16, "bicubic", (0.5,) * 3, (0.5,) * 3)

    def view(image: Any, position: int, keys: Any) -> Any:
        strong_view(image, preprocessing, view_generator(0, 0, position))
        return weak_view(image, preprocessing)

    import numpy as np

    for batch in load_batches(images, np.array_split(np.arange(len(images)), 1), view, workers=0):
        assert len(batch.positions) + len(batch.problems) == len(images)
        assert all(batch.problems.values())
    assert all(isinstance(images.name(i), str) for i in range(len(images)))
    assert images.fingerprint


def try_image(folder: Path, generator: Seeded) -> None:
    """Decode a damaged image; raise what would set it aside."""
    from captune.data.decoding import decode, read_bytes
    from captune.data.images import find_images

    path = generator.choice(sorted((folder / "images").iterdir()))
    change(path, generator)
    look(folder, find_images(folder / "images"))
    decode(read_bytes(path))


def try_manifest(name: str, folder: Path, generator: Seeded) -> None:
    """Read a damaged manifest below a root, and the images that it names."""
    from captune.data.images import find_images

    change(folder / name, generator)
    look(folder, find_images(folder / name, root=folder))


def try_labels(folder: Path, generator: Seeded) -> None:
    """Read a damaged table of labels."""
    from captune.data.images import find_images
    from captune.data.labels import read_labels

    name = generator.choice(("manifest.csv", "manifest.parquet"))
    change(folder / name, generator)
    read_labels(folder / name, find_images(folder / "images"), ("cat", "dog"))


def try_settings(folder: Path, generator: Seeded) -> None:
    """Plan a run with a damaged settings file."""
    from captune.core.settings import read_yaml
    from captune.plan import check_backbone, make_plan

    change(folder / "settings.yaml", generator)
    plan = make_plan(folder / "images", "cat,dog", None, read_yaml(folder / "settings.yaml"))
    check_backbone(plan.settings.backbone, getattr(plan.method.settings, "tuner", ""))


def try_texts(folder: Path, generator: Seeded) -> None:
    """Read a damaged file of descriptions, or of class names."""
    from captune.data.vocabulary import Vocabulary, read_class_names
    from captune.describers.base import DescriptionRequest, open_describer

    if generator.random() < 0.3:
        change(folder / "classes.yaml", generator)
        vocabulary = Vocabulary(read_class_names(folder / "classes.yaml"))
        assert all(vocabulary.texts(c) for c in range(len(vocabulary)))
        return
    change(folder / "descriptions.yaml", generator)
    describer = open_describer(f"file:{folder / 'descriptions.yaml'}", folder / "cache")
    for name in ("cat", "dog"):
        assert describer.describe(DescriptionRequest(name, n=2)) is not None


def try_run(folder: Path, generator: Seeded) -> None:
    """Load, predict with and report on a damaged run folder."""
    from captune.report.page import write_report
    from captune.results.classifier import Classifier
    from captune.results.run import Run
    from captune.results.run_folder import read_run_card

    files = sorted(path for path in (folder / "run").rglob("*") if path.is_file() and path.suffix != ".html")
    change(generator.choice(files), generator)
    read_run_card(folder / "run")
    Classifier.load(folder / "run" / "classifier", _backbone(folder)).predict_proba([folder / "images" / "0.png"])
    Run.read(folder / "run")
    if generator.random() < 0.1:
        write_report([folder / "run"])


def try_onnx(folder: Path, generator: Seeded) -> None:
    """Predict with a damaged ONNX export."""
    from captune.results.image_classifier import OnnxClassifier

    change(folder / "model.onnx", generator)
    OnnxClassifier(folder / "model.onnx").predict_proba([folder / "images" / "0.png"])


KINDS: Mapping[str, tuple[Callable[[Path, Seeded], None], int]] = {
    "image": (try_image, 500),
    "CSV manifest": (partial(try_manifest, "manifest.csv"), 200),
    "Parquet manifest": (partial(try_manifest, "manifest.parquet"), 200),
    "text list": (partial(try_manifest, "list.txt"), 150),
    "tar shard": (partial(try_manifest, "shard.tar"), 250),
    "table of labels": (try_labels, 100),
    "YAML settings": (try_settings, 200),
    "descriptions and class names": (try_texts, 150),
    "run folder": (try_run, 200),
    "ONNX export": (try_onnx, 50),
}
"""What is tried, and how many mutants of it make the full harness: two thousand together."""
_loaded: dict[str, Any] = {}


def _backbone(folder: Path) -> Any:
    if "backbone" not in _loaded:
        card = json.loads((folder.parent / "seeds" / "run" / "classifier" / "classifier.json").read_text())
        from captune.backbones.base import load_backbone

        _loaded["backbone"] = load_backbone(card["backbone"])
    return _loaded["backbone"]


def answer_of(kind: str, number: int, place: Path) -> dict[str, Any]:
    """Make and try one mutant; return how captune answered."""
    from captune.core.errors import CaptuneError

    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(place.parent / "seeds", place)
    _escapes.clear()
    answer, said = "accepted", ""
    try:
        KINDS[kind][0](place, Seeded(kind, number))
    except CaptuneError as error:
        answer, said = "refused", str(error)
        if not said.strip():
            answer, said = "crash", "a refusal without a message"
    except BaseException as error:
        import traceback

        answer, said = "crash", f"{type(error).__name__}: {error}\n{traceback.format_exc()[-1500:]}"
    if _escapes:
        answer, said = "escape", f"{_escapes}"
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    if own > MEMORY:
        answer, said = "memory", f"{own:,} bytes"
    return {"kind": kind, "number": number, "answer": answer, "said": said[:3000], "memory": own}


_escapes: list[str] = []


def _watch_writes(allowed: Sequence[Path]) -> None:
    inside = tuple(str(path.resolve()) for path in allowed)

    def hook(event: str, arguments: Sequence[Any]) -> None:
        path = changed_path(event, arguments) if event in ("open", "os.rename", "os.remove", "os.mkdir") else None
        if path is None or "__pycache__" in path or path == os.devnull:
            return
        if not os.path.realpath(path).startswith(inside):
            _escapes.append(f"{event} {path}")

    sys.addaudithook(hook)


def _work(jobs: Sequence[tuple[str, int]], place: Path, target: int) -> None:
    """Try mutants one after the other in this process, which has a limit of memory."""
    started = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (started + MEMORY, started + MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _watch_writes([place, place.parent / "cache"])
    for own in ("CAPTUNE_CACHE", "TORCHINDUCTOR_CACHE_DIR", "MPLCONFIGDIR"):
        os.environ[own] = str(place.parent / "cache")
    for kind, number in jobs:
        os.write(target, (json.dumps(answer_of(kind, number, place)) + "\n").encode())
    os._exit(0)


def _processor_seconds(pid: int) -> float:
    """Return the time that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def attempt(jobs: Sequence[tuple[str, int]], folder: Path) -> list[dict[str, Any]]:
    """Try all mutants; one that ends or stops its process is noted, and a new process goes on with the next."""
    answers: list[dict[str, Any]] = []
    while len(answers) < len(jobs):
        source, target = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(source)
            _work(jobs[len(answers) :], folder / "place", target)
        os.close(target)
        rest, why = b"", "crash"
        while True:
            used, ready = _processor_seconds(pid), []
            for _ in range(10):  # on a busy machine, a mutant may wait for long before it hangs
                ready, _, _ = select.select([source], [], [], SECONDS)
                if ready or _processor_seconds(pid) - used > SECONDS / 2:
                    break
            piece = os.read(source, 1 << 16) if ready else b""
            if not piece:
                why = "crash" if ready else "hang"
                break
            *lines, rest = (rest + piece).split(b"\n")
            answers += [json.loads(line) for line in lines]
        os.close(source)
        if why == "hang":
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if len(answers) < len(jobs):
            kind, number = jobs[len(answers)]
            said = f"the process ended with {os.waitstatus_to_exitcode(status)}"
            answers.append({"kind": kind, "number": number, "answer": why, "said": said, "memory": 0})
    return answers


def main() -> None:
    """Try the mutants that standard input lists as JSON, and print their answers."""
    import numpy as np  # noqa: F401

    import captune.plan
    import captune.report.page  # noqa: F401
    from captune.core import registry

    warnings.simplefilter("ignore")
    for name in registry.names("methods"):
        registry.load("methods", name)
    folder = Path(sys.argv[1])
    jobs = [(kind, number) for kind, number in json.load(sys.stdin)]
    for answer in attempt(jobs, folder):
        sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
