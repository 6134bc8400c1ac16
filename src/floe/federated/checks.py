"""What an update must be to be taken into a round; everything else is refused by a short name.

`REASONS` lists the names. The cheap checks come first, so that a stranger's arrays are never read.

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from floe.core.errors import BadUpdate
from floe.federated.identity import Sealed, Verify
from floe.federated.rounds import Opened, Past
from floe.federated.update import AdapterState, Factors, Update

MAX_EXAMPLES = 10**9
ABSURD_NORM = 1e6
"""Where nobody set `max_norm`: no training moves so far, and no sum would survive it."""
REASONS = (
    "corrupt",
    "malformed",
    "too_large",
    "unregistered",
    "unsigned",
    "not_selected",
    "duplicate",
    "replayed",
    "late",
    "wrong_round",
    "impostor",
    "no_examples",
    "empty",
    "wrong_base",
    "wrong_start",
    "wrong_keys",
    "wrong_shape",
    "wrong_type",
    "rank_too_large",
    "nan",
    "infinite",
    "norm_too_large",
)


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What arrays a round takes: the base's layers by path as (O, I), the largest rank, and how far
    an update may move from where it started (Frobenius norm of all changes, 0 = any)."""

    base_digest: str
    shapes: Mapping[str, tuple[int, int]]
    max_rank: int
    max_norm: float = 0.0


def check_sender(
    sealed: Sealed,
    opened: Opened,
    *,
    devices: Mapping[str, str],
    verify: Verify,
    past: Sequence[Past] = (),
    taken: Collection[str] = (),
) -> None:
    """Raise BadUpdate unless a selected device signed this for the open round, for the first time.

    `devices` are name -> public key; `taken` those whose update the round has already.
    """
    name = sealed.client
    key = devices.get(name)
    if key is None:
        _refuse("unregistered", name, "is no registered device")
    if not sealed.signature or not verify(key, sealed.signature, sealed.signed):
        _refuse("unsigned", name, "has no valid signature of its registered key")
    if sealed.nonce != opened.nonce:
        earlier = next((p for p in past if p.nonce == sealed.nonce), None)
        if earlier is None:
            _refuse("wrong_round", name, f"is for no round of this server ({sealed.round_number})")
        if name in earlier.accepted:
            _refuse("replayed", name, f"was taken into round {earlier.round_number} already")
        _refuse("late", name, f"came after round {earlier.round_number} had ended")
    if name not in opened.selected:
        _refuse("not_selected", name, f"was not asked in round {opened.round_number}")
    if name in taken:
        _refuse("duplicate", name, f"is in round {opened.round_number} already")


def check_update(
    update: Update,
    sealed: Sealed,
    expected: Expected,
    *,
    start: AdapterState | None,
    started_from: str,
    cluster: str,
) -> None:
    """Raise BadUpdate unless the payload is the sender's own and its arrays fit the base.

    `start`, `started_from` and `cluster` are what this device was given to begin with.
    """
    name = sealed.client
    if update.client != name or update.round_number != sealed.round_number:
        _refuse("impostor", name, "says something else inside its seal than on it")
    if type(update.n_examples) is not int or update.n_examples < 1:
        _refuse("no_examples", name, "was trained on no examples")
    if update.n_examples > MAX_EXAMPLES:
        _refuse("malformed", name, f"claims more than {MAX_EXAMPLES} examples")
    if update.started_from != started_from or update.cluster != cluster:
        _refuse("wrong_start", name, "did not start from the adapter it was given")
    if update.state.base_digest != expected.base_digest:
        _refuse("wrong_base", name, "is for another base model")
    check_arrays(update.state, expected, client=name)
    limit = expected.max_norm or ABSURD_NORM
    if not change_norm(start, update.state) <= limit:
        _refuse("norm_too_large", name, f"moves further than {limit:g}")


def check_arrays(state: AdapterState, expected: Expected, *, client: str) -> None:
    """Raise BadUpdate unless the arrays are the base's layers, finite, of an allowed rank."""
    modules = state.modules
    if not modules or any(f.a_RI.size == 0 or f.b_OR.size == 0 for f in modules.values()):
        _refuse("empty", client, "has no factors, or factors of size 0")
    if modules.keys() != expected.shapes.keys():
        odd = modules.keys() ^ expected.shapes.keys()
        _refuse("wrong_keys", client, f"has too many or too few layers ({len(odd)} differ)")
    for name, factors in modules.items():
        _check_factors(factors, expected, client=client, name=name)


def _check_factors(factors: Factors, expected: Expected, *, client: str, name: str) -> None:
    a_RI, b_OR = factors.a_RI, factors.b_OR
    if a_RI.dtype != np.float32 or b_OR.dtype != np.float32:
        _refuse("wrong_type", client, f"has {a_RI.dtype} and {b_OR.dtype} in {name}, not float32")
    if a_RI.ndim != 2 or b_OR.ndim != 2 or a_RI.shape[0] != b_OR.shape[1]:
        _refuse("wrong_shape", client, f"has factors in {name} that do not multiply")
    if factors.shape != expected.shapes[name]:
        _refuse(
            "wrong_shape",
            client,
            f"has {name} as {factors.shape}, not {tuple(expected.shapes[name])}",
        )
    if factors.rank > expected.max_rank:
        _refuse("rank_too_large", client, f"has rank {factors.rank}, above {expected.max_rank}")
    for array in (a_RI, b_OR):
        if np.isnan(array).any():
            _refuse("nan", client, f"holds NaN in {name}")
        if not np.isfinite(array).all():
            _refuse("infinite", client, f"holds infinity in {name}")


def change_norm(start: AdapterState | None, state: AdapterState) -> float:
    """Frobenius norm of all changes B A - B0 A0 together, without making a product.

    ||[B, -B0] [A; A0]||^2 is the sum over (B'B) * (AA'), so it costs R^2 (O + I) a layer.
    """
    total = 0.0
    for name, factors in state.modules.items():
        a, b = factors.a_RI.astype(np.float64), factors.b_OR.astype(np.float64)
        before = start.modules.get(name) if start is not None else None
        if before is not None:
            a = np.concatenate([a, before.a_RI])
            b = np.concatenate([b, -before.b_OR], axis=1)
        total += float(np.sum((b.T @ b) * (a @ a.T)))
    return float(np.sqrt(max(total, 0.0)))


def _refuse(reason: str, client: str, why: str) -> NoReturn:
    # A stranger's name is its own text: at most so much of it is repeated.
    raise BadUpdate(f"the update of {client[:64]!r} {why}", reason=reason)
