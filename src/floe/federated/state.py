"""The server's memory of a federation: whole after kill -9 at any moment, one server at a time.

FOLDER/state.json holds what is decided, FOLDER/adapters/DIGEST.bin the adapters it names,
FOLDER/round/ the updates of the open round, FOLDER/reports/ a report of each round. A round's end
is the one rename of state.json: before it the round is open, after it the next one is.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from floe.core.errors import BadRound, Busy
from floe.core.files import atomic_write, safe_name
from floe.federated.report import read_reports
from floe.federated.rounds import Opened, Past, Task, pack_task
from floe.federated.update import AdapterState, Factors, Update

KEPT_ROUNDS = 64
"""So many past rounds' nonces are known; what is older is an update for no round of ours."""
FORMAT = 1
_NORM = struct.Struct("<d")


@dataclass(frozen=True, kw_only=True)
class Codec:
    """Updates as bytes and back; `unpack` raises BadUpdate and never runs what it reads."""

    pack: Callable[[Update], bytes]
    unpack: Callable[[bytes], Update]

    def pack_state(self, state: AdapterState) -> bytes:
        """An adapter as bytes, an update that nobody sent."""
        return self.pack(Update(client="server", round_number=0, state=state, n_examples=0))

    def unpack_state(self, data: bytes) -> AdapterState | None:
        """The adapter in `data`, None where it is empty (the plain base)."""
        if not data:
            return None
        state = self.unpack(data).state
        modules = {  # copies, for what is read from bytes cannot be written to
            name: Factors(a_RI=f.a_RI.copy(), b_OR=f.b_OR.copy())
            for name, f in state.modules.items()
        }
        return AdapterState(base_digest=state.base_digest, modules=modules)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """What `state.json` says. `next_round` counts from 1; `adapters` is cluster -> digest,
    `clusters` device -> cluster, `groups` what the clustering wants to remember."""

    base_digest: str
    next_round: int = 1
    adapters: Mapping[str, str] = field(default_factory=dict)
    clusters: Mapping[str, str] = field(default_factory=dict)
    groups: Mapping[str, Any] = field(default_factory=dict)
    opened: Opened | None = None
    past: tuple[Past, ...] = ()

    def after(self, opened: Opened, accepted: tuple[str, ...], *, advanced: bool) -> Memory:
        """The memory once `opened` is over; a void one (`advanced` False) is held again."""
        over = Past(round_number=opened.round_number, nonce=opened.nonce, accepted=accepted)
        return replace(
            self,
            next_round=opened.round_number + 1 if advanced else opened.round_number,
            opened=None,
            past=(*self.past, over)[-KEPT_ROUNDS:],
        )


