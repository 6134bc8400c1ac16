"""Bytes in pieces that survive a broken connection: each with its checksum, in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from floe.core.errors import BadUpdate

CHUNK_BYTES = 1 << 20
MAX_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Piece `index` of `count`; `whole` names all `n_bytes` by their SHA-256, as `sha256` its own.

    All pieces but the last have `size` bytes.
    """

    whole: str
    n_bytes: int
    index: int
    count: int
    size: int
    sha256: str
    data: bytes


def chunks(
    data: bytes, *, size: int = CHUNK_BYTES, only: Collection[int] | None = None
) -> Iterator[Chunk]:
    """The pieces of `data`; after a broken transfer `only` those the other side misses."""
    if size < 1:
        raise ValueError(f"a piece has at least 1 byte, not {size}")
    whole, count = hashlib.sha256(data).hexdigest(), max(1, -(-len(data) // size))
    for index in range(count):
        if only is not None and index not in only:
            continue
        piece = data[index * size : (index + 1) * size]
        yield Chunk(
            whole=whole, n_bytes=len(data), index=index, count=count, size=size,
            sha256=hashlib.sha256(piece).hexdigest(), data=piece,
        )  # fmt: skip


class Reassembler:
    """Takes the pieces of one transfer in any order, some twice, and gives the bytes back.

    The first piece says how large the whole is: above `max_bytes` it is refused at once.
    """

    def __init__(self, *, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._first: Chunk | None = None
        self._pieces: dict[int, bytes] = {}

    @property
    def missing(self) -> tuple[int, ...]:
        """The pieces still to come; none before the first piece has said how many there are."""
        count = self._first.count if self._first else 0
        return tuple(i for i in range(count) if i not in self._pieces)

    @property
    def complete(self) -> bool:
        """Whether every piece is there."""
        return self._first is not None and len(self._pieces) == self._first.count

    def add(self, chunk: Chunk) -> None:
        """Take a piece in.

        Raises:
            BadUpdate: with `reason` "too_large", "corrupt" (send that piece again) or "malformed"
                (of another transfer, or no piece of this one); nothing was taken in.
        """
        if chunk.n_bytes > self._max_bytes:
            raise BadUpdate(
                f"a transfer of {chunk.n_bytes} bytes is above the limit of {self._max_bytes}",
                reason="too_large",
            )
        first = self._first or chunk
        if _transfer(chunk) != _transfer(first) or not _fits(chunk):
            raise BadUpdate(
                f"piece {chunk.index} is not one of this transfer's {first.count}",
                reason="malformed",
            )
        if hashlib.sha256(chunk.data).hexdigest() != chunk.sha256:
            raise BadUpdate(
                f"piece {chunk.index} of {chunk.count} was damaged on its way; send it again",
                reason="corrupt",
            )
        self._first = first
        self._pieces[chunk.index] = chunk.data

    def data(self) -> bytes:
        """The bytes.

        Raises:
            BadUpdate: with `reason` "incomplete" or "corrupt".
        """
        if self._first is None or not self.complete:
            raise BadUpdate(
                f"{len(self.missing) or 'all'} pieces of the transfer are still to come",
                reason="incomplete",
            )
        whole = b"".join(self._pieces[i] for i in range(self._first.count))
        if hashlib.sha256(whole).hexdigest() != self._first.whole:
            raise BadUpdate(
                "the pieces hold but the whole is not what was sent; send it again",
                reason="corrupt",
            )
        return whole


def _transfer(chunk: Chunk) -> tuple[str, int, int, int]:
    return chunk.whole, chunk.n_bytes, chunk.count, chunk.size


def _fits(chunk: Chunk) -> bool:
    """Whether a piece has the place and the length that its transfer gives it."""
    if chunk.size < 1 or chunk.count != max(1, -(-chunk.n_bytes // chunk.size)):
        return False
    if not 0 <= chunk.index < chunk.count:
        return False
    return len(chunk.data) == min(chunk.size, chunk.n_bytes - chunk.index * chunk.size)
