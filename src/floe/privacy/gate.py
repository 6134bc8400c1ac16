"""May this text leave the device? In doubt, no.

This first version sees what has a form: numbers with checksums, addresses, keys, and names when
the NER model is there. It does not understand text: "my sister was admitted to the oncology
ward" or "I owe my landlord two months" has no private form and is allowed. Nor does it hold back
the beginning of a value that an answer has not finished yet. The privacy issue adds both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from floe.core.verdict import Finding, Verdict
from floe.privacy.base import Detector, Span
from floe.privacy.deadline import DeadlineRunner, TooLateError
from floe.privacy.draft import DraftMemory
from floe.privacy.masking import CannotMask, MaskedText, mask_texts
from floe.privacy.policy import STRICT, Policy

_DRAFT = "draft"


class Gate:
    """Detectors behind a size limit and a deadline; closed by default (invariant 1).

    `detectors` look at requests in turn, until one has decided; `draft_detectors` at every step
    of an answer, so they must be fast and sure to end (they run on the caller's thread). Findings
    of at least `min_score` count, and `policy` says what they mean; in an answer whatever is found
    means "local". Neither method raises: a detector that fails, hangs or answers nonsense means
    "local", and so do no detectors at all, or values that cannot be masked.
    """

    def __init__(
        self,
        *,
        detectors: Sequence[Detector],
        draft_detectors: Sequence[Detector],
        max_chars: int,
        timeout_ms: int,
        min_score: float = 0.5,
        policy: Policy = STRICT,
        runner: DeadlineRunner | None = None,
    ) -> None:
        self._detectors = tuple(detectors)
        self._draft_detectors = tuple(draft_detectors)
        self._max_chars = max_chars
        self._timeout_ms = timeout_ms
        self._min_score = min_score
        self._policy = policy
        self._runner = runner or DeadlineRunner()
        self._drafts = DraftMemory()

    @property
    def detector_names(self) -> tuple[str, ...]:
        """What inspects requests, in order."""
        return tuple(d.name for d in self._detectors)

    def inspect(self, texts: Sequence[tuple[str, str]]) -> Verdict:
        """The verdict on all (field, text) pairs together, within the time limit."""
        pairs, problem = self._checked(texts, self._detectors)
        if problem:
            return Verdict(action="local", reason=problem)
        at = [""]  # which detector is at work, for the reason of a time-out
        try:
            return self._runner.run(lambda: self._judged(pairs, at), timeout_ms=self._timeout_ms)
        except TooLateError:
            where = f"detector {at[0]}" if at[0] else "the detectors"
            return Verdict(
                action="local", reason=f"{where} did not finish within {self._timeout_ms} ms"
            )
        except Exception as error:
            return Verdict(action="local", reason=_failure(at[0], error))

    def inspect_draft(self, text: str) -> Verdict:
        """The verdict on an answer so far; what was found clean before is not read again."""
        _, problem = self._checked([(_DRAFT, text)], self._draft_detectors)
        if problem:
            return Verdict(action="local", reason=problem)
        at = [""]
        try:
            start = self._drafts.tail_start(text)
            tail = [(_DRAFT, text[start:])]
            verdict = self._decide(tail, self._draft_detectors, at, offset=start)
            if verdict.may_leave:
                self._drafts.remember(text)
            return replace(verdict, action="allow" if verdict.may_leave else "local")
        except Exception as error:
            return Verdict(action="local", reason=_failure(at[0], error))

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
        at: list[str],
        *,
        offset: int = 0,
    ) -> Verdict:
        findings: list[Finding] = []
        for detector in detectors:
            at[0] = detector.name
            findings += self._found_by(detector, texts, offset)
            if any(self._policy.treatment(f.entity) == "local" for f in findings):
                return Verdict(action="local", reason=_found(findings), findings=tuple(findings))
        if findings:
            return Verdict(action="mask", reason=_found(findings), findings=tuple(findings))
        return Verdict(action="allow", reason="nothing private found")

    def _judged(self, texts: Sequence[tuple[str, str]], at: list[str]) -> Verdict:
        """The verdict on a request; "mask" only when masking leaves nothing private."""
        verdict = self._decide(texts, self._detectors, at)
        if verdict.action != "mask":
            return verdict
        at[0] = "masking"
        try:
            masked = mask_texts(texts, verdict.findings).texts
        except CannotMask as error:
            return replace(verdict, action="local", reason=f"{verdict.reason}; {error}")
        left = self._left_over(masked)
        if left:
            return replace(verdict, action="local", reason=f"masking leaves {', '.join(left)}")
        return replace(verdict, reason=f"{verdict.reason}; masked")

    def _found_by(
        self, detector: Detector, texts: Sequence[tuple[str, str]], offset: int = 0
    ) -> list[Finding]:
        """What counts of a detector's findings."""
        return [
            _finding(field, span, offset)
            for field, text in texts
            for span in _sound(detector.find(text), len(text))
            if span.score >= self._min_score and self._policy.treatment(span.entity) != "allow"
        ]

    def _left_over(self, masked: Mapping[str, MaskedText]) -> list[str]:
        """Entities that the quick detectors see in masked texts, placeholders apart."""
        pairs = [(field, text.text) for field, text in masked.items()]
        return sorted(
            {
                f.entity
                for detector in self._draft_detectors
                for f in self._found_by(detector, pairs)
                if not any(p.start <= f.start and f.end <= p.end for p in masked[f.field].pieces)
            }
        )


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
