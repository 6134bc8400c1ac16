"""Local training on a random Llama: PEFT's own parity, resumption bit by bit, refusals by name.

Legend: N answer tokens, R rank, I and O a layer's inputs and outputs.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="an extra: pip install 'floe[train]'")
import peft  # noqa: E402
import transformers  # noqa: E402

from floe.core.errors import BadConfig, BadModel, BadUpdate, Busy  # noqa: E402
from floe.federated.checkpoints import Checkpoints  # noqa: E402
from floe.federated.conditions import Conditions, Limits, Sensors  # noqa: E402
from floe.federated.examples import Example, Turn, split_examples  # noqa: E402
from floe.federated.layers import weights_digest  # noqa: E402
from floe.federated.on_torch.base_model import (  # noqa: E402
    BaseModel,
    base_shapes,
    load_base,
)
from floe.federated.on_torch.lora import attached  # noqa: E402
from floe.federated.on_torch.losses import answer_losses, mean_loss  # noqa: E402
from floe.federated.on_torch.train import LoraTrainer, answer_loss  # noqa: E402
from floe.federated.peft_folder import write_peft_folder  # noqa: E402
from floe.federated.products import dense, norm, state_difference, state_norm  # noqa: E402
from floe.federated.rows import Row  # noqa: E402
from floe.federated.settings import StepReport, TrainSettings  # noqa: E402
from floe.federated.shared_a import shared_a  # noqa: E402
from floe.federated.start import fresh_state, on_shared_a  # noqa: E402
from floe.federated.update import AdapterState, Factors  # noqa: E402
from floe.testing.tiny_model import TinyModel, make_tiny_model  # noqa: E402

SETTINGS = TrainSettings(steps=6, batch=4, learning_rate=5e-3)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=3)


@pytest.fixture(scope="module")
def base(tiny: TinyModel) -> BaseModel:
    return load_base(tiny.folder)


def examples() -> list[Example]:
    return [Example.of(f"question {n}", f"answer {n % 3}") for n in range(20)]


def trainer(base: BaseModel, settings: TrainSettings = SETTINGS, **options: Any) -> LoraTrainer:
    split = split_examples(examples(), validation_share=0.2)
    return LoraTrainer.of_examples(base, split, settings=settings, client="c", **options)


def random_state(base: BaseModel, *, seed: int, ranks: Sequence[int] = (3,)) -> AdapterState:
    rng = np.random.default_rng(seed)
    modules = {}
    for n, (name, (o, i)) in enumerate(base.shapes().items()):
        r = ranks[n % len(ranks)]
        modules[name] = Factors(
            a_RI=rng.normal(0, 0.2, (r, i)).astype(np.float32),
            b_OR=rng.normal(0, 0.2, (o, r)).astype(np.float32),
        )
    return AdapterState(base_digest=base.digest, modules=modules)


def assert_same(one: AdapterState, other: AdapterState) -> None:
    assert one.modules.keys() == other.modules.keys()
    for name, factors in one.modules.items():
        assert factors.a_RI.tobytes() == other.modules[name].a_RI.tobytes(), name
        assert factors.b_OR.tobytes() == other.modules[name].b_OR.tobytes(), name


# --- The base and its rows


def test_rows_are_the_chat_template_and_the_answer_ends_with_the_end_mark(base: BaseModel) -> None:
    row = base.encode(Example.of("why?", "so."))
    decode = base.tokenizer.decode
    assert decode(row.ids[: -row.n_answer]) == (
        "<|im_start|>user\nwhy?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert decode(row.ids[-row.n_answer :]) == "so.<|im_end|>"
    chat = Example(
        turns=(Turn(role="system", content="short"), Turn(role="user", content="why?")),
        answer="so.",
    )
    assert "system\nshort" in decode(base.encode(chat).ids)


def test_a_template_that_fails_does_not_show_the_text(base: BaseModel) -> None:
    broken = replace(base, tokenizer=transformers.PreTrainedTokenizerFast(
        tokenizer_object=base.tokenizer.backend_tokenizer, eos_token="<|im_end|>",
        chat_template="{{ raise_exception(messages[0]['content']) }}",
    ))  # fmt: skip
    with pytest.raises(BadModel, match="cannot render this chat") as caught:
        broken.encode(Example.of("my sister", "b"))
    assert caught.value.__cause__ is None
    rewriting = replace(base, tokenizer=transformers.PreTrainedTokenizerFast(
        tokenizer_object=base.tokenizer.backend_tokenizer, eos_token="<|im_end|>",
        chat_template="{{ messages | length }}{{ messages[0]['content'] }}",
    ))  # fmt: skip
    with pytest.raises(BadModel, match="rewrites the prompt"):
        rewriting.encode(Example.of("my sister", "b"))


def test_the_digest_is_the_reference_engines(tiny: TinyModel, base: BaseModel) -> None:
    from floe.engine.torch_engine import TorchEngine

    engine = TorchEngine(folder=tiny.folder)
    try:
        assert base.digest == engine.info.digest == weights_digest(tiny.folder)
    finally:
        engine.close()


def test_a_cut_base_has_fewer_layers_and_another_digest(tiny: TinyModel, base: BaseModel) -> None:
    cut = load_base(tiny.folder, n_layers=1)
    assert cut.n_layers == 1
    assert {n.split(".")[2] for n in cut.shapes()} == {"0"}
    assert cut.digest != base.digest
    assert trainer(cut).loss(None) > 0.0
    with pytest.raises(BadModel, match="has 2 layers; cannot keep 3"):
        load_base(tiny.folder, n_layers=3)


def test_a_folder_that_is_no_model_is_refused(tmp_path: Path, tiny: TinyModel) -> None:
    with pytest.raises(BadModel, match=r"it has no config\.json"):
        load_base(tmp_path)
    with pytest.raises(BadModel, match="holds no safetensors; pickles are never loaded"):
        weights_digest(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadModel, match="cannot load a model from"):
        load_base(tmp_path)
    with pytest.raises(BadModel, match=r"no config\.json of a known language model"):
        base_shapes(tmp_path)
    with pytest.raises(BadModel, match="no linear layer named nothing_proj"):
        base_shapes(tiny.folder, ("q_proj", "nothing_proj"))


def test_shapes_are_known_without_the_weights(tiny: TinyModel, base: BaseModel) -> None:
    targets = ("q_proj", "down_proj")
    assert base_shapes(tiny.folder, targets) == base.shapes(targets)
    assert base.shapes(targets)["model.layers.0.mlp.down_proj"] == (64, 128)


# --- The loss, against an obvious twin


def slow_losses(base: BaseModel, row: Row) -> list[float]:
    """One row at a time, all logits, one token after another."""
    with torch.no_grad():
        logits = base.model(torch.tensor([list(row.ids)])).logits[0].double()
    log_p = torch.log_softmax(logits, dim=-1)
    first = len(row.ids) - row.n_answer
    return [-float(log_p[t - 1, row.ids[t]]) for t in range(first, len(row.ids))]


def test_the_loss_is_of_answer_tokens_alone(base: BaseModel) -> None:
    rows = [base.encode(Example.of("q" * n, "a" * (7 - n))) for n in range(1, 6)]
    expected = [slow_losses(base, r) for r in rows]
    with torch.no_grad():
        loss_N, starts = answer_losses(base.core, base.head, rows)
    np.testing.assert_allclose(loss_N.numpy(), np.concatenate(expected), atol=1e-4)
    np.testing.assert_allclose(loss_N[starts].numpy(), [e[0] for e in expected], atol=1e-4)
    found = mean_loss(base.core, base.head, rows, batch=2)
    every = [x for e in expected for x in e]
    assert found.loss == pytest.approx(np.mean(every), abs=1e-4)
    assert found.first_token_loss == pytest.approx(np.mean([e[0] for e in expected]), abs=1e-4)
    assert (found.tokens, found.rows) == (len(every), 5)
    with pytest.raises(ValueError, match="no rows to judge by"):
        mean_loss(base.core, base.head, [])


# --- Factors in and out of PEFT


def test_c19_c20_the_written_folder_gives_peft_the_same_logits(
    base: BaseModel, tiny: TinyModel, tmp_path: Path
) -> None:
    state = random_state(base, seed=1, ranks=(3, 3, 5))  # ranks may differ by layer
    ids = torch.arange(5, 25)[None, :]
    with torch.no_grad():
        plain = base.model(ids).logits
        with attached(base, state) as lora:
            ours = base.model(ids).logits
            assert_same(lora.state(base.digest), state)
        after = base.model(ids).logits
    write_peft_folder(state, tmp_path, "tiny")
    fresh = transformers.AutoModelForCausalLM.from_pretrained(tiny.folder, dtype=torch.float32)
    with torch.no_grad():
        theirs = peft.PeftModel.from_pretrained(fresh, str(tmp_path)).eval()(ids).logits
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    assert float((ours - plain).abs().max()) > 0.1
    assert torch.equal(after, plain)  # the base is as it was


def test_the_attached_change_is_the_dense_product(base: BaseModel) -> None:
    state = random_state(base, seed=2)
    name = "model.layers.1.self_attn.k_proj"  # 32 x 64: no square layer hides a transpose (C23)
    layer = base.model.get_submodule(name)
    x = torch.randn(4, 64, generator=torch.manual_seed(0))
    with torch.no_grad():
        expected = x @ (layer.weight + torch.from_numpy(dense(state.modules[name]))).T
        with attached(base, state):
            torch.testing.assert_close(
                base.model.get_submodule(name)(x), expected, atol=1e-5, rtol=1e-5
            )


def test_starts_that_do_not_fit_are_refused_and_leave_the_base_alone(base: BaseModel) -> None:
    good = random_state(base, seed=3)
    name = next(iter(good.modules))
    wide = Factors(a_RI=np.zeros((2, 9), np.float32), b_OR=np.zeros((64, 2), np.float32))
    for state, reason, says in (
        (replace(good, base_digest="f" * 64), "wrong-base", "adapter is for the base ffffffffffff"),
        (replace(good, modules={}), "zero-size", "no modules"),
        (replace(good, modules={name: wide}), "wrong-shapes", r"the change is \(64, 9\)"),
        (replace(good, modules={"lm": wide}), "wrong-shapes", "no linear layer 'lm'"),
    ):
        with pytest.raises(BadUpdate, match=says) as caught:
            trainer(base).fit(state, rank=2, seed=0)
        assert caught.value.reason == reason
    assert not hasattr(base.model, "peft_config")
    assert isinstance(base.model.get_submodule(name), torch.nn.Linear)
    assert trainer(base).loss(None) > 0.0


# --- Training


def test_training_lowers_the_loss_on_other_examples_and_repeats_bit_for_bit(
    base: BaseModel,
) -> None:
    seen: list[StepReport] = []
    one = trainer(base, progress=seen.append)
    update = one.fit(None, rank=4, seed=1)
    assert one.loss(update.state) < one.loss(None) - 0.5
    assert [r.step for r in seen] == [1, 2, 3, 4, 5, 6]
    assert seen[-1].loss == update.metrics["train_loss_last"]
    assert (update.client, update.n_examples, update.state.rank) == ("c", 15, 4)
    assert_same(trainer(base).fit(None, rank=4, seed=1).state, update.state)
    other = trainer(base).fit(None, rank=4, seed=2)
    assert state_norm(state_difference(other.state, update.state)) > 0.0


def test_a_start_is_brought_to_the_devices_rank(base: BaseModel) -> None:
    start = random_state(base, seed=4, ranks=(4,))
    one = trainer(base)
    wider, smaller = one.start_state(start, rank=6), one.start_state(start, rank=2)
    assert state_norm(state_difference(wider, start)) < 1e-4  # the same products
    assert {f.rank for f in wider.modules.values()} == {6}
    assert {f.rank for f in smaller.modules.values()} == {2}
    assert one.loss(wider) == pytest.approx(one.loss(start), abs=1e-4)
    assert one.fit(start, rank=6, seed=0).state.rank == 6


def test_a_fresh_adapter_changes_nothing_and_is_the_same_on_every_device(base: BaseModel) -> None:
    one, two = trainer(base).start_state(None, rank=8), trainer(base).start_state(None, rank=4)
    assert trainer(base).loss(one) == pytest.approx(trainer(base).loss(None), abs=1e-6)
    for name, factors in two.modules.items():
        assert np.array_equal(one.modules[name].a_RI[:4], factors.a_RI)
        assert np.allclose(factors.a_RI @ factors.a_RI.T, np.eye(4), atol=1e-5)
    layers = [f.a_RI for n, f in two.modules.items() if n.endswith("q_proj")]
    assert not np.array_equal(layers[0], layers[1])


def test_shared_a_refuses_a_rank_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="rank"):
        shared_a((4, 4), 5, 0)


def test_freeze_a_trains_b_over_the_shared_a(base: BaseModel) -> None:
    one = trainer(base, replace(SETTINGS, mode="freeze-a"))
    update = one.fit(None, rank=4, seed=1)
    shared = fresh_state(base.digest, base.shapes(), rank=4, seed=0)
    for name, factors in update.state.modules.items():
        assert np.array_equal(factors.a_RI, shared.modules[name].a_RI)
        assert norm(factors) > 0.0
    # A server may hand the same changes back as other factors: they are found again.
    turned = AdapterState(
        base_digest=base.digest,
        modules={
            n: Factors(a_RI=2.0 * f.a_RI[::-1].copy(), b_OR=0.5 * f.b_OR[:, ::-1].copy())
            for n, f in update.state.modules.items()
        },
    )
    again = on_shared_a(turned, rank=4, seed=0)
    assert state_norm(state_difference(again, update.state)) < 1e-4
    for name, factors in again.modules.items():
        assert np.array_equal(factors.a_RI, shared.modules[name].a_RI)
    assert on_shared_a(again, rank=4, seed=0).modules[name] is again.modules[name]


def test_alternating_rounds_train_one_factor_each(base: BaseModel) -> None:
    one = trainer(base, replace(SETTINGS, mode="alternate"))
    begin = one.start_state(None, rank=4)
    even = one.fit(None, rank=4, seed=1, round_number=0)
    odd = one.fit(even.state, rank=4, seed=1, round_number=1)
    for name, factors in begin.modules.items():
        middle, end = even.state.modules[name], odd.state.modules[name]
        assert np.array_equal(middle.a_RI, factors.a_RI)
        assert not np.array_equal(middle.b_OR, factors.b_OR)
        assert np.array_equal(end.b_OR, middle.b_OR)
        assert not np.array_equal(end.a_RI, middle.a_RI)
    assert (even.round_number, odd.round_number) == (0, 1)


def test_accumulating_gives_the_gradient_of_the_larger_batch(base: BaseModel) -> None:
    whole = trainer(base, replace(SETTINGS, batch=8, steps=2)).fit(None, rank=4, seed=1)
    parts = trainer(base, replace(SETTINGS, batch=2, accumulate=4, steps=2)).fit(
        None, rank=4, seed=1
    )
    gap = state_norm(state_difference(whole.state, parts.state))
    assert gap < 1e-3 * state_norm(whole.state)


@pytest.mark.parametrize("space", ["products", "factors"])
def test_the_proximal_term_holds_the_adapter_near_its_start(base: BaseModel, space: Any) -> None:
    start = random_state(base, seed=5)
    moved = []
    for strength in (0.0, 50.0):
        settings = replace(SETTINGS, proximal=strength, proximal_space=space, clip_norm=None)
        state = trainer(base, settings).fit(start, rank=3, seed=1).state
        moved.append(state_norm(state_difference(state, start)))
    assert moved[1] < 0.7 * moved[0]


@pytest.mark.parametrize("space", ["products", "factors"])
def test_the_proximal_gradient_is_autograds(base: BaseModel, space: str) -> None:
    from floe.federated.on_torch.steps import pull_back

    start, now = random_state(base, seed=5), random_state(base, seed=6)
    with attached(base, now) as lora:
        first = {
            n: (torch.from_numpy(f.a_RI), torch.from_numpy(f.b_OR))
            for n, f in start.modules.items()
        }
        weights = [*lora.a.values(), *lora.b.values()]
        for w in weights:
            w.requires_grad_(True)
        term = 0.0
        for n, (a0, b0) in first.items():
            a, b = lora.a[n], lora.b[n]
            if space == "products":
                term = term + ((b @ a - b0 @ a0) ** 2).sum()
            else:
                term = term + ((a - a0) ** 2).sum() + ((b - b0) ** 2).sum()
        (0.35 * term).backward()
        expected = [w.grad.clone() for w in weights]
        for w in weights:
            w.grad = torch.zeros_like(w)
        pull_back(lora, first, strength=0.7, space=space)
        for w, grad in zip(weights, expected, strict=True):
            torch.testing.assert_close(w.grad, grad, atol=1e-4, rtol=1e-4)


def test_other_targets_are_trained_where_asked(base: BaseModel) -> None:
    settings = replace(SETTINGS, targets=("down_proj",), steps=1)
    state = trainer(base, settings).fit(None, rank=2, seed=0).state
    assert sorted(state.modules) == [f"model.layers.{n}.mlp.down_proj" for n in range(2)]


# --- Refusals


def test_c01_no_examples_are_refused(base: BaseModel) -> None:
    with pytest.raises(BadUpdate, match="no example to train on") as caught:
        LoraTrainer(base=base, train=[], validation=[])
    assert caught.value.reason == "zero-examples"
    row = base.encode(examples()[0])
    with pytest.raises(BadUpdate, match="no example to judge by"):
        LoraTrainer(base=base, train=[row], validation=[]).loss(None)


def test_c05_a_loss_that_is_not_finite_ends_the_run_by_name(base: BaseModel) -> None:
    start = random_state(base, seed=7)
    name = next(iter(start.modules))
    start.modules[name].b_OR[0, 0] = np.nan
    with pytest.raises(BadUpdate, match="the loss is not finite at step 1 of 6; lower") as caught:
        trainer(base).fit(start, rank=3, seed=0)
    assert caught.value.reason == "not-finite"
    assert trainer(base).loss(None) < 100.0  # the base is clean


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": 0}, "steps must be 1 or more"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite and above 0"),
        ({"proximal": float("inf")}, "proximal must be finite"),
        ({"clip_norm": 0.0}, "clip_norm must be above 0, or None"),
        ({"clip_norm": float("nan")}, "clip_norm must be above 0, or None"),
    ],
)
def test_c11_settings_are_numbers(change: dict[str, Any], says: str) -> None:
    with pytest.raises(BadConfig, match=says):
        replace(SETTINGS, **change)


# --- Stopping and going on


class Stop(Exception):
    """Raised from the progress callback: a run that is cut off."""


def stopped(base: BaseModel, kept: Checkpoints, at: int, settings: TrainSettings) -> None:
    def stop(report: StepReport) -> None:
        if report.step == at:
            raise Stop

    with pytest.raises(Stop):
        trainer(base, settings, checkpoints=kept, progress=stop).fit(None, rank=4, seed=1)


@pytest.mark.parametrize("mode", ["both", "freeze-a"])
def test_a_resumed_run_is_the_unbroken_one_bit_for_bit(
    base: BaseModel, tmp_path: Path, mode: Any
) -> None:
    settings = replace(SETTINGS, mode=mode)
    whole = trainer(base, settings).fit(None, rank=4, seed=1)
    kept = Checkpoints(tmp_path, every_steps=2)
    stopped(base, kept, 5, settings)
    again = trainer(base, settings, checkpoints=kept).fit(None, rank=4, seed=1)
    assert again.metrics["resumed_at_step"] == 4.0
    assert again.metrics["train_loss_first"] == whole.metrics["train_loss_first"]
    assert_same(again.state, whole.state)
    # The finished run's checkpoint answers at once, until it is cleared.
    assert (
        trainer(base, settings, checkpoints=kept)
        .fit(None, rank=4, seed=1)
        .metrics["resumed_at_step"]
        == 6.0
    )
    other = trainer(base, settings, checkpoints=kept).fit(None, rank=4, seed=2)
    assert other.metrics["resumed_at_step"] == 0.0  # another run's is passed over


CHILD = """
import sys, torch
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_lora_train import SETTINGS, trainer
from floe.federated.checkpoints import Checkpoints
from floe.federated.on_torch.base_model import load_base
def told(report):
    print(report.step, flush=True)
    if report.step == 3:
        sys.stdin.read()  # killed here, in the middle of the run
