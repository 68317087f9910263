"""Real processes on one cache: one that is killed in the middle, and two that work at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from toys import ToyBackbone, write_classes, write_images

from captune.core import runtime
from captune.data.images import find_images
from captune.embeddings.cache import EmbeddingCache
from captune.embeddings.embed import embed_images

N_IMAGES, BATCH = 40, 4
WORKER = """
import sys, time
from pathlib import Path
import numpy as np
from toys import ToyBackbone
from captune.embeddings import cache as parts
from captune.core import runtime
from captune.data.images import find_images
from captune.embeddings.embed import embed_images

class Slow(ToyBackbone):
    def image_features(self, pixels, edit=None):
        time.sleep(float(sys.argv[4]))
        return super().image_features(pixels, edit)

parts.SECONDS_BETWEEN_PARTS = -1.0
backbone, cache = Slow(), parts.EmbeddingCache(Path(sys.argv[2]))
engine = runtime.start(workers=0, quiet=True)
found = embed_images(backbone, find_images(sys.argv[1]), cache, engine, batch_size=4)
np.save(sys.argv[3], found.vectors)
"""


def start(photos: Path, cache: Path, out: Path, seconds: float) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    words = [sys.executable, "-c", WORKER, str(photos), str(cache), str(out), str(seconds)]
    return subprocess.Popen(words, env=environment)


def embed(photos: Path, cache: Path) -> tuple[np.ndarray, int]:
    """Return the embeddings and how many images had to be encoded for them."""
    backbone, engine = ToyBackbone(), runtime.start(workers=0, quiet=True)
    found = embed_images(backbone, find_images(photos), EmbeddingCache(cache), engine, BATCH)
    return found.vectors, backbone.n_encoded


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return write_images(tmp_path / "photos", N_IMAGES)


def parts(cache: Path) -> list[Path]:
    return list(cache.glob("embeddings/*/*.safetensors"))


def test_a_killed_run_is_taken_up_where_it_was(tmp_path: Path, photos: Path) -> None:
    cache = tmp_path / "cache"
    worker = start(photos, cache, tmp_path / "never.npy", seconds=0.25)
    try:
        limit = time.monotonic() + 120
        while len(parts(cache)) < 3 and worker.poll() is None and time.monotonic() < limit:
            time.sleep(0.02)
        worker.send_signal(signal.SIGKILL)
    finally:
        worker.kill()
        worker.wait()
    n_finished = len(parts(cache))
    assert worker.returncode == -signal.SIGKILL
    assert 3 <= n_finished < N_IMAGES // BATCH
    resumed, n_encoded = embed(photos, cache)
    assert n_encoded == N_IMAGES - BATCH * n_finished  # nothing that was finished is encoded again
    fresh, _ = embed(photos, tmp_path / "fresh")
    assert resumed.tobytes() == fresh.tobytes()


def test_two_processes_may_share_a_cache(tmp_path: Path, photos: Path) -> None:
    outs = [tmp_path / "1.npy", tmp_path / "2.npy"]
    workers = [start(photos, tmp_path / "cache", out, seconds=0.02) for out in outs]
    assert [worker.wait(120) for worker in workers] == [0, 0]
    first, second = (np.load(out) for out in outs)
    third, n_encoded = embed(photos, tmp_path / "cache")
    assert first.tobytes() == second.tobytes() == third.tobytes()
    assert n_encoded == 0


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Only Linux says who sent a signal.")
def test_a_signal_to_the_whole_group_lets_the_workers_finish_the_step(tmp_path: Path, dual_folder: Path) -> None:
    """As `timeout` and Slurm do: not only the process that trains gets the signal, but also those that decode."""
    photos, out = write_classes(tmp_path / "photos", ["cat", "red dog"], 8), tmp_path / "run"
    words = [sys.executable, "-m", "captune", "adapt", str(photos), "--classes", "cat,red dog", "--method", "cap"]
    words += ["--preset", "full", "--backbone", f"dual:{dual_folder}", "--workers", "2", "--out", str(out)]
    for setting in ("epochs=20", "iterations=40", "train_batch=6", "k=4", "tau=0.3"):
        words += ["--set", setting]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True)
    limit = time.monotonic() + 300
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while not list((out / "checkpoints").glob("*.safetensors")) or len(children.read_text().split()) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < limit
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 130, said
    assert "Stopped in epoch" in said
    assert "--resume" in said
    assert "Traceback" not in said
