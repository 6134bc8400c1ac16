"""Secure sums by Flower's SecAgg+: right, masked, whole when devices leave, void when too many do.

Flower's own workflow and mod, its own messages as bytes; the devices' training is a stand-in.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.common import FitIns, Parameters, bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common.recorddict_compat import fitins_to_recorddict
from flwr.supercore.task_identity import TaskIdentity
from tests.federated.learning_stand_ins import a_server, signer
from tests.flower.secure_nodes import (
    A_SEED,
    RANK,
    TERMS,
    Clock,
    Lift,
    SecureNodes,
    device,
    steps_of,
)

from floe.assemble.secure_rounds import run_secure_rounds
from floe.core.errors import BadConfig, BadRound
from floe.core.sections import FederatedConfig
from floe.federated.desk import Spent
from floe.federated.report import RoundReport
from floe.federated.rounds import failure_in
from floe.federated.secure_sum import SecureTerms
from floe.federated.shields.gaussian import ClientDp
from floe.federated.shields.masks import masks
from floe.federated.shields.noise_distributed import NoiseDistributed
from floe.federated.shields.secagg import FixedPoint
from floe.federated.state import Memory
from floe.flower import client_app, secagg_server, transport
from floe.flower.client_app import reply_of
from floe.flower.messages import bytes_in
from floe.flower.secagg_server import SecureGridTransport
from floe.flower.settings import AppSettings
from floe.learn import DeviceParts, ServerParts

NAMES = ("ann", "bob", "cyd", "dan")


@pytest.fixture(autouse=True)
def _run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages can be made in a run alone; time passes when somebody sleeps."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    clock = Clock()
    monkeypatch.setattr(transport, "time", clock)
    monkeypatch.setattr(secagg_server, "time", clock)


@pytest.fixture
def devices(tmp_path: Path) -> list[DeviceParts]:
    """Unequal ranks: the last one moves two columns of four."""
    ranks = (4, 4, 4, 2)
    return [
        device(tmp_path, n, i, rank=r)
        for i, (n, r) in enumerate(zip(NAMES, ranks, strict=True), start=1)
    ]


def hold(
    nodes: SecureNodes, server: ServerParts, *, rounds: int = 1
) -> tuple[Memory, list[RoundReport]]:
    over = SecureGridTransport(nodes, least=3, all_of=4, wait_s=5.0)
    reports: list[RoundReport] = []
    memory = run_secure_rounds(over, server, nodes.terms, rounds=rounds, tell=reports.append)
    return memory, reports


def held_void(nodes: SecureNodes, server: ServerParts) -> tuple[str, list[dict[str, Any]]]:
    with pytest.raises(BadRound) as stopped:
        hold(nodes, server)
    return stopped.value.message, server.state.reports()


def b_of(memory: Memory, server: ServerParts) -> dict[str, Any]:
    state = server.state.adapter(memory.adapters["all"])
    assert state is not None
    return {n: f.b_OR for n, f in state.modules.items()}


def assert_mean(memory: Memory, server: ServerParts, of: Sequence[DeviceParts], n: int = 1) -> None:
    """The adapter's B is `n` times the plain mean of these devices' steps, but for rounding."""
    steps = [steps_of(d) for d in of]
    for name, b_OR in b_of(memory, server).items():
        plain = n * np.mean([s[name] for s in steps], axis=0)
        np.testing.assert_allclose(b_OR, plain, atol=n * (TERMS.fixed.step + 1e-6))
        assert np.abs(plain).max() > 1e-2


def test_the_sum_is_the_plain_mean_over_unequal_ranks(
    tmp_path: Path, devices: list[DeviceParts]
) -> None:
    server = a_server(tmp_path, NAMES, rank=RANK)
    memory, (report,) = hold(SecureNodes(devices), server)
    assert_mean(memory, server, devices)
    assert report.secure_sum
    assert report.accepted == report.returned == NAMES
    assert report.clusters[0].n_examples == 4  # each counts as one
    assert report.metrics == {}
    assert report.bytes_up > 0 < report.bytes_down


def test_a_second_round_moves_on_from_the_first(tmp_path: Path, devices: list[DeviceParts]) -> None:
    server = a_server(tmp_path, NAMES, rank=RANK)
    memory, reports = hold(SecureNodes(devices), server, rounds=2)
    assert [r.round_number for r in reports] == [1, 2]
    assert_mean(memory, server, devices, n=2)


def masked_of(nodes: SecureNodes, name: str) -> Any:
    message = nodes.received[name, Stage.COLLECT_MASKED_VECTORS]
    packed = message.content.config_records[RECORD_KEY_CONFIGS][Key.MASKED_PARAMETERS]
    return np.concatenate([bytes_to_ndarray(b).ravel() for b in packed])


def test_one_device_s_masked_update_looks_uniform(
    tmp_path: Path, devices: list[DeviceParts]
) -> None:
    nodes = SecureNodes(devices)
    hold(nodes, a_server(tmp_path, NAMES, rank=RANK))
    fixed = TERMS.fixed
    step = steps_of(devices[0])
    plain = np.concatenate([step[n].ravel() for n in sorted(step)])
    inside = (plain + fixed.clipping_range) / fixed.step
    masked = masked_of(nodes, "ann")[1:]  # the first is its weight, masked too
    assert masked.shape == plain.shape
    assert abs(np.corrcoef(masked, inside)[0, 1]) < 0.5
    assert inside.max() < fixed.levels < fixed.modulus / 1000
    assert np.mean(masked > fixed.levels) > 0.9  # a plain one would lie below
    all_masked = np.concatenate([masked_of(nodes, n) for n in NAMES]) / fixed.modulus
    assert 0.4 < all_masked.mean() < 0.6
    assert 0.06 < all_masked.var() < 0.11  # of a uniform one 1 / 12


def test_nothing_else_of_a_device_is_in_what_arrives(
    tmp_path: Path, devices: list[DeviceParts]
) -> None:
    nodes = SecureNodes(devices)
    hold(nodes, a_server(tmp_path, NAMES, rank=RANK))
    content = nodes.received["ann", Stage.COLLECT_MASKED_VECTORS].content
    assert all(len(r) == 0 for r in content.array_records.values())
    assert set(content.config_records["fitres.metrics"]) == {"seal"}
    assert dict(content.metric_records["fitres.num_examples"]) == {"num_examples": 1}


@pytest.mark.parametrize("stage", Stage.all())
def test_one_that_leaves_at_any_step_leaves_the_others_sum_right(
    tmp_path: Path, devices: list[DeviceParts], stage: str
) -> None:
    server = a_server(tmp_path, NAMES, rank=RANK)
    memory, (report,) = hold(SecureNodes(devices, leaves={"bob": stage}), server)
    if stage == Stage.UNMASK:  # its update had arrived by then
        assert_mean(memory, server, devices)
        assert report.accepted == NAMES
    else:
        assert_mean(memory, server, [d for d in devices if d.name != "bob"])
        assert report.accepted == ("ann", "cyd", "dan")
        assert [(f.client, f.reason) for f in report.failed] == [("bob", "deadline")]


def test_two_that_leave_at_different_steps(tmp_path: Path) -> None:
    names = ("ann", "bob", "cyd", "dan", "eve")
    parts = [device(tmp_path, n, i) for i, n in enumerate(names)]
    server = a_server(tmp_path, names, rank=RANK)
    leaves = {"ann": Stage.SHARE_KEYS, "eve": Stage.COLLECT_MASKED_VECTORS}
    memory, (report,) = hold(SecureNodes(parts, leaves=leaves), server)
    assert report.accepted == ("bob", "cyd", "dan")
    assert_mean(memory, server, parts[1:4])


@pytest.mark.parametrize("stage", Stage.all())
def test_below_the_threshold_the_round_is_void(
    tmp_path: Path, devices: list[DeviceParts], stage: str
) -> None:
    server = a_server(tmp_path, NAMES, rank=RANK)
    nodes = SecureNodes(devices, leaves={"ann": stage, "bob": stage})
    message, reports = held_void(nodes, server)
    assert "fewer than 3 of 4 devices stayed; the model stays as it was" in message
    assert len(reports) == 3
    assert all(r["accepted"] == [] and r["clusters"] == [] for r in reports)
    assert server.state.read("base-digest").adapters == {}


def test_too_few_devices_are_not_asked(tmp_path: Path, devices: list[DeviceParts]) -> None:
    nodes = SecureNodes(devices[:2])
    message, _ = held_void(nodes, a_server(tmp_path, NAMES, rank=RANK))
    assert "2 devices are there, and a sum is of 3 to 1023" in message
    assert nodes.received == {}


@pytest.mark.parametrize(
    ("value", "reason"),
    [(np.nan, "not_finite"), (np.inf, "not_finite"), (2.5, "out_of_range")],
)
def test_c25_what_may_not_be_summed_stays_on_the_device(
    tmp_path: Path, devices: list[DeviceParts], value: float, reason: str
) -> None:
    bad = device(tmp_path, "bob", 2, spoil=value)
    nodes = SecureNodes([devices[0], bad, *devices[2:]])
    server = a_server(tmp_path, NAMES, rank=RANK)
    memory, (report,) = hold(nodes, server)
    assert [(f.client, f.reason) for f in report.failed] == [("bob", reason)]
    assert_mean(memory, server, [devices[0], *devices[2:]])
    told = nodes.received["bob", Stage.COLLECT_MASKED_VECTORS].content
    assert len(told.config_records) == 0  # neither masked nor plain


def test_an_unsigned_device_is_not_in_the_sum(tmp_path: Path, devices: list[DeviceParts]) -> None:
    stranger = replace(devices[1], sign=signer("another key"))
    server = a_server(tmp_path, NAMES, rank=RANK)
    memory, (report,) = hold(SecureNodes([devices[0], stranger, *devices[2:]]), server)
    assert [(r.client, r.reason) for r in report.refused] == [("bob", "unsigned")]
    assert_mean(memory, server, [devices[0], *devices[2:]])


def test_one_device_s_seal_does_not_serve_another(
    tmp_path: Path, devices: list[DeviceParts]
) -> None:
    seals: dict[str, Any] = {}

    def forge(name: str, stage: str, message: Any) -> Any:
        if stage == Stage.COLLECT_MASKED_VECTORS:
            metrics = message.content.config_records["fitres.metrics"]
            seals[name] = metrics["seal"]
            if name == "dan":
                metrics["seal"] = seals["cyd"]
        return message

    nodes = SecureNodes(devices, forge=forge, leaves={})
    server = a_server(tmp_path, NAMES, rank=RANK)
    memory, (report,) = hold(nodes, server)
    assert [(r.client, r.reason) for r in report.refused] == [("dan", "duplicate")]
    assert_mean(memory, server, devices[:3])


def changed(at: str, **values: Any) -> Callable[[str, str, Any], Any]:
    """A server that asks for something else at a step."""

    def meddle(_name: str, stage: str, message: Any) -> Any:
        if stage == at:
            record = message.content.config_records[RECORD_KEY_CONFIGS]
            for key, value in values.items():
                record[key] = value(record[key]) if callable(value) else value
        return message

    return meddle


@pytest.mark.parametrize(
    "values",
    [
        {Key.THRESHOLD: 2},
        {Key.CLIPPING_RANGE: 1e9},
        {Key.TARGET_RANGE: 1 << 8},
        {Key.SHARE_NUMBER: 3},
        {Key.MAX_WEIGHT: 1000.0},
        {Key.SAMPLE_NUMBER: 2, Key.SHARE_NUMBER: 2},
    ],
)
def test_a_device_does_not_take_other_terms(
    tmp_path: Path, devices: list[DeviceParts], values: Mapping[str, Any]
) -> None:
    nodes = SecureNodes(devices, meddle=changed(Stage.SETUP, **values))
    message, _ = held_void(nodes, a_server(tmp_path, NAMES, rank=RANK))
    assert "ann: unsafe_terms" in message
    assert all(d.trainer.fits == 0 for d in devices)  # type: ignore[attr-defined]


def test_a_device_does_not_give_both_secrets_of_another(
    tmp_path: Path, devices: list[DeviceParts]
) -> None:
    meddle = changed(Stage.UNMASK, **{Key.DEAD_NODE_ID_LIST: [1]})
    message, _ = held_void(
        SecureNodes(devices, meddle=meddle), a_server(tmp_path, NAMES, rank=RANK)
    )
    assert "ann: unsafe_terms" in message


@pytest.mark.parametrize("kind", ["train", "train.other", "evaluate"])
@pytest.mark.parametrize("stage", ["", Stage.COLLECT_MASKED_VECTORS])
def test_a_device_answers_nothing_in_the_open(
    tmp_path: Path, kind: str, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flower's mod passes on what is not of its type; then nothing would be masked."""
    monkeypatch.setattr(client_app, "_parts", lambda *_: pytest.fail("it trained"))
    fed = FederatedConfig(secagg=True, mode="freeze-a", clusters=1, min_clients=3, rank=32)
    records = fitins_to_recorddict(FitIns(Parameters([b"task"], "floe"), {}), True)
    if stage:
        records[RECORD_KEY_CONFIGS] = ConfigRecord({Key.STAGE: stage})
    message = Message(records, dst_node_id=1, message_type=kind, group_id="")
    message.metadata.__dict__["_message_id"] = "m"
    settings = AppSettings(home=str(tmp_path), model="", federated=fed)
    reply = reply_of(message, Context(1, 1, {}, RecordDict(), {}), settings)
    if kind == "train" and stage:
        assert failure_in(bytes_in(reply)) == "out_of_step"  # after SETUP and SHARE_KEYS alone
    else:
        assert failure_in(bytes_in(reply)) == "not_secure"