trainer(load_base(Path(sys.argv[1])), progress=told,
        checkpoints=Checkpoints(Path(sys.argv[2]), every_steps=1)).fit(None, rank=4, seed=1)
"""


def test_a_run_killed_in_the_middle_goes_on_bit_for_bit(
    base: BaseModel, tiny: TinyModel, tmp_path: Path
) -> None:
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(tiny.folder), str(tmp_path)]
    child = subprocess.Popen(
        [*command, str(Path(__file__).parent)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert child.stdout is not None and child.stdin is not None
    assert [child.stdout.readline().strip() for _ in range(3)] == ["1", "2", "3"]
    child.send_signal(signal.SIGKILL)
    assert child.wait(timeout=30) == -signal.SIGKILL
    child.stdin.close()
    child.stdout.close()
    again = trainer(base, checkpoints=Checkpoints(tmp_path)).fit(None, rank=4, seed=1)
    assert again.metrics["resumed_at_step"] == 2.0  # step 3 was told before it was kept
    assert_same(again.state, trainer(base).fit(None, rank=4, seed=1).state)


def on_battery(folder: Path) -> Sensors:
    battery = folder / "power" / "BAT0"
    battery.mkdir(parents=True, exist_ok=True)
    (battery / "type").write_text("Battery\n")
    (battery / "capacity").write_text("12\n")
    return Sensors(power_supply=folder / "power", thermal=folder, loadavg=folder, n_cores=1)


def test_a_device_that_may_not_train_stops_with_the_reason_and_goes_on_later(
    base: BaseModel, tmp_path: Path
) -> None:
    kept, told = Checkpoints(tmp_path / "run"), list[StepReport]()
    sensors = on_battery(tmp_path)
    low = Conditions(limits=Limits(min_battery_percent=20), sensors=sensors, patience_s=0.0)
    with pytest.raises(
        Busy, match="battery is at 12 %, below 20 %; 0 of 6 steps were done, it can"
    ):
        trainer(base, conditions=low, checkpoints=kept).fit(None, rank=4, seed=1)
    with pytest.raises(Busy, match="nothing was kept"):
        trainer(base, conditions=low).fit(None, rank=4, seed=1)

    def charge(_: float) -> None:
        (sensors.power_supply / "BAT0" / "capacity").write_text("80\n")

    later = Conditions(
        limits=Limits(min_battery_percent=20), sensors=sensors, sleep=charge, patience_s=60.0
    )
    update = trainer(base, conditions=later, checkpoints=kept, progress=told.append).fit(
        None, rank=4, seed=1
    )
    assert told[0].paused == "the battery is at 12 %, below 20 %"
    assert_same(update.state, trainer(base).fit(None, rank=4, seed=1).state)


def test_threads_and_determinism_are_put_back(base: BaseModel) -> None:
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    row = base.encode(examples()[0])
    assert answer_loss(base, None, [row], threads=1).rows == 1
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before
