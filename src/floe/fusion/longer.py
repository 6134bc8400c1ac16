"""SLM tokens that are longer than the cloud token they begin with.

Another tokenizer parts some text where the SLM has one token. For "\\n   " one writes "\\n" and
then the blanks; its candidate "\\n" is then for "\\n   " as well. Which tokens these are follows
from the cloud's tokenizer: those that are none of its tokens, by the first of the tokens it parts
them into. The map is computed once and kept by the digests of the two tokenizers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadRequest
from floe.core.files import atomic_write

Ids = NDArray[np.int64]
Longer = Mapping[bytes, Ids]
"""By a cloud token's bytes: the longer SLM tokens that the cloud begins with it."""
_BLANK = b" \t\r\n"
SHIPPED = Path(__file__).parent / "data"


def longer_tokens(
    *,
    pieces: Sequence[bytes],
    cloud_pieces: Sequence[bytes],
    cloud_tokenize: Callable[[str], Sequence[int]],
) -> dict[bytes, Ids]:
    """The map for two tokenizers; empty where the cloud has every token of the SLM's.

    `pieces` are the bytes of the SLM's ids, `cloud_pieces` those of the cloud's. A piece that is
    no text of its own (part of a character) is left out: the cloud meets it only inside one.
    """
    own = frozenset(cloud_pieces)
    found: dict[bytes, list[int]] = {}
    for token, piece in enumerate(pieces):
        text = "" if piece in own else _text(piece)
        first = next(iter(cloud_tokenize(text)), None) if text else None
        if first is None:
            continue
        begun = cloud_pieces[first]
        if 0 < len(begun) < len(piece) and piece.startswith(begun):
            found.setdefault(begun, []).append(token)
    return {begun: np.array(ids, dtype=np.int64) for begun, ids in found.items()}


def _text(piece: bytes) -> str:
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return ""


class LongerBlanks:
    """The map for a tokenizer that is not known: runs of blanks, by the longest beginning sent.

    Words are left alone: a cloud that can write " they" says so itself.
    """

    def __init__(self, ids: Mapping[bytes, int]) -> None:
        self._ids = ids
        found: dict[bytes, list[int]] = {}
        for piece, token in ids.items():
            if not piece.strip(_BLANK):
                for length in range(1, len(piece)):
                    found.setdefault(piece[:length], []).append(token)
        self._by_begin = found

    def of(self, candidates: Sequence[bytes]) -> dict[int, Ids]:
        """By place among the candidates: the longer tokens that no longer candidate begins."""
        blanks = [n for n, data in enumerate(candidates) if data and not data.strip(_BLANK)]
        taken = {self._ids[candidates[n]] for n in blanks if candidates[n] in self._ids}
        out: dict[int, Ids] = {}
        for n in sorted(blanks, key=lambda n: -len(candidates[n])):
            free = [t for t in self._by_begin.get(candidates[n], ()) if t not in taken]
            taken.update(free)
            if free:
                out[n] = np.array(free, dtype=np.int64)
        return out


class LongerMaps:
    """Maps by the cloud tokenizer's digest, from the user's folder or from those shipped.

    A digest without a file is remembered as such, so a place costs one look-up. Thread-safe for
    reading: at worst a file is read twice.
    """

    def __init__(self, *, own_tokenizer: str, n_vocab: int, folder: Path) -> None:
        self._own, self._n_vocab = own_tokenizer, n_vocab
        self._folders = (folder, SHIPPED)
        self._known: dict[str, Longer | None] = {}

    def __call__(self, cloud_tokenizer: str) -> Longer | None:
        """The map for this cloud, empty for the SLM's own; None where the pair has no file.

        Raises:
            BadRequest: a file that is no map of these two tokenizers.
        """
        if cloud_tokenizer == self._own:
            return {}
        if cloud_tokenizer not in self._known:
            found = (f / map_name(self._own, cloud_tokenizer) for f in self._folders)
            path = next((p for p in found if p.is_file()), None)
            self._known[cloud_tokenizer] = (
                None
                if path is None
                else load_map(path, pair=(self._own, cloud_tokenizer), n_vocab=self._n_vocab)
            )
        return self._known[cloud_tokenizer]


def map_name(own_tokenizer: str, cloud_tokenizer: str) -> str:
    """The file name of a pair."""
    return f"longer-{own_tokenizer[:16]}-{cloud_tokenizer[:16]}.npz"


def save_map(longer: Longer, path: Path, *, pair: tuple[str, str]) -> None:
    """Write a map with the digests of the SLM's and the cloud's tokenizer."""
    begun = sorted(longer)
    with atomic_write(path) as file:
        np.savez_compressed(
            file,
            pair=np.frombuffer(" ".join(pair).encode(), dtype=np.uint8),
            begun=np.frombuffer(b"".join(begun), dtype=np.uint8),
            lengths=np.array([len(b) for b in begun], dtype=np.int32),
            counts=np.array([len(longer[b]) for b in begun], dtype=np.int32),
            ids=np.concatenate([longer[b] for b in begun] or [np.zeros(0, dtype=np.int64)]).astype(
                np.int32
            ),
        )


def load_map(path: Path, *, pair: tuple[str, str], n_vocab: int) -> dict[bytes, Ids]:
    """A map from disk.

    Raises:
        BadRequest: not a map, or of another pair of tokenizers.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            if data["pair"].tobytes().decode() != " ".join(pair):
                raise ValueError("another pair")
            blob, ids = data["begun"].tobytes(), data["ids"].astype(np.int64)
            ends, cuts = _cuts(data["lengths"], len(blob)), _cuts(data["counts"], len(ids))
        if len(ends) != len(cuts) or (ids < 0).any() or (ids >= n_vocab).any():
            raise ValueError("its parts do not fit together")
    except (OSError, EOFError, BadZipFile, ValueError, KeyError) as error:
        raise BadRequest(
            f"{path} is no map of these two tokenizers; delete it or make it anew with: "
            "floe fusion map CLOUD_MODEL"
        ) from error
    return {
        blob[a:b]: ids[c:d] for (a, b), (c, d) in zip(pairwise(ends), pairwise(cuts), strict=True)
    }


def _cuts(lengths: NDArray[np.int32], total: int) -> list[int]:
    cuts = [0, *accumulate(lengths.tolist())]
    if cuts[-1] != total or min(lengths.tolist(), default=1) < 1:
        raise ValueError("its lengths do not fit")
    return cuts
