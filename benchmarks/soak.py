"""`captune serve` under load: are all valid requests answered correctly, and does memory stay flat?

Some requests are malformed. The service runs in a separate process, by default with a run of the embedded model.
"""

from __future__ import annotations

import argparse
import http.client
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import captune
from captune.data.images import find_images
from captune.world import write_world

HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\n"
MALFORMED = {
    "no image": b"this is not an image " * 50,
    "half an image": None,
    "no length": HEAD + b"\r\n",
    "a length that is no number": HEAD + b"Content-Length: many\r\n\r\n",
    "too large": HEAD + b"Content-Length: 99999999999\r\n\r\n",
    "ends early": HEAD + b"Content-Length: 5000\r\n\r\nabc",
    "no HTTP": b"\x16\x03\x01\x00\xff hello\r\n\r\n",
    "wrong host": b"POST /predict HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 3\r\n\r\nabc",
}
SLACK = 1e-4
FLAT_MEGABYTES = 32


@contextmanager
def service(run: Path, concurrency: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `captune serve` and yield its process and port."""
    words = ["serve", str(run), "--port", "0", "--concurrency", str(concurrency), "--timeout", "30"]
    process = subprocess.Popen([sys.executable, "-m", "captune.cli", *words], stderr=subprocess.PIPE, text=True)
    try:
        while not (line := process.stderr.readline()).startswith("Serving"):
            if not line:
                raise SystemExit("the service did not start")
        yield process, int(re.search(r":(\d+)/", line)[1])
        process.terminate()
        process.communicate(timeout=60)
        if process.returncode != 0:
            raise SystemExit(f"the service ended with {process.returncode}")
    finally:
        process.kill()


def resident(process: subprocess.Popen) -> float:
    """Return the memory of a process in megabytes."""
    status = Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


def post(port: int, content: bytes) -> tuple[int, dict]:
    """Send an image and return the status and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/predict?top_k=999", content)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def send_malformed(port: int, kind: str, image: bytes) -> int:
    """Send one malformed request and return the status, 0 if there was none."""
    content = MALFORMED[kind]
    if not (content or b"").startswith((HEAD[:5], b"\x16")):
        return post(port, content or image[: len(image) // 2])[0]
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(content)
        if kind == "ends early":
            connection.shutdown(socket.SHUT_WR)
        reply = connection.recv(200)
    return int(reply.split()[1]) if reply.startswith(b"HTTP") else 0


def make_run(base: Path) -> tuple[Path, Path]:
    """Write images of the embedded world and a zero-shot run on them."""
    write_world(base / "images", 4, seed=11)
    run = base / "run"
    images, backbone = base / "images", "embedded:patterns"
    captune.adapt(images, images, method="zero_shot", backbone=backbone, out=run, workers=0, quiet=True)
    return run, base / "images"


def main() -> int:
    """Measure and print; the exit code is 0 if all requests were answered correctly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--run", type=Path, help="run folder (default: zero-shot with the embedded model)")
    parser.add_argument("--images", type=Path, help="folder of images, with --run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        run, folder = (options.run, options.images) if options.run else make_run(Path(temporary))
        return soak(run, folder, options.requests, options.at_once)


def soak(run: Path, folder: Path, n_requests: int, at_once: int) -> int:
    """Send all requests, a tenth of them malformed, and compare every answer with the classifier's own."""
    contents = [path.read_bytes() for path in find_images(folder).paths[:100]]
    classifier = captune.load(run)
    expected = classifier.predict_proba(find_images(folder).paths[:100])
    kinds = list(MALFORMED)
    seconds, right, wrong, refused, odd = [], 0, [], 0, []

    with service(run, at_once) as (process, port):

        def one(number: int) -> tuple[str, object]:
            image = number % len(contents)
            if number % 10 == 9:
                return "malformed", send_malformed(port, kinds[number // 10 % len(kinds)], contents[image])
            started = time.perf_counter()
            status, answer = post(port, contents[image])
            seconds.append(time.perf_counter() - started)
            found = {entry["label"]: entry["probability"] for entry in answer.get("predictions", ())}
            row = [found.get(name, np.nan) for name in classifier.names]
            return "valid", (status, float(np.abs(row - expected[image]).max()))

        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(one, range(4 * at_once)))  # libraries take their memory with the first requests
            seconds.clear()
            before, started = resident(process), time.perf_counter()
            for number, (kind, outcome) in enumerate(pool.map(one, range(n_requests))):
                if kind == "malformed":
                    refused += 400 <= outcome < 500
                    odd += [] if 400 <= outcome < 500 else [f"{kinds[number // 10 % len(kinds)]}: {outcome}"]
                elif outcome[0] == 200 and outcome[1] < SLACK:
                    right += 1
                else:
                    wrong.append(outcome)
            elapsed, after = time.perf_counter() - started, resident(process)

    ordered = sorted(seconds)
    print(f"{n_requests} requests, {at_once} at a time, in {elapsed:.1f} s: {n_requests / elapsed:.0f} requests/s")
    print(f"valid: {right} answered right, {len(wrong)} not; malformed: {refused} refused, {len(odd)} not")
    p99 = ordered[int(0.99 * (len(ordered) - 1))]
    print(f"seconds an answer: p50 {statistics.median(ordered):.3f}, p99 {p99:.3f}, longest {ordered[-1]:.3f}")
    print(f"memory: {before:.0f} MB after the first {4 * at_once} requests, {after:.0f} MB at the end")
    for fault in [*wrong[:5], *odd[:5]]:
        print(f"  {fault}")
    return 0 if not wrong and not odd and after - before < FLAT_MEGABYTES else 1


if __name__ == "__main__":
    sys.exit(main())
