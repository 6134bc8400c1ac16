"""What is learned, from which rows; recordings, figures and weights on disk."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fusion_rows import EOS, PIECES, recording, rows
from typer.testing import CliRunner

from floe.assemble import FUSION, open_weights
from floe.cli.fusion import app
from floe.cli.fusion_text import cloud_log_prob, read_pairs
from floe.core.advice import Advice, Candidate
from floe.core.config import Config
from floe.core.errors import BadConfig, BadRequest
from floe.core.sections import FusionConfig
from floe.fusion.align import Alignment
from floe.fusion.evaluate import (
    bits_per_byte,
    figures,
    gap_interval,
    gap_recovered,
    gated,
    joined,
    rows_of,
    share_curve,
)
from floe.fusion.features import NAMES
from floe.fusion.fit import Settings, _cross_entropy, _held_out, _square, fit
from floe.fusion.mix import mix
from floe.fusion.predictor import oracle_shares, share
from floe.fusion.quality import quality
from floe.fusion.recording import load, record, save, spoken
from floe.fusion.weights import Pair, find_weights, load_weights, save_weights, weights_name
from floe.testing.scripted_engine import ScriptedEngine

ROWS = rows()
GROUPS = [str(i) for i in range(30)]
QUICK = Settings(steps=400)
FITTED = fit(ROWS, GROUPS, QUICK)
PAIR = Pair(slm="s" * 64, slm_tokenizer="own", cloud_tokenizer="other")


# --- learning


def test_the_learned_weight_beats_every_fixed_one_on_answers_it_has_not_seen() -> None:
    new = rows(seed=99)
    learned = bits_per_byte(new, new.nats(share(FITTED.net(new.features_TF))))
    fixed = [bits_per_byte(new, new.nats(np.full(600, w))) for w in np.linspace(0, 1, 21)]
    best = bits_per_byte(new, new.nats(oracle_shares(np.exp(new.log_q_T), new.p_T)))
    assert best < learned < min(fixed) - 0.02


def test_the_gate_asks_where_asking_pays() -> None:
    new = rows(seed=98)
    weights_T, scores_T = share(FITTED.net(new.features_TF)), FITTED.gate(new.edge_TE)
    (half,) = share_curve(new, weights_T, scores_T, (0.5,))
    slm = bits_per_byte(new, -new.log_q_T)
    all_asked = bits_per_byte(new, new.nats(weights_T))
    assert half["cloud_share"] == pytest.approx(0.5, abs=0.02)
    assert slm - half["bits_per_byte"] > 0.9 * (slm - all_asked)


def test_the_same_rows_give_the_same_weights() -> None:
    again = fit(ROWS, GROUPS, QUICK)
    assert (again.net.hidden_FN == FITTED.net.hidden_FN).all()
    assert again.quantiles == FITTED.quantiles


def test_an_input_that_never_changed_has_no_say() -> None:
    other = ROWS.features_TF[:5].copy()
    other[:, NAMES.index("route_confidence")] = 1.0
    assert FITTED.net(other) == pytest.approx(FITTED.net(ROWS.features_TF[:5]))


def test_one_text_is_never_on_both_sides() -> None:
    groups = [str(i % 10) for i in range(30)]
    held_I = _held_out(groups, QUICK)
    assert {g for g, h in zip(groups, held_I, strict=True) if h}.isdisjoint(
        g for g, h in zip(groups, held_I, strict=True) if not h
    )
    assert held_I.sum() == 6


@pytest.mark.parametrize("which", ["cross entropy", "square"])
def test_slopes_are_those_of_small_steps(which: str) -> None:
    of_T = np.arange(600) < 40
    of_T &= ROWS.fused_T
    loss = _cross_entropy(ROWS, of_T) if which == "cross entropy" else _square(ROWS.p_T, of_T)
    out_T = np.random.default_rng(3).normal(size=600)
    slope_T = loss(out_T)[1]
    for t in range(0, 60, 7):
        step = np.zeros(600)
        step[t] = 1e-5
        numeric = (loss(out_T + step)[0] - loss(out_T - step)[0]) / 2e-5
        assert slope_T[t] == pytest.approx(numeric, abs=1e-7)


def test_too_little_to_learn_from_is_said() -> None:
    with pytest.raises(BadRequest, match="4 different answers are too few to learn from; give 5"):
        fit(rows(4), list("abcd"), QUICK)
    silent = replace(ROWS, fused_T=np.zeros(600, dtype=bool))
    with pytest.raises(BadRequest, match="the cloud said nothing about these answers"):
        fit(silent, GROUPS, QUICK)


def test_b34_the_report_names_method_data_and_uncertainty() -> None:
    report = json.loads(json.dumps(FITTED.report))
    low, high = report["validation_gap_recovered_90_percent"]
    assert low < report["validation"]["gap_recovered"] < high
    assert report["validation_answers"] == 6 and report["answers"] == 30
    assert report["settings"]["seed"] == 17
    bits = report["validation_bits_per_byte"]
    assert bits["oracle"] < bits["learned"] < bits["fixed"] < bits["slm"]


# --- figures


def test_the_gap_is_what_the_pair_wins_over_what_the_llm_wins() -> None:
    nats_T = -ROWS.log_q_T * 0.5
    of_x = ROWS.set_I[ROWS.item_T] == 0
    slm, llm = -ROWS.log_q_T[of_x].sum(), 20.0 * 15
    assert gap_recovered(ROWS, nats_T, name="x") == pytest.approx(0.5 * slm / (slm - llm))
    flat = figures(ROWS, nats_T)
    assert flat["gap_recovered_x"] == pytest.approx(0.5 * slm / (slm - llm))
    assert flat["bits_per_byte_fused_x"] == pytest.approx(0.5 * flat["bits_per_byte_slm_x"])
    assert flat["bits_per_byte_llm"] == pytest.approx(20.0 / 60 / np.log(2))
    low, high = gap_interval(ROWS, nats_T)
    assert low < flat["gap_recovered"] < high


def test_without_a_gap_there_is_no_share_of_it() -> None:
    worse = replace(ROWS, llm_nats_I=np.full(30, 1e6))
    assert np.isnan(gap_recovered(worse, -worse.log_q_T))
    assert np.isnan(gap_interval(worse, -worse.log_q_T)).all()


def test_the_curve_runs_from_the_slm_to_the_pair() -> None:
    weights_T = np.full(600, 0.4)
    none, every = share_curve(ROWS, weights_T, ROWS.p_T, (0.0, 1.0))
    assert none["cloud_share"] == 0.0 and none["gap_recovered"] == pytest.approx(0.0)
    assert every["cloud_share"] == 1.0
    assert every["bits_per_byte"] == pytest.approx(bits_per_byte(ROWS, ROWS.nats(weights_T)))
    nats_T, real = gated(ROWS, weights_T, ROWS.p_T, 0.5)
    assert (nats_T[ROWS.p_T < 0.5] == -ROWS.log_q_T[ROWS.p_T < 0.5]).all()
    assert real == pytest.approx((ROWS.p_T >= 0.5).mean())


def test_rows_are_what_a_stream_would_mix() -> None:
    """Each place again with `mix` on the whole vocabulary."""
    made = recording()
    aligned = Alignment(token_bytes=PIECES, eos_ids=EOS)
    found = rows_of(made, aligned, top_k=6)
    nats_T = found.nats(np.full(len(found.p_T), 0.3))
    checked = 0
    for t in np.flatnonzero(made.start_T == 0):
        advice = made.advice_at(int(made.item_T[t]), top_k=6)[0]
        p_V = aligned.cloud_probs(advice, made.edge(int(t)))
        assert p_V is not None
        log_f_V = mix(made.edge(int(t)), p_V, 0.3)
        assert nats_T[t] == pytest.approx(-float(log_f_V[made.id_T[t]]), rel=1e-4)
        checked += 1
    assert checked == 8
    assert (
        not found.fused_T.all() and (nats_T[~found.fused_T] == -found.log_q_T[~found.fused_T]).all()
    )


def test_recordings_are_put_together_by_the_names_of_their_sets() -> None:
    aligned = Alignment(token_bytes=PIECES, eos_ids=EOS)
    a, b = (rows_of(recording(seed=s), aligned, top_k=3) for s in (1, 2))
    both = joined([a, b])
    assert both.names == a.names and len(both.bytes_I) == 16 and int(both.item_T[-1]) == 15
    mean = (
        bits_per_byte(a, -a.log_q_T) * a.bytes_I.sum()
        + bits_per_byte(b, -b.log_q_T) * b.bytes_I.sum()
    )
    assert bits_per_byte(both, -both.log_q_T) == pytest.approx(mean / both.bytes_I.sum())


def test_quality_gives_every_figure_of_held_out_recordings(tmp_path: Path) -> None:
    """What was asked of the gate stands beside what came out (bug-log B31)."""
    learned = load_weights(saved(tmp_path), slm=PAIR.slm, slm_tokenizer="own")
    save(recording(seed=5), tmp_path / "raw-held_out.npz")
    save(recording(seed=6), tmp_path / "raw-held_out-adapter.npz")
    found = quality(tmp_path, learned, cloud_share=0.4)
    assert found["cloud_share_target"] == 0.4 and 0.0 <= found["cloud_share_quality"] <= 1.0
    assert len(found["quality_curve"]) == 9 and found["quality_curve"][-1]["cloud_share"] == 1.0
    for end in ("", "_gated", "_top20", "_adapter", "_fixed", "_entropy_rule", "_oracle"):
        assert {f"gap_recovered{end}{s}" for s in ("", "_x", "_y")} <= found.keys()
    assert found["quality_answers"] == 8
    save(recording(seed=5, slm="t" * 64), tmp_path / "raw-held_out.npz")
    with pytest.raises(BadRequest, match="is of another pair of models than the fusion weights"):
        quality(tmp_path, learned)


# --- recordings


def test_a_recording_comes_back_as_it_was(tmp_path: Path) -> None:
    made = recording()
    save(made, tmp_path / "r.npz")
    again = load(tmp_path / "r.npz")
    assert (again.facts, again.names, again.pieces, again.eos_ids, again.cloud_pieces) == (
        made.facts, made.names, made.pieces, made.eos_ids, made.cloud_pieces,
    )  # fmt: skip
    assert (again.log_head_TH == made.log_head_TH).all()
    assert again.advice_at(3, top_k=4) == made.advice_at(3, top_k=4)
    assert all(len(a.candidates) <= 4 for a in again.advice_at(3, top_k=4).values())
    assert np.exp(again.edge(5)).sum() == pytest.approx(1.0, abs=1e-3)
    assert again.groups() == made.groups() and len(set(made.groups())) == 8
    with np.load(tmp_path / "r.npz", allow_pickle=False) as raw:
        assert raw.files


@pytest.mark.parametrize("content", [b"", b"no recording"])
def test_a_file_that_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r.npz").write_bytes(content)
    with pytest.raises(BadRequest, match=r"is no fusion recording of version 1.*record_fusion\.py"):
        load(tmp_path / "r.npz")


def test_answers_that_cannot_be_recorded_are_refused() -> None:
    with pytest.raises(BadRequest, match="there is nothing to record: no answer is left"):
        record([], pieces=PIECES, eos_ids=EOS, facts={})
    wrong = spoken(name="x", data=b"zz", ids=[0], log_q_TV=np.zeros((1, 8), np.float32), advices=[])
    with pytest.raises(BadRequest, match="tokens do not give answer 0 back byte for byte") as error:
        record([wrong], pieces=PIECES, eos_ids=EOS, facts={})
    assert "zz" not in error.value.message


# --- weights


def saved(tmp_path: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    path = tmp_path / weights_name(PAIR.slm)
    save_weights(FITTED, path, pair=PAIR, facts={"data_sha256": {"x": "y"}})
    if change is not None:
        data = json.loads(path.read_text())
        change(data)
        path.write_text(json.dumps(data))
    return path


def test_weights_come_back_as_they_were(tmp_path: Path) -> None:
    found = load_weights(saved(tmp_path), slm=PAIR.slm, slm_tokenizer="own", cloud_share=0.4)
    net = found.predictor.net
    assert net(ROWS.features_TF) == pytest.approx(FITTED.net(ROWS.features_TF), abs=1e-3)
    assert found.gate.cloud_share == 0.4 and found.pair == PAIR
    assert found.report["data_sha256"] == {"x": "y"}
    assert find_weights(tmp_path, PAIR.slm) == tmp_path / weights_name(PAIR.slm)
    assert find_weights(tmp_path, "0" * 64) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(version=0), "no file of fusion weights of version 1"),
        (lambda d: d.pop("pair"), "lacks a part of fusion weights"),
        (lambda d: d["net"].update(mean=[]), "the fusion weights cannot be used"),
        (lambda d: d.update(gate={}), "the fusion gate must have 101 quantiles"),
        (lambda d: d["pair"].update(slm="t" * 64), "were learned for another SLM"),
        (lambda d: d["pair"].update(slm_tokenizer="t"), "were learned for another SLM"),
    ],
)
def test_b34_b35_weights_that_do_not_fit_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    with pytest.raises(BadConfig, match=message):
        load_weights(saved(tmp_path, change), slm=PAIR.slm, slm_tokenizer="own")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text("{")
    for name in ("w.json", "none.json"):
        with pytest.raises(BadConfig, match=r"cannot read fusion weights from .*floe fusion fit"):
            load_weights(tmp_path / name, slm="s", slm_tokenizer="own")


def test_a_start_takes_the_file_that_fits_and_says_when_there_is_none(tmp_path: Path) -> None:
    engine: Any = ScriptedEngine()
    info = engine.info

    def opened(**fusion: Any) -> Any:
        return open_weights(Config(fusion=FusionConfig(**fusion)), engine, home=tmp_path)

    assert opened() is None
    with pytest.raises(BadConfig, match=r"cloud_share needs a learned gate.*floe fusion fit"):
        opened(cloud_share=0.4)
    mine = Pair(slm=info.digest, slm_tokenizer=info.tokenizer_digest, cloud_tokenizer="other")
    path = tmp_path / FUSION / weights_name(info.digest)
    save_weights(FITTED, path, pair=mine, facts={})
    assert opened(cloud_share=0.4).gate.cloud_share == 0.4
    elsewhere = tmp_path / "elsewhere.json"
    save_weights(FITTED, elsewhere, pair=PAIR, facts={})
    with pytest.raises(BadConfig, match="were learned for another SLM"):
        opened(weights=str(elsewhere))


# --- the command


def test_fit_learns_from_recordings_and_says_what_it_won(tmp_path: Path) -> None:
    save(recording(20), tmp_path / "r.npz")
    out = tmp_path / "w.json"
    result = CliRunner().invoke(app, ["fit", str(tmp_path / "r.npz"), "--out", str(out), "--json"])
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert (
        told["file"] == str(out)
        and told["answers"] == 40
        and told["texts"] == 20
        and told["kept_here"] == 0
    )
    assert len(told["data_sha256"]["r.npz"]) == 64
    assert load_weights(out, slm="s" * 64, slm_tokenizer="own").pair == PAIR


def test_fit_refuses_a_mix_of_models_and_of_kinds(tmp_path: Path) -> None:
    save(recording(6), tmp_path / "a.npz")
    save(recording(6, slm="t" * 64), tmp_path / "b.npz")
    (tmp_path / "c.txt").write_text("text")
    run = CliRunner().invoke
    two = run(app, ["fit", str(tmp_path / "a.npz"), str(tmp_path / "b.npz")])
    assert isinstance(two.exception, BadRequest) and "of different models" in str(two.exception)
    kinds = run(app, ["fit", str(tmp_path / "a.npz"), str(tmp_path / "c.txt")])
    assert "either texts or recordings, not both" in str(kinds.exception)


def test_fit_on_text_needs_a_logit_service(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"prompt": "p", "answer": "a"}\n')
    (tmp_path / "floe.toml").write_text("")
    result = CliRunner().invoke(
        app, ["fit", str(tmp_path / "a.jsonl"), "-c", str(tmp_path / "floe.toml")]
    )
    assert isinstance(result.exception, BadConfig)
    assert "floe fusion fit needs a logit service" in str(result.exception)


def test_pairs_are_read_from_lines_and_from_running_text(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_text('{"question": "q1", "response": "r1"}\n\n{"prompt": "q2", "answer": "r2"}\n')
    found = read_pairs([lines], limit=9)
    assert [(p.prompt, p.answer, p.chat) for p in found] == [("q1", "r1", True), ("q2", "r2", True)]
    text = tmp_path / "b.txt"
    text.write_text("short\n\n" + " ".join(f"w{i}" for i in range(60)))
    (only,) = read_pairs([text], limit=9)
    assert not only.chat and only.prompt.endswith("w19") and only.answer.startswith(" w20 w21")
    assert len(read_pairs([lines, text], limit=2)) == 2


@pytest.mark.parametrize("line", ["[1]", "{", '{"prompt": "secret"}'])
def test_a_line_without_an_answer_is_named_and_not_quoted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"prompt": "p", "answer": "a"}\n' + line)
    with pytest.raises(BadRequest, match=r"line 2 of .* must be an object with prompt") as error:
        read_pairs([path], limit=9)
    assert "secret" not in error.value.message


def test_unreadable_and_empty_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"cannot read .*none\.txt as UTF-8 text"):
        read_pairs([tmp_path / "none.txt"], limit=1)
    (tmp_path / "e.txt").write_text("")
    with pytest.raises(BadRequest, match="there is no answer in these files"):
        read_pairs([tmp_path / "e.txt"], limit=1)


def test_the_clouds_own_score_is_never_worse_than_the_truth() -> None:
    def at(offset: int, **logs: float) -> Advice:
        return Advice(
            offset_bytes=offset,
            candidates=tuple(Candidate(data=k.encode(), log_prob=v) for k, v in logs.items()),
        )

    places = (at(0, ab=-1.0, c=-2.0), at(2, d=-0.5, e=-3.0), at(3, z=-9.0))
    assert cloud_log_prob(places, b"abd") == pytest.approx(-1.5)
    assert cloud_log_prob(places, b"abx") == pytest.approx(-4.0)  # not sent: as the least of them
    assert np.isnan(cloud_log_prob(places[1:], b"abd")) and np.isnan(cloud_log_prob((), b""))
