"""Prompts of many narrow topics, thirteen in each of the five shipped adapters' fields."""

from __future__ import annotations

_WORDS = {
    "maths": (
        "fractions, percentages, triangles, probability, speed, interest, averages, ratios, "
        "volumes, primes, clocks, coins, ages"
    ),
    "code": (
        "sorting, recursion, regular expressions, dictionaries, files, dates, sockets, threads, "
        "unit tests, exceptions, iterators, matrices, strings"
    ),
    "medicine": (
        "asthma, diabetes, migraine, fractures, vaccines, hypertension, anaemia, eczema, "
        "glaucoma, appendicitis, insomnia, gout, arthritis"
    ),
    "law": (
        "tenancy, copyright, negligence, contracts, custody, wills, trespass, defamation, "
        "patents, bail, mortgages, easements, arbitration"
    ),
    "finance": (
        "dividends, bonds, inflation, mortgages, revenue, leases, pensions, currencies, "
        "derivatives, goodwill, payroll, inventory, audits"
    ),
}
_ASKED = {
    "maths": "A sum about {}: {}.",
    "code": "Python and {}: {}.",
    "medicine": "A patient with {}: {}.",
    "law": "A court rules on {}: {}.",
    "finance": "A report on {}: {}.",
}
_TURNS = (
    "what is the first thing to know",
    "explain it in one line",
    "give a small example",
    "name a common mistake",
    "what would an expert check",
    "compare two cases",
)

TOPICS: tuple[tuple[str, str], ...] = tuple(
    (field, word)
    for words in zip(*(w.split(", ") for w in _WORDS.values()), strict=True)
    for field, word in zip(_WORDS, words, strict=True)
)
"""(field, word), the fields in turn."""


def prompts_of(topic: int) -> tuple[str, ...]:
    """The prompts of one topic."""
    field, word = TOPICS[topic]
    return tuple(_ASKED[field].format(word, turn) for turn in _TURNS)
