"""Files with texts and what is private in them, as users have them: JSON lines, Presidio, TSV."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from floe.core.errors import BadRequest

_ENTITY = ("entity", "entity_type", "label", "type")
_START = ("start", "start_position")
_END = ("end", "end_position")
_TEXT = ("text", "full_text", "sentence")
_YES = frozenset({"1", "true", "yes", "private"})
_NO = frozenset({"0", "false", "no", "", "-", "o", "public"})


@dataclass(frozen=True, kw_only=True)
class Gold:
    """A private place by the user's own word: [start, end) in code points."""

    entity: str
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A text, whether it is private, and where; `spans` None = the file does not say where."""

    line: int
    text: str
    private: bool
    spans: tuple[Gold, ...] | None


def read_labelled(lines: Iterable[str]) -> Iterator[Labelled]:
    """The texts of a file, by its lines.

    A line is {"text", "spans": [{"entity", "start", "end"}]} or {"text", "private": true}, or text
    and label with a tab between (1 or 0, or names of entities). A file that begins with "[" is one
    JSON list of such objects, as Presidio's data generator writes it ("full_text",
    "entity_type", "start_position", "end_position").

    Raises:
        BadRequest: a line that is none of these; it names the line, never the text.
    """
    first = True
    source = iter(lines)
    for number, line in enumerate(source, start=1):
        if not line.strip():
            continue
        if first and line.lstrip().startswith("["):
            yield from _listed("\n".join([line, *source]))
            return
        first = False
        yield _of_line(line.rstrip("\r\n"), number)


def _listed(text: str) -> Iterator[Labelled]:
    try:
        items = json.loads(text)
    except ValueError as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadRequest(f"the file begins with [ but is no JSON list{where}") from None
    for number, item in enumerate(items, start=1):
        yield _of_object(item, number, what="item")


def _of_line(line: str, number: int) -> Labelled:
    if line.lstrip().startswith("{"):
        try:
            return _of_object(json.loads(line), number, what="line")
        except ValueError:
            raise BadRequest(f"line {number} is not valid JSON") from None
    text, tab, label = line.rpartition("\t")
    if not tab:
        raise BadRequest(
            f"line {number} has no label: write a JSON object, or the text, a tab and 1 or 0"
        )
    known = label.strip().lower()
    return Labelled(line=number, text=text, private=known not in _NO, spans=None)


def _of_object(item: Any, number: int, *, what: str) -> Labelled:
    where = f"{what} {number}"
    if not isinstance(item, Mapping):
        raise BadRequest(f"{where} is not a JSON object")
    text = _first(item, _TEXT)
    if not isinstance(text, str):
        raise BadRequest(f'{where} has no "text"')
    spans = item.get("spans", item.get("entities"))
    if spans is None:
        private = item.get("private")
        if not isinstance(private, bool):
            raise BadRequest(f'{where} needs "spans", or "private" with true or false')
        return Labelled(line=number, text=text, private=private, spans=None)
    if not isinstance(spans, list):
        raise BadRequest(f'{where}: "spans" must be a list')
    gold = tuple(_gold(span, text, where) for span in spans)
    return Labelled(line=number, text=text, private=bool(gold), spans=gold)


def _gold(span: Any, text: str, where: str) -> Gold:
    if not isinstance(span, Mapping):
        raise BadRequest(f"{where}: a span must be an object")
    entity, start, end = _first(span, _ENTITY), _first(span, _START), _first(span, _END)
    if not isinstance(entity, str) or type(start) is not int or type(end) is not int:
        raise BadRequest(f'{where}: a span needs "entity", "start" and "end"')
    if not 0 <= start < end <= len(text):
        raise BadRequest(f"{where}: a span lies outside of its text")
    return Gold(entity=entity, start=start, end=end)


def _first(item: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((item[name] for name in names if name in item), None)
