"""What rounds survive: devices and networks that fail, lie or vanish, a server that is killed.

Five devices with examples of one task train adapters for the first blocks of the SLM; each fault is
put into a federation of its own and its final held-out loss is compared with the clean run's. All
goes through the bytes, seals and checks of real rounds; the server that is killed is a process.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from floe.assemble.federated import device_key, server_parts
from floe.assemble.learning import device_parts, open_base
from floe.core.config import home
from floe.core.errors import FloeError
from floe.core.sections import FederatedConfig
from floe.evaluation.federated_tasks import tasks
from floe.federated.base import Trainer, Transport
from floe.federated.examples import Example
from floe.federated.inline import Answer, InlineTransport
from floe.federated.on_torch.base_model import BaseModel
from floe.federated.on_torch.train import answer_loss
from floe.federated.products import state_cut, state_difference, state_scaled, weighted_sum
from floe.federated.report import read_reports
from floe.federated.rounds import Arrival
from floe.federated.rows import Row
from floe.federated.update import AdapterState, Factors, Update
from floe.learn import DeviceParts, run_rounds, take_part

Say = Callable[[str], None]
Bend = Callable[[AdapterState | None, Update], Update]
TASK, DEVICES, WITHIN, SEED = "singular_to_plural", 5, 0.02, 11
NAMES = tuple(f"device-{n}" for n in range(DEVICES))
BAD = NAMES[0]
"""The device that is at fault: one of five, 20 %."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How large the experiment is."""

    n_layers: int
    rounds: int
    steps: int
    examples: int
    held_out: int


QUICK = Plan(n_layers=2, rounds=2, steps=4, examples=16, held_out=24)
FULL = Plan(n_layers=30, rounds=4, steps=4, examples=32, held_out=48)


def fault_figures(full: bool, say: Say) -> dict[str, Any]:
    """`survives_*`: True where the final loss is within 2 % of the clean run's and the report names
    the fault; the losses beside them."""
    plan = FULL if full else QUICK
    base = open_base("smollm2-135m-instruct", home=home(), n_layers=plan.n_layers)
    with tempfile.TemporaryDirectory(prefix="floe-faults-") as folder:
        world = World(base, plan, Path(folder))
        clean = world.run("clean")
        figures: dict[str, Any] = {"faults_loss_base": world.loss(None), "faults_loss_clean": clean}
        say(f"base {figures['faults_loss_base']:.4f}, clean {clean:.4f}")
        for name, fault in FAULTS.items():
            loss = fault(world)
            survived = abs(loss - clean) <= WITHIN * clean and world.told(name)
            figures |= {f"survives_{name}": survived, f"faults_loss_{name}": loss}
            say(f"{name}: {loss:.4f}, {'survived' if survived else 'DID NOT SURVIVE'}")
        plain = world.run("sign_flip_plain_mean", bend=flip)
        figures["faults_loss_sign_flip_plain_mean"] = plain
    every = all(v for k, v in figures.items() if k.startswith("survives_"))
    gain = figures["faults_loss_base"] - clean
    worst = max(figures[f"faults_loss_{name}"] for name in FAULTS) - clean
    return {
        **figures,
        "survives": every,
        "faults_within": WITHIN,
        "faults_worst_share_of_gain_lost": round(max(0.0, worst) / gain, 4),
    }


