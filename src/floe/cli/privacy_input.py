"""Text that privacy commands read: a file or stdin, a piece at a time, with a bar on a terminal."""

from __future__ import annotations

import codecs
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from floe.cli.common import say
from floe.cli.text_encoding import encoding_of
from floe.core.errors import NotFound

_PIECE_BYTES = 65_536
_BAR_FROM_BYTES = 200_000
_GUESSED = {"gb18030": "GB18030 (Chinese)", "cp1252": "Windows-1252 (Western European)"}
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
    """The file's text in pieces; line ends become "\\n". `show` gets the bytes read.

    UTF-8, UTF-16 by its mark, else GB18030 or Windows-1252, which a line on stderr tells. Bytes
    that are no text become U+FFFD, and a line on stderr counts them.

    Raises:
        BadRequest: it holds zero bytes: a program, an image, an archive.
    """
    decoder: codecs.IncrementalDecoder | None = None
    done, broken, carried = 0, 0, False
    while piece := file.read(_PIECE_BYTES):
        done += len(piece)
        decoder = decoder or _decoder_for(piece, is_first=done == len(piece))
        text = decoder.decode(piece) if decoder else piece.decode("ascii")
        broken += text.count("\ufffd")
        text, carried = ("\r" if carried else "") + text, text.endswith("\r")
        yield (text[:-1] if carried else text).replace("\r\n", "\n")
        show(done)
    rest = decoder.decode(b"", final=True) if decoder else ""
    broken += rest.count("\ufffd")
    yield ("\r" if carried else "") + rest
    if broken:
        places = "place is" if broken == 1 else "places are"
        say(f"{broken} {places} no text in this encoding; what stands there was not read")


def _decoder_for(piece: bytes, *, is_first: bool) -> codecs.IncrementalDecoder | None:
    encoding = encoding_of(piece, is_first=is_first)
    if encoding is None:
        return None
    if encoding in _GUESSED:
        say(f"not UTF-8: read as {_GUESSED[encoding]}")
    return codecs.getincrementaldecoder(encoding)("replace")


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