def test_an_interrupted_round_is_held_anew_with_new_training(
    tmp_path: Path, devices: list[DeviceParts]
) -> None:
    server = a_server(tmp_path, NAMES, rank=RANK)

    class Killed(BaseException):
        """As kill -9: nothing is written any more."""

    def spend(_opened: Any, _n: int) -> Any:
        raise Killed

    with pytest.raises(Killed):
        hold(SecureNodes(devices), replace(server, spend=spend))
    memory, (report,) = hold(SecureNodes(devices), server)
    assert report.attempt == 2
    assert [d.trainer.fits for d in devices] == [2] * 4  # type: ignore[attr-defined]
    assert_mean(memory, server, devices)


def test_a_device_answers_a_question_once(tmp_path: Path, devices: list[DeviceParts]) -> None:
    """The same task in a second run of the protocol gives no second sum."""
    first = a_server(tmp_path, NAMES, rank=RANK)
    hold(SecureNodes(devices), first)
    again = a_server(tmp_path / "again", NAMES, rank=RANK)  # draws the same nonce
    _, (void, _held) = hold(SecureNodes(devices), again)
    assert {(f.client, f.reason) for f in void.failed} == {(n, "replayed") for n in NAMES}


def test_c10_shares_of_noise_add_up_and_are_accounted(tmp_path: Path) -> None:
    """The noise of the least cohort is in the sum, and each device's share is smaller."""
    dp = ClientDp(
        clip_norm=0.5, noise_multiplier=2.0, min_cohort=4, rank=RANK, a_seed=A_SEED, secret=False
    )
    noise = NoiseDistributed(terms=dp)
    terms = SecureTerms(
        rank=RANK,
        a_seed=A_SEED,
        least=4,
        fixed=FixedPoint(clipping_range=0.5 + 10 * noise.share_std),
    )
    asked: list[int] = []

    def spend(_opened: Any, n: int) -> Spent:
        asked.append(n)
        return Spent(epsilon=1.5, terms="of one device")

    parts = [replace(device(tmp_path, n, i), shields=(Lift(), noise)) for i, n in enumerate(NAMES)]
    server = a_server(
        tmp_path, NAMES, rank=RANK, min_clients=4, shields=(noise,), spend=spend
    )  # fmt: skip
    rounds = 8
    memory, reports = hold(SecureNodes(parts, terms=terms), server, rounds=rounds)
    # What clipping leaves of the steps is the same each time; the rest is noise of all rounds.
    steps = [steps_of(p) for p in parts]
    scales = [0.5 / np.sqrt(sum(np.sum(s**2) for s in step.values())) for step in steps]
    off = [
        (b_OR - rounds * np.mean([k * s[name] for k, s in zip(scales, steps, strict=True)], axis=0))
        for name, b_OR in b_of(memory, server).items()
    ]
    spread = np.std(np.concatenate([o.ravel() for o in off])) / np.sqrt(rounds)
    assert 0.7 < spread / (dp.noise_multiplier * dp.clip_norm / 4) < 1.3  # of 36 values
    assert noise.share_std == dp.noise_multiplier * dp.clip_norm / 2
    assert asked == [4] * rounds
    assert (reports[-1].epsilon, reports[-1].epsilon_of) == (1.5, "of one device")


