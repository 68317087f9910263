"""Ask OpenAI, or any server that speaks its chat-completions protocol (OPENAI_BASE_URL)."""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from captune.core.errors import DescriberError, missing_extra
from captune.describers._answers import redact
from captune.describers._asking import AskingDescriber, BusyError, Reply
from captune.describers.base import SetupError

DEFAULT_MODEL = "gpt-4o-mini"
_ADDRESS = "https://api.openai.com/v1"
_LOCAL_KEY = "none"
"""What servers without keys, such as Ollama, are given; the package insists on a key."""


class OpenAIDescriber(AskingDescriber):
    """Asks a chat model; the argument is the model's name, the key comes from OPENAI_API_KEY only."""

    provider = "openai"

    @property
    def model(self) -> str:
        """Return the model's name."""
        return self.argument or DEFAULT_MODEL

    @cached_property
    def _client(self) -> Any:  # noqa: ANN401 (the package is optional)
        try:
            import openai
        except ImportError:
            raise missing_extra("openai", "openai") from None
        key, address = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
        if not key and not address:
            raise SetupError(
                "openai: there is no key. Set OPENAI_API_KEY; or set OPENAI_BASE_URL to a server of your own, "
                "for example http://localhost:11434/v1 for Ollama."
            )
        if address and not address.startswith(("http://", "https://")):
            raise SetupError(f"openai: OPENAI_BASE_URL is {redact(address)!r}, expected http://... or https://...")
        # Retries are ours: they are counted, reported without keys and tested.
        return openai.OpenAI(
            api_key=key or _LOCAL_KEY, base_url=address or _ADDRESS, timeout=self.patience.timeout, max_retries=0
        )

    def ask(self, question: str) -> Reply:
        """Put a question once."""
        client = self._client
        import openai

        messages = [{"role": "user", "content": question}]
        try:
            answer = client.chat.completions.create(model=self.model, messages=messages)
        except openai.APITimeoutError:
            raise BusyError(f"no reply within {self.patience.timeout:g} seconds") from None
        except openai.APIStatusError as error:
            raise _explain(error, self.model) from None
        except openai.OpenAIError as error:
            raise BusyError(f"the connection failed: {_cause(error)}") from None
        except ValueError as error:
            raise BusyError(f"the reply is not JSON: {error}") from None
        return _read(answer)


def _read(answer: Any) -> Reply:  # noqa: ANN401 (whatever the server sent)
    """Return the reply of a chat completion; a server may send anything."""
    try:
        choice = answer.choices[0]
        message = choice.message
        text = message.content or ""
    except (AttributeError, IndexError, TypeError):
        raise BusyError("the reply is not a chat completion") from None
    if not isinstance(text, str):
        raise BusyError("the reply is not text")
    finish = getattr(choice, "finish_reason", None)
    refusal = getattr(message, "refusal", None)
    return Reply(text or str(refusal or ""), bool(refusal) or finish == "content_filter", finish == "length")


def _explain(error: Any, model: str) -> Exception:  # noqa: ANN401 (the package is optional)
    """Return what an HTTP status means: ask again, this question cannot be answered, or none can."""
    status, said = int(error.status_code), redact(_message(error))[:300]
    if status == 429 and getattr(error, "code", None) != "insufficient_quota":
        return BusyError(f"status 429, too many questions: {said}", _retry_after(error))
    if status in (408, 409, 425) or status >= 500:
        return BusyError(f"status {status}: {said}", _retry_after(error))
    if status == 400 and "content" in str(getattr(error, "code", "")):
        return DescriberError(f"openai: the question was refused: {said}")
    advice = {
        401: "Check OPENAI_API_KEY.",
        403: "Check that the key may use this model.",
        404: f"Check the model's name, {model!r}, and OPENAI_BASE_URL.",
        429: "The account's quota is used up.",
    }.get(status, "Check the model's name and OPENAI_BASE_URL.")
    return SetupError(f"openai: the server refused with status {status}: {said} {advice}")


def _message(error: Any) -> str:  # noqa: ANN401
    body = error.body if isinstance(error.body, dict) else {}
    return " ".join(str(body.get("message") or error.message).split())


def _cause(error: BaseException) -> str:
    inner = error.__cause__ or error
    return redact(f"{type(inner).__name__}: {inner}")


def _retry_after(error: Any) -> float | None:  # noqa: ANN401
    try:
        return max(0.0, float(error.response.headers.get("retry-after", "")))
    except ValueError:
        return None
