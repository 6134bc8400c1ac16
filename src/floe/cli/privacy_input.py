"""Text that privacy commands read: a file or stdin, a piece at a time, with a bar on a terminal."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from floe.core.errors import NotFound

_PIECE_BYTES = 65_536
_BAR_FROM_BYTES = 200_000
Show = Callable[[int], None]


@contextmanager
def opened(name: str) -> Iterator[tuple[BinaryIO, int | None]]:
    """A file (or "-" for stdin) and its size in bytes, None where it is not known.

    Raises:
        NotFound: no such file, or it cannot be read.
    """
    if name == "-":
        yield sys.stdin.buffer, None
        return
    path = Path(name)
    try:
        file = path.open("rb")
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}", param="file") from None
    with file:
        yield file, path.stat().st_size


def texts(file: BinaryIO, show: Show) -> Iterator[str]:
    """The file's text in pieces: UTF-8, or UTF-16 where it begins with its mark.

    Bytes that are no text become U+FFFD; line ends become "\\n". `show` gets the bytes read.
    """
    piece = file.read(_PIECE_BYTES)
    utf16 = piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    decoder = codecs.getincrementaldecoder("utf-16" if utf16 else "utf-8-sig")("replace")
    done, carried = 0, False
    while piece:
        done += len(piece)
        text = decoder.decode(piece)
        text, carried = ("\r" if carried else "") + text, text.endswith("\r")
        yield (text[:-1] if carried else text).replace("\r\n", "\n")
        show(done)
        piece = file.read(_PIECE_BYTES)
    yield ("\r" if carried else "") + decoder.decode(b"", final=True)


def lines(pieces: Iterator[str]) -> Iterator[str]:
    """Whole lines of a text in pieces."""
    rest = ""
    for piece in pieces:
        *whole, rest = (rest + piece).split("\n")
        yield from whole
    if rest:
        yield rest


@contextmanager
def bar(what: str, total_bytes: int | None) -> Iterator[Show]:
    """Progress on stderr where it is a terminal and there is much to read."""
    if not sys.stderr.isatty() or (total_bytes or 0) < _BAR_FROM_BYTES:
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bars:
        task = bars.add_task(what, total=total_bytes)
        yield lambda done: bars.update(task, completed=done)
