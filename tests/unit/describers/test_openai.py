"""The openai describer against a real local server, with every fault that a server can have."""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from pathlib import Path

import pytest
from chat_server import Answer, serving

from captune.core.errors import DescriberError, MissingExtraError
from captune.describers.base import (
    DescriptionRequest,
    Descriptions,
    RequestLimits,
    ServerError,
    SetupError,
    describe_classes,
    describer_of,
    open_describer,
)

KEY = "sk-test-0123456789-very-secret"
QUICK = RequestLimits(timeout=5, attempts=3, parallel=4)
GOOD = Answer("It has a green roof.")


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client's retries, which are its own business, not slow the tests down."""
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)


def describe(
    names: list[str], folder: Path | None = None, limits: RequestLimits = QUICK, n: int = 1, model: str = "m"
) -> Descriptions:
    describer = open_describer(f"openai:{model}", folder, limits)
    return describe_classes(describer, names, phrase="a satellite photo of {}", n=n)


def kept(folder: Path) -> list[dict[str, object]]:
    return [json.loads(path.read_text()) for path in folder.rglob("*.json")]


def test_asks_the_papers_question_n_times_and_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving(monkeypatch, lambda number, _: Answer(f'"Sentence\n {number}."'), KEY) as server:
        first = describe(["chaparral"], tmp_path, n=5, model="")
        again = describe(["chaparral"], tmp_path, n=5, model="")
        describe(["chaparral"], tmp_path, n=5, model="other")
    expected = (
        "Please describe the most distinguishing visual features of a satellite photo of chaparral, in one sentence."
    )
    assert first == again == Descriptions({"chaparral": [f"Sentence {i}." for i in range(5)]}, {})
    assert server.counts == {expected: 10}
    assert server.models == {"gpt-4o-mini", "other"}
    assert server.keys == {f"Bearer {KEY}"}
    entries = [entry for entry in kept(tmp_path) if entry["model"] == "gpt-4o-mini"]
    assert {(entry["provider"], entry["prompt"], entry["index"]) for entry in entries} == {
        ("openai", expected, i) for i in range(5)
    }


PASSING = {
    "429": Answer(status=429, headers={"retry-after": "0.02"}),
    "500": Answer(status=500),
    "503": Answer(status=503, headers={"retry-after": "soon"}),
    "408": Answer(status=408),
    "time-out": Answer(wait=0.6),
    "dropped": Answer(is_dropped=True),
}


