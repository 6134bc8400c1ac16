"""Where a new session goes: the context and row whose cached prefix saves most, with room for all.

Pure bookkeeping. Room is counted in reserved tokens, so a session that was let in never runs out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floe.engine.kv_context import AdapterKey, KvContext, KvSequence


@dataclass(frozen=True, kw_only=True)
class Place:
    """A context with a row to own, and the row whose first `n_prefix` tokens are reused."""

    context: KvContext
    row: KvSequence
    source: KvSequence
    n_prefix: int
    rebind: bool = False


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many leading tokens agree."""
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


def reserved_tokens(context: KvContext) -> int:
    """Tokens promised to open sessions."""
    return sum(s.reserved_tokens for s in context.sequences if s.open)


def place_bound(
    contexts: Sequence[KvContext], key: AdapterKey, prompt: Sequence[int], need: int
) -> Place | None:
    """The best place in a context that has these adapters already, or None."""
    places = [p for c in contexts if c.key == key if (p := _place(c, prompt, need))]
    return max(places, key=lambda p: p.n_prefix, default=None)


def place_idle(contexts: Sequence[KvContext], need: int) -> Place | None:
    """A place in the idle context unused for longest, to be bound to other adapters, or None."""
    idle = [c for c in contexts if c.idle and need <= c.n_ctx]
    if not idle:
        return None
    context = min(idle, key=lambda c: max(s.last_used for s in c.sequences))
    row = context.sequences[0]
    return Place(context=context, row=row, source=row, n_prefix=0, rebind=True)


def _place(context: KvContext, prompt: Sequence[int], need: int) -> Place | None:
    free = [s for s in context.sequences if not s.open]
    if not free or reserved_tokens(context) + need > context.n_ctx:
        return None
    held = prompt[:need]  # never more in a row than was promised to it
    n_prefix = {s.id: common_prefix(s.tokens, held) for s in context.sequences}
    source = max(context.sequences, key=lambda s: (n_prefix[s.id], not s.open))
    n = n_prefix[source.id]
    if not source.open and n * 2 >= len(source.tokens):
        return Place(context=context, row=source, source=source, n_prefix=n)
    row = min((s for s in free), key=lambda s: (len(s.tokens) > 0, s.last_used))
    return Place(context=context, row=row, source=source, n_prefix=n)


def rows_to_forget(context: KvContext, keep: KvSequence) -> list[KvSequence]:
    """Cached rows to empty, unused for longest first, so that every promise can be kept."""
    free = sorted(
        (s for s in context.sequences if not s.open and s is not keep and s.tokens),
        key=lambda s: s.last_used,
    )
    over = reserved_tokens(context) + sum(len(s.tokens) for s in free) - context.n_ctx
    out = []
    for row in free:
        if over <= 0:
            break
        over -= len(row.tokens)
        out.append(row)
    return out
