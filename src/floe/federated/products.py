"""Exact algebra on changes of a layer kept as factors: no dense matrix is formed.

Sums, norms, angles and cuts are those of the products B A, whatever the ranks; they do not depend
on which of the many (B, A) with one product a device happens to hold. Computed in float64, given
back in float32.

Legend: R rank, K rank after compaction, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from floe.federated.update import AdapterState, Factors, FloatArray

Doubles = NDArray[np.float64]
_FEW = 16  # below this share of the smaller side, Krylov steps beat the whole eigenproblem
_SPARE = 8
_KRYLOV_STEPS = 3
_RESTARTS = 12
_ENOUGH = 1e-4


@dataclass(frozen=True, kw_only=True, eq=False)
class Svd:
    """`u_OK @ diag(s_K) @ vt_KI`, singular values falling, orthonormal sides."""

    u_OK: Doubles
    s_K: Doubles
    vt_KI: Doubles


@dataclass(frozen=True, kw_only=True, eq=False)
class Cut:
    """A change at a lower rank; `error` is the Frobenius norm of what was cut, `norm` of all."""

    factors: Factors
    error: float
    norm: float


def weighted_sum(parts: Sequence[Factors], weights: Sequence[float]) -> Factors:
    """The sum of `weights[i] * B_i A_i`, exactly, as factors stacked to the sum of the ranks."""
    shape = parts[0].shape
    for part in parts:
        if part.shape != shape:
            raise ValueError(f"changes of layers {shape} and {part.shape} cannot be added")
    return Factors(
        a_RI=np.concatenate([p.a_RI for p in parts]),
        b_OR=np.concatenate(
            [p.b_OR * np.float32(w) for p, w in zip(parts, weights, strict=True)], axis=1
        ),
    )


def difference(one: Factors, other: Factors) -> Factors:
    """`one - other`, exactly, at the sum of their ranks."""
    return weighted_sum([one, other], [1.0, -1.0])


def scaled(factors: Factors, by: float) -> Factors:
    """The change times a number."""
    return Factors(a_RI=factors.a_RI, b_OR=factors.b_OR * np.float32(by))


def svd(factors: Factors) -> Svd:
    """The singular value decomposition of the product; K = min(R, O, I)."""
    qb_OK, rb_KR = np.linalg.qr(factors.b_OR.astype(np.float64))
    qa_IL, ra_LR = np.linalg.qr(factors.a_RI.T.astype(np.float64))
    u_KK, s_K, vt_KL = np.linalg.svd(rb_KR @ ra_LR.T, full_matrices=False)
    return Svd(u_OK=qb_OK @ u_KK, s_K=s_K, vt_KI=vt_KL @ qa_IL.T)


def from_svd(found: Svd, rank: int) -> Factors:
    """The best change of at most `rank`, its scale shared evenly by both factors."""
    rank = min(rank, len(found.s_K))
    root_R = np.sqrt(found.s_K[:rank])
    return Factors(
        a_RI=(root_R[:, None] * found.vt_KI[:rank]).astype(np.float32),
        b_OR=(found.u_OK[:, :rank] * root_R).astype(np.float32),
    )


def cut(factors: Factors, rank: int) -> Cut:
    """The nearest change of at most `rank` (Eckart and Young), with what was lost."""
    found = svd(factors)
    return Cut(
        factors=from_svd(found, rank),
        error=float(np.linalg.norm(found.s_K[rank:])),
        norm=float(np.linalg.norm(found.s_K)),
    )


def inner(one: Factors, other: Factors) -> float:
    """The Frobenius inner product of the products."""
    a_RS = one.a_RI.astype(np.float64) @ other.a_RI.T.astype(np.float64)
    b_RS = one.b_OR.T.astype(np.float64) @ other.b_OR.astype(np.float64)
    return float(np.vdot(a_RS, b_RS))


def norm(factors: Factors) -> float:
    """The Frobenius norm of the product; exact near 0, where the root of `inner` is not."""
    return float(np.linalg.norm(_core(factors)))


def cosine(one: Factors, other: Factors) -> float:
    """The cosine between the products as vectors; 0 where one of them is nothing."""
    size = norm(one) * norm(other)
    return float(np.clip(inner(one, other) / size, -1.0, 1.0)) if size > 0.0 else 0.0


def principal_angles(one: Factors, other: Factors) -> tuple[Doubles, Doubles]:
    """The angles in radians between the column spaces and between the row spaces, rising.

    As many as the smaller true rank; none where one of the products is nothing.
    """
    return angles_between(svd(one), svd(other))


def angles_between(one: Svd, other: Svd) -> tuple[Doubles, Doubles]:
    """`principal_angles` of decompositions at hand."""
    k, j = true_rank(one.s_K), true_rank(other.s_K)
    columns = np.linalg.svd(one.u_OK[:, :k].T @ other.u_OK[:, :j], compute_uv=False)
    rows = np.linalg.svd(one.vt_KI[:k] @ other.vt_KI[:j].T, compute_uv=False)
    return np.arccos(np.clip(columns, 0.0, 1.0)), np.arccos(np.clip(rows, 0.0, 1.0))


def true_rank(s_K: Doubles, *, above: float = 1e-6) -> int:
    """How many singular values are above that share of the largest; float32 factors hold 1e-7."""
    return int((s_K > above * s_K[0]).sum()) if s_K.size and s_K[0] > 0.0 else 0


def widened(factors: Factors, rank: int, *, seed: int) -> Factors:
    """The same product at a higher rank: new rows of A at random, new columns of B zero.

    The new rows are drawn as PEFT draws a fresh adapter's, so that they can be trained.
    """
    extra = rank - factors.rank
    if extra <= 0:
        return factors
    n_outputs, n_inputs = factors.shape
    bound = 1.0 / np.sqrt(n_inputs)
    fresh = np.random.default_rng(seed).uniform(-bound, bound, (extra, n_inputs))
    return Factors(
        a_RI=np.concatenate([factors.a_RI, fresh.astype(np.float32)]),
        b_OR=np.concatenate([factors.b_OR, np.zeros((n_outputs, extra), np.float32)], axis=1),
    )


def state_norm(state: AdapterState) -> float:
    """The Frobenius norm of all changes of an adapter together."""
    return float(np.sqrt(sum(norm(f) ** 2 for f in state.modules.values())))


def state_inner(one: AdapterState, other: AdapterState) -> float:
    """The inner product of two adapters; a module that only one has counts as nothing."""
    return sum(inner(f, other.modules[n]) for n, f in one.modules.items() if n in other.modules)


def state_cosine(one: AdapterState, other: AdapterState) -> float:
    """The cosine between two adapters as one long vector each; 0 where one is nothing."""
    size = state_norm(one) * state_norm(other)
    return float(np.clip(state_inner(one, other) / size, -1.0, 1.0)) if size > 0.0 else 0.0


def state_difference(one: AdapterState, other: AdapterState | None) -> AdapterState:
    """`one - other` module by module, exactly; a module that `other` lacks counts as nothing.

    Modules of `other` that `one` lacks are taken in with the sign turned.
    """
    if other is None:
        return one
    modules = {
        name: difference(f, other.modules[name]) if name in other.modules else f
        for name, f in one.modules.items()
    }
    gone = {n: scaled(f, -1.0) for n, f in other.modules.items() if n not in one.modules}
    return AdapterState(base_digest=one.base_digest, modules=modules | gone)


def state_scaled(state: AdapterState, by: float) -> AdapterState:
    """Every change of an adapter times a number."""
    return AdapterState(
        base_digest=state.base_digest,
        modules={n: scaled(f, by) for n, f in state.modules.items()},
    )


def state_cut(state: AdapterState, rank: int) -> tuple[AdapterState, float]:
    """An adapter with every module at most at `rank`, and the relative Frobenius error of that.

    A module that fits already is given back as it is.
    """
    modules, lost, whole = {}, 0.0, 0.0
    for name, factors in state.modules.items():
        if factors.rank <= rank:
            modules[name] = factors
            whole += norm(factors) ** 2
            continue
        done = cut(factors, rank)
        modules[name] = done.factors
        lost, whole = lost + done.error**2, whole + done.norm**2
    error = float(np.sqrt(lost / whole)) if whole > 0.0 else 0.0
    return AdapterState(base_digest=state.base_digest, modules=modules), error


def state_at_rank(state: AdapterState, rank: int, *, seed: int) -> tuple[AdapterState, float]:
    """An adapter at a device's rank, ready to be trained, and the relative error of the cut.

    The rule of redistribution: higher ranks are cut by singular values of the product, lower ones
    get fresh untrained directions that leave the product as it is.
    """
    fitted, error = state_cut(state, rank)
    wide = {
        name: widened(f, rank, seed=seed + place)
        for place, (name, f) in enumerate(sorted(fitted.modules.items()))
    }
    return AdapterState(base_digest=state.base_digest, modules=wide), error


def relative_error(found: AdapterState, wanted: AdapterState) -> float:
    """The Frobenius norm of the difference over that of `wanted`."""
    size = state_norm(wanted)
    gap = state_norm(state_difference(found, wanted))
    return gap / size if size > 0.0 else gap


def dense(factors: Factors) -> FloatArray:
    """The product itself, (O, I): for tests and for what works on coordinates."""
    return factors.b_OR @ factors.a_RI


def cut_dense(matrix_OI: FloatArray, rank: int) -> Cut:
    """The nearest change of at most `rank` to a dense matrix.

    By the projection on its leading left directions: exact at full rank, and the error is that of
    the very factors given back. A few directions are found by block Krylov steps, which come within
    1e-4 of the least error in a third of the time.
    """
    if matrix_OI.shape[0] > matrix_OI.shape[1]:
        turned = cut_dense(matrix_OI.T, rank)
        flipped = Factors(a_RI=turned.factors.b_OR.T, b_OR=turned.factors.a_RI.T)
        return Cut(factors=flipped, error=turned.error, norm=turned.norm)
    wide_OI = matrix_OI.astype(np.float64)
    few = rank * _FEW < len(wide_OI)
    basis_OR = _leading_few(matrix_OI, rank) if few else _leading(wide_OI, rank)
    rows_RI = basis_OR.T @ wide_OI
    sizes_R = np.linalg.norm(rows_RI, axis=1)
    root_R = np.sqrt(np.maximum(sizes_R, np.finfo(np.float64).tiny))
    whole = float(np.linalg.norm(wide_OI))
    lost = max(0.0, whole**2 - float(sizes_R @ sizes_R)) if rank < len(wide_OI) else 0.0
    return Cut(
        factors=Factors(
            a_RI=(rows_RI / root_R[:, None]).astype(np.float32),
            b_OR=(basis_OR * root_R).astype(np.float32),
        ),
        error=float(np.sqrt(lost)),
        norm=whole,
    )


def _core(factors: Factors) -> Doubles:
    """A small matrix with the singular values of the product."""
    _, rb_KR = np.linalg.qr(factors.b_OR.astype(np.float64))
    _, ra_LR = np.linalg.qr(factors.a_RI.T.astype(np.float64))
    core: Doubles = rb_KR @ ra_LR.T
    return core


def _leading(matrix_OI: Doubles, rank: int) -> Doubles:
    """The leading left directions (O, R), from the smaller Gram matrix."""
    _, vectors_OK = np.linalg.eigh(matrix_OI @ matrix_OI.T)
    leading: Doubles = vectors_OK[:, ::-1][:, :rank]
    return leading


def _leading_few(matrix_OI: FloatArray, rank: int) -> Doubles:
    """The same for a small rank, by restarted block Krylov steps from a fixed start."""
    start_IR = np.random.default_rng(0).standard_normal((matrix_OI.shape[1], rank + _SPARE))
    basis_OR, _ = np.linalg.qr(matrix_OI @ start_IR.astype(np.float32))
    whole, before = float(np.vdot(matrix_OI, matrix_OI)), 0.0
    for _ in range(_RESTARTS):
        blocks = [basis_OR]
        for _ in range(_KRYLOV_STEPS):
            step_OR = matrix_OI @ (matrix_OI.T @ blocks[-1])
            size_R = np.maximum(np.linalg.norm(step_OR, axis=0), np.finfo(np.float32).tiny)
            blocks.append(step_OR / size_R)
        krylov_OK, _ = np.linalg.qr(np.concatenate(blocks, axis=1))
        seen_KI = krylov_OK.T @ matrix_OI
        values, turn_KK = np.linalg.eigh((seen_KI @ seen_KI.T).astype(np.float64))
        falling_K = values[::-1]
        turn_KR = turn_KK[:, ::-1][:, : rank + _SPARE].astype(np.float32)
        basis_OR = krylov_OK @ turn_KR
        caught = float(falling_K[:rank].sum())
        enough = _ENOUGH * max(whole - caught, 1e-6 * whole)
        image_OR = matrix_OI @ (seen_KI.T @ turn_KR[:, :rank])
        left_OR = image_OR - basis_OR[:, :rank] * falling_K[:rank].astype(np.float32)
        gap = float(falling_K[rank - 1] - falling_K[rank])
        if float(np.vdot(left_OR, left_OR)) <= enough * gap or caught - before <= enough:
            break
        before = caught
    orthonormal, _ = np.linalg.qr(basis_OR[:, :rank].astype(np.float64))
    return orthonormal
