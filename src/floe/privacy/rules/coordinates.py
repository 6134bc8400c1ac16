"""Places on the map: decimal degrees named as such, degrees with N/S/E/W, geo URIs (RFC 5870).

Two bare numbers are none: only beside a word, a letter of the compass or in a map's address.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, words
from floe.privacy.rules.hints import Needs, any_of

_LAT = r"[-+]?(?:[0-8]?[0-9]|90)\.[0-9]{3,15}"
_LON = r"[-+]?(?:1[0-7][0-9]|180|[0-9]{1,2})\.[0-9]{3,15}"
_DEGREES = (
    r"[0-9]{1,3}(?:\.[0-9]{1,12})? ?(?:°|度)(?: ?[0-9]{1,2}(?:\.[0-9]{1,9})? ?(?:['′’]|分))?"
    r"(?: ?[0-9]{1,2}(?:\.[0-9]{1,9})? ?(?:[\"″”]|''|′′|’’|秒))?"
)

PAIR = PatternRule(
    name="coordinates",
    entity="COORDINATES",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z.-]){_LAT} ?[,;，、/]? {{0,2}}(?<=[ ,;，、/]){_LON}(?![0-9A-Za-z]|\.[0-9])"
    ),
    score=0.0,
    context=words(
        "lat", "lon", "lng", "latitude", "longitude", "latlong", "latlng", "gps", "coordinate",
        "coordinates", "coords", "location", "located", "position", "geo", "geolocation", "pin",
        "koordinaten", "coordonnées", "coordenadas", "坐标", "座標", "经纬度", "經緯度", "定位",
        "位置",
    ),
    context_score=0.85,
    needs=Needs(digits=8),
)  # fmt: skip
LABELLED = PatternRule(
    name="coordinates_labelled",
    entity="COORDINATES",
    pattern=re.compile(
        rf"(?<![A-Za-z])lat(?:itude)?[\"']?\s?[:=]?\s?[\"']?(?P<value>{_LAT}[\"']?"
        rf"[\s,;&]{{0,4}}[\"']?(?:lon|lng|long|longitude)[\"']?\s?[:=]?\s?[\"']?{_LON})",
        re.IGNORECASE,
    ),
    score=0.85,
    needs=Needs(digits=4, cues=any_of("lat")),
)
URI = PatternRule(
    name="coordinates_uri",
    entity="COORDINATES",
    pattern=re.compile(
        rf"(?:geo:|@|[?&](?:q|ll|center|query|loc|sll|daddr|location)=){_LAT}(?:,|%2C){_LON}",
        re.IGNORECASE,
    ),
    score=0.9,
    needs=Needs(digits=4, cues=any_of("geo:", "@", "?", "&")),
)
COMPASS = PatternRule(
    name="coordinates_compass",
    entity="COORDINATES",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z.]){_DEGREES} ?[NS](?![A-Za-z])[\s,;/]{{0,3}}{_DEGREES} ?[EW](?![A-Za-z])"
        rf"|[NS] ?{_DEGREES}[\s,;/]{{0,3}}[EW] ?{_DEGREES}"
        rf"|[北南]纬:?\s?{_DEGREES}[\s,，;、]{{0,2}}[东西]经:?\s?{_DEGREES}"
        rf"|[东西]经:?\s?{_DEGREES}[\s,，;、]{{0,2}}[北南]纬:?\s?{_DEGREES}"
    ),
    score=0.85,
    needs=Needs(digits=2, cues=any_of("°", "度")),
)
DECIMAL_COMPASS = PatternRule(
    name="coordinates_decimal",
    entity="COORDINATES",
    pattern=re.compile(
        r"[0-9](?<![0-9A-Za-z.].)[0-9]?\.[0-9]{3,12} ?[NS][\s,;/]{1,3}[0-9]{1,3}\.[0-9]{3,12} ?[EW]"
        r"(?![A-Za-z])"
    ),
    score=0.85,
    needs=Needs(digits=4, run=3, cues=any_of("n", "s")),
)
LABELLED_ZH = PatternRule(
    name="coordinates_zh",
    entity="COORDINATES",
    pattern=re.compile(
        rf"纬度\s?[:=是为]?\s?{_LAT}[\s,，;、]{{0,3}}经度\s?[:=是为]?\s?{_LON}"
        rf"|经度\s?[:=是为]?\s?{_LON}[\s,，;、]{{0,3}}纬度\s?[:=是为]?\s?{_LAT}"
    ),
    score=0.85,
    needs=Needs(han=True, digits=4),
)
