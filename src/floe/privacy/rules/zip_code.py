"""Postal codes: US ones behind a state, any behind the word, British ones by their form.

British form: Royal Mail's PAF rules (postcode areas and letters that are used), as in BS 7666.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule, named, words
from floe.privacy.rules.hints import Needs

_STATES = (
    "AL|AK|AZ|AR|CA|CO|CT|DE|FL|GA|HI|ID|IL|IN|IA|KS|KY|LA|ME|MD|MA|MI|MN|MS|MO|MT|NE|NV|NH|NJ|NM"
    "|NY|NC|ND|OH|OK|OR|PA|RI|SC|SD|TN|TX|UT|VT|VA|WA|WV|WI|WY|DC|PR|GU|VI|AS|MP|AE|AA|AP"
)
# Without those that are also words and units: those count only behind a comma.
_SURE = (
    "AK|AZ|AR|CA|CO|CT|FL|GA|IL|IA|KS|KY|MD|MN|MO|NE|NV|NH|NJ|NM|NY|NC|ND|RI|SC|SD|TN|TX|UT|VT"
    "|WA|WV|WI|WY|DC|PR|GU|VI|MP"
)
_NAMES = (
    "Alabama|Alaska|Arizona|Arkansas|California|Colorado|Connecticut|Delaware|Florida|Georgia"
    "|Hawaii|Idaho|Illinois|Indiana|Iowa|Kansas|Kentucky|Louisiana|Maine|Maryland|Massachusetts"
    "|Michigan|Minnesota|Mississippi|Missouri|Montana|Nebraska|Nevada|New Hampshire|New Jersey"
    "|New Mexico|New York|North Carolina|North Dakota|Ohio|Oklahoma|Oregon|Pennsylvania"
    "|Rhode Island|South Carolina|South Dakota|Tennessee|Texas|Utah|Vermont|Virginia|Washington"
    "|West Virginia|Wisconsin|Wyoming|D\\.C\\."
)
_AREAS = (
    "AB|AL|BA|BB|BD|BF|BH|BL|BN|BR|BS|BT|BX|CA|CB|CF|CH|CM|CO|CR|CT|CV|CW|DA|DD|DE|DG|DH|DL|DN|DT"
    "|DY|EC|EH|EN|EX|FK|FY|GL|GU|GY|HA|HD|HG|HP|HR|HS|HU|HX|IG|IM|IP|IV|JE|KA|KT|KW|KY|LA|LD|LE|LL"
    "|LN|LS|LU|ME|MK|ML|NE|NG|NN|NP|NR|NW|OL|OX|PA|PE|PH|PL|PO|PR|RG|RH|RM|SA|SE|SG|SK|SL|SM|SN|SO"
    "|SP|SR|SS|ST|SW|SY|TA|TD|TF|TN|TQ|TR|TS|TW|UB|WA|WC|WD|WF|WN|WR|WS|WV|YO|ZE|B|E|G|L|M|N|S|W"
)

_AREA = re.compile(rf"(?:{_AREAS})[0-9]")

US = PatternRule(
    name="us_zip",
    entity="ZIP_CODE",
    pattern=re.compile(
        r"[0-9](?<![0-9A-Za-z-].)[0-9]{4}(?:-[0-9]{4})?(?![0-9A-Za-z])"
        r"(?![-.,/][0-9]| (?:people|million|residents|students|votes|km|miles|acres))"
    ),
    score=0.7,
    before=re.compile(
        rf"(?:[A-Za-z.] (?:{_SURE}),? {{1,2}}|,\s?(?:{_STATES}),?\s{{1,2}}"
        rf"|(?<![A-Za-z])(?:{_NAMES}),? {{1,2}})$"
    ),
    needs=Needs(run=5),
)
NAMED = named(
    name="zip_code",
    entity="ZIP_CODE",
    names=(
        "zip", "zip code", "zipcode", "postal code", "postcode", "post code", "plz",
        "postleitzahl", "code postal", "código postal", "codice postale", "cap", "kod pocztowy",
        "pin code", "pincode", "邮编", "邮政编码", "郵遞區號", "郵編",
    ),
    value=r"(?=[A-Z]{0,2}[0-9])[0-9A-Z]{2,5}(?:[ -](?=[0-9])[0-9A-Z]{2,4})?|[0-9]{3,6}",
    score=0.75,
    check=lambda value: any(c.isdigit() for c in value) and len(value) >= 3,
    digits=1,
)  # fmt: skip
UK = PatternRule(
    name="uk_postcode",
    entity="UK_POSTCODE",
    pattern=re.compile(
        r"[A-Z](?<![0-9A-Za-z].)[A-Z]?[0-9][0-9A-HJKPSTUW]? [0-9][ABD-HJLNP-UW-Z]{2}(?![0-9A-Za-z])"
    ),
    score=0.6,
    check=lambda value: _AREA.match(value) is not None,
    context=words("postcode", "post code", "address", "street", "road", "lane", "live", "london"),
    context_score=0.85,
    needs=Needs(code=2),
)
UK_JOINED = PatternRule(
    name="uk_postcode_named",
    entity="UK_POSTCODE",
    pattern=re.compile(
        rf"(?<![0-9A-Za-z])(?:{_AREAS})(?:[0-9]{{1,2}}|[0-9][A-HJKPSTUW]) ?"
        r"[0-9][ABD-HJLNP-UW-Z]{2}(?![0-9A-Za-z])",
        re.IGNORECASE,
    ),
    score=0.0,
    context=words("postcode", "postcodes", "post code"),
    context_score=0.85,
    needs=Needs(code=2),
)
