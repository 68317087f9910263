"""Images that cost too much time or memory end their own process only, and the next image is decoded as usual."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from costly_images import encoded, many_scans, wide_png
from PIL import Image

from captune.data.decoding import MOST_SCANS, GuardedDecoder, UnreadableImageError, decode
from captune.data.views import Preprocessing, weak_view

CLIP = Preprocessing(32, 32, "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


@pytest.fixture
def decoder() -> Iterator[GuardedDecoder]:
    with GuardedDecoder() as found:
        yield found


def photo(side: int = 60) -> bytes:
    noise = np.random.default_rng(1).integers(0, 255, (side, side + 20, 3), dtype=np.uint8)
    return encoded(Image.fromarray(noise), "JPEG")


def test_it_decodes_exactly_as_the_function_does(decoder: GuardedDecoder) -> None:
    expected = decode(photo())
    assert np.array_equal(decoder.view(photo(), None, 20), np.asarray(expected))
    assert np.array_equal(decoder.view(photo(), CLIP, 20), weak_view(expected, CLIP))


def test_what_is_no_image_is_told_and_the_process_stays(decoder: GuardedDecoder) -> None:
    with pytest.raises(UnreadableImageError, match="known format"):
        decoder.view(b"no image", CLIP, 20)
    process = decoder._process
    decoder.view(photo(), CLIP, 20)
    assert process is not None
    assert decoder._process is process


def test_an_image_that_takes_too_long_is_given_up(decoder: GuardedDecoder) -> None:
    slow = many_scans(MOST_SCANS, side=3000)
    decoder.view(photo(), CLIP, 20)  # the start of the process is not counted
    started = time.monotonic()
    with pytest.raises(UnreadableImageError, match=r"more than 0\.2 seconds"):
        decoder.view(slow, CLIP, 0.2)
    assert time.monotonic() - started < 2
    assert decoder.view(photo(), CLIP, 20).shape == (32, 32, 3)


def test_twenty_thousand_scans_are_refused_without_decoding() -> None:
    content = many_scans(20_000)
    assert 3_000_000 < len(content) < 4_000_000
    started = time.monotonic()
    with pytest.raises(UnreadableImageError, match="20,000 scans"):
        decode(content)
    assert time.monotonic() - started < 1


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measures memory in /proc")
def test_a_hundred_million_16_bit_pixels_stay_below_the_limit(decoder: GuardedDecoder) -> None:
    view = decoder.view(wide_png(), CLIP, 60, smallest=64)
    assert np.abs(view[0, :, 0] - np.linspace(0, 255, 32)).max() < 8
    assert decoder._process is not None
    status = Path(f"/proc/{decoder._process.pid}/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak < 500_000  # kB


def test_more_memory_than_allowed_is_told() -> None:
    pytest.importorskip("resource")
    with GuardedDecoder(max_memory=50_000_000) as decoder:
        with pytest.raises(UnreadableImageError, match="not enough memory"):
            decoder.view(encoded(Image.new("RGB", (8000, 8000)), "PNG"), None, 60)
        assert decoder.view(photo(), None, 20).shape == (60, 80, 3)


def test_a_crash_is_told_and_the_next_image_is_decoded(decoder: GuardedDecoder) -> None:
    decoder.view(photo(), CLIP, 20)
    assert decoder._process is not None
    os.kill(decoder._process.pid, signal.SIGKILL)
    with pytest.raises(UnreadableImageError, match="crashed"):
        decoder.view(photo(), CLIP, 20)
    assert decoder.view(photo(), CLIP, 20).shape == (32, 32, 3)


def _decode_inside(answers: Any) -> None:
    with GuardedDecoder() as decoder:
        answers.put(decoder.view(photo(), CLIP, 20).shape)


def test_it_works_inside_a_daemonic_worker_process() -> None:
    context = multiprocessing.get_context("fork")  # as the workers of PyTorch
    answers = context.Queue()
    worker = context.Process(target=_decode_inside, args=(answers,), daemon=True)
    worker.start()
    assert answers.get(timeout=60) == (32, 32, 3)
    worker.join(20)


def test_secrets_and_modules_of_the_working_directory_do_not_reach_it(
    decoder: GuardedDecoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "a-secret")
    decoder.view(photo(), CLIP, 20)
    assert decoder._process is not None
    if Path("/proc").exists():
        assert b"a-secret" not in Path(f"/proc/{decoder._process.pid}/environ").read_bytes()


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA", "P", "I;16"])
def test_large_images_are_reduced_to_the_same_picture(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("captune.data.decoding.LARGE_PIXELS", 1000)
    ramp = np.broadcast_to(np.linspace(0, 255, 256), (128, 256)).astype(np.uint8)
    image = Image.fromarray(ramp.astype(np.uint16) * 257) if mode == "I;16" else Image.fromarray(ramp).convert(mode)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees
    content = encoded(image, "PNG", exif=exif)
    reduced, whole = decode(content, 32), decode(content)
    assert reduced.size == (32, 64)
    assert np.abs(np.asarray(reduced).astype(int) - np.asarray(whole.reduce(4)).astype(int)).max() <= 2
