"""Nationalities, religions, political groups (Presidio's NRP); below the score that counts.

`[privacy.scores] NRP = 0.3` makes them count. The words are the demonyms of the member states of
the United Nations, larger peoples without one, and the larger religions and political currents.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Cues, Needs

_TEXT = """
afghan albanian algerian american andorran angolan argentine argentinian armenian australian
austrian azerbaijani bahamian bahraini bangladeshi barbadian basque belarusian belgian belizean
belizian beninese bhutanese bolivian bosnian brazilian british bruneian bulgarian burkinabe
burmese burundian cambodian cameroonian canadian catalan chadian chechen chilean chinese colombian
congolese cornish croatian cuban cypriot czech danish djiboutian dominican dutch ecuadorean
ecuadorian egyptian emirati english eritrean estonian ethiopian fijian filipino finnish flemish
french gabonese gambian georgian german ghanaian greek grenadian guatemalan guinean guyanese
haitian honduran hungarian icelandic indian indonesian iranian iraqi irish israeli italian ivorian
jamaican japanese jordanian kazakh kenyan korean kosovar kurdish kuwaiti kyrgyz lao laotian
latvian lebanese liberian libyan lithuanian luxembourgish macedonian malagasy malawian malaysian
maldivian malian maltese maori mauritanian mauritian mexican moldovan mongolian montenegrin
moroccan mozambican namibian nepalese nepali nicaraguan nigerian norwegian omani pakistani
palestinian panamanian paraguayan persian peruvian polish portuguese qatari romanian russian
rwandan salvadoran samoan saudi scottish senegalese serbian singaporean slovak slovene slovenian
somali spanish sudanese surinamese swazi swedish swiss syrian taiwanese tajik tamil tanzanian thai
tibetan togolese tongan tunisian turkish turkmen ugandan ukrainian uruguayan uyghur uzbek
venezuelan vietnamese welsh yemeni zambian zimbabwean christian catholic protestant orthodox
evangelical baptist methodist lutheran mormon muslim islamic sunni shia shii jewish hindu buddhist
sikh taoist atheist agnostic republican democrat socialist communist conservative marxist
"""
_WORDS = tuple(_TEXT.split())
_ALL = frozenset([*_WORDS, *(f"{w}s" for w in _WORDS)])


def is_one(word: str) -> bool:
    """Whether the word is on the list."""
    return word.lower() in _ALL


RULE = PatternRule(
    name="nrp",
    entity="NRP",
    pattern=re.compile(r"(?<![0-9A-Za-z])[A-Za-z]{3,15}(?![0-9A-Za-z])"),
    score=0.3,
    check=is_one,
    needs=Needs(cues=Cues(words=_ALL)),
)
ZH = PatternRule(
    name="nrp_zh",
    entity="NRP",
    pattern=re.compile(
        r"(?:汉|回|藏|苗|壮|彝|满|蒙古|维吾尔|土家|朝鲜|哈萨克)族|基督徒|天主教徒|穆斯林|佛教徒|道教徒"
        r"|共产党员|(?:中|美|英|法|德|日|韩|俄)国人"
    ),
    score=0.3,
    needs=Needs(han=True),
)
