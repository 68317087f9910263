"""Ask OpenAI, or any server that speaks its chat-completions protocol (OPENAI_BASE_URL)."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlsplit

from captune.core.errors import DescriberError, import_extra
from captune.core.text import plain_sentence
from captune.describers.base import Describer, DescriptionRequest, ServerError, SetupError

DEFAULT_MODEL = "gpt-4o-mini"
_ADDRESS = "https://api.openai.com/v1"
_LOCAL_KEY = "none"
"""Sent to servers that need no key, such as Ollama; the package insists on one."""

_THOUGHTS = re.compile(r"<think>.*?(</think>|\Z)", flags=re.DOTALL)
_REFUSAL = re.compile(
    r"(i['’]?\s?a?m (very |so )?(sorry|unable|not able)|sorry\b|my apologies|i apologi[sz]e|as an ai\b"
    r"|unfortunately,? i\b|i (cannot|can not|can['’]?t|won['’]?t|do not|don['’]?t)\b)",
    flags=re.IGNORECASE,
)
_SECRETS = (
    re.compile(r"\b(sk|rk|pk)-[\w*.-]{6,}"),
    re.compile(r"(?i)\b(?:bearer|api[-_ ]?key)['\"]?\s*[:=]?\s*['\"]?(?=\S{0,99}\d)[\w*.~+/-]{8,}=*"),
    re.compile(r"(?<=://)[^/\s@]+@"),
)
_KEY_VARIABLE = re.compile(r"(API_KEY|TOKEN|SECRET)$")


class OpenAIDescriber(Describer):
    """Asks a chat model; the argument is the model's name, the key comes from OPENAI_API_KEY only."""

    is_remote = True

    def __init__(self, *arguments: Any, **keywords: Any) -> None:  # noqa: ANN401 (those of Describer)
        super().__init__(*arguments, **keywords)
        self.model = self.argument or DEFAULT_MODEL

    def describe(self, request: DescriptionRequest) -> list[str]:
        """Return the usable answers; DescriberError with the reason when there is none."""
        return asyncio.run(self._describe(request))

    async def _describe(self, request: DescriptionRequest) -> list[str]:
        asked = {"provider": "openai", "address": _public_address(), "model": self.model, "prompt": request.question}
        found = [self.cache.find(**asked, index=index) if self.cache else None for index in range(request.n)]
        answers, problem = [answer for answer in found if answer is not None], ""
        missing = [index for index, answer in enumerate(found) if answer is None]
        async with self._open_client() if missing else nullcontext() as client:
            for index in missing:
                try:  # the client's time-outs restart with every byte, so a question has a deadline for everything
                    reply = await asyncio.wait_for(self._ask(client, request.question), self.limits.deadline)
                except asyncio.TimeoutError:
                    raise ServerError(f"openai: no usable reply within {self.limits.deadline:g} seconds") from None
                if isinstance(reply, DescriberError):
                    problem = str(reply)
                    continue
                answers.append(reply)
                if self.cache:
                    self.cache.keep(reply, **asked, index=index)
        if not answers:
            raise DescriberError(problem)
        if problem:
            self.remarks[request.key] = f"only {len(answers)} of {request.n} replies were usable: {problem}"
        return answers

    async def _ask(self, client: Any, question: str) -> str | DescriberError:  # noqa: ANN401 (an optional package)
        """Ask until a reply is usable; return it, or why the last one is not."""
        import openai

        problem, attempts = DescriberError(), self.limits.reply_attempts
        for _ in range(attempts):
            try:
                answer = await client.chat.completions.create(
                    model=self.model, messages=[{"role": "user", "content": question}]
                )
                return _read(answer, self.limits.longest_reply)
            except openai.APIStatusError as error:
                raise _explain(error, self.model, self.limits.attempts) from None
            except openai.APIConnectionError as error:  # also of a time-out
                raise ServerError(f"openai: no reply after {self.limits.attempts} attempts: {_cause(error)}") from None
            except DescriberError as error:
                problem = error
            except (openai.OpenAIError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
                problem = ServerError(f"openai: the reply is not a chat completion: {_cause(error)[:200]}")
        if isinstance(problem, ServerError):
            raise ServerError(f"{problem} ({attempts} times)")
        return DescriberError(f"{problem} ({attempts} times)")

    def _open_client(self) -> Any:  # noqa: ANN401
        openai = import_extra("openai", "openai")
        key, address = os.environ.get("OPENAI_API_KEY"), os.environ.get("OPENAI_BASE_URL")
        if not key and not address:
            raise SetupError(
                "openai: Set OPENAI_API_KEY, or OPENAI_BASE_URL, for example http://localhost:11434/v1 for Ollama."
            )
        if address and not address.startswith(("http://", "https://")):
            raise SetupError(f"openai: OPENAI_BASE_URL is {redact(address)!r}, expected http://... or https://...")

        async def give_up(response: Any) -> None:  # noqa: ANN401
            if response.status_code == 429 and b"insufficient_quota" in await response.aread():
                response.headers["x-should-retry"] = "false"  # waiting does not refill an account

        try:
            return openai.AsyncOpenAI(
                api_key=key or _LOCAL_KEY,
                base_url=address or _ADDRESS,
                max_retries=self.limits.attempts - 1,
                timeout=self.limits.timeout,
                http_client=openai.DefaultAsyncHttpxClient(
                    timeout=self.limits.timeout, follow_redirects=False, event_hooks={"response": [give_up]}
                ),
            )
        except Exception as error:  # each HTTP library has its own error for an invalid address
            raise SetupError(f"openai: OPENAI_BASE_URL cannot be used: {_cause(error)}.") from None


def redact(text: str) -> str:
    """Return a text without keys: those of the environment, and whatever looks like one."""
    for name, value in os.environ.items():
        if _KEY_VARIABLE.search(name) and len(value) >= 8:
            text = text.replace(value, "[key]")
    for pattern in _SECRETS:
        text = pattern.sub("[key]", text)
    return text


def _public_address() -> str:
    """Return the server's address without user, password and query, which may hold keys."""
    try:
        address = urlsplit(os.environ.get("OPENAI_BASE_URL") or _ADDRESS)
    except ValueError:
        return ""
    return redact(f"{address.scheme}://{address.netloc.rpartition('@')[2]}{address.path.rstrip('/')}")


def _read(answer: Any, longest: int) -> str:  # noqa: ANN401 (whatever the server sent)
    """Return the sentence in a chat completion, without quotes around it, thoughts and keys, or raise an error."""
    choice = answer.choices[0]
    refusal, finish = choice.message.refusal, choice.finish_reason
    valid = ((choice.message.content or "") + (refusal or "")).encode("utf-8", "replace").decode("utf-8")
    text = plain_sentence(redact(_THOUGHTS.sub(" ", valid)))
    quotes = {'"': '"', "'": "'", "“": "”", "«": "»"}
    while len(text) >= 2 and quotes.get(text[0]) == text[-1] and text[0] not in text[1:-1]:
        text = text[1:-1].strip()
    if refusal or finish == "content_filter" or _REFUSAL.match(text):
        raise DescriberError(f"the model refused: {text[:80]!r}")
    if not text:
        raise DescriberError("the reply was empty")
    if finish == "length" or len(text) > longest:
        raise DescriberError(f"the reply was too long ({len(text)} characters, {longest} allowed)")
    return text


def _explain(error: Any, model: str, attempts: int) -> DescriberError:  # noqa: ANN401 (the package is optional)
    """Return what an HTTP status means: no reply for now, no reply to this question, or none to any."""
    status, body = int(error.status_code), error.body if isinstance(error.body, dict) else {}
    message = redact(" ".join(str(body.get("message") or error.message)[:5000].split()))[:300]
    is_quota = getattr(error, "code", None) == "insufficient_quota"
    if status in (408, 409, 425) or status >= 500 or (status == 429 and not is_quota):
        return ServerError(f"openai: no reply after {attempts} attempts: status {status}: {message}")
    if status == 400 and "content" in str(getattr(error, "code", "")):
        return DescriberError(f"openai: the question was refused: {message}")
    advice = f"Check OPENAI_API_KEY, its quota, the model's name, {model!r}, and OPENAI_BASE_URL (no redirects)."
    return SetupError(f"openai: the server refused with status {status}: {message} {advice}")


def _cause(error: BaseException) -> str:
    inner = error.__cause__ or error
    return redact(f"{type(inner).__name__}: {inner}")
