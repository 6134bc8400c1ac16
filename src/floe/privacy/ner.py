"""Names and addresses by a small BERT token classifier (Rampart); the door to onnxruntime.

Shapes: T = tokens of a window with [CLS] and [SEP], L = labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from floe.core.errors import BadModel, Missing
from floe.privacy.base import Span
from floe.privacy.ner_cache import Remembered
from floe.privacy.ner_int8 import with_int8
from floe.privacy.ner_names import PERSON_KINDS, PLACE_KINDS, Labelled
from floe.privacy.ner_spans import spans_of
from floe.privacy.normalise import normalise

if TYPE_CHECKING:
    from tokenizers import Encoding

_SURROGATE = re.compile("[\ud800-\udfff]")
# Latin, Greek, Cyrillic, and the full-width Latin that normalising folds.
_READABLE = re.compile(
    "[A-Za-z\u00c0-\u024f\u0370-\u03ff\u0400-\u04ff\u1e00-\u1eff\uff21-\uff5a\U0001d400-\U0001d7ff]"
)
_WINDOW_TOKENS = 128  # about the 480 characters in which the model finds most
_CACHED_TEXTS, _CACHED_CHARS = 256, 200_000
_MARGIN_TOKENS = 16  # labels so near a cut are taken from the neighbouring window


@dataclass(frozen=True, kw_only=True)
class NerFiles:
    """The model's files on disk."""

    model: Path
    tokenizer: Path
    config: Path


class NerDetector:
    """Finds what `threshold` of the model's probability supports; see `ner_spans` for what counts.

    One thread, no telemetry. Safe to share between threads: a session's run has no state. The
    findings in the last 256 texts are kept in memory, for a chat sends its history every time.
    """

    name = "rampart"

    def __init__(self, *, files: NerFiles, threshold: float = 0.5) -> None:
        """Load the model.

        Raises:
            Missing: onnxruntime, tokenizers or a file is not there.
            BadModel: the files are not such a model.
        """
        _require(files)
        try:
            import onnxruntime
            from tokenizers import Tokenizer
        except ImportError as error:
            raise Missing(
                f"the NER model needs {error.name}. Install it with: pip install 'floe[ner]'"
            ) from error
        try:
            self._labels = _labels(files.config)
            self._tokenizer: Any = Tokenizer.from_file(str(files.tokenizer))
            onnxruntime.disable_telemetry_events()
            self._session: Any = onnxruntime.InferenceSession(
                with_int8(files.model.read_bytes()),
                sess_options=_options(onnxruntime),
                providers=[_PROVIDER],
            )
        except Exception as error:
            raise BadModel(
                f"the NER model in {files.model.parent} cannot be loaded "
                f"({type(error).__name__}). Remove that folder, then: floe pull rampart-ner"
            ) from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._inputs = {i.name for i in self._session.get_inputs()}
        self._cls, self._sep = (self._tokenizer.token_to_id(t) for t in ("[CLS]", "[SEP]"))
        if self._cls is None or self._sep is None:
            raise BadModel(f"{files.tokenizer} lacks [CLS] or [SEP]; it is not this model's")
        self._threshold = threshold
        self._found = Remembered(max_entries=_CACHED_TEXTS, max_chars=_CACHED_CHARS)
        self._names = _of_kinds(self._labels, PERSON_KINDS)
        self._places = _of_kinds(self._labels, PLACE_KINDS)

    def find(self, text: str) -> list[Span]:
        """Spans by start, in code points of `text`."""
        if not _READABLE.search(text):
            return []
        known = self._found.get(text)
        if known is None:
            known = tuple(self._find(text))
            self._found.put(text, known)
        return list(known)

    def _find(self, text: str) -> list[Span]:
        copy = normalise(text, fold=False)
        # The tokenizer refuses lone surrogates; one code point stays one.
        readable = _SURROGATE.sub("\ufffd", copy.text)
        encoding = self._tokenizer.encode(readable, add_special_tokens=False)
        tokens = self._label(encoding)
        found = spans_of(readable, tokens, threshold=self._threshold, recogniser=self.name)
        return [
            Span(
                entity=s.entity,
                start=copy.original(s.start, s.end)[0],
                end=copy.original(s.start, s.end)[1],
                score=s.score,
                recogniser=s.recogniser,
            )
            for s in found
        ]

    def _label(self, encoding: Encoding) -> list[Labelled]:
        ids, offsets = encoding.ids, encoding.offsets
        tokens: list[Labelled] = []
        for start, end in windows(len(ids)):
            probabilities_TL = self._probabilities(ids[start:end])
            names_T = probabilities_TL[:, self._names].sum(axis=1)
            places_T = probabilities_TL[:, self._places].sum(axis=1)
            first = start + _MARGIN_TOKENS if start else 0
            last = end - _MARGIN_TOKENS if end < len(ids) else end
            for i in range(first, last):
                row_L = probabilities_TL[1 + i - start]
                best = int(row_L.argmax())
                tokens.append(
                    Labelled(
                        label=self._labels[best],
                        score=float(row_L[best]),
                        start=offsets[i][0],
                        end=offsets[i][1],
                        name=float(names_T[1 + i - start]),
                        place=float(places_T[1 + i - start]),
                    )
                )
        return tokens

    def _probabilities(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """Shape (T, L) for one window."""
        ids_T = np.array([[self._cls, *ids, self._sep]], dtype=np.int64)
        every = {
            "input_ids": ids_T,
            "attention_mask": np.ones_like(ids_T),
            "token_type_ids": np.zeros_like(ids_T),
        }
        feed = {name: value for name, value in every.items() if name in self._inputs}
        logits_TL = np.asarray(self._session.run(None, feed)[0])[0]
        exp_TL = np.exp(logits_TL - logits_TL.max(axis=-1, keepdims=True))
        probabilities_TL: NDArray[np.float32] = exp_TL / exp_TL.sum(axis=-1, keepdims=True)
        if not np.isfinite(probabilities_TL).all():
            raise ValueError("the NER model gave values that are not finite")
        return probabilities_TL


_PROVIDER = "CPUExecutionProvider"


def windows(n_tokens: int) -> list[tuple[int, int]]:
    """[start, end) of windows that overlap by two margins and together cover every token."""
    step = _WINDOW_TOKENS - 2 * _MARGIN_TOKENS
    found = []
    for start in range(0, max(n_tokens, 1), step):
        end = min(start + _WINDOW_TOKENS, n_tokens)
        if end > start:
            found.append((start, end))
        if end == n_tokens:
            break
    return found


def _require(files: NerFiles) -> None:
    for path in (files.model, files.tokenizer, files.config):
        if not path.is_file():
            raise Missing(
                f"the NER model's file {path} is not there. Get it with: floe pull rampart-ner; "
                'or set privacy.ner = "off" to do without names and addresses'
            )


def _labels(config: Path) -> list[str]:
    table = json.loads(config.read_text(encoding="utf-8"))["id2label"]
    return [str(table[str(i)]) for i in range(len(table))]


def _of_kinds(labels: Sequence[str], kinds: Collection[str]) -> list[int]:
    return [i for i, label in enumerate(labels) if label.partition("-")[2] in kinds]


def _options(onnxruntime: Any) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options
