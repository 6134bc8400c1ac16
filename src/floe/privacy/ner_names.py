"""Words that are somebody's name although the model is not sure, and names that are nobody's.

The model knows names by what stands around them: in "Unlike the Jensen novel" it gives "Jensen" a
probability of a few percent. A word that is known as a name, or ends like one, needs less.
"""

from __future__ import annotations

import lzma
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

PERSON_KINDS = frozenset({"GIVEN_NAME", "SURNAME"})
PLACE_KINDS = frozenset({"CITY", "STATE"})
_WORD = re.compile(r"[^\W\d_][\w'’]*(?:-[^\W\d_][\w'’]*)*")
_POSSESSIVE = re.compile(r"['’]s$")
# What family names end in and few other capitalised words do.
_PATRONYMIC = re.compile(
    r"(?:[a-zà-ž]{2,}(?:sson|sd[oó]ttir)|[a-zà-ž]{3,}(?:[oe]v|[oe]va|enko|ović|ević|vich|czyk|yan)"
    r"|[a-zà-ž]{3,}(?:opoulos|shvili))"
)
_CAPITALISED = re.compile(r"[A-ZÀ-ÖØ-Þ][a-zß-ÿ]")
_CJK = re.compile(r"[\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff]")
_ACRONYM_CHARS = 5
_CAMEL = re.compile(
    r"(?<!^Mc)(?<!^Mac)(?<!^De)(?<!^La)(?<!^Le)(?<!^Van)(?<=[a-z])[A-Z]|[A-Z]{2}[a-z]{2}|[0-9]"
)
_SYMBOL = re.compile(r"[{}\[\]()<=;_\\|*#@$&\"]")
_CODE_SYMBOLS, _CODE_SHARE = 5, 0.06
_PREFIXES = frozenset("._/$<[{@#\\")
_SUFFIXES = frozenset("_=[(/\\<`")
_NOBODY = frozenset(
    (
        *("he", "she", "it", "we", "you", "they", "i", "his", "her", "my", "the", "this"),
        *("that", "who", "mr", "mrs", "ms", "dr", "sir", "madam"),
    )
)
KNOWN, RARE, SURE_ENOUGH, LOWER, EVEN = 0.01, 0.05, 0.3, 0.1, 0.5
"""Least probability of a name: for known words, rare words, any capitalised one, known ones in
lower case, and any word. Chosen on half of the templates of the Presidio research set."""
PLACE = 0.2
"""The same for a city or a state; alone it scores low anyway."""
RAISED_SCORE = 0.55

_ORGANISATION = (
    r"(?:Inc|LLC|Ltd|PLC|GmbH|Co|Corp|Corporation|Company|Group|Orchestra|University|College"
    r"|School|Institute|Foundation|Investments?|Research|Consulting|Technolog(?:y|ies)|Services"
    r"|Partners|Bank|Club|Systems?|Solutions|Networks?|Sons|Holdings|Industries|Associates|Media"
    r"|Labs?|Capital|Ventures|Records|Museum|Hospital|Airport|Park|Bridge|Prize|Award|Cup"
    r"|Motors|Energy|Airways|Airlines|Foods|Shipping|Telecom|Insurance|Software|Electronics|Steel"
    r"|Logistics|Studios|Pictures|Press|Times|News|Pharma(?:ceuticals)?|Semiconductors?|Stores?)"
)
_ORGANISED = re.compile(
    rf"(?:(?:,|,? and| &)? [A-Z][\w'’-]*){{0,3}},? (?:(?:and|&) )?{_ORGANISATION}(?![A-Za-z])"
)
_EMPLOYED = re.compile(
    r"(?:\bwork(?:s|ed|ing)? (?:for|at)|\bat|\bCEO of|\bjoined|\bemployed by) (?:the )?$"
)
_ASKED = re.compile(r"\b(?:how (?:many|much|long|far|old|fast)|what (?:is|was|percent))\b", re.I)
_NUMBER = re.compile(
    r"[0-9]+|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|twelve|half|twice|third|dozen)\b"
)
_AHEAD_CHARS, _BEHIND_CHARS = 80, 24


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """A token with its BIO label; [start, end) in code points, `score` a probability.

    `name` and `place` are the probabilities of any label of a person and of a city or state.
    """

    label: str
    score: float
    start: int
    end: int
    name: float = 0.0
    place: float = 0.0

    @property
    def kind(self) -> str:
        """The label without B or I."""
        return self.label.partition("-")[2]


@dataclass(frozen=True, kw_only=True)
class _Word:
    """A word of the text with its tokens' probabilities."""

    text: str
    name: float
    place: float
    is_rare: bool
    is_other: bool
    is_identifier: bool
    in_code: bool

    @property
    def bare(self) -> str:
        return _POSSESSIVE.sub("", self.text).lower()

    @property
    def is_known(self) -> bool:
        bare = self.bare
        return any(part in known_names() for part in (bare, *bare.split("-")))

    @property
    def is_common(self) -> bool:
        bare = self.bare
        return "_" in bare or bare in common_words()


@cache
def known_names() -> frozenset[str]:
    """Given names and surnames in lower case; see data/README.md."""
    return _listed("names")


@cache
def common_words() -> frozenset[str]:
    """Words in lower case that are no names: ordinary ones, languages, famous ones."""
    return _listed("words")


