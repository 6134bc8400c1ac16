"""The simulator, the traces, the clairvoyant bound and the benchmark's figures."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floe.adapters.policies import BASELINES, make_policy
from floe.core.errors import BadConfig, BadRequest
from floe.evaluation import cache_cells, cache_page, cache_sources
from floe.evaluation.cache_bound import belady_misses, clairvoyant, dual_cost_ms
from floe.evaluation.cache_generate import GENERATORS
from floe.evaluation.cache_replace import measure, replacement_figures
from floe.evaluation.cache_simulate import simulate
from floe.evaluation.cache_stalls import LANES, simulate_stalls
from floe.evaluation.cache_trace import LoadTimes, Trace, make_trace, read_csv
from floe.evaluation.cache_waits import measure as measure_waits
from floe.evaluation.cache_waits import stall_figures

DATA = Path(__file__).parents[3] / "shared" / "data"


def trace_of(keys, sizes, loads=None, at_s=None) -> Trace:
    loads = loads if loads is not None else [1.0 + s for s in sizes]
    return make_trace(
        "toy", at_s if at_s is not None else np.arange(len(keys)), keys,
        bytes_K=np.array(sizes, dtype=np.int64), load_ms_K=np.array(loads, dtype=float),
    )  # fmt: skip


# --- the clairvoyant bound


def least_cost(keys, sizes, loads, budget):
    """By trying every set of victims at every miss."""
    states = {frozenset(): 0.0}
    for k in keys:
        after: dict[frozenset, float] = {}
        for held, cost in states.items():
            options = [(held, cost)]
            if k not in held and sizes[k] > budget:
                options = [(held, cost + loads[k])]
            elif k not in held:
                options = [
                    (frozenset({*kept, k}), cost + loads[k])
                    for n in range(len(held) + 1)
                    for kept in itertools.combinations(held, n)
                    if sum(sizes[x] for x in kept) + sizes[k] <= budget
                ]
            for state, total in options:
                after[state] = min(after.get(state, np.inf), total)
        states = after
    return min(states.values())


TOYS = st.tuples(
    st.lists(st.integers(0, 4), min_size=1, max_size=14),
    st.lists(st.integers(1, 5), min_size=5, max_size=5),
    st.lists(st.integers(1, 9), min_size=5, max_size=5),
    st.integers(1, 11),
)


@settings(deadline=None)
@given(TOYS)
def test_the_bound_is_below_brute_force_for_any_sizes(toy):
    keys, sizes, loads, budget = toy
    exact = least_cost(keys, sizes, loads, budget)
    trace = trace_of(keys, sizes, loads)
    bound = dual_cost_ms(trace, budget, 150)
    assert bound <= exact + 1e-6
    assert bound >= sum(loads[k] for k in set(keys)) * 0.999 - 1e-6  # a first load is never saved


@settings(deadline=None, max_examples=50)
@given(TOYS, st.lists(st.integers(0, 4), max_size=6))
def test_the_warm_bound_is_below_what_any_beginning_leads_to(toy, before):
    keys, sizes, loads, budget = toy
    whole = least_cost(before + keys, sizes, loads, budget)
    bound = clairvoyant(trace_of(keys, sizes, loads), budget_bytes=budget, is_warm=True)
    assert bound.cost_ms <= whole + 1e-6 and not bound.is_exact
    for name in ("lru", "gdsf"):
        found = simulate(
            trace_of(before + keys, sizes, loads), policy=name, budget_bytes=budget,
            warmup=len(before),
        )  # fmt: skip
        assert found.cost_ms >= bound.cost_ms - 1e-6


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=14), st.integers(1, 4))
def test_belady_is_brute_force_for_equal_sizes_and_the_dual_meets_it(keys, slots):
    exact = least_cost(keys, [1] * 5, [1.0] * 5, slots)
    assert belady_misses(np.array(keys), slots) == exact
    trace = trace_of(keys, [1] * 5, [1.0] * 5)
    found = clairvoyant(trace, budget_bytes=slots)
    assert found.is_exact and found.cost_ms == exact and found.method == "Belady"
    assert exact - dual_cost_ms(trace, slots, 400) <= 0.25 * len(keys)


def test_the_dual_is_close_where_belady_is_known():
    trace = cache_cells.made("zipf_drift", 2000, 1, equal=True)
    budget = 20 * int(trace.bytes_K[0])
    exact = clairvoyant(trace, budget_bytes=budget).cost_ms
    bound = dual_cost_ms(trace, budget, 400)
    assert 0.95 * exact <= bound <= exact
    assert dual_cost_ms(trace, budget, 0) <= bound  # one price for all times is looser


@settings(deadline=None, max_examples=25)
@given(TOYS)
def test_no_policy_beats_the_bound(toy):
    keys, sizes, loads, budget = toy
    bound = clairvoyant(trace_of(keys, sizes, loads), budget_bytes=budget).cost_ms
    for name in (*BASELINES, "learned"):
        found = simulate(trace_of(keys, sizes, loads), policy=name, budget_bytes=budget)
        assert found.cost_ms >= bound - 1e-6


# --- the simulator


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 5))
def test_counting_agrees_with_a_plain_lru(keys, slots):
    resident, misses, evictions = [], 0, 0
    for k in keys:
        if k in resident:
            resident.remove(k)
        else:
            misses += 1
            if len(resident) == slots:
                resident.pop(0)
                evictions += 1
        resident.append(k)
    found = simulate(trace_of(keys, [3] * 7), policy="lru", budget_bytes=3 * slots)
    assert (found.misses, found.hits, found.evictions) == (misses, len(keys) - misses, evictions)
    assert found.cost_ms == 4.0 * misses and found.evicted_bytes == 3 * evictions
    assert found.hit_rate == pytest.approx(1 - misses / len(keys))


def test_f01_an_adapter_bigger_than_the_budget_costs_a_load_and_evicts_nothing():
    found = simulate(trace_of([0, 1, 0, 1, 0], [4, 50]), policy="lru", budget_bytes=10)
    assert (found.misses, found.evictions) == (3, 0)


def test_warmup_is_left_out_and_the_curve_is_not():
    trace = trace_of([0, 1] * 20, [1, 1])
    found = simulate(trace, policy="lru", budget_bytes=2, warmup=2, points=4)
    assert found.requests == 38 and found.misses == 0 and found.cost_ms == 0.0
    assert [n for n, _ in found.curve] == [10, 20, 30, 40]
    assert [c for _, c in found.curve] == [0.4, 0.0, 0.0, 0.0]


def test_the_same_seed_gives_the_same_run():
    trace = cache_cells.made("bursts", 600, 3)
    runs = [simulate(trace, budget_bytes=trace.total_bytes // 10, seed=5) for _ in range(2)]
    assert runs[0] == runs[1] and runs[0].policy == "learned"


def test_a_wrong_budget_or_policy_is_refused():
    trace = trace_of([0], [1])
    with pytest.raises(BadRequest, match="the budget must be more than 0 bytes, not 0"):
        simulate(trace, policy="lru", budget_bytes=0)
    with pytest.raises(BadConfig, match="no cache policy named 'belady'"):
        simulate(trace, policy="belady", budget_bytes=1)


class Liar:
    name = "liar"

    def __init__(self, victims):
        self.named = victims

    def used(self, use, *, resident): ...
    def admitted(self, use, *, prefetched=False): ...
    def evicted(self, key): ...

    def victims(self, need_bytes, evictable, *, at_s):
        return self.named


def test_a_policy_that_cheats_is_caught():
    trace = trace_of([0, 1, 2], [1, 1, 1])
    with pytest.raises(RuntimeError, match="'liar' evicts 'nobody', not here"):
        simulate(trace, policy=Liar(["nobody"]), budget_bytes=2)
    with pytest.raises(RuntimeError, match="'liar' frees too little"):
        simulate(trace, policy=Liar([]), budget_bytes=2)


# --- stalls


def test_alone_every_miss_is_a_stall_of_its_load():
    trace = trace_of([0, 1, 0, 2, 1], [10, 10, 10], [5.0, 6.0, 7.0], at_s=[0, 100, 200, 300, 400])
    found = simulate_stalls(trace, policy=make_policy("lru"), budget_bytes=20)
    assert found.stall_ms == pytest.approx(5 + 6 + 7 + 6) and found.stalled == 4


def test_the_queue_hides_loads_behind_the_work_of_others():
    n = 60
    apart = trace_of(range(n), [1] * n, [50.0] * n, at_s=100.0 * np.arange(n))
    at_once = trace_of(range(n), [1] * n, [50.0] * n, at_s=np.zeros(n))
    slow = simulate_stalls(apart, policy=make_policy("lru"), budget_bytes=n)
    hidden = simulate_stalls(at_once, policy=make_policy("lru"), budget_bytes=n)
    assert slow.stall_ms == pytest.approx(50.0 * n)
    assert hidden.stall_ms < 0.5 * slow.stall_ms and LANES == 4


def test_prefetches_are_counted_and_pay_on_a_cycle():
    trace = cache_cells.made("round_robin", 1500, 2)
    budget = trace.total_bytes // 2
    lru, plain, both = (
        simulate_stalls(
            trace, policy=make_policy(name), budget_bytes=budget, predicted_prefetch=predicted
        )
        for name, predicted in (("lru", False), ("learned", False), ("learned", True))
    )
    assert lru.prefetched == plain.prefetched == 0
    assert both.prefetched > 100
    assert both.prefetch_used + both.prefetch_wasted == both.prefetched
    assert both.stall_ms < 0.5 * plain.stall_ms < 0.5 * lru.stall_ms


@settings(deadline=None, max_examples=25)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.floats(0, 3)), min_size=1, max_size=30),
    st.integers(6, 30),
    st.sampled_from(["lru", "s3-fifo", "learned"]),
)
def test_every_request_is_served_however_small_the_budget(requests, budget, name):
    keys, times = [k for k, _ in requests], np.array([t for _, t in requests])
    trace = trace_of(keys, [3, 5, 9, 4, 20, 6], at_s=times)
    found = simulate_stalls(
        trace, policy=make_policy(name), budget_bytes=budget, predicted_prefetch=True
    )
    assert found.requests == len(keys) and found.loads >= len(set(keys))
    assert found.stall_ms >= 0


# --- traces


def test_csv_traces_are_read(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("time,key,size,load_ms\n2,b,20,\n1,a,10,3.5\n3,a,10,9\n")
    times = LoadTimes(bytes_M=(10, 30), load_ms_M=(1.0, 3.0))
    trace = read_csv(path, load_ms_of=times)
    assert trace.name == "mine" and len(trace) == 3
    assert [trace.names[k] for k in trace.key_T] == ["a", "b", "a"]
    assert dict(zip(trace.names, trace.load_ms_K.tolist(), strict=True)) == {"a": 3.5, "b": 2.0}


@pytest.mark.parametrize(
    "line", ["1,a", "x,a,3", "1,,3", "1,a,0", "inf,a,3", "1,a,3,nan", "1,a,3,-1", "1,a,1e999"]
)
def test_a_bad_line_is_named(tmp_path, line):
    path = tmp_path / "t.csv"
    path.write_text(f"0,a,3\n{line}\n")
    with pytest.raises(BadRequest, match=r"t.csv, line 2: must be time,key,size\[,load_ms\]"):
        read_csv(path, load_ms_of=cache_sources.load_times())


def test_an_empty_trace_is_refused(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("time,key,size\n")
    with pytest.raises(BadRequest, match="holds no requests"):
        read_csv(path, load_ms_of=cache_sources.load_times())


def test_load_times_follow_the_table_and_go_on_in_proportion():
    times = LoadTimes(bytes_M=(10, 30), load_ms_M=(1.0, 3.0))
    assert [times(b) for b in (5, 10, 20, 30, 60)] == [1.0, 1.0, 2.0, 3.0, 6.0]
    found = json.loads((cache_sources.FOLDER / "load_times.json").read_text())
    assert found["cpu"] and "measure_loads.py" in found["command"]
    assert cache_sources.load_times()(9_797_696) == found["rank_bytes_ms"][2][2]


def test_the_shipped_traces_are_small_and_attributed():
    files = list(cache_sources.FOLDER.glob("*"))
    assert sum(f.stat().st_size for f in files) < 400_000
    told = (cache_sources.FOLDER / "SOURCE.md").read_text()
    assert all(f.name in told for f in files if f.suffix == ".xz")
    for word in ("Apache-2.0", "CC BY 4.0", "ServeGen", "Mooncake", "Splitwise", "MIT"):
        assert word in told


def test_published_files_are_read(tmp_path):
    (tmp_path / "chunk-2-trace_x.csv").write_text("0,0,0,,0,0\n600,2.5,1.5,Gamma,1,2\n")
    (tmp_path / "chunk-10-trace_x.csv").write_text("0,1,0.5,Gamma,1,2\n600,0,0,,0,0\n")
    rates_CW, variations_CW = cache_sources.read_servegen(tmp_path)
    assert rates_CW.tolist() == [[0, 2.5], [1, 0]]
    assert variations_CW.tolist() == [[0, 1.5], [0.5, 0]]
    sessions = tmp_path / "m.jsonl"
    sessions.write_text(
        '{"timestamp": 0, "hash_ids": [0, 7]}\n{"timestamp": 1500, "hash_ids": [0, 9, 3]}\n'
        '{"timestamp": 2000, "hash_ids": [0, 7, 8]}\n{"timestamp": 2000, "hash_ids": [0]}\n'
    )
    at_s, keys = cache_sources.read_mooncake(sessions)
    assert at_s.tolist() == [0, 1.5, 2, 2] and keys.tolist() == [0, 1, 0, 2]
    azure = tmp_path / "a.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,1,1\n"
        "2023-11-16 18:17:05.9799600,1,1\n"
    )
    assert cache_sources.read_azure_llm(azure).tolist() == [0.0, 2.0]
    functions = tmp_path / "f.csv"
    functions.write_text("app,func,end_timestamp,duration\nx,f,0.5,1\nx,g,1.5,1\nx,f,2,1\n")
    at_s, keys = cache_sources.read_azure_functions(functions)
    assert at_s.tolist() == [0.5, 1.5, 2.0] and keys.tolist() == [0, 1, 0]


@pytest.mark.skipif(not DATA.is_dir(), reason="the published traces are not in ../shared/data")
def test_the_packed_traces_are_the_published_ones():
    rates_CW, _ = cache_sources.read_servegen(DATA / "trace_servegen")
    packed_CW, _ = cache_sources.packed_servegen()
    assert np.allclose(rates_CW, packed_CW, rtol=1e-6)
    [path] = (DATA / "trace_mooncake").glob("*.jsonl")
    at_s, keys = cache_sources.read_mooncake(path)
    table = cache_sources.packed("mooncake")
    assert np.allclose(table["at_s"], at_s) and (table["session"] == keys).all()


@pytest.mark.parametrize("name", GENERATORS)
def test_made_traces_follow_their_seed(name):
    one, again, other = (cache_cells.made(name, 500, seed) for seed in (1, 1, 2))
    assert len(one) == 500 and (np.diff(one.at_s_T) >= 0).all()
    assert (one.key_T == again.key_T).all() and (one.key_T != other.key_T).any()
    assert one.key_T.max() < len(one.names) == GENERATORS[name][1]


def test_tuning_and_held_out_parts_do_not_overlap():
    tuning, held_out = ({t.name: t for t in cache_cells.traces(400, s)} for s in (1, 100))
    assert tuning.keys() == held_out.keys() and len(tuning) == 9
    assert tuning["mooncake"].at_s_T.max() <= held_out["mooncake"].at_s_T.min()
    assert len(tuning["servegen"]) == pytest.approx(400, rel=0.3)


def test_servegen_miss_ratios_are_those_measured_before():
    from floe.evaluation.cache_steady import two_days_of_servegen

    trace = two_days_of_servegen(20_000, 3)
    budget = 4 * int(trace.bytes_K[0])
    found = {n: simulate(trace, policy=n, budget_bytes=budget) for n in ("lru", "lfu")}
    assert 1 - found["lru"].hit_rate == pytest.approx(0.371, abs=0.01)
    assert 1 - found["lfu"].hit_rate == pytest.approx(0.311, abs=0.01)


# --- the benchmark


def test_cells_with_few_misses_get_more_seeds(monkeypatch):
    from floe.evaluation import cache_replace

    seen = []

    def one(trace, percent):
        seen.append((trace.name, percent))
        misses = 40 if trace.name == "bursts" else 100
        return cache_replace.Cell(
            trace=trace.name, percent=percent, cost_ms={"lru": float(len(seen))}, bound_ms=1.0,
            misses=misses,
        )  # fmt: skip

    monkeypatch.setattr(cache_replace, "measure", one)
    cells = {c.trace: c for c in cache_replace.measure_all(60, (1,), (10,))}
    assert (cells["bursts"].seeds, cells["bursts"].misses) == (3, 120)
    assert {c.seeds for name, c in cells.items() if name != "bursts"} == {1}
    at = [i + 1 for i, (name, _) in enumerate(seen) if name == "bursts"]
    assert len(at) == 3 and cells["bursts"].cost_ms["lru"] == pytest.approx(np.mean(at))


def test_figures_are_flat_and_the_goals_are_among_them():
    traces = [cache_cells.made(n, 500, 1) for n in ("bursts", "scans")]
    cells = [measure(t, p) for t in traces for p in (10, 50)]
    figures = {
        **replacement_figures(cells),
        **stall_figures([measure_waits(traces[0], 25)]),
    }
    assert all(isinstance(v, int | float | str) for v in figures.values())
    worst = max(
        figures[f"cost_ms_{n}_{p}_learned"]
        / min(figures[f"cost_ms_{n}_{p}_{b}"] for b in (*BASELINES, "static-best"))
        for n in ("bursts", "scans")
        for p in (10, 50)
    )
    assert figures["cost_ratio_best_baseline_worst"] == pytest.approx(worst)
    for cell in cells:
        assert cell.bound_ms <= min(cell.cost_ms.values()) + 1e-9
    later = {"hit_rate_steady_over_fixed", "hit_rate_steady_servegen", "decision_us_p50"}
    assert {g.field for g in cache_page.GOALS} <= figures.keys() | later
