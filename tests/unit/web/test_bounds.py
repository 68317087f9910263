"""Size, time and concurrency: who sends too much, too slowly or all at once does not take the service from others."""

from __future__ import annotations

import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from costly_images import many_scans, wide_png
from served import everything, picture, serving, wait_until
from starlette.exceptions import HTTPException

from captune.core.errors import CaptuneError, InputError
from captune.data.decoding import MOST_SCANS
from captune.web.prediction import Budget
from captune.web.server import BODIES_AT_ONCE, Limits, Service


def test_a_body_that_is_too_large_is_refused_and_the_client_hears_it() -> None:
    with serving(max_bytes=1000) as client:
        status, _, answer = client.ask("/predict", bytes(3_000_000))
        assert status == 413
        assert "1,000" in answer["error"]
        assert client.ask("/predict", picture())[0] == 200


def test_a_large_body_gets_no_go_ahead() -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with serving(max_bytes=1000) as client:
        assert client.raw(head % 5000).startswith(b"HTTP/1.1 413")
        content = picture()
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(head % len(content))
            assert connection.recv(100).startswith(b"HTTP/1.1 100")
            connection.sendall(content)
            assert everything(connection).startswith(b"HTTP/1.1 200")


def test_bytes_that_trickle_in_do_not_hold_a_place() -> None:
    with serving(timeout=0.6, concurrency=1) as client:
        started = time.monotonic()
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n")
            for _ in range(4):  # each wait is shorter than the timeout, all together are not
                connection.sendall(b"x")
                time.sleep(0.2)
            answer = everything(connection)
        assert answer.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - started < 4
        wait_until(lambda: client.service.n_connections == 0)
        assert client.ask("/predict", picture())[0] == 200


def test_headers_that_never_end_are_cut_off() -> None:
    with serving(timeout=0.4) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            assert everything(connection) == b""
        wait_until(lambda: client.service.n_connections == 0)


