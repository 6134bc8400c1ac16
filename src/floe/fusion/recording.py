"""What both models said over reference answers, kept on disk: one npz, no pickle.

T = places (tokens of the SLM) over all items, H = the SLM's likeliest tokens that are kept,
P = places of the cloud over all items, K = its candidates, I = items, V = the SLM's real ids.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from floe.core.advice import FOREIGN, Advice, Candidate
from floe.core.errors import BadRequest
from floe.core.files import atomic_write

VERSION = 1
HEAD = 512
END = np.int32(-1)
_SHAPE = re.compile("_[A-Z]+$")


@dataclass(frozen=True, kw_only=True)
class Spoken:
    """One reference answer under both models.

    `ids` are the SLM's tokens, `log_q_T` their log-probabilities, `head_TH` the ids it finds
    likeliest at each place with `log_head_TH`; `advices` the cloud's where its own tokens begin;
    `llm_log_prob` the cloud's log-probability (nats) of the whole answer, NaN if unknown.
    """

    name: str
    data: bytes
    ids: Sequence[int]
    log_q_T: NDArray[np.float32]
    head_TH: NDArray[np.int32]
    log_head_TH: NDArray[np.float32]
    advices: Sequence[Advice]
    llm_log_prob: float = float("nan")


def spoken(
    *,
    name: str,
    data: bytes,
    ids: Sequence[int],
    log_q_TV: NDArray[np.float32],
    advices: Sequence[Advice],
    llm_log_prob: float = float("nan"),
) -> Spoken:
    """One answer, with the SLM's distributions `log_q_TV` before its tokens cut to their head."""
    ids_T = np.array(ids, dtype=np.int32)
    n_head = min(HEAD, log_q_TV.shape[1])
    head_TH = np.argpartition(-log_q_TV, n_head - 1, axis=1)[:, :n_head]
    return Spoken(
        name=name,
        data=data,
        ids=ids,
        log_q_T=log_q_TV[np.arange(len(ids_T)), ids_T].astype(np.float32),
        head_TH=head_TH.astype(np.int32),
        log_head_TH=np.take_along_axis(log_q_TV, head_TH, axis=1).astype(np.float32),
        advices=advices,
        llm_log_prob=llm_log_prob,
    )


@dataclass(frozen=True, kw_only=True)
class Recording:
    """Many answers, flat. `facts` says where they come from (models, digests, data, adapter)."""

    facts: dict[str, Any]
    names: tuple[str, ...]
    pieces: tuple[bytes, ...]
    eos_ids: frozenset[int]
    cloud_pieces: tuple[bytes, ...]
    item_bytes_I: NDArray[np.int32]
    llm_log_prob_I: NDArray[np.float64]
    set_I: NDArray[np.int32]
    item_T: NDArray[np.int32]
    start_T: NDArray[np.int32]
    id_T: NDArray[np.int32]
    log_q_T: NDArray[np.float32]
    head_TH: NDArray[np.int32]
    log_head_TH: NDArray[np.float32]
    item_P: NDArray[np.int32]
    start_P: NDArray[np.int32]
    candidate_PK: NDArray[np.int32]
    log_p_PK: NDArray[np.float32]

    def groups(self) -> list[str]:
        """A name for the text of each answer: the same text has the same one everywhere."""
        firsts = np.searchsorted(self.item_T, np.arange(len(self.item_bytes_I) + 1))
        rows = [self.id_T[a:b].tobytes() for a, b in pairwise(firsts.tolist())]
        return [hashlib.sha256(row).hexdigest()[:16] for row in rows]

    def edge(self, place: int) -> NDArray[np.float32]:
        """The SLM's distribution at a place: exact for its head, the rest spread evenly."""
        head, logs = self.head_TH[place], self.log_head_TH[place]
        rest = max(1.0 - float(np.exp(logs, dtype=np.float64).sum()), 1e-9)
        n_rest = max(len(self.pieces) - len(head), 1)
        out_V = np.full(len(self.pieces), np.log(rest / n_rest), dtype=np.float32)
        out_V[head] = logs
        out_V[self.id_T[place]] = self.log_q_T[place]
        return out_V

    def advice_at(self, item: int, *, top_k: int) -> dict[int, Advice]:
        """The cloud's advice in one answer by byte offset, cut to the best `top_k`."""
        rows = np.flatnonzero(self.item_P == item)
        return {int(self.start_P[r]): self._advice(int(r), top_k) for r in rows}

    def _advice(self, row: int, top_k: int) -> Advice:
        sent = np.flatnonzero(np.isfinite(self.log_p_PK[row]))[:top_k]
        found = zip(self.candidate_PK[row, sent], self.log_p_PK[row, sent], strict=True)
        return Advice(
            offset_bytes=int(self.start_P[row]),
            tokenizer=self.facts.get("cloud_tokenizer", FOREIGN),
            candidates=tuple(
                Candidate(
                    data=b"" if c == END else self.cloud_pieces[c],
                    log_prob=float(log_p),
                    end=bool(c == END),
                )
                for c, log_p in found
            ),
        )