def test_c10_a_sum_of_fewer_than_the_noise_is_for_is_never_opened(
    tmp_path: Path, devices: list[DeviceParts]
) -> None:
    terms = replace(TERMS, least=4)
    spent: list[int] = []
    server = a_server(
        tmp_path, NAMES, rank=RANK, min_clients=4, spend=lambda _o, n: spent.append(n)
    )
    nodes = SecureNodes(devices, terms=terms, leaves={"dan": Stage.COLLECT_MASKED_VECTORS})
    message, _ = held_void(nodes, server)
    assert "fewer than 4 of 4 devices stayed" in message
    assert spent == []
    assert not [key for key in nodes.received if key[1] == Stage.UNMASK]


def test_a_sum_of_two_is_refused() -> None:
    with pytest.raises(BadConfig, match="a secure sum of 2 devices tells each the other's"):
        replace(TERMS, least=2)


def test_both_ends_draw_floe_s_masks() -> None:
    """Flower's have a seed of 32 bits. Its name for them is where it looks for them."""
    for name in (
        "flwr.client.mod.secure_aggregation.secaggplus_mod",
        "flwr.server.workflow.secure_aggregation.secaggplus_workflow",
    ):
        assert sys.modules[name].pseudo_rand_gen is masks  # type: ignore[attr-defined]