@pytest.mark.parametrize("fault", PASSING)
def test_passing_faults_are_retried_and_lasting_ones_reported(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    limits = RequestLimits(timeout=0.3, attempts=3)
    with serving(monkeypatch, lambda number, _: GOOD if number >= 2 else PASSING[fault], KEY) as server:
        assert describe(["river"], limits=limits).found == {"river": ["It has a green roof."]}
        assert len(server.questions) == 3
    with serving(monkeypatch, lambda *_: PASSING[fault], KEY) as server:
        request = DescriptionRequest("river", n=1)
        with pytest.raises(ServerError) as caught:
            open_describer("openai:m", None, limits).describe(request)
        assert len(server.questions) == 3
        assert KEY not in str(caught.value)


UNREADABLE = {
    "malformed JSON": Answer(raw=b"{'choices': nonsense"),
    "JSON of another kind": Answer(raw=b'{"choices": []}'),
    "choices are no list": Answer(raw=b'{"choices": {"a": 1}}'),
    "not an object": Answer(raw=b"[1, 2]"),
    "content is a number": Answer(raw=b'{"choices": [{"message": {"content": 7}}]}'),
    "empty body": Answer(raw=b""),
    "200,000 brackets": Answer(raw=b"[" * 200_000),
    "200,000 nested lists": Answer(raw=b'{"choices": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "HTML": Answer(raw=b"<html><body>Log in</body></html>", headers={"content-type": "text/html"}),
    "HTML as JSON": Answer(raw=b"<html><body>Log in</body></html>"),
}


@pytest.mark.parametrize("fault", UNREADABLE)
def test_unreadable_replies_are_asked_again_then_reported(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    with serving(monkeypatch, lambda number, _: GOOD if number >= 2 else UNREADABLE[fault], KEY) as server:
        assert describe(["river"]).found == {"river": ["It has a green roof."]}
        assert len(server.questions) == 3
    with serving(monkeypatch, lambda *_: UNREADABLE[fault], KEY) as server:
        with pytest.raises(ServerError) as caught:
            open_describer("openai:m", None, QUICK).describe(DescriptionRequest("river", n=1))
        assert len(server.questions) == QUICK.reply_attempts
        assert len(str(caught.value)) < 500


def test_a_reply_that_trickles_in_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RequestLimits(timeout=5, deadline=1.0, give_up_after=1, parallel=2)
    with serving(monkeypatch, lambda *_: Answer("slow", pause_per_byte=0.2), KEY) as server:
        began = time.monotonic()
        with pytest.raises(DescriberError, match="1 seconds"):
            describe(["river", "beach"], limits=limits)
        assert time.monotonic() - began < 3
        assert len(server.questions) == 2


def test_a_long_wait_that_the_server_asks_for_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RequestLimits(deadline=0.5)
    with serving(monkeypatch, lambda *_: Answer(status=429, headers={"retry-after": "50"}), KEY):
        began = time.monotonic()
        with pytest.raises(ServerError):
            open_describer("openai:m", None, limits).describe(DescriptionRequest("river", n=1))
        assert time.monotonic() - began < 3


def test_no_redirect_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, lambda *_: GOOD, KEY) as other:
        address = f"http://127.0.0.1:{other.http.server_address[1]}/v1/chat/completions"
        away = Answer(status=307, headers={"location": address}, raw=b"x" * (2 << 20))
        with serving(monkeypatch, lambda *_: away, KEY), pytest.raises((SetupError, ServerError)):
            open_describer("openai:m", None, QUICK).describe(DescriptionRequest("river", n=1))
        with serving(monkeypatch, lambda *_: Answer(status=307, headers={"location": address}), KEY) as server:
            with pytest.raises(SetupError, match="no redirects"):
                open_describer("openai:m", None, QUICK).describe(DescriptionRequest("river", n=1))
            assert len(server.questions) == 1
        assert not other.questions


def test_descriptions_control_neither_terminal_nor_direction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving(monkeypatch, lambda *_: Answer("A \x1b[31mred\u202e roof\u0007\tof tiles."), KEY):
        assert describe(["river"], tmp_path).found == {"river": ["A [31mred roof of tiles."]}
    assert describe_classes(describer_of({"river": "a \u2066wet\x9b line"}), ["river"]).found == {
        "river": ["a wet line"]
    }


def test_lone_surrogates_are_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving(monkeypatch, lambda *_: Answer("A roof \ud83d here."), KEY):
        found = describe(["river"], tmp_path).found["river"]
        assert found == ["A roof ? here."]
        assert describe(["river"], tmp_path).found["river"] == found


def test_answers_of_another_server_are_not_taken_from_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with serving(monkeypatch, lambda *_: GOOD, KEY):
        describe(["river"], tmp_path)
    with serving(monkeypatch, lambda *_: Answer("Another server's."), KEY) as server:
        assert describe(["river"], tmp_path).found == {"river": ["Another server's."]}
        address = f"http://user:{KEY}@127.0.0.1:{server.http.server_address[1]}/v1/?key={KEY}"
        monkeypatch.setenv("OPENAI_BASE_URL", address)
        assert describe(["river"], tmp_path).found == {"river": ["Another server's."]}
        assert len(server.questions) == 1
    assert len(kept(tmp_path)) == 2
    assert all(KEY not in str(entry) for entry in kept(tmp_path))


BAD_REPLIES = {
    "empty": (Answer("  \n"), "empty"),
    "null": (Answer(None), "empty"),
    "only thoughts": (Answer("<think>What is a river? It has"), "empty"),
    "refusal": (Answer("I'm sorry, but I can't help with that."), "refused"),
    "refusal field": (Answer(None, refusal="I can't do that"), 'refused: "I can\'t do that"'),
    "content filter": (Answer("", finish="content_filter"), "refused"),
    "overlong": (Answer("long " * 300), "too long"),
    "two megabytes": (Answer("x" * (2 << 20)), "too long"),
    "cut off": (Answer("It has", finish="length"), "too long"),
}


@pytest.mark.parametrize("fault", BAD_REPLIES)
def test_bad_replies_are_asked_again_then_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault: str) -> None:
    bad, reason = BAD_REPLIES[fault]
    with serving(monkeypatch, lambda number, _: GOOD if number >= 2 else bad, KEY) as server:
        assert describe(["river"]).found == {"river": ["It has a green roof."]}
        assert len(server.questions) == 3
    with serving(monkeypatch, lambda _, question: bad if "river" in question else GOOD, KEY) as server:
        result = describe(["river", "beach"], tmp_path)
    assert list(result.found) == ["beach"]
    assert list(result.problems) == ["river"]
    assert reason in result.problems["river"]
    assert len(kept(tmp_path)) == 1


def test_thoughts_are_not_part_of_a_description(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, lambda *_: Answer("<think>Hm.\nSo?</think>\n“A green roof.”"), KEY):
        assert describe(["river"]).found == {"river": ["A green roof."]}


def test_some_bad_replies_leave_the_good_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = RequestLimits(reply_attempts=1)
    with serving(monkeypatch, lambda number, _: Answer("") if number == 1 else GOOD, KEY):
        result = describe(["river"], limits=limits, n=3)
    assert len(result.found["river"]) == 2
    assert result.problems["river"].startswith("only 2 of 3 replies were usable: the reply was empty")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, {"message": f"Incorrect API key provided: {KEY}"}),
        (403, {"message": "no"}),
        (404, {"message": "no such model"}),
        (400, {"message": "bad"}),
        (400, {"message": "x" * (2 << 20)}),
        (429, {"message": "pay", "code": "insufficient_quota"}),
    ],
)
def test_errors_in_the_setup_stop_everything(
    monkeypatch: pytest.MonkeyPatch, status: int, error: dict[str, str]
) -> None:
    with serving(monkeypatch, lambda *_: Answer(status=status, error=error), KEY) as server:
        with pytest.raises(SetupError, match=f"status {status}.*OPENAI_API_KEY.*'m'.*OPENAI_BASE_URL") as caught:
            open_describer("openai:m", None, QUICK).describe(DescriptionRequest("river"))
        assert len(server.questions) == 1
        with pytest.raises(DescriberError, match="describer='none'") as caught_all:
            describe([f"class {i}" for i in range(500)])
        assert len(server.questions) <= 1 + QUICK.parallel
    assert KEY not in str(caught.value) + str(caught_all.value)
    assert len(str(caught.value)) < 500