class World:
    """The devices, their data and one base; each run is a federation in a folder of its own."""

    def __init__(self, base: BaseModel, plan: Plan, folder: Path) -> None:
        self.base, self.plan, self.folder = base, plan, folder
        task = tasks()[TASK]
        self._held_out = [_row(base, e) for e in task.held_out[: plan.held_out]]
        shares = np.array_split(np.arange(len(task.train)), DEVICES)
        for name, share in zip(NAMES, shares, strict=True):
            rows = [task.train[int(i)] for i in share[: plan.examples]]
            lines = [{"prompt": e.turns[-1].content, "answer": e.answer} for e in rows]
            path = folder / f"{name}.jsonl"
            path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        self._trained: dict[str, Update] = {}

    def settings(self, **change: Any) -> FederatedConfig:
        """The table of a run."""
        fed = FederatedConfig(
            rounds=self.plan.rounds,
            steps=self.plan.steps,
            min_clients=1,
            clusters=1,
            ranks=(4, 8),
            rank=16,
            learning_rate=2e-3,
            seed=SEED,
        )
        return replace(fed, **change)

    def devices(self, run: str, fed: FederatedConfig, bend: Bend | None) -> dict[str, DeviceParts]:
        """Fresh devices; the bad one's updates go through `bend` before they are signed."""
        found = {}
        for n, name in enumerate(NAMES):
            parts = device_parts(
                fed,
                base=self.base,
                folder=self.folder / run / name,
                name=name,
                data=self.folder / f"{name}.jsonl",
                rank=fed.ranks[n % len(fed.ranks)],
                repeatable=True,
            )
            trainer: Trainer = _Known(name, parts.trainer, self._trained)
            if bend is not None and name == BAD:
                trainer = _Bent(trainer, bend)
            found[name] = replace(parts, trainer=trainer)
        return found

    def run(
        self,
        run: str,
        *,
        bend: Bend | None = None,
        over: Callable[[Mapping[str, Answer]], Transport] = InlineTransport,
        **change: Any,
    ) -> float:
        """Hold all rounds that are left and return the final held-out loss."""
        fed = self.settings(**change)
        parts = self.devices(run, fed, bend)
        answers: dict[str, Answer] = {n: partial(_take_part, p) for n, p in parts.items()}
        server = server_parts(
            fed,
            folder=self.folder / run / "server",
            base_digest=self.base.digest,
            shapes=self.base.shapes(),
            devices={n: device_key(self.folder / run / n).public for n in NAMES},
            repeatable=True,
        )
        with server.state.locked():
            memory = run_rounds(over(answers), server, rounds=fed.rounds)
        return self.loss(server.state.adapter(memory.adapters["all"]))

    def loss(self, state: AdapterState | None) -> float:
        """Mean held-out loss, nats a token."""
        return round(answer_loss(self.base, state, self._held_out).loss, 4)

    def told(self, run: str) -> bool:
        """Whether each round's report shows the fault that was put in."""
        reports = read_reports(self.folder / run / "server")
        return bool(reports) and TOLD[run](reports)


def nan(_start: AdapterState | None, update: Update) -> Update:
    """One value that is no number."""
    name, factors = next(iter(update.state.modules.items()))
    b_OR = factors.b_OR.copy()
    b_OR[0, 0] = np.nan
    modules = {**update.state.modules, name: Factors(a_RI=factors.a_RI, b_OR=b_OR)}
    return replace(update, state=replace(update.state, modules=modules))


def flip(start: AdapterState | None, update: Update) -> Update:
    """The change with its sign turned: as far as the honest ones, the other way."""
    turned = state_scaled(state_difference(update.state, start), -1.0)
    if start is not None:
        modules = {
            name: weighted_sum([start.modules[name], factors], [1.0, 1.0])
            for name, factors in turned.modules.items()
        }
        turned = state_cut(replace(turned, modules=modules), 16)[0]
    return replace(update, state=turned)


class _Twice(InlineTransport):
    """Every answer arrives twice."""

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Iterator[Arrival]:
        for arrival in super().exchange(tasks, deadline_s=deadline_s):
            yield arrival
            yield arrival


