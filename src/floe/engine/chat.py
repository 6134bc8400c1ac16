"""Messages to token ids by the model's own chat template, rendered as transformers does.

A control token written by the user stays text: it can never open or close a turn.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from floe.core.errors import BadModel, BadRequest
from floe.core.request import Message, Request

_FENCES = [(chr(i), chr(i + 1)) for i in range(0xE000, 0xF8FF, 2)]  # private-use characters


class ChatFormat:
    """Encode requests for one model. `tokenize(text, special)` is the engine's."""

    def __init__(
        self,
        *,
        template: str | None,
        tokenize: Callable[[str, bool], list[int]],
        control_texts: Sequence[str],
        bos_text: str = "",
        eos_text: str = "",
    ) -> None:
        self._source, self._tokenize = template, tokenize
        self._control_texts = tuple(sorted((c for c in control_texts if c), key=len, reverse=True))
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}

    @cached_property
    def _template(self) -> Any:
        if not self._source:
            raise BadModel("the model has no chat template; use /v1/completions with a prompt")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_Generation, "jinja2.ext.loopcontrols"],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        try:
            return environment.from_string(self._source)
        except TemplateError as error:
            raise BadModel(f"the model's chat template cannot be read: {error}") from error

    def encode(self, request: Request) -> list[int]:
        """Token ids of a request, up to where the answer begins.

        Raises:
            BadRequest: empty, or a turn order the model's template refuses.
            BadModel: no template, or one that cannot be rendered.
        """
        if request.prompt is not None:
            ids = self._tokenize(request.prompt, False)
        else:
            ids = self._encode_messages(request.messages)
        if not ids:
            raise BadRequest("the prompt is empty; send some text", param="prompt")
        return ids

    def _encode_messages(self, messages: Sequence[Message]) -> list[int]:
        texts = [m.content for m in messages]
        left, right = _fences(texts)
        fenced = [self._written.sub(rf"{left}\g<0>{right}", text) for text in texts]
        parts = re.split(f"{left}([^{left}{right}]*){right}", self._render(messages, fenced))
        if any(left in part or right in part for part in parts):
            raise BadModel("the model's chat template takes the messages apart; use a prompt")
        ids: list[int] = []
        for i, part in enumerate(parts):
            ids += self._tokenize(part, i % 2 == 0)  # within fences: as the user wrote it
        return ids

    @cached_property
    def _written(self) -> re.Pattern[str]:
        """Control tokens as a user may write them, the longest first; nothing if there are none."""
        return re.compile("|".join(map(re.escape, self._control_texts)) or "(?!)")

    def _render(self, messages: Sequence[Message], texts: Sequence[str]) -> str:
        turns = [{"role": m.role, "content": text} for m, text in zip(messages, texts, strict=True)]
        template = self._template
        try:
            return str(
                template.render(
                    messages=turns,
                    tools=None,
                    documents=None,
                    add_generation_prompt=True,
                    **self._tokens,
                )
            )
        except BadRequest:
            raise
        except Exception as error:  # the template is the model's code: it may raise anything
            kind = type(error).__name__
            raise BadModel(f"the model's chat template failed on these roles ({kind})") from error


def _fences(texts: Sequence[str]) -> tuple[str, str]:
    """Two characters that no text contains, to mark where the user wrote a control token."""
    used = frozenset().union(*texts)
    for fence in _FENCES:
        if used.isdisjoint(fence):
            return fence
    raise BadRequest("the messages use every private-use character", param="messages")


class _Generation(Extension):
    """`{% generation %}`: marks the model's own turns for training; transparent here."""

    tags = {"generation"}  # noqa: RUF012 (as the base class declares it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(value: object, indent: int | None = None) -> str:
    """JSON as transformers writes it: no HTML escapes, no ASCII escapes."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(reason: str) -> None:
    """What a template calls for an order of turns it does not know."""
    raise BadRequest(f"the model's chat template refuses the messages: {reason}", param="messages")