def test_a_refused_question_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = Answer(status=400, error={"message": "policy", "code": "content_filter"})
    with serving(monkeypatch, lambda _, question: filtered if "river" in question else GOOD, KEY):
        result = describe(["river", "beach"])
    assert list(result.found) == ["beach"]
    assert "refused" in result.problems["river"]


def test_a_thousand_classes_survive_a_server_that_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(1000)]
    limits = RequestLimits(attempts=2, parallel=8, give_up_after=3)
    with serving(monkeypatch, lambda number, _: GOOD if number < 400 else Answer(is_dropped=True), KEY) as server:
        began = time.monotonic()
        broken = describe(names, tmp_path, limits)
        assert time.monotonic() - began < 60
        assert len(server.questions) <= 450  # those under way when it died, and a few more
        assert server.peak <= 8
    assert len(broken.found) == 400
    assert broken.found.keys() | broken.problems.keys() == set(names)
    assert "not asked, because of an earlier problem" in broken.problems["class 999"]
    with serving(monkeypatch, lambda *_: GOOD, KEY, server.http.server_address[1]) as server:
        whole = describe(names, tmp_path, limits)
        assert list(whole.found) == names
        assert not whole.problems
        assert len(server.questions) == 600
        assert set(server.counts.values()) == {1}


def test_a_server_that_is_away_from_the_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://user:{KEY}@127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(DescriberError, match="2 attempts") as caught:
        describe(["river"] + [f"{i}" for i in range(50)], limits=RequestLimits(attempts=2))
    assert KEY not in str(caught.value)


def test_keys_appear_nowhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    def echo(number: int, question: str) -> Answer:
        if "river" in question:
            return Answer(status=500, error={"message": f"trace: Authorization: Bearer {KEY} url https://u:{KEY}@host"})
        return Answer(f"A roof with {KEY} on it.") if "beach" in question else Answer(status=401)

    with serving(monkeypatch, echo, KEY):
        describer = open_describer("openai:m", tmp_path, QUICK)
        result = describe_classes(describer, ["beach", "river"], n=1)
    files = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    captured = capfd.readouterr()
    everything = [*files, str(result), caplog.text, captured.out, captured.err, repr(describer), str(vars(describer))]
    assert files
    assert "[key]" in str(result)
    assert all(KEY not in text for text in everything)


def test_no_key_is_needed_for_a_server_of_ones_own_and_missed_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, lambda *_: GOOD, KEY):
        monkeypatch.delenv("OPENAI_API_KEY")
        assert describe(["river"]).found
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(DescriberError, match="Set OPENAI_API_KEY"):
        describe(["river"])
    for wrong in ("localhost:11434/v1", "http://[::1/v1", "http://a:b:c/v1"):
        monkeypatch.setenv("OPENAI_BASE_URL", wrong)
        with pytest.raises(DescriberError, match="OPENAI_BASE_URL"):
            describe(["river"])


def test_without_the_package_the_answer_is_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'captune\[openai\]'"):
        describe(["river"])


def test_a_damaged_cache_file_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with serving(monkeypatch, lambda *_: GOOD, KEY) as server:
        describe(["river"], tmp_path)
        for content in ("{", "[]", '{"answer": 3}'):
            next(tmp_path.rglob("*.json")).write_text(content)
            assert describe(["river"], tmp_path).found
        assert len(server.questions) == 4


def test_an_interrupt_stops_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, lambda *_: GOOD, KEY) as server:
        describer = open_describer("openai:m", None, RequestLimits(parallel=1))

        def interrupt(_: int) -> None:
            if threading.active_count() and len(server.questions) >= 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            describe_classes(describer, [f"class {i}" for i in range(100)], n=1, advance=interrupt)
        assert len(server.questions) < 100


def test_an_interrupt_does_not_wait_for_a_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(monkeypatch, lambda _, question: GOOD if "class 3" in question else Answer(wait=20), KEY):
        describer = open_describer("openai:m", None, RequestLimits(parallel=4))

        def interrupt(_: int) -> None:
            raise KeyboardInterrupt

        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            describe_classes(describer, [f"class {i}" for i in range(4)], n=1, advance=interrupt)
        assert time.monotonic() - began < 15
