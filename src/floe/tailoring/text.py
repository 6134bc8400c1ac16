"""Calibration text: WikiText-2 as people write, in windows of tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path

from floe.core.errors import BadRequest, NotFound

_JOINED = re.compile(r" @([-,.])@ ")
_BEFORE = re.compile(r" ([.,;:!?%)\]}]|'s|'t|'re|'ve|'ll|'d|'m|n't)(?=\s|$)")
_AFTER = re.compile(r"([(\[{$£]) ")
_QUOTED = re.compile(r'" ([^"\n]*?) "')


def sample_text() -> str:
    """The sample of WikiText-2's validation part that comes with Floe (CC BY-SA 3.0)."""
    source = files("floe.tailoring") / "data" / "wikitext2_valid_sample.txt"
    return detokenized(source.read_text(encoding="utf-8"))


def read_text(path: Path) -> str:
    """A text file, WikiText's marks undone.

    Raises:
        NotFound: no such file. BadRequest: it is not UTF-8 text.
    """
    try:
        return detokenized(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise NotFound(f"no calibration text at {path}") from error
    except UnicodeDecodeError as error:
        raise BadRequest(f"{path} is not UTF-8 text", param="text") from error


def detokenized(text: str) -> str:
    """WikiText's word-level form as plain text; `<unk>` stays, other text is left as it is."""
    if " @-@ " not in text and " @,@ " not in text:
        return text
    text = _JOINED.sub(r"\1", text)
    text = _QUOTED.sub(r'"\1"', text)
    text = _BEFORE.sub(r"\1", text)
    text = _AFTER.sub(r"\1", text)
    return re.sub(r" ?\n ?", "\n", text).replace(" – ", "–").replace(" ' ", "' ")


def windows(
    ids: Sequence[int], *, n_windows: int, width: int, first: int | None = None
) -> list[list[int]]:
    """`n_windows` stretches of `width` ids, evenly spread over the text, none overlapping.

    `first` is put before each (a begin token that the model expects), within the width.

    Raises:
        BadRequest: the text is too short.
    """
    own = width - (first is not None)
    room = len(ids) // own
    if room < n_windows or n_windows < 1 or own < 1:
        raise BadRequest(
            f"the text has {len(ids)} tokens, {n_windows} windows of {width} need "
            f"{n_windows * own}; give a longer text or ask for fewer windows",
            param="text",
        )
    starts = [own * (n * room // n_windows) for n in range(n_windows)]
    prefix = [] if first is None else [first]
    return [[*prefix, *ids[s : s + own]] for s in starts]
