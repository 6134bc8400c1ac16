"""Messages to token ids by the model's own chat template, rendered as transformers does.

A control token written by the user stays text: it can never open or close a turn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any

from jinja2 import TemplateError
from jinja2.exceptions import SecurityError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from floe.core.errors import BadModel, BadRequest
from floe.core.request import Message, Request

_FENCE = "\ue000"  # private use: splits the template's text from the user's


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
        self._control_texts = tuple(c for c in control_texts if c)
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}

    @cached_property
    def _template(self) -> Any:
        if not self._source:
            raise BadModel("the model has no chat template; use /v1/completions with a prompt")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
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
        texts = [m.content.replace(_FENCE, "") for m in messages]
        if not any(c in text for text in texts for c in self._control_texts):
            return self._tokenize(self._render(messages, texts), True)
        marks = [f"{_FENCE}{i}{_FENCE}" for i in range(len(texts))]
        ids: list[int] = []
        for i, part in enumerate(self._render(messages, marks).split(_FENCE)):
            is_text = i % 2 == 1
            ids += self._tokenize(texts[int(part)] if is_text else part, not is_text)
        return ids

    def _render(self, messages: Sequence[Message], texts: Sequence[str]) -> str:
        turns = [{"role": m.role, "content": text} for m, text in zip(messages, texts, strict=True)]
        try:
            return str(
                self._template.render(messages=turns, add_generation_prompt=True, **self._tokens)
            )
        except BadRequest:
            raise
        except (TemplateError, SecurityError, TypeError, ValueError) as error:
            kind = type(error).__name__
            raise BadModel(f"the model's chat template failed on these roles ({kind})") from error


def _refuse(reason: str) -> None:
    """What a template calls for an order of turns it does not know."""
    raise BadRequest(f"the model's chat template refuses the messages: {reason}", param="messages")