class _Corrupt(InlineTransport):
    """One bit of the bad device's answer is turned on its way."""

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Iterator[Arrival]:
        for arrival in super().exchange(tasks, deadline_s=deadline_s):
            data = bytearray(arrival.data)
            if arrival.client == BAD:
                data[len(data) // 2] ^= 1
            yield replace(arrival, data=bytes(data))


class _Killed(InlineTransport):
    """The server's process is killed (SIGKILL) in the last round, with three updates taken."""

    def __init__(self, devices: Mapping[str, Answer], *, in_round: int) -> None:
        super().__init__(devices)
        self._left = in_round

    def exchange(self, tasks: Mapping[str, bytes], *, deadline_s: float) -> Iterator[Arrival]:
        self._left -= 1
        for n, arrival in enumerate(super().exchange(tasks, deadline_s=deadline_s)):
            if self._left == 0 and n == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            yield arrival


def _server_kill(world: World) -> float:
    """A process holds the rounds and is killed in the last; this one goes on in the same folder."""
    run, rounds = "server_kill", world.plan.rounds
    with warnings.catch_warnings():  # one thread trains, and the child needs no other
        warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            world.run(run, over=partial(_Killed, in_round=rounds))
        finally:
            os._exit(1)  # it was not killed
    _, status = os.waitpid(pid, 0)
    if not os.WIFSIGNALED(status):
        raise FloeError("the server of the benchmark ended by itself before it could be killed")
    return world.run(run)


FAULTS: Mapping[str, Callable[[World], float]] = {
    "nan": lambda world: world.run("nan", bend=nan),
    "sign_flip": lambda world: world.run("sign_flip", bend=flip, aggregator="trimmed-mean"),
    "dropout": lambda world: world.run(
        "dropout", over=lambda devices: InlineTransport(devices, dropout=0.5, seed=SEED)
    ),
    "server_kill": _server_kill,
    "duplicate": lambda world: world.run("duplicate", over=_Twice),
    "corrupt": lambda world: world.run("corrupt", over=_Corrupt),
}
Reports = Sequence[Mapping[str, Any]]
TOLD: Mapping[str, Callable[[Reports], bool]] = {
    "nan": lambda reports: all(r["refused_by_reason"] == {"nan": 1} for r in reports),
    "sign_flip": lambda reports: all(r["n_accepted"] == DEVICES for r in reports),
    "dropout": lambda reports: any(r["failed_by_reason"].get("dropped") for r in reports),
    "server_kill": lambda reports: len(reports[-1]["resumed"]) == 3,
    "duplicate": lambda reports: all(
        r["refused_by_reason"] == {"duplicate": DEVICES} for r in reports
    ),
    "corrupt": lambda reports: all(r["refused_by_reason"] == {"corrupt": 1} for r in reports),
}


class _Known:
    """A trainer whose work is done once: equal starts, ranks and seeds give equal updates."""

    def __init__(self, name: str, trainer: Trainer, known: dict[str, Update]) -> None:
        self._name, self._trainer, self._known = name, trainer, known

    def fit(
        self, start: AdapterState | None, *, rank: int, seed: int, round_number: int = 0
    ) -> Update:
        arrays = [] if start is None else [f.b_OR.tobytes() for f in start.modules.values()]
        key = repr((self._name, rank, seed, round_number, [hash(a) for a in arrays]))
        if key not in self._known:
            self._known[key] = self._trainer.fit(
                start, rank=rank, seed=seed, round_number=round_number
            )
        return self._known[key]

    def loss(self, state: AdapterState | None) -> float:
        return self._trainer.loss(state)


class _Bent:
    """A device that trains as it should and sends something else."""

    def __init__(self, trainer: Trainer, bend: Bend) -> None:
        self._trainer, self._bend = trainer, bend

    def fit(
        self, start: AdapterState | None, *, rank: int, seed: int, round_number: int = 0
    ) -> Update:
        update = self._trainer.fit(start, rank=rank, seed=seed, round_number=round_number)
        return self._bend(start, update)

    def loss(self, state: AdapterState | None) -> float:
        return self._trainer.loss(state)


def _take_part(parts: DeviceParts, data: bytes) -> bytes:
    return take_part(data, parts)


def _row(base: BaseModel, example: Example) -> Row:
    return base.encode(example)


def _main() -> None:
    """The part alone: `python -m floe.evaluation.federated_faults [full]`."""
    import sys

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    print(json.dumps(fault_figures("full" in sys.argv[1:], say), indent=1))


if __name__ == "__main__":
    _main()
