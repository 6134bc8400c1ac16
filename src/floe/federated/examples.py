"""A device's own examples: read from JSON lines, split once and for all by their prompts.

Texts stay out of every message and every repr: an error names the file and the line alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from floe.core.errors import BadRequest, NotFound

MAX_EXAMPLES = 100_000
MAX_LINE_BYTES = 1 << 20
ROLES = ("system", "user", "assistant")
_FORMS = 'either {"prompt": ..., "answer": ...} or {"messages": [..., the assistant\'s last]}'


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One message of a chat; `role` is one of `ROLES`."""

    role: str
    content: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Example:
    """What is shown (`turns`, the last of them not the assistant's) and what is to be answered."""

    turns: tuple[Turn, ...] = field(repr=False)
    answer: str = field(repr=False)

    @classmethod
    def of(cls, prompt: str, answer: str) -> Example:
        """One question and its answer."""
        return cls(turns=(Turn(role="user", content=prompt),), answer=answer)


@dataclass(frozen=True, kw_only=True)
class ExampleSplit:
    """Examples to learn from, and others with other prompts to judge by."""

    train: tuple[Example, ...]
    validation: tuple[Example, ...]

    @property
    def size(self) -> int:
        """How many there are in all."""
        return len(self.train) + len(self.validation)


def read_examples(path: Path) -> tuple[Example, ...]:
    """Every example of a file of JSON lines; empty lines are passed over.

    Raises:
        NotFound: no such file.
        BadRequest: no example, too many, a line too long or in neither form; no text is quoted.
    """
    if not path.is_file():
        raise NotFound(f"there is no file of examples at {path}", param="examples")
    with path.open("rb") as file:
        out = tuple(_examples(file, path))
    if not out:
        raise BadRequest(f"{path} holds no example; write one a line, {_FORMS}", param="examples")
    return out


def split_examples(
    examples: Sequence[Example], *, validation_share: float = 0.1, salt: str = ""
) -> ExampleSplit:
    """The same split in every run: by a hash of the turns, so equal prompts stay on one side.

    Either side has at least one prompt; `salt` gives another split.

    Raises:
        BadRequest: fewer than two different prompts, or a share outside (0, 1).
    """
    if not 0.0 < validation_share < 1.0:
        raise BadRequest("validation_share must lie between 0 and 1", param="validation_share")
    places = [_place(e, salt) for e in examples]
    ordered = sorted(set(places))
    if len(ordered) < 2:
        raise BadRequest(
            f"{len(ordered)} different prompts are too few: at least 2 are needed, one to learn "
            "from and one to judge by",
            param="examples",
        )
    limit = min(max(validation_share, ordered[0]), ordered[-2])
    sides = list(zip(examples, places, strict=True))
    return ExampleSplit(
        train=tuple(e for e, place in sides if place > limit),
        validation=tuple(e for e, place in sides if place <= limit),
    )


def _place(example: Example, salt: str) -> float:
    """A number in [0, 1) that depends on the turns alone."""
    data = json.dumps([salt, *([t.role, t.content] for t in example.turns)]).encode()
    return int.from_bytes(hashlib.sha256(data).digest()[:6], "big") / 2.0**48


def _examples(file: BinaryIO, path: Path) -> Iterator[Example]:
    count, number = 0, 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        where = f"line {number} of {path}"
        if len(line) > MAX_LINE_BYTES:
            raise BadRequest(f"{where} is longer than {MAX_LINE_BYTES} bytes", param="examples")
        if not line.strip():
            continue
        count += 1
        if count > MAX_EXAMPLES:
            raise BadRequest(f"{path} holds more than {MAX_EXAMPLES} examples", param="examples")
        yield _example(line, where)


def _example(line: bytes, where: str) -> Example:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        # The decoder's own message may quote the line, so the error stands alone.
        raise BadRequest(f"{where} is not JSON in UTF-8", param="examples") from None
    if isinstance(value, dict) and "messages" in value:
        return _chat(value["messages"], where)
    if isinstance(value, dict) and _is_text(value.get("prompt")) and _is_text(value.get("answer")):
        return Example.of(value["prompt"], value["answer"])
    raise BadRequest(f"{where} is no example: {_FORMS}, with texts that are not empty")


def _chat(messages: Any, where: str) -> Example:
    if not isinstance(messages, list) or len(messages) < 2:
        raise BadRequest(f"{where}: messages must be a list of two or more", param="examples")
    turns = []
    for n, message in enumerate(messages, start=1):
        if not (
            isinstance(message, dict)
            and message.get("role") in ROLES
            and _is_text(message.get("content"))
        ):
            raise BadRequest(
                f"{where}: message {n} needs a role ({', '.join(ROLES)}) and a content that is "
                "a text and not empty",
                param="examples",
            )
        turns.append(Turn(role=message["role"], content=message["content"]))
    if turns[-1].role != "assistant" or turns[-2].role != "user":
        raise BadRequest(
            f"{where}: a chat to learn from ends with the assistant's answer to the user",
            param="examples",
        )
    return Example(turns=tuple(turns[:-1]), answer=turns[-1].content)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str) or not value.strip():
        return False
    # A lone surrogate cannot be tokenized; JSON can write one.
    return not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
