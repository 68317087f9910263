"""`captune serve` under load: are all valid requests answered correctly, and does memory stay flat?

Some requests are malformed. The service runs in a separate process, by default with a run of the embedded model.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
ROUNDS = 4


@contextmanager
def service(run: Path, concurrency: int, source: Path | None, log: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Run `captune serve`, of this version or of the sources in another folder, and yield its process and port."""
    words = ["serve", str(run), "--port", "0", "--concurrency", str(concurrency), "--timeout", "60"]
    environment = os.environ | ({} if source is None else {"PYTHONPATH": str(source / "src")})
    with log.open("w", encoding="utf-8") as errors:
        command = [sys.executable, "-m", "captune.cli", *words]
        process = subprocess.Popen(command, stderr=errors, text=True, env=environment)
    try:
        while not (found := re.search(r"^Serving .*:(\d+)/", log.read_text(encoding="utf-8"), re.MULTILINE)):
            time.sleep(0.1)
            if process.poll() is not None:
                raise SystemExit(f"the service did not start: {log.read_text(encoding='utf-8')}")
        yield process, int(found[1])
        process.terminate()
        if process.wait(timeout=60) != 0:
            raise SystemExit(f"the service ended with {process.returncode}")
    finally:
        process.kill()


def resident(process: subprocess.Popen) -> float:
    """Return the memory of a process and its children in megabytes."""
    children = Path(f"/proc/{process.pid}/task").glob("*/children")
    numbers = [str(process.pid), *(n for file in children for n in file.read_text(encoding="ascii").split())]
    statuses = [Path(f"/proc/{number}/status").read_text(encoding="ascii") for number in numbers]
    return sum(int(re.search(r"VmRSS:\s+(\d+)", status)[1]) for status in statuses) / 1024


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


class Load:
    """Sends requests to one service, a tenth of them malformed, and compares every answer with the classifier's own."""

    def __init__(self, name: str, process: subprocess.Popen, port: int, run: Path, folder: Path) -> None:
        self.name, self.process, self.port = name, process, port
        paths = find_images(folder).paths[:100]
        self.contents = [path.read_bytes() for path in paths]
        self.classifier = captune.load(run)
        self.expected = self.classifier.predict_proba(paths)
        self.seconds, self.faults, self.right, self.refused = [], [], 0, 0
        self.elapsed, self.before, self.after = 0.0, 0.0, 0.0

    def warm_up(self, n_requests: int, at_once: int) -> None:
        """Let libraries take the memory that they take with the first requests."""
        self.send(n_requests, at_once)
        self.seconds, self.right, self.refused, self.elapsed = [], 0, 0, 0.0
        self.before = resident(self.process)

    def send(self, n_requests: int, at_once: int) -> None:
        """Send requests, so many at a time."""
        started = time.perf_counter()
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self._send_one, range(n_requests)))
        self.elapsed += time.perf_counter() - started
        self.after = resident(self.process)

    def _send_one(self, number: int) -> None:
        image = number % len(self.contents)
        if number % 10 == 9:
            kind = list(MALFORMED)[number // 10 % len(MALFORMED)]
            status = send_malformed(self.port, kind, self.contents[image])
            self.refused += 400 <= status < 500
            self.faults += [] if 400 <= status < 500 else [f"{kind}: {status}"]
            return
        started = time.perf_counter()
        status, answer = post(self.port, self.contents[image])
        self.seconds.append(time.perf_counter() - started)
        found = {entry["label"]: entry["probability"] for entry in answer.get("predictions", ())}
        row = [found.get(name, np.nan) for name in self.classifier.names]
        if status == 200 and float(np.abs(row - self.expected[image]).max()) < SLACK:
            self.right += 1
        else:
            self.faults.append(f"image {image}: {status} {answer}"[:200])

    @property
    def p95(self) -> float:
        """Return the seconds in which 95 % of the valid requests were answered."""
        return sorted(self.seconds)[int(0.95 * (len(self.seconds) - 1))]

    def report(self) -> None:
        """Print what was measured."""
        n_sent = len(self.seconds) + self.refused
        print(f"{self.name}: {n_sent} requests in {self.elapsed:.1f} s, {n_sent / self.elapsed:.0f} a second")
        print(f"  valid: {self.right} answered right; malformed: {self.refused} refused; faults: {len(self.faults)}")
        print(f"  seconds: p50 {statistics.median(self.seconds):.3f}, p95 {self.p95:.3f}, max {max(self.seconds):.3f}")
        print(f"  memory: {self.before:.0f} MB before, {self.after:.0f} MB after")
        for fault in self.faults[:5]:
            print(f"  {fault}")


def soak(run: Path, folder: Path, n_requests: int, at_once: int, sources: dict[str, Path | None]) -> int:
    """Load all services in turn, in four rounds, so that other work on the machine concerns all of them."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        concurrency = max(at_once, 16)
        loads = [
            Load(name, *stack.enter_context(service(run, concurrency, source, logs / f"{i}")), run, folder)
            for i, (name, source) in enumerate(sources.items())
        ]
        for load in loads:
            load.warm_up(2 * at_once, at_once)
        for _ in range(ROUNDS):
            for load in loads:
                load.send(n_requests // ROUNDS, at_once)
        for load in loads:
            load.report()
        this = loads[0]
        is_slower = any(this.p95 > other.p95 for other in loads[1:])
        return 1 if this.faults or this.after - this.before > FLAT_MEGABYTES or is_slower else 0


def main() -> int:
    """Measure and print; the exit code is 0 if all answers were right, memory was flat and p95 is not worse."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--run", type=Path, help="run folder (default: zero-shot with the embedded model)")
    parser.add_argument("--images", type=Path, help="folder of images, with --run")
    parser.add_argument("--against", metavar="COMMIT", help="measure another commit of this repository as well")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        sources: dict[str, Path | None] = {"this version": None}
        if options.against:
            other = Path(temporary) / "other"
            subprocess.run(["git", "worktree", "add", "--detach", other, options.against], check=True)
            sources[options.against] = other
        try:
            run, folder = (options.run, options.images) if options.run else make_run(Path(temporary))
            return soak(run, folder, options.requests, options.at_once, sources)
        finally:
            if options.against:
                subprocess.run(["git", "worktree", "remove", "--force", other], check=True)


if __name__ == "__main__":
    sys.exit(main())
