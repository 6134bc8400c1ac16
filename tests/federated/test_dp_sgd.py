"""DP-SGD on a LoRA: clipped gradients against a loop, noise by its figures, empty batches."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs floe[train]")
pytest.importorskip("opacus", reason="needs floe[dp]")

from floe.core.errors import BadConfig, BadUpdate  # noqa: E402
from floe.federated.on_torch.base_model import BaseModel, load_base  # noqa: E402
from floe.federated.on_torch.dp_sgd import DpSgd, per_example_gradients  # noqa: E402
from floe.federated.on_torch.lora import Attached, attached  # noqa: E402
from floe.federated.on_torch.losses import answer_losses  # noqa: E402
from floe.federated.on_torch.train import LoraTrainer, TrainSettings  # noqa: E402
from floe.federated.rows import Row  # noqa: E402
from floe.federated.sampling import Sampling  # noqa: E402
from floe.federated.start import fresh_state  # noqa: E402
from floe.federated.update import AdapterState  # noqa: E402
from floe.testing.tiny_model import make_tiny_model  # noqa: E402

POISSON = Sampling(kind="poisson", rate=0.5)
ROWS = [Row(ids=tuple(range(20 + i, 28 + 2 * i)), n_answer=3 + i % 3) for i in range(6)]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseModel:
    torch.set_num_threads(1)
    return load_base(make_tiny_model(tmp_path_factory.mktemp("tiny")).folder)


def a_state(base: BaseModel, *, rank: int = 2) -> AdapterState:
    """The shared A, and B of small values, so that A gets gradients too."""
    fresh = fresh_state(base.digest, base.shapes(), rank=rank, seed=3)
    rng = np.random.default_rng(0)
    for factors in fresh.modules.values():
        factors.b_OR[:] = rng.normal(0, 0.1, factors.b_OR.shape)
    return fresh


@pytest.fixture
def lora(base: BaseModel) -> Iterator[Attached]:
    with attached(base, a_state(base)) as found:
        found.model.train()
        yield found


def loss_of(base: BaseModel):  # type: ignore[no-untyped-def]
    return lambda rows: answer_losses(base.core, base.head, rows)


def weights_of(lora: Attached) -> list[torch.Tensor]:
    weights = [*lora.a.values(), *lora.b.values()]
    for weight in weights:
        weight.requires_grad_(True)
    return weights


def slow_gradients(base: BaseModel, weights: list[torch.Tensor]) -> list[list[torch.Tensor]]:
    out = []
    for row in ROWS:
        loss = answer_losses(base.core, base.head, [row])[0].mean()
        out.append(list(torch.autograd.grad(loss, weights)))
    return out


def test_gradients_by_example_are_those_of_a_loop(base: BaseModel, lora: Attached) -> None:
    weights = weights_of(lora)
    slow = slow_gradients(base, weights)
    fast = per_example_gradients(lora, weights, ROWS, loss_of(base))
    for place, grads in enumerate(fast):
        for i in range(len(ROWS)):
            torch.testing.assert_close(grads[i], slow[i][place], rtol=2e-4, atol=2e-6)
    assert not hasattr(weights[0], "grad_sample")


def test_the_sum_is_clipped_by_example_and_divided_by_the_expected_batch(
    base: BaseModel, lora: Attached
) -> None:
    weights = weights_of(lora)
    slow = slow_gradients(base, weights)
    norms = [float(sum(g.square().sum() for g in gs)) ** 0.5 for gs in slow]
    clip = sorted(norms)[3]  # some are clipped, some are not
    rule = DpSgd(sampling=POISSON, clip_norm=clip, noise_multiplier=1e-9, micro_batch=4)
    list(rule.draw(ROWS, steps=1, seed=0))
    assert rule.fill(lora, weights, ROWS, loss_of(base), step=0, seed=0) is None
    for place, weight in enumerate(weights):
        wanted = sum(
            gs[place] * min(1.0, clip / n) for gs, n in zip(slow, norms, strict=True)
        ) / 3.0  # half of six  # fmt: skip
        torch.testing.assert_close(weight.grad, wanted, rtol=5e-4, atol=2e-6)


def test_no_example_moves_the_sum_by_more_than_the_clip_norm(
    base: BaseModel, lora: Attached
) -> None:
    weights = weights_of(lora)
    rule = DpSgd(sampling=POISSON, clip_norm=0.01, noise_multiplier=1.0, secret=False)
    list(rule.draw(ROWS, steps=1, seed=0))
    sums = []
    for rows in (ROWS, ROWS[1:]):
        rule.fill(lora, weights, rows, loss_of(base), step=0, seed=0)  # the same noise
        sums.append(torch.cat([w.grad.flatten() * 3 for w in weights]))
    assert float((sums[0] - sums[1]).norm()) <= 0.01 * 1.001


def test_c16_an_empty_batch_takes_a_noise_step_of_the_asked_size(
    base: BaseModel, lora: Attached
) -> None:
    weights = weights_of(lora)
    rule = DpSgd(sampling=POISSON, clip_norm=0.5, noise_multiplier=2.0, secret=False)
    list(rule.draw(ROWS, steps=1, seed=0))
    drawn = []
    for step in range(40):
        rule.fill(lora, weights, [], loss_of(base), step=step, seed=1)
        drawn.append(torch.cat([w.grad.flatten() for w in weights]))
    noise = torch.stack(drawn).double()
    wanted = 2.0 * 0.5 / 3.0
    n = noise.numel()
    assert abs(float(noise.std()) / wanted - 1) < 5 / (2 * n) ** 0.5  # five standard errors
    assert abs(float(noise.mean())) < 5 * wanted / n**0.5
    between = np.corrcoef(noise[0].numpy(), noise[1].numpy())[0, 1]
    assert abs(between) < 5 / noise.shape[1] ** 0.5


def test_c16_empty_batches_are_drawn_trained_and_accounted(base: BaseModel) -> None:
    rule = DpSgd(
        sampling=Sampling(kind="poisson", rate=0.01), clip_norm=1.0, noise_multiplier=1.0,
        secret=False,
    )  # fmt: skip
    assert sum(not batch for batch in rule.draw(ROWS, steps=5, seed=0)) >= 4
    settings = TrainSettings(mode="freeze-a", steps=5)
    trainer = LoraTrainer(base=base, train=ROWS, validation=ROWS, settings=settings, rule=rule)
    update = trainer.fit(None, rank=2, seed=0)
    assert any(f.b_OR.any() for f in update.state.modules.values())
    assert rule.mechanism(5).steps == 5
    assert not any("loss" in name for name in update.metrics)


def test_a_run_repeats_unless_its_noise_is_secret(base: BaseModel) -> None:
    def trained(secret: bool) -> np.ndarray:
        rule = DpSgd(sampling=POISSON, clip_norm=1.0, noise_multiplier=1.0, secret=secret)
        settings = TrainSettings(mode="freeze-a", steps=2)
        trainer = LoraTrainer(base=base, train=ROWS, validation=(), settings=settings, rule=rule)
        state = trainer.fit(None, rank=2, seed=5).state
        return np.concatenate([f.b_OR.ravel() for f in state.modules.values()])

    assert np.array_equal(trained(False), trained(False))
    assert not np.array_equal(trained(True), trained(True))


def test_c14_weights_without_a_gradient_by_example_are_named(
    base: BaseModel, lora: Attached
) -> None:
    weights = weights_of(lora)
    last = "model.layers.1.self_attn.o_proj"

    def skipping(rows):  # type: ignore[no-untyped-def]
        layers = base.core.layers
        base.core.layers = layers[:1]  # the second block is never run
        try:
            return answer_losses(base.core, base.head, rows)
        finally:
            base.core.layers = layers

    with pytest.raises(BadConfig, match=r"no gradient by example for 8 of 16.*layers\.1"):
        per_example_gradients(lora, weights, ROWS, skipping)
    per_example_gradients(lora, [w for n, w in lora.b.items() if n != last], ROWS, loss_of(base))


def test_c13_batches_of_another_sampling_are_refused() -> None:
    rule = DpSgd(sampling=POISSON, clip_norm=1.0, noise_multiplier=1.0)
    shuffled = Sampling(kind="shuffled", rate=0.5).draw(n=6, steps=2, seed=0)
    with pytest.raises(BadConfig, match=r'drawn as "shuffled".*accounted as "poisson"'):
        rule.draw(ROWS, steps=2, seed=0, draws=shuffled)
    other = POISSON.draw(n=7, steps=2, seed=0)
    with pytest.raises(BadConfig, match=r"drawn from 7 examples, there are 6"):
        rule.draw(ROWS, steps=2, seed=0, draws=other)


def test_c13_a_rule_that_did_not_draw_does_not_train(base: BaseModel, lora: Attached) -> None:
    rule = DpSgd(sampling=POISSON, clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(BadConfig, match=r"own `draw` first"):
        rule.fill(lora, weights_of(lora), ROWS, loss_of(base), step=0, seed=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0, -1.0])
def test_c11_numbers_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(BadConfig, match=r"clip norm is .*finite and above 0"):
        DpSgd(sampling=POISSON, clip_norm=bad, noise_multiplier=1.0)
    with pytest.raises(BadConfig, match=r"noise multiplier is .*finite and above 0"):
        DpSgd(sampling=POISSON, clip_norm=1.0, noise_multiplier=bad)
    with pytest.raises(BadConfig, match=r"micro_batch must be 1"):
        DpSgd(sampling=POISSON, clip_norm=1.0, noise_multiplier=1.0, micro_batch=0)


def test_c11_a_gradient_that_is_not_finite_is_refused(base: BaseModel, lora: Attached) -> None:
    weights = weights_of(lora)
    rule = DpSgd(sampling=POISSON, clip_norm=1.0, noise_multiplier=1.0)
    list(rule.draw(ROWS, steps=1, seed=0))

    def broken(rows):  # type: ignore[no-untyped-def]
        loss_N, starts = answer_losses(base.core, base.head, rows)
        return loss_N * float("inf"), starts

    with pytest.raises(BadUpdate, match=r"gradient is not finite"):
        rule.fill(lora, weights, ROWS, broken, step=0, seed=0)


def test_a_loss_in_another_order_is_refused(base: BaseModel, lora: Attached) -> None:
    def turned(rows):  # type: ignore[no-untyped-def]
        return answer_losses(base.core, base.head, list(rows)[::-1])

    with pytest.raises(BadConfig, match=r"rows' order"):
        per_example_gradients(lora, weights_of(lora), ROWS, turned)


def test_names_tell_rules_apart() -> None:
    one = DpSgd(sampling=POISSON, clip_norm=1.0, noise_multiplier=1.0)
    other = DpSgd(sampling=POISSON, clip_norm=1.0, noise_multiplier=1.5)
    assert one.name != other.name
