"""Goals, bars and plots of `floe bench tailoring`.

Goals on search, perplexity and adapters are of the full form alone: after six layers a model has a
perplexity of millions, whatever is done to it.
"""

from __future__ import annotations

from floe.evaluation.goals import Chart, Goal
from floe.evaluation.plot import Lines

_MODELS = (
    ("F16", "f16"), ("Q8_0", "q8_0"), ("as served", "served"), ("Q4_1", "q4_1"),
    ("Q4_0", "q4_0"), ("bits alone", "bits"), ("tailored", "tailored"),
)  # fmt: skip
_METHODS = (
    "generative", "evolutionary", "tpe", "random", "uniform", "flap", "taylor", "wanda_sp",
    "magnitude", "shortgpt",
)  # fmt: skip
_POINTS = (80, 65, 50)

GOALS = (
    Goal(field="reload_ok", about="the tailored model loads again", value=1),
    Goal(field="logit_check", about="both forms choose the same tokens", value=1),
    Goal(
        field="logit_check_max_error",
        about="largest difference of both forms",
        value=1e-2,
        at_most=True,
    ),
    *(
        Goal(
            field=f"ours_over_best_baseline_{p}",
            value=1,
            at_most=True,
            full_alone=True,
            about=f"perplexity over the best baseline's at {p} % of the time",
        )
        for p in _POINTS
    ),
    Goal(
        field="search_gain",
        about="score over random search, least of the seeds",
        value=1,
        full_alone=True,
    ),
    Goal(field="search_gain_wins", about="seeds that gain", value=3, full_alone=True),
    Goal(field="budget_violations", about="plans outside a budget", value=0, at_most=True),
    Goal(field="latency_model_mape", about="error of the latency table", value=0.07, at_most=True),
    Goal(
        field="memory_ratio", about="weights over F16's", value=0.37, full_alone=True, at_most=True
    ),
    Goal(
        field="ppl_rise",
        about="rise of the perplexity over F16",
        value=0.082,
        full_alone=True,
        at_most=True,
    ),
    Goal(
        field="ppl_over_served",
        about="perplexity over the served Q4_1",
        value=1,
        full_alone=True,
        at_most=True,
    ),
    Goal(
        field="speedup_decode_over_served",
        about="tokens, times the served Q4_1's speed",
        value=1,
        full_alone=True,
    ),
    Goal(
        field="adapter_carry",
        about="gain that carried adapters lack",
        value=0.1,
        full_alone=True,
        at_most=True,
    ),
    Goal(
        field="adapter_carry_repaired",
        about="the same after a few steps",
        value=0.1,
        full_alone=True,
        at_most=True,
    ),
)

CHARTS = (
    Chart(title="A decoded token", unit="ms",
          bars=tuple((label, f"decode_ms_{key}") for label, key in _MODELS)),
    Chart(title="A prompt of 64 tokens", unit="ms",
          bars=tuple((label, f"prefill_ms_{key}") for label, key in _MODELS)),
    Chart(title="Perplexity on WikiText-2 test", unit="",
          bars=(
              ("F16", "ppl_f16"), ("as served", "ppl_served"), ("Q4_1", "ppl_q4_1"),
              ("Q4_0", "ppl_q4_0"), ("bits alone", "ppl_bits"),
              ("served, recovered", "ppl_served_recovered"),
              ("bits, recovered", "ppl_bits_recovered"), ("tailored", "ppl_tailored"),
          )),
    Chart(title="First token of a prompt", unit="ms",
          bars=(("transformers F32", "ttft_ms_torch"), ("tailored", "ttft_ms_tailored"))),
    Chart(title="Held-out loss of adapters on the tailored model", unit="nats",
          bars=tuple((n, f"adapter_loss_{n}") for n in ("plain", "carried", "repaired",
                                                       "retrained"))),
)  # fmt: skip

PLOTS = (
    Lines(
        title="Pruned without recovery", unit="perplexity over the original's",
        x_unit="decode time over the original's, by the table",
        series=tuple(
            (m, tuple((f"decode_ratio_{m}_{p}", f"ppl_ratio_{m}_{p}") for p in _POINTS))
            for m in _METHODS[:5]
        ),
    ),
)  # fmt: skip