class StateFolder:
    """A federation's folder. Use `locked` around a server's life."""

    def __init__(self, folder: Path, *, codec: Codec) -> None:
        self.folder = folder
        self._codec = codec

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder alone; the lock goes with the process.

        Raises:
            Busy: another server holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Busy(
                    f"another server holds {self.folder}; stop it, or give federated.name another"
                ) from error
            yield
        finally:
            os.close(fd)

    def read(self, base_digest: str) -> Memory:
        """What is remembered; a fresh memory where nothing is.

        Raises:
            BadRound: it is of another base model, damaged, or of a newer version.
        """
        path = self.folder / "state.json"
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Memory(base_digest=base_digest)
        except (OSError, ValueError) as error:
            raise BadRound(
                f"{path} cannot be read: put it back from a copy, or begin under another name"
            ) from error
        if data.pop("format", None) != FORMAT:
            raise BadRound(f"{path} is of another version of Floe")
        if data["base_digest"] != base_digest:
            raise BadRound(
                f"{path} is of another base model: give federated.name another name, or "
                "federated.base the model it began with"
            )
        opened = data.pop("opened")
        past = tuple(Past(**{**p, "accepted": tuple(p["accepted"])}) for p in data.pop("past"))
        return Memory(**data, opened=Opened.from_json(opened) if opened else None, past=past)

    def write(self, memory: Memory) -> None:
        """Remember; adapters that nothing names any more are deleted afterwards."""
        data = asdict(memory) | {
            "format": FORMAT,
            "opened": memory.opened.to_json() if memory.opened else None,
        }
        with atomic_write(self.folder / "state.json") as file:
            file.write(json.dumps(data, indent=1).encode())
        for path in (self.folder / "adapters").glob("*.bin"):
            if path.stem not in memory.adapters.values():
                path.unlink(missing_ok=True)

    def put_adapter(self, state: AdapterState) -> str:
        """Store an adapter; its digest. It counts once `write` names it."""
        data = self._codec.pack_state(state)
        digest = hashlib.sha256(data).hexdigest()
        with atomic_write(self.folder / "adapters" / f"{digest}.bin") as file:
            file.write(data)
        return digest

    def adapter_bytes(self, digest: str) -> bytes:
        """A stored adapter as it is sent; empty for "".

        Raises:
            BadRound: it is not there or damaged.
        """
        if not digest:
            return b""
        path = self.folder / "adapters" / f"{digest}.bin"
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BadRound(f"{path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise BadRound(f"{path} is damaged: put it back from a copy")
        return data

    def training_task(self, opened: Opened, memory: Memory, *, cluster: str) -> bytes:
        """What a device is sent to train from a cluster's adapter; from the base, if it has none.

        Raises:
            BadRound: the adapter is not there or damaged.
        """
        digest = memory.adapters.get(cluster, "")
        return pack_task(
            Task(
                kind="train",
                round_number=opened.round_number,
                nonce=opened.nonce,
                base_digest=memory.base_digest,
                cluster=cluster if digest else "",
                started_from=digest,
                adapter=self.adapter_bytes(digest),
            )
        )

    def adapter(self, digest: str) -> AdapterState | None:
        """A stored adapter; None for ""."""
        return self._codec.unpack_state(self.adapter_bytes(digest))

    def kept(self, opened: Opened) -> Kept:
        """The updates that the open round has taken so far; those of other rounds are deleted."""
        folder = self.folder / "round"
        mine = folder / f"{opened.round_number}-{opened.nonce}"
        if folder.is_dir():
            for other in folder.iterdir():
                if other != mine:
                    shutil.rmtree(other, ignore_errors=True)
        return Kept(mine, codec=self._codec)

    def clear_rounds(self) -> None:
        """Delete the updates of rounds that are over."""
        shutil.rmtree(self.folder / "round", ignore_errors=True)

    def put_report(self, report: Mapping[str, Any]) -> Path:
        """Write a round's report (JSON); its file, one for each attempt."""
        name = f"round-{report['round_number']:04d}-{report['attempt']:03d}.json"
        path = self.folder / "reports" / name
        with atomic_write(path) as file:
            file.write(json.dumps(report, indent=1, allow_nan=False).encode())
        return path

    def reports(self) -> list[dict[str, Any]]:
        """The reports so far, in order."""
        return read_reports(self.folder)


class Kept(Collection[Update]):
    """The accepted updates of a round, on disk, read one at a time; membership is by client."""

    def __init__(self, folder: Path, *, codec: Codec) -> None:
        self._folder = folder
        self._codec = codec
        self._norms: dict[str, float] = {}
        for path in sorted(folder.glob("*.bin")) if folder.is_dir() else ():
            with path.open("rb") as file:
                (self._norms[path.stem],) = _NORM.unpack(file.read(_NORM.size))

    @property
    def norms(self) -> Mapping[str, float]:
        """How far each client's update moved."""
        return self._norms

    def add(self, update: Update, *, norm: float) -> None:
        """Keep an update; it is kept once this returns, and not at all before."""
        name = safe_name(update.client, what="device")
        with atomic_write(self._folder / f"{name}.bin") as file:
            file.write(_NORM.pack(norm) + self._codec.pack(update))
        self._norms[name] = norm

    def get(self, client: str) -> Update:
        """One client's update."""
        return self._codec.unpack((self._folder / f"{client}.bin").read_bytes()[_NORM.size :])

    def drop(self, client: str) -> None:
        """Forget one."""
        (self._folder / f"{client}.bin").unlink(missing_ok=True)
        self._norms.pop(client, None)

    def __contains__(self, client: object) -> bool:
        return client in self._norms

    def __len__(self) -> int:
        return len(self._norms)

    def __iter__(self) -> Iterator[Update]:
        return (self.get(client) for client in list(self._norms))


class Outbox:
    """A device's last answer, so that being asked again neither trains nor spends again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, nonce: str) -> bytes | None:
        """The answer already given to this question."""
        if not self._path.is_file():
            return None
        head, _, data = self._path.read_bytes().partition(b"\n")
        return data if head == nonce.encode() else None

    def put(self, nonce: str, data: bytes) -> None:
        """Keep an answer, before it is sent."""
        with atomic_write(self._path) as file:
            file.write(nonce.encode() + b"\n" + data)
