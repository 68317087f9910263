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
from captune.describers._patience import Patience
from captune.describers.base import (
    DescriptionRequest,
    Descriptions,
    ServerError,
    SetupError,
    describe_classes,
    open_describer,
)

KEY = "sk-test-0123456789-very-secret"
QUICK = Patience(timeout=5, attempts=4, first_wait=0.01, longest_wait=0.05, parallel=4)
GOOD = Answer("It has a green roof.")


def describe(
    names: list[str], folder: Path | None = None, patience: Patience = QUICK, n: int = 1, model: str = "m"
) -> Descriptions:
    describer = open_describer(f"openai:{model}", folder, patience)
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
    "malformed JSON": Answer(raw=b"{'choices': nonsense"),
    "JSON of another kind": Answer(raw=b'{"choices": []}'),
    "not an object": Answer(raw=b"[1, 2]"),
    "content is a number": Answer(raw=b'{"choices": [{"message": {"content": 7}}]}'),
    "empty body": Answer(raw=b""),
}


@pytest.mark.parametrize("fault", PASSING)
def test_passing_faults_are_retried_and_lasting_ones_reported(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    patience = Patience(timeout=0.3, attempts=3, first_wait=0.01, longest_wait=0.05)
    with serving(monkeypatch, lambda number, _: GOOD if number >= 2 else PASSING[fault], KEY) as server:
        assert describe(["river"], patience=patience).found == {"river": ["It has a green roof."]}
        assert len(server.questions) == 3
    with serving(monkeypatch, lambda *_: PASSING[fault], KEY) as server:
        request = DescriptionRequest("river", n=1)
        with pytest.raises(ServerError, match="no answer after 3 attempts") as caught:
            open_describer("openai:m", None, patience).describe(request)
        assert len(server.questions) == 3
        assert KEY not in str(caught.value)


BAD_REPLIES = {
    "empty": (Answer("  \n"), "empty"),
    "null": (Answer(None), "empty"),
    "only thoughts": (Answer("<think>What is a river? It has"), "empty"),
    "refusal": (Answer("I'm sorry, but I can't help with that."), "refused"),
    "refusal field": (Answer(None, refusal="I can't do that"), 'refused: "I can\'t do that"'),
    "content filter": (Answer("", finish="content_filter"), "refused"),
    "overlong": (Answer("long " * 300), "too long"),
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
    patience = Patience(reply_attempts=1, first_wait=0.01)
    with serving(monkeypatch, lambda number, _: Answer("") if number == 1 else GOOD, KEY):
        result = describe(["river"], patience=patience, n=3)
    assert len(result.found["river"]) == 2
    assert result.problems["river"].startswith("only 2 of 3 replies were usable: the reply was empty")


@pytest.mark.parametrize(
    ("status", "error", "advice"),
    [
        (401, {"message": f"Incorrect API key provided: {KEY}"}, "Check OPENAI_API_KEY"),
        (403, {"message": "no"}, "may use this model"),
        (404, {"message": "no such model"}, "Check the model's name, 'm'"),
        (400, {"message": "bad"}, "Check the model's name"),
        (429, {"message": "pay", "code": "insufficient_quota"}, "quota is used up"),
    ],
)
def test_what_a_person_must_mend_is_not_retried(
    monkeypatch: pytest.MonkeyPatch, status: int, error: dict[str, str], advice: str
) -> None:
    with serving(monkeypatch, lambda *_: Answer(status=status, error=error), KEY) as server:
        with pytest.raises(SetupError) as caught:
            open_describer("openai:m", None, QUICK).describe(DescriptionRequest("river"))
        assert len(server.questions) == 1
        assert advice in str(caught.value)
        with pytest.raises(DescriberError, match="--describer none") as caught_all:
            describe([f"class {i}" for i in range(500)])
        assert len(server.questions) <= 1 + QUICK.parallel
    assert KEY not in str(caught.value) + str(caught_all.value)


def test_a_refused_question_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    filtered = Answer(status=400, error={"message": "policy", "code": "content_filter"})
    with serving(monkeypatch, lambda _, question: filtered if "river" in question else GOOD, KEY):
        result = describe(["river", "beach"])
    assert list(result.found) == ["beach"]
    assert "refused" in result.problems["river"]


def test_a_thousand_classes_survive_a_server_that_dies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [f"class {i}" for i in range(1000)]
    patience = Patience(attempts=2, first_wait=0.01, parallel=8, give_up_after=3)
    with serving(monkeypatch, lambda number, _: GOOD if number < 400 else Answer(is_dropped=True), KEY) as server:
        began = time.monotonic()
        broken = describe(names, tmp_path, patience)
        assert time.monotonic() - began < 60
        assert len(server.questions) <= 450  # those under way when it died, and a few more
        assert server.peak <= 8
    assert len(broken.found) == 400
    assert broken.found.keys() | broken.problems.keys() == set(names)
    assert "not asked, because of an earlier problem" in broken.problems["class 999"]
    with serving(monkeypatch, lambda *_: GOOD, KEY) as server:
        whole = describe(names, tmp_path, patience)
        assert list(whole.found) == names
        assert not whole.problems
        assert len(server.questions) == 600
        assert set(server.counts.values()) == {1}


def test_a_server_that_is_away_from_the_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"http://user:{KEY}@127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with pytest.raises(DescriberError, match="no answer after 2 attempts") as caught:
        describe(["river"] + [f"{i}" for i in range(50)], patience=Patience(attempts=2, first_wait=0.01))
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
    monkeypatch.setenv("OPENAI_BASE_URL", "localhost:11434/v1")
    with pytest.raises(DescriberError, match="'localhost:11434/v1', expected http"):
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
        describer = open_describer("openai:m", None, Patience(parallel=1))

        def interrupt(_: int) -> None:
            if threading.active_count() and len(server.questions) >= 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            describe_classes(describer, [f"class {i}" for i in range(100)], n=1, advance=interrupt)
        assert len(server.questions) < 100
