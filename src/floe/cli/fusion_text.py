"""Answers from files, and what both models say over them. T = answer tokens, V = vocabulary."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from floe.cli.common import say
from floe.core.advice import Advice, Question
from floe.core.errors import BadRequest
from floe.core.request import Message, Request
from floe.fusion.recording import Recording, Spoken, record, spoken

if TYPE_CHECKING:
    from floe.assemble import Edge

_PROMPTS = ("prompt", "question", "instruction", "input")
_ANSWERS = ("answer", "completion", "response", "output")
_MOST_ANSWER_BYTES = 1_500
_LEAST_WORDS = 30


@dataclass(frozen=True, kw_only=True)
class TextPair:
    """What was asked and the answer to learn from; `chat` false for running text."""

    name: str
    prompt: str
    answer: str
    chat: bool


def read_pairs(files: Sequence[Path], *, limit: int) -> list[TextPair]:
    """The answers in the files, at most `limit`, taken evenly.

    JSONL lines have a prompt and an answer; other files are running text, whose paragraphs are
    each parted: the first third is the prompt.

    Raises:
        BadRequest: an unreadable file, or a line without prompt and answer (never quoted).
    """
    pairs = [p for f in files for p in (_lines(f) if f.suffix == ".jsonl" else _text(f))]
    if not pairs:
        raise BadRequest("there is no answer in these files", param="files")
    step = max(1.0, len(pairs) / limit)
    return [pairs[int(i * step)] for i in range(min(limit, len(pairs)))]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {path} as UTF-8 text", param="files") from error


def _lines(path: Path) -> list[TextPair]:
    out = []
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt = next(row[k] for k in _PROMPTS if isinstance(row.get(k), str))
            answer = next(row[k] for k in _ANSWERS if isinstance(row.get(k), str))
        except (ValueError, AttributeError, StopIteration):
            raise BadRequest(
                f"line {number} of {path} must be an object with prompt and answer", param="files"
            ) from None
        out.append(TextPair(name=path.stem, prompt=prompt, answer=_cut(answer), chat=True))
    return [p for p in out if p.answer]


def _text(path: Path) -> list[TextPair]:
    out = []
    for paragraph in _read(path).split("\n\n"):
        words = paragraph.split(" ")
        if len(words) < _LEAST_WORDS:
            continue
        at = len(words) // 3
        head, rest = " ".join(words[:at]), " " + " ".join(words[at:])
        out.append(TextPair(name=path.stem, prompt=head, answer=_cut(rest), chat=False))
    return out


def _cut(answer: str) -> str:
    return answer.encode("utf-8", "replace")[:_MOST_ANSWER_BYTES].decode("utf-8", "ignore")


async def record_pairs(
    device: Edge, pairs: Sequence[TextPair], *, top_k: int, quiet: bool = False
) -> tuple[Recording, int]:
    """A recording of the pairs, and how many the privacy gate kept here.

    Raises:
        CloudFailed: the service does not answer; nothing is learned from half of the text.
        BadRequest: nothing may leave.
    """
    out: list[Spoken] = []
    tokenizer, skipped = "", 0
    for n, pair in enumerate(pairs):
        request = _request(pair)
        texts = (*request.texts(), ("answer", pair.answer))
        if not (await asyncio.to_thread(device.parts.gate.inspect, texts)).may_leave:
            skipped += 1
            continue
        said = await _spoken(device, pair, request)
        out.append(said)
        tokenizer = next((a.tokenizer for a in said.advices), tokenizer)
        if not quiet and n % 10 == 9:
            say(f"{n + 1} of {len(pairs)} answers")
    engine = device.engine
    info = engine.info
    facts = {
        "slm": info.digest,
        "slm_tokenizer": info.tokenizer_digest,
        "cloud_tokenizer": tokenizer or info.tokenizer_digest,
        "part": "user",
    }
    pieces = [engine.token_bytes(t) for t in range(info.n_vocab)]
    made = record(out, pieces=pieces, eos_ids=info.eos_ids, facts=facts, top_k=top_k)
    return made, skipped


def _request(pair: TextPair) -> Request:
    if not pair.chat:
        return Request(id="fusion-fit", prompt=pair.prompt)
    messages = (Message(role="user", content=pair.prompt),)
    return Request(id="fusion-fit", messages=messages)


async def _spoken(device: Edge, pair: TextPair, request: Request) -> Spoken:
    engine, data = device.engine, pair.answer.encode()
    ids = engine.tokenize(pair.answer)
    pieces = [engine.token_bytes(t) for t in ids]
    head = device.parts.encode(request)
    session = await asyncio.wrap_future(engine.session(max_tokens=len(head) + len(ids)))
    try:
        first_V = await asyncio.wrap_future(session.submit(head))
        rest = []
        if len(ids) > 1:
            rest = [await asyncio.wrap_future(session.submit(ids[:-1], every=True))]
        log_q_TV = np.concatenate([first_V[None, :], *rest])
    finally:
        session.close()
    cloud = device.parts.cloud
    assert cloud is not None
    ends = tuple(np.cumsum([len(p) for p in pieces]).tolist())
    async with cloud.open(request) as advise:
        advices = await advise(Question(answer=b"", draft=data, ends=ends))
    return spoken(
        name=pair.name,
        data=data,
        ids=ids,
        log_q_TV=log_q_TV,
        advices=advices,
        llm_log_prob=cloud_log_prob(advices, data),
    )


def cloud_log_prob(advices: Sequence[Advice], data: bytes) -> float:
    """The cloud's log-probability (nats) of `data`, by its own tokens.

    A token that is not among those sent counts as the least of them, so the cloud looks better
    than it is, never worse. NaN when a place is missing at the start.
    """
    if not advices or advices[0].offset_bytes != 0:
        return float("nan")
    ends = [a.offset_bytes for a in advices if a.offset_bytes < len(data)] + [len(data)]
    total = 0.0
    for advice, (start, end) in zip(advices, pairwise(ends), strict=False):
        known = {c.data: c.log_prob for c in advice.candidates}
        least = min(known.values(), default=0.0)
        total += known.get(data[start:end], least)
    return total
