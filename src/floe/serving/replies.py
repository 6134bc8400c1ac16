"""Answers in OpenAI's shapes: whole ones and chunks, for chat and for completions."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from floe.core.token import Draw, Finished, Started
from floe.serving.ask import Ask
from floe.serving.logprobs import ChatLogProbs, CompletionLogProbs, LogProbs

Json = dict[str, object]


def encode(value: object) -> bytes:
    """JSON in ASCII, so that no reader takes U+2028 for the end of a line; NaN raises."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).encode("ascii")


def opening_facts(started: Started) -> Json:
    """What is known before the first token: route and verdict class. Never user text.

    `cached` is there when the answer is given again: "exact" or "semantic".
    """
    route, verdict = started.route, started.verdict
    adapters = [{"id": share.name, "weight": share.weight} for share in route.shares]
    cached: Json = {"cached": started.cached} if started.cached else {}
    return {
        "route": {"how": route.how, "adapters": adapters},
        "verdict": {
            "action": verdict.action,
            "reason": verdict.reason,
            "entities": sorted({finding.entity for finding in verdict.findings}),
        },
        **cached,
    }


def facts(started: Started, finished: Finished) -> Json:
    """The whole `floe` object of an answer; `ended` says what cut it short, if anything did.

    `cloud` is where text of this answer went: null when no question was sent, allowed or not.
    """
    ended: Json = {"ended": finished.ended} if finished.ended else {}
    return opening_facts(started) | {
        "cloud": started.cloud if finished.cloud_asked else None,
        "cloud_asked": finished.cloud_asked,
        "fused_tokens": finished.fused_tokens,
        "cloud_tokens": finished.cloud_tokens,
        **ended,
    }


def usage(started: Started, finished: Finished) -> Json:
    """Token counts; `cached_tokens` is what the prefix cache saved."""
    return {
        "prompt_tokens": started.prompt_tokens,
        "completion_tokens": finished.completion_tokens,
        "total_tokens": started.prompt_tokens + finished.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
    }


class Reply(ABC):
    """The shapes of one answer; `log_probs` is None when none were asked for."""

    whole_object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(
        self, *, ask: Ask, created_s: int, fingerprint: str | None, log_probs: LogProbs | None
    ) -> None:
        self._ask = ask
        self._created_s = created_s
        self._fingerprint = fingerprint
        self._log_probs = log_probs

    @abstractmethod
    def opening(self, floe: Json) -> Json | None:
        """The chunk before the first token, if this shape has one."""

    @abstractmethod
    def _whole_choice(self, text: str) -> Json:
        """A choice's own part in an answer sent at once."""

    @abstractmethod
    def _chunk_choice(self, text: str | None) -> Json:
        """A choice's own part in a chunk; None in the last one, which has no text."""

    def piece(self, text: str, draws: Sequence[Draw], *, origin: str) -> Json:
        """A chunk of text."""
        return self._chunk(self._chunk_choice(text), draws, reason=None, floe={"origin": origin})

    def closing(self, started: Started, finished: Finished) -> Json:
        """The chunk with the finish reason."""
        floe = facts(started, finished)
        return self._chunk(self._chunk_choice(None), (), reason=finished.reason, floe=floe)

    def counting(self, started: Started, finished: Finished) -> Json:
        """The chunk with the usage, which has no choices."""
        return self._envelope(self.chunk_object, []) | {"usage": usage(started, finished)}

    def whole(self, started: Started, text: str, draws: Sequence[Draw], finished: Finished) -> Json:
        """The answer in one piece."""
        choice = self._choice(self._whole_choice(text), draws, reason=finished.reason)
        return self._envelope(self.whole_object, [choice]) | {
            "usage": usage(started, finished),
            "floe": facts(started, finished),
        }

    def _chunk(self, own: Json, draws: Sequence[Draw], *, reason: str | None, floe: Json) -> Json:
        chunk = self._envelope(self.chunk_object, [self._choice(own, draws, reason=reason)])
        if self._ask.include_usage:
            chunk["usage"] = None
        return chunk | {"floe": floe}

    def _choice(self, own: Json, draws: Sequence[Draw], *, reason: str | None) -> Json:
        shown = self._log_probs.of(draws) if self._log_probs is not None and draws else None
        return {"index": 0} | own | {"logprobs": shown, "finish_reason": reason}

    def _envelope(self, kind: str, choices: Sequence[Json]) -> Json:
        head: Json = {
            "id": self._ask.request.id,
            "object": kind,
            "created": self._created_s,
            "model": self._ask.request.model,
        }
        if self._fingerprint is not None:
            head["system_fingerprint"] = self._fingerprint
        return head | {"choices": choices}


class ChatReply(Reply):
    """chat.completion and chat.completion.chunk."""

    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"

    def opening(self, floe: Json) -> Json | None:
        """The chunk that names the role."""
        own: Json = {"delta": {"role": "assistant", "content": ""}}
        return self._chunk(own, (), reason=None, floe=floe)

    def _whole_choice(self, text: str) -> Json:
        return {"message": {"role": "assistant", "content": text, "refusal": None}}

    def _chunk_choice(self, text: str | None) -> Json:
        return {"delta": {} if text is None else {"content": text}}


class CompletionReply(Reply):
    """text_completion, whole or in chunks."""

    whole_object = "text_completion"
    chunk_object = "text_completion"

    def opening(self, floe: Json) -> Json | None:  # noqa: ARG002 - completions have no role chunk
        """Nothing: a completion's stream begins with its first text."""
        return None

    def _whole_choice(self, text: str) -> Json:
        return {"text": text}

    def _chunk_choice(self, text: str | None) -> Json:
        return {"text": text or ""}


def reply_for(ask: Ask, *, created_s: int, fingerprint: str | None) -> Reply:
    """The shapes that this ask wants."""
    top = ask.request.top_log_probs
    if ask.kind == "chat":
        chat = ChatLogProbs(top=top) if ask.log_probs else None
        return ChatReply(ask=ask, created_s=created_s, fingerprint=fingerprint, log_probs=chat)
    legacy = CompletionLogProbs(top=top) if ask.log_probs else None
    return CompletionReply(ask=ask, created_s=created_s, fingerprint=fingerprint, log_probs=legacy)