@cache
def known_places() -> frozenset[str]:
    """Cities and states of one word in lower case that are no names."""
    return _listed("places")


def _listed(name: str) -> frozenset[str]:
    packed = (files("floe.privacy") / "data" / f"{name}.txt.xz").read_bytes()
    return frozenset(lzma.decompress(packed).decode().split("\n")) - {""}


def has_capitals(text: str) -> bool:
    """Whether capitals mean something in the text: it uses them as names do, or is Chinese."""
    return _CAPITALISED.search(text) is not None or _CJK.search(text) is not None


def is_foreign(text: str) -> bool:
    """Whether the text holds letters that the model has not learned to read."""
    return _CJK.search(text) is not None


def is_code(text: str) -> bool:
    """Whether the text is a program, a table of settings or the like, by its symbols."""
    symbols = len(_SYMBOL.findall(text))
    return symbols >= _CODE_SYMBOLS and symbols >= _CODE_SHARE * len(text)


def with_names(text: str, tokens: Sequence[Labelled]) -> list[Labelled]:
    """The tokens, those of likely names labelled as such."""
    out = list(tokens)
    mixed, in_code = has_capitals(text), is_code(text)
    at = 0
    for match in _WORD.finditer(text):
        start, end = match.span()
        while at < len(out) and out[at].end <= start:
            at += 1
        last = at
        while last < len(out) and out[last].start < end:
            last += 1
        inside = out[at:last]
        if inside:
            word = _word(match.group(), inside, _is_identifier(text, start, end), in_code)
            kind = _kind_of(word, mixed=mixed)
            out[at:last] = [_told(token, i, kind) for i, token in enumerate(inside)]
        at = last
    return out


def _is_identifier(text: str, start: int, end: int) -> bool:
    """Whether a word is part of a program: "NDArray", "self.lora", "sha(", "-tokio"."""
    if _CAMEL.search(text[start:end]):
        return True
    before, after = text[max(0, start - 1) : start], text[end : end + 1]
    return before in _PREFIXES or after in _SUFFIXES


def _word(text: str, tokens: Sequence[Labelled], is_identifier: bool, in_code: bool) -> _Word:
    kinds = PERSON_KINDS | PLACE_KINDS | {""}
    return _Word(
        text=text,
        name=max(token.name for token in tokens),
        place=max(token.place for token in tokens),
        is_rare=len(tokens) > 1,
        is_identifier=is_identifier,
        in_code=in_code,
        is_other=any(t.score >= EVEN and t.kind not in kinds for t in tokens),
    )


def _told(token: Labelled, i: int, kind: str | None) -> Labelled:
    """The token as of that kind, "" = of no person, None = as it is."""
    if kind is None or (kind == "" and token.kind not in PERSON_KINDS):
        return token
    if kind == "":
        return replace(token, label="O")
    same = PERSON_KINDS if kind in PERSON_KINDS else PLACE_KINDS
    label = token.label if token.kind in same else f"{'I' if i else 'B'}-{kind}"
    probability = token.place if kind == "CITY" else token.name
    return replace(token, label=label, score=max(probability, RAISED_SCORE))


def _kind_of(word: _Word, *, mixed: bool) -> str | None:
    """What a word is, as `_told` takes it."""
    is_name = _is_name(word, mixed=mixed)
    if is_name:
        return "GIVEN_NAME"
    if _is_place(word):
        return "CITY"
    return None if is_name is None else ""


def _is_place(word: _Word) -> bool:
    if word.is_other or word.in_code or word.is_identifier or not word.text[0].isupper():
        return False
    return word.bare in known_places() or (word.place >= PLACE and word.place > word.name)


def _is_name(word: _Word, *, mixed: bool) -> bool | None:
    """Whether it is one; None to leave it to the model. `mixed`: the text has capital letters."""
    if word.is_other or (word.place > word.name and word.place >= EVEN):
        return None
    if word.bare in _NOBODY or word.is_identifier or word.bare in known_places():
        return False
    if is_foreign(word.text):
        return False
    if word.in_code:
        return word.is_known and word.name >= EVEN
    if word.text[0].islower():
        if word.is_common or (mixed and not word.is_known):
            return False
        return word.name >= (EVEN if mixed else LOWER) if word.is_known else None
    acronym = mixed and word.text.isupper() and 2 <= len(word.text) <= _ACRONYM_CHARS
    if word.is_known and word.name >= (SURE_ENOUGH if acronym else KNOWN):
        return True
    if acronym:
        return False
    if word.place > word.name or word.is_common:
        return None
    return word.name >= SURE_ENOUGH or _looks_like_one(word) or None


def _looks_like_one(word: _Word) -> bool:
    return word.is_rare and (word.name >= RARE or bool(_PATRONYMIC.fullmatch(word.bare)))


def is_organisation(text: str, start: int, end: int) -> bool:
    """Whether a name is part of a company's or house's: "Ellis Group", "works for Kohler"."""
    if _ORGANISED.match(text, end, end + _AHEAD_CHARS):
        return True
    if re.search(rf" {_ORGANISATION}$", text[start:end]):
        return True
    return _EMPLOYED.search(text[max(0, start - _BEHIND_CHARS) : start]) is not None


def is_exercise(text: str) -> bool:
    """Whether the text is a word problem, whose given names are nobody's."""
    if "?" not in text or not _ASKED.search(text):
        return False
    return len(_NUMBER.findall(text)) >= 2