def test_a_body_that_ends_early_leaves_nothing_behind() -> None:
    with serving(concurrency=1) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
            connection.sendall(b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\nabc")
            wait_until(lambda: client.images.used == 1)
        wait_until(lambda: client.images.used == 0)
        assert client.ask("/predict", picture())[0] == 200
        assert client.said == []


def test_more_images_than_allowed_are_told_to_come_back() -> None:
    with serving(concurrency=2) as client, ThreadPoolExecutor(2) as pool:
        client.classifier.gate.clear()
        waiting = [pool.submit(client.ask, "/predict", picture()) for _ in range(2)]
        wait_until(lambda: client.images.used == 2)
        status, headers, answer = client.ask("/predict", picture())
        assert (status, headers["Retry-After"]) == (503, "1")
        assert answer["error"]
        assert client.ask("/health")[2]["busy"] >= 3  # health is answered all the same
        client.classifier.gate.set()
        assert [one.result()[0] for one in waiting] == [200, 200]
        assert client.ask("/predict", picture())[0] == 200


def test_bytes_in_memory_are_bounded_for_all_together() -> None:
    head = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n"
    with serving(max_bytes=1000) as client, ExitStack() as stack:
        for _ in range(BODIES_AT_ONCE):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", client.port)))
            connection.sendall(head + b"x")
        wait_until(lambda: client.raw(head).startswith(b"HTTP/1.1 503"))
        assert client.ask("/health")[0] == 200


def test_an_answer_that_takes_too_long_is_given_up_and_health_tells() -> None:
    with serving(timeout=0.5) as client:
        wait_until(lambda: client.ask("/predict", picture())[0] == 200)  # its decoder has started
        client.classifier.gate.clear()
        status, headers, _ = client.ask("/predict", picture())
        assert status == 503
        assert headers["Retry-After"]
        # On a busy machine, the deadline may pass before an image reaches the model.
        wait_until(lambda: client.ask("/predict", picture())[0] == client.ask("/health")[0] == 503)
        client.classifier.gate.set()
        wait_until(lambda: client.ask("/predict", picture())[0] == 200)
        assert client.ask("/health")[2]["status"] == "ok"


@pytest.mark.parametrize("content", [many_scans(MOST_SCANS, side=5000), many_scans(20_000), wide_png()])
def test_a_costly_image_does_not_hold_the_others(content: bytes) -> None:
    with serving(timeout=8) as client, ThreadPoolExecutor(4) as pool:
        costly = [pool.submit(client.ask, "/predict", content) for _ in range(4)]
        time.sleep(0.2)
        longest = 0.0
        while not all(one.done() for one in costly):
            started = time.monotonic()
            assert client.ask("/predict?top_k=1", picture((10, 200, 10)))[2]["predictions"][0]["label"] == "green"
            longest = max(longest, time.monotonic() - started)
        assert {one.result()[0] for one in costly} <= {200, 422, 503}
        assert longest < 6


def test_connections_are_bounded() -> None:
    with serving(concurrency=1, timeout=2) as client:
        wait_until(lambda: client.service.n_connections == 0)
        idle = [
            socket.create_connection(("127.0.0.1", client.port)) for _ in range(client.service.limits.most_connections)
        ]
        wait_until(lambda: client.service.n_connections == len(idle))
        assert client.raw(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").startswith(b"HTTP/1.1 503")
        for one in idle:
            one.close()
        wait_until(lambda: client.service.n_connections == 0)
        assert client.ask("/health")[0] == 200


def test_many_at_once_each_get_their_own_answer_from_one_thread() -> None:
    colors = [(200, 10, 10), (10, 200, 10), (10, 10, 200)]
    with serving() as client, ThreadPoolExecutor(12) as pool:
        client.classifier.gate.clear()
        asked = [pool.submit(client.ask, "/predict?top_k=1", picture(colors[i % 3])) for i in range(12)]
        wait_until(lambda: client.service.n_connections >= 12)
        time.sleep(0.2)
        client.classifier.gate.set()
        found = [one.result()[2]["predictions"][0]["label"] for one in asked]
        assert found == ["red", "green", "blue"] * 4
        assert len(client.classifier.threads) == 1
        assert max(client.classifier.batches) > 1


def test_an_image_that_breaks_a_batch_is_one_persons_problem() -> None:
    with serving() as client, ThreadPoolExecutor(6) as pool:
        client.classifier.gate.clear()
        images = [picture()] * 5 + [picture((0, 0, 0))]
        asked = [pool.submit(client.ask, "/predict", image) for image in images]
        wait_until(lambda: client.service.n_connections >= 6)
        time.sleep(0.2)
        client.classifier.gate.set()
        assert [one.result()[0] for one in asked] == [200] * 5 + [500]


def test_what_has_begun_is_answered_at_the_end() -> None:
    with ThreadPoolExecutor(1) as pool:
        with serving() as client:
            client.classifier.gate.clear()
            asked = pool.submit(client.ask, "/predict", picture())
            wait_until(lambda: client.service.n_connections > 0)
            time.sleep(0.2)
            threading.Timer(0.3, client.classifier.gate.set).start()
        assert asked.result()[0] == 200
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", client.port), timeout=1)


def test_a_client_that_goes_away_is_no_news() -> None:
    with serving(max_bytes=10_000) as client:
        for content in (b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\nabc", b"GET /"):
            connection = socket.create_connection(("127.0.0.1", client.port), timeout=10)
            connection.sendall(content)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()  # with a reset
        wait_until(lambda: client.service.n_connections == 0)
        assert client.ask("/predict", picture())[0] == 200
        assert client.said == []


def test_budgets_are_shared() -> None:
    budget = Budget(100)
    with budget.share(60), budget.share(40), pytest.raises(HTTPException), budget.share(1):
        pass
    with budget.share(100):
        assert budget.used == 100
    assert budget.used == 0


def test_it_listens_on_loopback_and_elsewhere_only_with_a_token() -> None:
    with Service("127.0.0.1", 0) as service:
        assert service.is_loopback
        assert service.socket.getsockname()[0] == "127.0.0.1"
    with pytest.raises(InputError, match=r"(?s)0\.0\.0\.0.*--token"):
        Service("0.0.0.0", 0)
    for weak in ("short", "spaces are bad", "umlautäöüä"):
        with pytest.raises(InputError, match="--token"):
            Service("0.0.0.0", 0, token=weak)
    with Service("0.0.0.0", 0, token="longenough") as service:
        assert not service.is_loopback
        assert service.hosts is None


def test_a_token_is_asked_for_everywhere_but_at_health() -> None:
    with serving("0.0.0.0", token="open5esame") as client:
        assert client.ask("/health", Host="any.example")[0] == 200
        for path in ("/", "/metrics", "/openapi.json", "/predict", "/?token=wrongword", "/nowhere"):
            body = picture() if path == "/predict" else None
            assert client.ask(path, body)[0] == 401
        assert client.ask("/predict", picture(), Authorization="Bearer open5esame")[0] == 200
        assert client.ask("/predict", picture(), Authorization="Bearer open5esame!")[0] == 401
        reply = client.raw(b"GET /?token=open5esame HTTP/1.1\r\nHost: any.example\r\n\r\n").decode()
        assert reply.startswith("HTTP/1.1 303")
        cookie = next(line for line in reply.splitlines() if line.lower().startswith("set-cookie"))
        assert "httponly" in cookie.lower()
        assert client.ask("/", Cookie="captune_token=open5esame")[0] == 200
        for path in (b"//evil.example/", b"/%5Cevil.example/", b"///evil.example"):
            reply = client.raw(b"GET %b?token=open5esame HTTP/1.1\r\nHost: any.example\r\n\r\n" % path).decode()
            place = next(line for line in reply.splitlines() if line.lower().startswith("location")).split()[1]
            assert place.startswith("/e")
        assert not any("open5esame" in line for line in client.logged)


def test_wrong_limits_and_addresses_are_sentences() -> None:
    with pytest.raises(InputError, match=r"(?s)--max-bytes.*--concurrency.*--timeout"):
        Limits(0, 0, -1.0)
    with pytest.raises(InputError, match="70000"):
        Service("127.0.0.1", 70_000)
    with pytest.raises(CaptuneError, match=r"203\.0\.113\.7"):
        Service("203.0.113.7", 0, token="longenough")
    with Service("127.0.0.1", 0) as taken:
        taken.socket.listen()
        with pytest.raises(CaptuneError, match=str(taken.port)):
            Service("127.0.0.1", taken.port)
