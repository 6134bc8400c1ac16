"""A request's body: bounded in bytes and time, strict JSON."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from starlette.requests import Request as HttpRequest

from floe.core.errors import BadRequest
from floe.serving.errors import BodyTooLarge, BodyTooSlow, WrongContentType
from floe.serving.fields import members, shown


async def read_json(http: HttpRequest, *, max_bytes: int, within_s: float = 30.0) -> dict[str, Any]:
    """The JSON object that the body holds.

    Raises:
        WrongContentType, BodyTooLarge, BodyTooSlow, BadRequest: see `parse_json`.
    """
    kind = http.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise WrongContentType("the content-type must be application/json", param="content-type")
    if http.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise WrongContentType("send the body uncompressed", param="content-encoding")
    try:
        async with asyncio.timeout(within_s):
            return parse_json(await _read(http, max_bytes))
    except TimeoutError:
        raise BodyTooSlow(f"the body did not arrive within {within_s:g} s") from None


def parse_json(data: bytes) -> dict[str, Any]:
    """A JSON object, refused when it holds NaN, infinity, a key twice or too many levels.

    Raises:
        BadRequest: with what is wrong and, for bad syntax, where.
    """
    try:
        value = json.loads(
            data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_no_twins
        )
    except UnicodeDecodeError as error:
        raise BadRequest(f"the body is not valid UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise BadRequest(f"the body is not valid JSON: {error.msg} at {where}") from None
    except RecursionError:
        raise BadRequest("the body nests too many levels deep") from None
    except ValueError:
        raise BadRequest("the body holds a number with too many digits") from None
    return members(value, "the body")


async def _read(http: HttpRequest, max_bytes: int) -> bytes:
    announced = http.headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() and len(announced) < 20 else 0
    parts: list[bytes] = []
    if size <= max_bytes:
        size = 0
        async for part in http.stream():
            size += len(part)
            if size > max_bytes:
                break
            parts.append(part)
    if size > max_bytes:
        raise BodyTooLarge(
            f"the body is larger than {max_bytes} bytes (serve.max_body_bytes): send less text"
        )
    return b"".join(parts)


def _refuse_constant(name: str) -> NoReturn:
    raise BadRequest(f"the body holds {name}, which is not a JSON number")


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twin = shown(_first_twin(pairs))
        raise BadRequest(f'the field "{twin}" is given twice', param=twin)
    return found


def _first_twin(pairs: list[tuple[str, Any]]) -> str:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("called with distinct keys")
