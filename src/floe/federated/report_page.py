"""Round reports as one HTML page, readable without a network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from floe.federated.report import totals

_STYLE = (
    "body{font:16px system-ui;margin:2rem;max-width:70rem}table{border-collapse:collapse}"
    "td,th{padding:.3rem .7rem;border-bottom:1px solid #ccc;text-align:left;vertical-align:top}"
    ".void{color:#a00}"
)


def page(name: str, reports: Sequence[Mapping[str, Any]]) -> str:
    """The rounds of the federation `name` (reports as JSON) as a page of its own."""
    total = totals(reports)
    facts = [f"{total['rounds']} rounds", f"{total['accepted']} updates taken"]
    facts += [f"{total['refused']} refused", f"{total['bytes_up'] / 1e6:.1f} MB up"]
    if total["epsilon"] is not None:
        facts.append(f"epsilon {total['epsilon']:.3g} so far")
    if any(r.get("secure_sum") for r in reports):
        facts.append("sums alone were seen, no single update")
    rounds = _table(
        ("round", "asked", "taken", "refused", "failed", "clipped", "epsilon", "up MB", "down MB"),
        (_round(r) for r in reports),
    )
    last = next((r for r in reversed(reports) if not r["void"]), None)
    clusters = _table(
        ("cluster", "devices", "examples", "rank", "cut error", "adapter"),
        (_cluster(c) for c in (last["clusters"] if last else ())),
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>{escape(name)}</title><style>{_STYLE}</style>"
        f"<h1>{escape(name)}</h1><p>{escape(', '.join(facts))}</p>"
        f"<h2>Rounds</h2>{rounds}<h2>Clusters</h2>{clusters}\n"
    )


def _round(r: Mapping[str, Any]) -> list[str]:
    number = str(r["round_number"]) + (f" void: {r['void']}" if r["void"] else "")
    clipped = "" if r["clipped_share"] is None else f"{100 * r['clipped_share']:.0f} %"
    spent = "" if r["epsilon"] is None else f"{r['epsilon']:.3g} ({r['epsilon_of']})"
    people = [_why(r["refused"]), _why(r["failed"])]
    size = [f"{r['bytes_up'] / 1e6:.2f}", f"{r['bytes_down'] / 1e6:.2f}"]
    return [number, str(r["n_selected"]), str(r["n_accepted"]), *people, clipped, spent, *size]


def _why(refusals: Sequence[Mapping[str, str]]) -> str:
    return ", ".join(f"{r['client']}: {r['reason']}" for r in refusals)


def _cluster(c: Mapping[str, Any]) -> list[str]:
    adapter = c["adapter"][:16] if c["changed"] else f"as it was: {c['why']}"
    figures = [str(c["n_examples"]), str(c["rank"]), f"{c['truncation_error']:.4f}"]
    return [c["cluster"], ", ".join(c["clients"]), *figures, adapter]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

    return "<table>" + line(head, "th") + "".join(line(r, "td") for r in rows) + "</table>"
