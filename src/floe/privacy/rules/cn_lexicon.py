"""Chinese words and characters of given names with their costs, read once from the data files.

A cost is -ln of a relative frequency in tenths. The files say where they come from.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

_KNOWN_COST = 90  # as a word of 120 per million
_NOT_TYPICAL, _SELDOM = 35, 90


def _lines(name: str) -> list[list[str]]:
    text = (files("floe.privacy.rules") / "data" / name).read_text(encoding="utf-8")
    return [line.split() for line in text.splitlines() if not line.startswith("#")]


def _costs(name: str) -> dict[str, int]:
    return {item: int(line[0]) for line in _lines(name) for item in line[1:]}


@cache
def known() -> frozenset[str]:
    """People that everybody knows, and words that only look like names."""
    return frozenset(item for line in _lines("cn_known.txt") for item in line)


@cache
def words() -> dict[str, int]:
    """Words of one to four characters."""
    return _costs("cn_words.txt") | dict.fromkeys(known(), _KNOWN_COST)


@cache
def given() -> dict[str, int]:
    """Characters of given names, simplified; what is not typical of them costs more."""
    typical = {char for line in _lines("cn_typical.txt") for item in line for char in item}
    costs = _costs("cn_given.txt")
    return {c: cost if c in typical else cost + _NOT_TYPICAL for c, cost in costs.items()} | {
        c: _SELDOM for c in typical if c not in costs
    }


_PAIRS = (
    "張张偉伟國国華华強强麗丽軍军傑杰濤涛靜静陳陈劉刘黃黄吳吴孫孙馬马羅罗鄭郑謝谢韓韩馮冯蕭萧鄧邓許许呂吕蘇苏"
    "盧卢蔣蒋賈贾葉叶閻阎鍾钟譚谭鄒邹陸陆顧顾龍龙萬万錢钱湯汤喬乔賀贺賴赖龔龚龐庞蘭兰顏颜嚴严蘆芦魯鲁韋韦畢毕"
    "聶聂齊齐莊庄關关費费紀纪項项衛卫單单寧宁鮑鲍應应連连賓宾車车歐欧陽阳諸诸東东門门鐘钟說说這这個个們们來来時时"
    "會会對对發发電电話话號号學学與与後后從从還还過过點点樣样現现問问題题請请幫帮給给買买賣卖醫医師师業业員员經经"
    "理理長长開开見见覺觉聽听寫写讀读書书報报張张頭头風风飛飞鳳凤潔洁瑩莹穎颖慧慧瓊琼賢贤達达進进遠远運运輝辉榮荣"
    "貴贵財财寶宝銀银鋼钢鋒锋鑫鑫銘铭鈺钰錦锦鎮镇雲云霖霖聖圣澤泽潤润濱滨滿满漢汉溫温為为煥焕燦灿燁烨愛爱憶忆懷怀"
    "義义樂乐夢梦樺桦棟栋機机權权標标橋桥歡欢歲岁殘残氣气決决沒没兒儿儀仪優优倫伦僑侨億亿兩两剛刚創创勁劲勝胜勳勋"
    "勵励區区協协參参雙双啟启喚唤園园圍围圖图團团場场塵尘壯壮夠够奮奋婦妇媽妈嬌娇嫻娴孃娘實实寬宽將将專专尋寻導导"
    "岡冈島岛峽峡嶺岭帶带幣币廣广廠厂廳厅彥彦彙汇徑径復复徵征德德恆恒戰战戲戏戶户據据擇择擔担擴扩攝摄數数斷断晉晋"
    "曉晓暉晖曆历極极構构檢检產产畫画異异當当療疗盡尽監监眾众睏困碼码確确禮礼禪禅種种稱称積积穩稳窩窝競竞筆笔簡简"
    "築筑簽签糧粮約约紅红紋纹納纳純纯紗纱級级紹绍終终組组結结絡络統统絲丝經经綠绿維维綱纲網网緊紧緒绪線线編编練练"
    "縣县總总織织續续罰罚習习職职聯联腦脑臺台舊旧藝艺藥药蓮莲薦荐處处術术補补裝装裡里親亲觀观規规視视計计訂订記记"
    "設设訪访診诊證证評评詞词試试詩诗詳详語语誠诚誤误課课調调談谈論论謀谋講讲識识譜谱護护變变讓让負负責责貨货貸贷"
    "資资賞赏質质購购贈赠趙赵躍跃軒轩載载輔辅輕轻輸输辦办農农迴回遊游違违選选遲迟邊边郵邮鄉乡鄰邻醬酱釋释針针錄录"
    "錯错鍵键長长開开閉闭間间閱阅陣阵隊队階阶際际隨随險险隱隐離离難难雖虽雜杂霧雾靈灵響响頁页順顺須须預预領领頻频"
    "顯显願愿類类飯饭飲饮館馆駕驾騎骑驗验驚惊體体髮发鬧闹魚鱼鮮鲜鳴鸣鴻鸿麥麦黨党齡龄"
)
SIMPLIFIED = str.maketrans(dict(zip(_PAIRS[::2], _PAIRS[1::2], strict=True)))
"""Traditional characters of names and everyday words to simplified ones, one to one."""
