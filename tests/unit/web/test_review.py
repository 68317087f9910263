"""The routes of the review page: answers are on disk when the response arrives, and everything else follows."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from reviewed import ReviewClient, make_review, review_page, saved_answers
from served import wait_until

import captune
from captune.review.engine import Engine
from captune.web.review import shared_session
from captune.web.review.review_app import MOST_STREAMS


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_review(tmp_path_factory.mktemp("review"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def page(run: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ReviewClient]:
    monkeypatch.setattr(shared_session, "write_report", lambda folders: None)  # takes seconds; one test writes it
    with review_page(run) as address:
        yield ReviewClient(address)


def settle(page: ReviewClient, version: int) -> Any:
    """Return the state after the session has followed."""
    wait_until(lambda: page.get("api/state")["version"] >= version)
    return page.get("api/state")


def test_an_answer_is_on_disk_before_the_response_and_changes_the_prediction(page: ReviewClient, run: Path) -> None:
    suggestion = page.post("api/suggestions", window="a", count=5)[0]
    position, kind, other = suggestion["position"], suggestion["kind"], suggestion["choices"][3][0]
    found = page.post("api/answer", kind="label", images=[position], label=other, suggestion=kind)
    assert saved_answers(run) == [("label", other)]
    state = settle(page, 1)
    assert state["n_answers"] == 1
    assert page.get(f"api/facts?positions={position}")[0]["choices"][0] == [other, 1.0]
    taken = page.post("api/undo", id=found["id"])
    assert (taken["images"], taken["suggestion"]) == ([position], kind)  # a check stays a check
    assert saved_answers(run) == []
    assert settle(page, 2)["n_answers"] == 0


def test_the_same_answer_sent_twice_counts_once(page: ReviewClient, run: Path) -> None:
    answer = {"kind": "label", "images": [3], "label": "zebra", "id": "0" * 32}
    for _ in range(2):
        page.post("api/answer", **answer)
    assert len(saved_answers(run)) == 1


def test_adaptation_goes_on_after_a_bug(
    page: ReviewClient, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(Engine, "adapt", lambda *_: 1 / 0)
        page.post("api/answer", kind="label", images=[3], label="zebra")
        assert settle(page, 1)["problem"]
    assert "ZeroDivisionError" in capsys.readouterr().err
    page.post("api/answer", kind="label", images=[4], label="zebra")
    state = settle(page, 2)
    assert (state["problem"], state["n_answers"]) == ("", 2)


def test_two_windows_get_different_images(page: ReviewClient) -> None:
    first = {suggestion["position"] for suggestion in page.post("api/suggestions", window="a", count=8)}
    second = {suggestion["position"] for suggestion in page.post("api/suggestions", window="b", count=8)}
    assert len(first) == len(second) == 8
    assert not first & second


def test_checks_for_a_precision_are_handed_out_and_worth_is_told(page: ReviewClient, run: Path) -> None:
    missing = page.post("api/accept", precision=0.5)["n_missing"]
    checks = page.post("api/suggestions", window="a", count=missing, precision=0.5)
    assert len(checks) == missing
    assert {check["kind"] for check in checks} == {"precision"}
    others = page.post("api/suggestions", window="b", count=4, precision=0.5)
    assert {check["kind"] for check in others}.isdisjoint({"precision"})  # the other window asks for all of them
    for check in checks:
        label = check["image"].split("/")[0]
        page.post("api/answer", kind="label", images=[check["position"]], label=label, suggestion=check["kind"])
    assert page.post("api/accept", precision=0.5)["n_missing"] == 0
    assert page.post("api/worth")["sentence"].startswith("These answers change about ")
    with pytest.raises(HTTPError, match="400"):
        page.post("api/suggestions", window="a", precision=2)


def test_suggestions_and_groups_do_not_wait_for_a_running_adaptation(
    page: ReviewClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = page.get("api/groups")
    may_end, adapt = threading.Event(), Engine.adapt

    def slow(*arguments: Any) -> Any:
        assert may_end.wait(60)
        return adapt(*arguments)

    monkeypatch.setattr(Engine, "adapt", slow)
    try:
        page.post("api/answer", kind="label", images=[3], label="zebra")
        wait_until(lambda: page.get("api/state")["is_busy"])
        assert page.get("api/groups") == before
        assert len(page.post("api/suggestions", window="a", count=5)) == 5
        assert page.get("api/state")["version"] == 0
    finally:
        may_end.set()
    assert settle(page, 1)["n_answers"] == 1


def test_groups_are_ordered_by_what_an_answer_corrects_and_say_why(page: ReviewClient) -> None:
    groups = page.get("api/groups")
    doubts = [int(re.match(r"(\d+) of", group["reason"] + "0 of")[1]) for group in groups if "doubt" in group["reason"]]
    assert doubts[0] > 0
    assert np.mean(doubts[: len(doubts) // 2]) > np.mean(doubts[len(doubts) // 2 :])


def test_images_are_found_by_words_and_examples_and_told_apart(page: ReviewClient) -> None:
    found = page.get("api/find?words=zebra&count=5")
    assert found["total"] == page.get("api/state")["n_images"]
    assert sum(one["image"].startswith("zebra/") for one in found["images"]) >= 2
    first = found["images"][0]["position"]
    alike = page.get(f"api/find?like={first}&count=5&skip=2&only=unlabeled&only=outliers")
    assert first not in [one["position"] for one in alike["images"]]
    page.post("api/answer", kind="label", images=[first], label="none of these")
    settle(page, 1)
    assert page.get("api/find?only=none+of+these")["images"][0]["label"] == "none of these"
    for wrong in ("only=nice", "like=100000", "label=nothing", "count=x"):
        with pytest.raises(HTTPError, match="400"):
            page.get(f"api/find?{wrong}")


def test_new_images_are_announced_and_added(tmp_path: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_session, "SECONDS_BETWEEN_SAVES", 0.2)
    monkeypatch.setattr(shared_session, "write_report", lambda folders: None)
    photos = shutil.copytree(made.parent / "images", tmp_path / "images")
    run = make_review(tmp_path, 4)
    with review_page(run) as address:
        page = ReviewClient(address)
        n_images = page.get("api/state")["n_images"]
        page.post("api/answer", kind="label", images=[3], label="zebra")
        settle(page, 1)
        shutil.copy(sorted((photos / "tartan").iterdir())[0], photos / "tartan" / "new.png")
        wait_until(lambda: page.get("api/state")["n_new_images"] == 1)
        assert page.post("api/update")["sentence"]
        state = page.get("api/state")
        assert (state["n_images"], state["n_new_images"], state["n_answers"]) == (n_images + 1, 0, 1)
        assert page.get(f"image/{n_images}/96").startswith(b"\xff\xd8")
        assert len(page.get("api/map/points")) == 8 * (n_images + 1)
        assert len(page.post("api/suggestions", window="a", count=5)) == 5
        assert page.get("api/moves?since=start") == []
        assert "must be checked" in page.post("api/accept", precision=0.9)["sentence"]


def test_people_who_disagree_are_asked_again(page: ReviewClient) -> None:
    for person, label in (("ann", "zebra"), ("bob", "tartan")):
        page.post("api/answer", kind="label", images=[5], label=label, person=person)
    assert settle(page, 1)["n_disagreed"] <= 1
    wait_until(lambda: page.get("api/state")["n_disagreed"] == 1)
    first = page.post("api/suggestions", window="a", count=4)[0]
    assert (first["position"], first["kind"]) == (5, "second opinion")
    page.post("api/answer", kind="label", images=[5], label="zebra", suggestion=first["kind"], person="eve")
    wait_until(lambda: page.get("api/state")["n_disagreed"] == 0)


def test_answers_reach_the_run_folder_when_the_page_is_closed(run: Path) -> None:
    def saved() -> str:
        rows = (run / "predictions.csv").read_text(encoding="utf-8").splitlines()
        return next(row for row in rows if row.startswith(image)).split(",")[1]

    with review_page(run) as address:
        page = ReviewClient(address)
        facts = page.get("api/facts?positions=3")[0]
        image, other = facts["image"], facts["choices"][4][0]
        assert saved() != other
        page.post("api/answer", kind="label", images=[3], label=other)
    assert saved() == other
    assert captune.load(run).names
    assert (run / "report.html").stat().st_mtime > (run / "corrections.jsonl").stat().st_mtime
    with review_page(run) as address:  # the next day, it opens where it was left
        page = ReviewClient(address)
        assert page.get("api/state")["n_answers"] == 1
        assert page.get("api/state")["is_saved"]
        assert page.get("api/facts?positions=3")[0]["choices"][0] == [other, 1.0]


def test_answers_reach_the_run_folder_regularly(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_session, "SECONDS_BETWEEN_SAVES", 0.1)
    with review_page(run) as address:
        page = ReviewClient(address)
        page.post("api/answer", kind="label", images=[3], label="zebra")
        settle(page, 1)
        wait_until(lambda: page.get("api/state")["is_saved"])
        card = json.loads((run / "run.json").read_text(encoding="utf-8"))
        assert card["review"]["n_labels"] == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_and_no_answer_is_lost(run: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_session, "SECONDS_BETWEEN_SAVES", 0.2)
    monkeypatch.setattr(shared_session, "write_report", lambda folders: None)
    full, sync = ["corrections"], os.fsync

    def fsync(file: int) -> None:
        if any(part in os.readlink(f"/proc/self/fd/{file}") for part in full):  # noqa: PTH115
            raise OSError(number, os.strerror(number))
        sync(file)

    monkeypatch.setattr(os, "fsync", fsync)
    with review_page(run) as address:
        page = ReviewClient(address)
        for body in ({"kind": "label", "images": [3], "label": "zebra"}, {"kind": "skip", "images": [4]}):
            with pytest.raises(HTTPError) as error:
                page.post("api/answer", **body)
            assert os.strerror(number) in json.loads(error.value.read())["error"]
        with pytest.raises(HTTPError, match="400"):
            page.post("api/class", action="remove", name="zebra")
        assert saved_answers(run) == []
        full[:] = [".captune-new"]  # there is space for an answer, but not for the predictions
        before = (run / "predictions.csv").read_bytes()
        page.post("api/answer", kind="label", images=[3], label="zebra")
        wait_until(lambda: os.strerror(number) in page.get("api/state")["problem"])
        assert (run / "predictions.csv").read_bytes() == before
        full.clear()
        wait_until(lambda: page.get("api/state")["is_saved"])
        state = page.get("api/state")
        assert (state["n_answers"], state["problem"]) == (1, "")
    assert saved_answers(run) == [("label", "zebra")]
    assert len(captune.open_session(run, quiet=True).labels) == 1


def test_slow_clients_hold_up_nobody(run: Path) -> None:
    head = b"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 99\r\n"
    with review_page(run, timeout=1.0) as address, ExitStack() as stack:
        page, port = ReviewClient(address), int(address.split(":")[2].strip("/"))
        slow = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(24)]
        for number, connection in enumerate(slow):  # some are slow with the head, the others with the body
            connection.sendall(head if number % 2 else head + b"\r\n")
        longest = 0.0
        for _ in range(12):
            for connection in slow:
                with suppress(OSError):
                    connection.send(b"x")
            started = time.monotonic()
            assert page.get("health")["status"] == "ok"
            longest = max(longest, time.monotonic() - started)
            time.sleep(0.1)
        assert longest < 1.0
        for connection in slow:
            connection.settimeout(20)
            with suppress(ConnectionError):
                assert connection.recv(100)[:12] in (b"", b"HTTP/1.1 408")
        page.post("api/answer", kind="label", images=[3], label="zebra")
    assert saved_answers(run) == [("label", "zebra")]


def test_reading_changes_nothing(page: ReviewClient, run: Path) -> None:
    def content() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}

    page.post("api/answer", kind="label", images=[3], label="zebra")
    settle(page, 1)
    before = content()
    schema = page.get("openapi.json")
    for path, methods in schema["paths"].items():
        if "get" in methods:
            with suppress(HTTPError):
                page.get(path.lstrip("/").format(key="csv") + "?positions=1&window=a&words=zebra")
    assert content() == before
    first = page.post("api/suggestions", window="b", count=8)
    assert page.post("api/suggestions", window="b", count=8) == first


def test_event_streams_of_one_client_are_bounded(page: ReviewClient) -> None:
    with ExitStack() as stack:
        for _ in range(MOST_STREAMS):
            events = stack.enter_context(urlopen(page.address + "events", timeout=30))
            events.readline()
        with pytest.raises(HTTPError, match="503"):
            urlopen(page.address + "events", timeout=30)
        assert page.get("health")["status"] == "ok"
    wait_until(lambda: urlopen(page.address + "events", timeout=30).status == 200, 30)


def test_the_routes_are_documented(page: ReviewClient) -> None:
    paths = page.get("openapi.json")["paths"]
    assert {"/api/answer", "/api/class", "/api/groups"} <= set(paths)


def test_a_group_is_named_at_once_besides_some_images(page: ReviewClient) -> None:
    group = page.get("api/groups")[0]
    change = page.post("api/group", group=group["number"], label="zebra", others=group["images"][:1])
    assert "zebra" in change["sentence"]
    state = page.get("api/state")
    assert state["version"] >= 1
    named = [page.get(f"api/facts?positions={image}")[0] for image in group["images"]]
    assert named[0]["choices"][0][0] != "zebra"
    assert not named[0]["is_labeled"]
    assert all(one["is_labeled"] for one in named[1:])


def test_undo_of_a_named_group_takes_its_marks_back_too(page: ReviewClient, run: Path) -> None:
    first, second = page.get("api/groups")[:2]
    page.post("api/answer", kind="not", images=second["images"][:1], label="zebra")
    for group in (first, second):
        page.post("api/group", group=group["number"], label="zebra", others=group["images"][:1])
    assert page.post("api/undo")["images"] == second["images"][1:]
    assert saved_answers(run) == [("not", "zebra"), ("not", "zebra"), ("label", "zebra")]
    assert page.post("api/undo")["images"] == first["images"][1:]
    assert saved_answers(run) == [("not", "zebra")]  # which was said on its own


def test_classes_are_renamed_merged_added_and_removed(page: ReviewClient) -> None:
    before = {entry["name"]: entry["count"] for entry in page.get("api/state")["classes"]}
    page.post("api/class", action="rename", name="zebra", new="striped horse")
    moved = page.get("api/moves?since=start")  # a new name alone is no change, but it may attract other images
    assert sum(len(move["images"]) for move in moved) < sum(before.values()) / 4
    assert not {"zebra"} & {name for move in moved for name in (move["old"], move["new"])}
    page.post("api/class", action="merge", names=["gingham", "tartan"], new="plaid")
    page.post("api/class", action="add", name="velvet", sentences=["a soft dark fabric"])
    page.post("api/class", action="describe", name="velvet", sentences=["soft", "  "])
    page.post("api/class", action="remove", name="ikat")
    state = page.get("api/state")
    names = [entry["name"] for entry in state["classes"]]
    assert {"striped horse", "plaid", "velvet"} <= set(names)
    assert not {"zebra", "gingham", "tartan", "ikat"} & set(names)
    assert next(entry for entry in state["classes"] if entry["name"] == "velvet")["descriptions"] == ["soft"]
    assert sum(entry["count"] for entry in state["classes"]) == sum(before.values())


def test_compare_tells_which_images_moved(page: ReviewClient) -> None:
    position = page.get("api/groups")[0]["images"][0]
    old, new = (page.get(f"api/facts?positions={position}")[0]["choices"][i][0] for i in (0, 5))
    page.post("api/answer", kind="label", images=[position], label=new)
    settle(page, 1)
    moves = {(move["old"], move["new"]): move["images"] for move in page.get("api/moves?since=last")}
    assert position in moves[old, new]


def test_the_map_has_a_place_and_classes_for_every_image(page: ReviewClient) -> None:
    n_images = page.get("api/state")["n_images"]
    page.post("api/map")
    points = np.frombuffer(page.get("api/map/points"), dtype="<f4").reshape(-1, 2)
    classes = np.frombuffer(page.get("api/map/classes"), dtype="<u2").reshape(2, -1)
    assert len(points) == n_images == classes.shape[1]
    assert points.min() >= 0
    assert points.max() <= 1
    wait_until(lambda: page.get("api/state")["map"] == "full", 60)


def test_pictures_are_small_and_only_of_the_collection(page: ReviewClient) -> None:
    assert page.get("image/0/96").startswith(b"\xff\xd8")
    for path in (
        "image/0/97",
        "image/100000/96",
        "image/-1/96",
        "image/x/96",
        "assets/..%2freview_app.py",
        "assets/review_app.py",
    ):
        with pytest.raises(HTTPError) as error:
            page.get(path)
        assert error.value.code in (400, 404, 422)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("api/answer", {"kind": "label", "images": [0], "label": "no such class"}),
        ("api/answer", {"kind": "label", "images": [], "label": "zebra"}),
        ("api/answer", {"kind": "label", "images": [10**6], "label": "zebra"}),
        ("api/answer", {"kind": "label", "images": ["0"], "label": "zebra"}),
        ("api/answer", {"kind": "shout", "images": [0]}),
        ("api/answer", {"kind": "label", "images": [0], "label": ["zebra"]}),
        ("api/class", {"action": "rename", "name": "no such class", "new": "x"}),
        ("api/class", {"action": "add", "name": "  "}),
        ("api/class", {"action": "add", "name": "ZEBRA"}),
        ("api/class", {"action": "merge", "names": ["zebra"], "new": "x"}),
        ("api/class", {"action": "explode"}),
        ("api/group", {"group": 10**6, "label": "zebra"}),
        ("api/group", {"label": "zebra"}),
        ("api/undo", {"id": "unknown"}),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(
    page: ReviewClient, run: Path, path: str, body: dict[str, Any]
) -> None:
    with pytest.raises(HTTPError) as error:
        page.post(path, **body)
    assert error.value.code == 400
    assert json.loads(error.value.read())["error"]
    assert saved_answers(run) == []


def test_pages_of_other_sites_cannot_answer(page: ReviewClient, run: Path) -> None:
    head = f"POST /api/answer HTTP/1.1\r\nHost: 127.0.0.1:{page.address.split(':')[2].strip('/')}\r\n"
    body = json.dumps({"kind": "label", "images": [0], "label": "zebra"})
    for more in ("Origin: http://evil.example\r\nContent-Type: application/json\r\n", "Content-Type: text/plain\r\n"):
        with socket.create_connection(("127.0.0.1", int(page.address.split(":")[2].strip("/")))) as connection:
            connection.sendall(f"{head}{more}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            assert connection.recv(12).split()[1] in (b"403", b"400")
    assert saved_answers(run) == []


def test_answers_of_another_program_are_followed(page: ReviewClient, run: Path) -> None:
    from captune.review.corrections import FILE, Corrections

    image = page.get("api/facts?positions=7")[0]["image"]
    Corrections(run / FILE, "somebody else").add("label", "zebra", images=(image,))
    settle(page, 1)
    assert page.get("api/facts?positions=7")[0]["choices"][0][0] == "zebra"


def test_events_tell_of_changes_and_end_with_the_service(run: Path) -> None:
    with review_page(run) as address:
        client, events = ReviewClient(address), urlopen(address + "events", timeout=30)
        assert json.loads(events.readline().removeprefix(b"data: "))["version"] == 0
        client.post("api/answer", kind="label", images=[3], label="zebra")
        while json.loads((events.readline() + events.readline()).strip().removeprefix(b"data: "))["version"] < 1:
            pass
    assert events.read() is not None  # which would wait for ever if the stream did not end


@pytest.mark.parametrize(("format", "start"), [("csv", b"path,"), ("label_studio", b"["), ("coco", b"{")])
def test_labels_are_exported_and_answers_stay(page: ReviewClient, run: Path, format: str, start: bytes) -> None:
    page.post("api/answer", kind="label", images=[3], label="zebra")
    settle(page, 1)
    content = page.post("api/export", format=format)
    assert content.lstrip().startswith(start)
    assert b"zebra" in content
    assert saved_answers(run) == [("label", "zebra")]
