"""The map of images: groups stay together, it is computed once, and many images follow their landmarks."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from captune.embeddings.similarity import project, project_quickly


def test_a_map_is_computed_once(tmp_path: Path) -> None:
    groups = np.eye(8, dtype=np.float32)[np.arange(400) % 4]
    vectors = groups + np.random.default_rng(0).normal(0, 0.05, (400, 8)).astype(np.float32)
    points = project(vectors, folder=tmp_path)
    file = next(tmp_path.glob("*.npy"))
    written = file.stat().st_mtime_ns
    assert np.array_equal(project(vectors, folder=tmp_path), points)
    assert file.stat().st_mtime_ns == written
    distances = np.linalg.norm(points[:, None] - points[None], axis=2) + np.eye(400)
    assert np.mean(np.arange(400) % 4 == np.argmin(distances, axis=1) % 4) > 0.95
    assert project_quickly(vectors).shape == (400, 2)
    assert project(vectors[:3], folder=tmp_path).shape == (3, 2)


def test_many_images_follow_their_landmarks(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    centers = rng.normal(size=(10, 32)).astype(np.float32)
    vectors = centers[np.arange(20_000) % 10] + rng.normal(0, 0.1, (20_000, 32)).astype(np.float32)
    points = project(vectors, folder=tmp_path)
    means = np.stack([points[c::10].mean(axis=0) for c in range(10)])
    nearest = np.linalg.norm(points[:, None] - means[None], axis=2).argmin(axis=1)
    assert np.mean(nearest == np.arange(20_000) % 10) > 0.9
