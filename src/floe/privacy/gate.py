"""May this text leave the device? In doubt, no.

Texts are looked at one by one and, where one ends and another begins, together: a value may be cut
in two by the border of a message. The beginning of a value in an answer is `guard`'s matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from floe.core.errors import FloeError
from floe.core.verdict import Finding, Verdict
from floe.privacy.base import Detector, Span
from floe.privacy.deadline import DeadlineRunner, TooLateError
from floe.privacy.detector import best
from floe.privacy.draft import DraftMemory
from floe.privacy.masking import CannotMask, MaskedText, mask_texts
from floe.privacy.policy import DEFAULT_TENANT, PASSAGES, STRICT, Policies, Policy

_DRAFT = "draft"
_SEAM_CHARS = 48
_NEAR_FIELDS = 2  # a question, the answer between, the rest of the question


class Gate:
    """Detectors behind a size limit and a deadline; closed by default (invariant 1).

    `detectors` look at requests in turn, until one has decided; `draft_detectors` at every step
    of an answer, so they must be fast and sure to end (they run on the caller's thread). The
    tenant's policy in `policies` says which findings count and what they mean (`policy` = the same
    for all); in an answer whatever counts means "local". Neither method raises: a detector that
    fails, hangs or answers nonsense means "local", and so do no detectors at all, values that
    cannot be masked, or one that goes over the border of two texts.
    """

    def __init__(
        self,
        *,
        detectors: Sequence[Detector],
        draft_detectors: Sequence[Detector],
        max_chars: int,
        timeout_ms: int,
        policy: Policy = STRICT,
        policies: Policies | None = None,
        runner: DeadlineRunner | None = None,
    ) -> None:
        self._detectors = tuple(detectors)
        self._draft_detectors = tuple(draft_detectors)
        self._max_chars = max_chars
        self._timeout_ms = timeout_ms
        self._policies = policies or Policies(default=policy)
        self._runner = runner or DeadlineRunner()
        # What is clean to one policy need not be clean to another.
        self._drafts = {t: DraftMemory() for t in ("", DEFAULT_TENANT, *self._policies.tenants)}

    @property
    def detector_names(self) -> tuple[str, ...]:
        """What inspects requests, in order."""
        return tuple(d.name for d in self._detectors)

    def inspect(self, texts: Sequence[tuple[str, str]], *, tenant: str = DEFAULT_TENANT) -> Verdict:
        """The verdict on all (field, text) pairs together, within the time limit.

        An unknown `tenant` is judged by the strictest policy.
        """
        pairs, problem = self._checked(texts, self._detectors)
        if problem:
            return Verdict(action="local", reason=problem)
        at = [""]  # which detector is at work, for the reason of a time-out
        try:
            policy = self._policies.of(tenant)
            return self._runner.run(
                lambda: self._judged(pairs, policy, at), timeout_ms=self._timeout_ms
            )
        except TooLateError:
            where = f"detector {at[0]}" if at[0] else "the detectors"
            return Verdict(
                action="local", reason=f"{where} did not finish within {self._timeout_ms} ms"
            )
        except Exception as error:
            return Verdict(action="local", reason=_failure(at[0], error))

    def inspect_draft(self, text: str, *, tenant: str = DEFAULT_TENANT) -> Verdict:
        """The verdict on an answer so far; what was found clean before is not read again."""
        _, problem = self._checked([(_DRAFT, text)], self._draft_detectors)
        if problem:
            return Verdict(action="local", reason=problem)
        at = [""]
        try:
            drafts = self._drafts.get(tenant, self._drafts[""])
            start = drafts.tail_start(text)
            tail = [(_DRAFT, text[start:])]
            policy = self._policies.of(tenant)
            verdict = self._decide(tail, self._draft_detectors, policy, at, offset=start)
            if verdict.may_leave:
                drafts.remember(text)
            return replace(verdict, action="allow" if verdict.may_leave else "local")
        except Exception as error:
            return Verdict(action="local", reason=_failure(at[0], error))

    def policy(self, tenant: str = DEFAULT_TENANT) -> Policy:
        """What holds for this tenant."""
        return self._policies.of(tenant)

    def spans(self, text: str) -> list[Span]:
        """What all detectors see in one text, however unsure, by start; without a time limit.

        Of values that overlap only the best is kept; a passage may hold some.
        For reports: a request is judged by `inspect`, which may stop at the first finding.

        Raises:
            FloeError: a detector failed or answered nonsense.
        """
        found: list[Span] = []
        for detector in self._detectors:
            try:
                found += _sound(detector.find(text), len(text))
            except Exception as error:
                raise FloeError(f"{_failure(detector.name, error)}; nothing is known") from None
        values = [s for s in found if s.entity not in PASSAGES]
        passages = [s for s in found if s.entity in PASSAGES]
        return sorted([*best(values), *best(passages)], key=lambda s: (s.start, s.end))

    def _checked(
        self, texts: Iterable[tuple[str, str]], detectors: Sequence[Detector]
    ) -> tuple[tuple[tuple[str, str], ...], str]:
        """The pairs, and why they stay here before anyone has read them ("" = no reason)."""
        if not detectors:
            return (), "there are no detectors"
        try:
            pairs = tuple((field, text) for field, text in texts)
        except Exception as error:
            return (), f"the request's texts cannot be read ({type(error).__name__})"
        if not all(isinstance(text, str) for _, text in pairs):
            return (), "the request holds a text that is not text"
        size = sum(len(text) for _, text in pairs)
        if size > self._max_chars:
            return (), f"{size} characters are more than privacy.max_chars ({self._max_chars})"
        return pairs, ""

    def _decide(
        self,
        texts: Sequence[tuple[str, str]],
        detectors: Sequence[Detector],
        policy: Policy,
        at: list[str],
        *,
        offset: int = 0,
    ) -> Verdict:
        findings: list[Finding] = []
        for detector in detectors:
            at[0] = detector.name
            findings += _found_by(detector, texts, policy, offset)
            if any(policy.treatment(f.entity) == "local" for f in findings):
                return Verdict(action="local", reason=_found(findings), findings=tuple(findings))
        if findings:
            return Verdict(action="mask", reason=_found(findings), findings=tuple(findings))
        return Verdict(action="allow", reason="nothing private found")

    def _judged(self, texts: Sequence[tuple[str, str]], policy: Policy, at: list[str]) -> Verdict:
        """The verdict on a request; "mask" only when masking leaves nothing private."""
        verdict = self._decide(texts, self._detectors, policy, at)
        if verdict.action == "local":
            return verdict
        across = self._across(texts, policy)
        if across:
            reason = f"found {', '.join(across)} over the border of two texts"
            return replace(verdict, action="local", reason=reason)
        return verdict if verdict.action == "allow" else self._masked(texts, verdict, policy, at)

    def _masked(
        self, texts: Sequence[tuple[str, str]], verdict: Verdict, policy: Policy, at: list[str]
    ) -> Verdict:
        """The verdict with what came of masking."""
        at[0] = "masking"
        try:
            masked = mask_texts(texts, verdict.findings).texts
        except CannotMask as error:
            return replace(verdict, action="local", reason=f"{verdict.reason}; {error}")
        left = self._left_over(masked, policy)
        if left:
            return replace(verdict, action="local", reason=f"masking leaves {', '.join(left)}")
        return replace(verdict, reason=f"{verdict.reason}; masked")

    def _left_over(self, masked: Mapping[str, MaskedText], policy: Policy) -> list[str]:
        """Entities that the quick detectors see in masked texts, placeholders apart."""
        pairs = [(field, text.text) for field, text in masked.items()]
        return sorted(
            {
                f.entity
                for detector in self._draft_detectors
                for f in _found_by(detector, pairs, policy)
                if not any(p.start <= f.start and f.end <= p.end for p in masked[f.field].pieces)
            }
        )

    def _across(self, pairs: Sequence[tuple[str, str]], policy: Policy) -> list[str]:
        """Entities that the quick detectors see where the end of a text meets a later beginning."""
        found: set[str] = set()
        for n, (field, text) in enumerate(pairs):
            for _, later in pairs[n + 1 : n + 1 + _NEAR_FIELDS]:
                end, beginning = text.rstrip()[-_SEAM_CHARS:], later.lstrip()[:_SEAM_CHARS]
                if not end or not beginning:
                    continue
                for between in ("", " "):
                    joined, border = f"{end}{between}{beginning}", len(end)
                    found |= {
                        f.entity
                        for detector in self._draft_detectors
                        for f in _found_by(detector, [(field, joined)], policy)
                        if f.start < border and border + len(between) < f.end
                    }
        return sorted(found)


def _found_by(
    detector: Detector, texts: Sequence[tuple[str, str]], policy: Policy, offset: int = 0
) -> list[Finding]:
    """What counts of a detector's findings."""
    return [
        _finding(field, span, offset)
        for field, text in texts
        for span in _sound(detector.find(text), len(text))
        if policy.action(span.entity, span.score) != "allow"
    ]


def _sound(spans: Iterable[Span], n_chars: int) -> list[Span]:
    """The spans, or ValueError for one that cannot be: a detector must not be half believed."""
    checked = list(spans)
    for span in checked:
        if not (0 <= span.start < span.end <= n_chars and math.isfinite(span.score)):
            raise ValueError("a span outside the text or a score that is no number")
    return checked


def _finding(field: str, span: Span, offset: int) -> Finding:
    return Finding(
        entity=span.entity,
        field=field,
        start=span.start + offset,
        end=span.end + offset,
        score=span.score,
        recogniser=span.recogniser,
    )


def _found(findings: Sequence[Finding]) -> str:
    names = sorted({f.entity for f in findings})
    return f"found {', '.join(names)}"


def _failure(detector: str, error: Exception) -> str:
    # Only the class: an error's message may quote the text.
    return f"detector {detector or 'set-up'} failed ({type(error).__name__})"
