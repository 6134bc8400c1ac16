"""The semantic score's weights: linear over cues, hashed words and an embedding, calibrated.

Legend: C cues, D width of the embedding, H hash places.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadModel
from floe.privacy.semantic_features import CUES, HASH_SIZE, Features

FloatArray = NDArray[np.float32]

FORMAT = "floe-semantic-1"
EMBEDDING_SCALE = 4.0
_MAX_BYTES = 4 << 20


@dataclass(frozen=True, kw_only=True, eq=False)
class Head:
    """`card` tells where the weights come from; p = 1 / (1 + exp(-(slope * logit + offset)))."""

    cues_C: FloatArray
    words_H: FloatArray
    chars_H: FloatArray
    plain_D: FloatArray
    first_D: FloatArray
    other_D: FloatArray
    known_words: frozenset[int]
    slope: float
    offset: float
    threshold: float
    encoder_digest: str
    card: Mapping[str, Any]

    def logit(self, seen: Features, vector_D: FloatArray | None) -> float:
        """The score before calibration; `vector_D` is the window's direction, None in Chinese."""
        cues_C = np.array(seen.cues, dtype=np.float32)
        score = float(cues_C @ self.cues_C)
        score += hashed(len(seen.words)) * float(self.words_H[list(seen.words)].sum())
        score += hashed(len(seen.chars)) * float(self.chars_H[list(seen.chars)].sum())
        if vector_D is not None and not seen.is_chinese:
            first, other = person(seen)
            weights_D = self.plain_D + first * self.first_D + other * self.other_D
            score += EMBEDDING_SCALE * float(vector_D @ weights_D)
        return score

    def probability(self, logit: float) -> float:
        """The calibrated probability that a window tells a private matter."""
        return 1 / (1 + math.exp(-max(-60.0, min(60.0, self.slope * logit + self.offset))))


def hashed(n_places: int) -> float:
    """What each of a window's hashed signs counts, so that long windows do not count more."""
    return 2.5 / math.sqrt(n_places + 4)


def person(seen: Features) -> tuple[float, float]:
    """Whether somebody speaks of themselves, and whether of another person."""
    cue = dict(zip(CUES, seen.cues, strict=True))
    return cue["has_first"], float(cue["has_third"] + cue["kin"] + cue["has_names"] > 0)


def save_head(head: Head, path: Path) -> None:
    """Write one .npz of plain arrays, half precision, with the card inside."""
    np.savez_compressed(
        path,
        cues=head.cues_C.astype(np.float16),
        words=head.words_H.astype(np.float16),
        chars=head.chars_H.astype(np.float16),
        plain=head.plain_D.astype(np.float16),
        first=head.first_D.astype(np.float16),
        other=head.other_D.astype(np.float16),
        known_words=np.array(sorted(head.known_words), dtype=np.uint32),
        card=np.frombuffer(json.dumps(dict(head.card), ensure_ascii=False).encode(), np.uint8),
    )


def load_head(path: Path) -> Head:
    """Read a head.

    Raises:
        BadModel: not such a file, or one made for other features.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadModel(f"{path} is too large for a semantic head")
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            data = {name: np.asarray(arrays[name]) for name in arrays.files}
        card = json.loads(data["card"].tobytes())
        if card["format"] != FORMAT or list(card["cues"]) != list(CUES):
            raise BadModel(f"{path} was made for other features; train it again")
        head = _head(data, card)
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile, EOFError) as error:
        raise BadModel(f"{path} is not a semantic head ({type(error).__name__})") from error
    _check(head, path)
    return head


def _head(data: Mapping[str, NDArray[Any]], card: Mapping[str, Any]) -> Head:
    def weights(name: str) -> FloatArray:
        return data[name].astype(np.float32)

    return Head(
        cues_C=weights("cues"),
        words_H=weights("words"),
        chars_H=weights("chars"),
        plain_D=weights("plain"),
        first_D=weights("first"),
        other_D=weights("other"),
        known_words=frozenset(int(i) for i in data["known_words"]),
        slope=float(card["slope"]),
        offset=float(card["offset"]),
        threshold=float(card["threshold"]),
        encoder_digest=str(card["encoder_digest"]),
        card=card,
    )


def _check(head: Head, path: Path) -> None:
    width = head.plain_D.shape
    shapes = {
        "cues": (head.cues_C, (len(CUES),)),
        "words": (head.words_H, (HASH_SIZE,)),
        "chars": (head.chars_H, (HASH_SIZE,)),
        "plain": (head.plain_D, (width[0] if width else 0,)),
        "first": (head.first_D, width),
        "other": (head.other_D, width),
    }
    for name, (array, shape) in shapes.items():
        if array.shape != shape or not np.isfinite(array).all():
            raise BadModel(f"{path}: the weights {name!r} have a wrong shape or are not finite")
    if not (0 < head.threshold < 1 and math.isfinite(head.slope) and math.isfinite(head.offset)):
        raise BadModel(f"{path}: the threshold or the calibration is no number that can be")


def shipped_head() -> Head:
    """The head that comes with Floe."""
    with as_file(files("floe.privacy").joinpath("semantic_data/head.npz")) as path:
        return load_head(path)