def record(
    answers: Sequence[Spoken],
    *,
    pieces: Sequence[bytes],
    eos_ids: frozenset[int],
    facts: dict[str, Any],
    top_k: int = 64,
) -> Recording:
    """Both models over the answers, with the SLM's HEAD best tokens a place.

    Raises:
        BadRequest: no answer, or one whose SLM tokens do not give its bytes back.
    """
    if not answers:
        raise BadRequest("there is nothing to record: no answer is left")
    names = tuple(dict.fromkeys(s.name for s in answers))
    cloud_ids: dict[bytes, int] = {}
    slm = [_slm_rows(i, s, pieces) for i, s in enumerate(answers)]
    cloud = [_cloud_rows(i, s, cloud_ids, top_k) for i, s in enumerate(answers)]
    item_T, start_T, id_T, log_q_T, head_TH, log_head_TH = map(
        np.concatenate, zip(*slm, strict=True)
    )
    item_P, start_P, candidate_PK, log_p_PK = map(np.concatenate, zip(*cloud, strict=True))
    return Recording(
        facts={"version": VERSION, **facts},
        names=names,
        pieces=tuple(pieces),
        eos_ids=eos_ids,
        cloud_pieces=tuple(cloud_ids),
        item_bytes_I=np.array([len(s.data) for s in answers], dtype=np.int32),
        llm_log_prob_I=np.array([s.llm_log_prob for s in answers]),
        set_I=np.array([names.index(s.name) for s in answers], dtype=np.int32),
        item_T=item_T,
        start_T=start_T,
        id_T=id_T,
        log_q_T=log_q_T,
        head_TH=head_TH,
        log_head_TH=log_head_TH,
        item_P=item_P,
        start_P=start_P,
        candidate_PK=candidate_PK,
        log_p_PK=log_p_PK,
    )


def _slm_rows(item: int, s: Spoken, pieces: Sequence[bytes]) -> tuple[NDArray[Any], ...]:
    if b"".join(pieces[t] for t in s.ids) != s.data:
        raise BadRequest(f"the SLM's tokens do not give answer {item} back byte for byte")
    ends = np.cumsum([len(pieces[t]) for t in s.ids])
    return (
        np.full(len(s.ids), item, dtype=np.int32),
        np.concatenate([[0], ends[:-1]]).astype(np.int32),
        np.array(s.ids, dtype=np.int32),
        s.log_q_T,
        s.head_TH,
        s.log_head_TH,
    )


def _cloud_rows(
    item: int, s: Spoken, cloud_ids: dict[bytes, int], top_k: int
) -> tuple[NDArray[Any], ...]:
    candidate_PK = np.full((len(s.advices), top_k), END, dtype=np.int32)
    log_p_PK = np.full((len(s.advices), top_k), -np.inf, dtype=np.float32)
    for row, advice in enumerate(s.advices):
        best = sorted(advice.candidates, key=lambda c: -c.log_prob)[:top_k]
        for k, c in enumerate(best):
            candidate_PK[row, k] = END if c.end else cloud_ids.setdefault(c.data, len(cloud_ids))
            log_p_PK[row, k] = c.log_prob
    return (
        np.full(len(s.advices), item, dtype=np.int32),
        np.array([a.offset_bytes for a in s.advices], dtype=np.int32),
        candidate_PK,
        log_p_PK,
    )


def save(recording: Recording, path: Path) -> None:
    """Write it, whole or not at all."""
    arrays = {
        f.name: getattr(recording, f.name) for f in fields(Recording) if _SHAPE.search(f.name)
    }
    for name in ("pieces", "cloud_pieces"):
        arrays |= _packed(name, getattr(recording, name))
    text = {
        "facts": recording.facts,
        "names": recording.names,
        "eos_ids": sorted(recording.eos_ids),
    }
    with atomic_write(path) as file:
        np.savez_compressed(
            file, text=np.frombuffer(json.dumps(text).encode(), dtype=np.uint8), **arrays
        )


def load(path: Path) -> Recording:
    """A recording from disk.

    Raises:
        BadRequest: no such file, or not a recording of this version.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            arrays = dict(data)
        text = json.loads(arrays.pop("text").tobytes())
        if text["facts"]["version"] != VERSION:
            raise ValueError("another version")
        return Recording(
            facts=text["facts"],
            names=tuple(text["names"]),
            eos_ids=frozenset(text["eos_ids"]),
            pieces=_unpacked("pieces", arrays),
            cloud_pieces=_unpacked("cloud_pieces", arrays),
            **arrays,
        )
    except (OSError, EOFError, BadZipFile, ValueError, KeyError, TypeError) as error:
        raise BadRequest(
            f"{path} is no fusion recording of version {VERSION}; make one with: "
            "python scripts/record_fusion.py"
        ) from error


def _packed(name: str, pieces: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    return {
        f"{name}_data": np.frombuffer(b"".join(pieces), dtype=np.uint8),
        f"{name}_lengths": np.array([len(p) for p in pieces], dtype=np.int32),
    }


def _unpacked(name: str, arrays: dict[str, Any]) -> tuple[bytes, ...]:
    data = arrays.pop(f"{name}_data").tobytes()
    ends = np.cumsum(arrays.pop(f"{name}_lengths"))
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    return tuple(data[a:b] for a, b in zip(starts, ends, strict=True))
