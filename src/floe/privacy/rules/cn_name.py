"""Chinese names right behind (or before) words that say so: 我叫, 姓名:, 先生.

A surname of the common ones and one or two characters. Not covered: names without such a word,
rarer surnames, a surname alone (王先生), nicknames (小王), given names alone, foreign names in
Chinese characters. Where no mark or function word ends the name, one character too many may be
taken.
"""

from __future__ import annotations

import re

from floe.privacy.rules.base import PatternRule
from floe.privacy.rules.hints import Needs, any_of

_COMPOUND = (
    "欧阳|歐陽|上官|司马|司馬|诸葛|諸葛|司徒|尉迟|皇甫|令狐|慕容|夏侯|公孙|公孫|宇文"
    "|长孙|轩辕|端木|南宫|独孤"
)
_SINGLE = (
    "王李张刘陈杨赵黄周吴徐孙胡朱高林何郭马罗梁宋郑谢韩唐冯于董萧程曹袁邓许傅沈曾彭吕苏卢蒋蔡贾丁魏薛"
    "叶阎余潘杜戴夏钟汪田任姜范方石姚谭廖邹熊金陆郝孔白崔康毛邱秦江史顾侯邵孟龙万段雷钱汤尹黎易常武乔"
    "贺赖龚文庞樊兰殷施陶洪翟安颜倪严牛温芦季俞章鲁葛伍韦申尤毕聂焦向柳邢路岳齐梅莫庄辛管祝左涂谷祁"
    "时舒耿牟卜詹关苗凌费纪靳盛童欧甄项曲成游阳裴席卫查屈鲍位覃霍翁隋植甘景薄单包司柏宁柯阮桂闵解强"
    "張劉陳楊趙黃吳孫馬羅鄭謝韓馮蕭鄧許呂蘇盧蔣賈葉閻鍾譚鄒陸顧龍萬錢湯喬賀賴龔龐蘭顏嚴蘆魯韋畢聶齊莊關"
)
# Words that begin like a name, and what no given name begins with behind that surname.
_NO_NAME = (
    "程序|程度|高[中级级一二三考校层手管铁血温个危速端兴山]|白[领天色人血开酒菜痴]|江[苏西湖边南北]|苏[州联格]"
    "|温[州度和泉柔]|武[汉器术警]|成[都年员为功人立本绩]|周[末日一二三四五六边围期]|曾[经是]|马[来上路车桶拉]"
    "|金[融属牌色额]|常[客常用见规]|严[格重肃]|方[法便面案向式]|何[时人地处]|石[油头家]|万[分一人事科达]"
    "|孙[子女]|单[身位人纯亲元词]|于[是本此今昨前去明凌上下二早年月]|黄[色种金牛疸]|夏[天季令]|田[径野地]"
    "|安[卓全徽装排保检静]|唐[朝代山]|宋[朝代]|任[何意务课职教性]|顾[客问虑]|康复|文[科员艺化章字学件盲本]"
    "|关[于心系注节]|向[来你前后上下]|路[人过由上口边]|龙[的虾]|胡说|史[上学]|牛[奶肉人]|付款|雷[达雨]"
    "|陶[瓷醉]|熊[猫孩]|郑[州重]|徐州|林[业场]|沈阳|许[多可久]|毛[病衣巾]|秦[国朝]|罗马|韩[国语餐]|董事"
    "|余[额下]|杜绝|叶[子片]|魏国|钟[点表头]|陆[军续地]|孔子|施[工行加]|洪水|易[于过]|时[间候常尚代段不]"
    "|季[节度]|古[代典]|包[括含装子裹年]|管[理家道员]|司机|解[决释放答]|强[大调烈]|位[于置]|查[询看找]"
    "|左[右边手]|项[目链]|游[客戏泳]|阳[光性]|费用|盛[大行]|欧[洲美元]|纪[念录律]|童[年话]|景[色区]|宁[波可夏]"
    "|甘肃|桂林|卫生|植物|凌晨|申请|毕[业竟]|莫[名非]|伍|梅花|辛苦|焦[虑点]|祝[你福贺]|席位|曲[线子]"
    "|易怒|白[羊纸]|钱包|余生|東京|李子|梁山|汤[圆药]|朱红|程式|張三李四|章节|成绩|侯选|丁[香字]|尤其|汪汪|方方"
)
_STOP = (
    "的了是在今昨前我你他她它您和与跟从住有来就也都不想要会能可吗呢吧啊请这那年岁去到做被把将并很最已现因为"
    "于对说先女男同电手身地号或但而及以让给毕月日出入系各每该其吃买卖看听写读學嗎來這為從說電號會"
)
_HAN = "\u4e00-\u9fff"
_GIVEN = rf"[^{_STOP}\W0-9A-Za-z_]"
_NAME = rf"(?!{_NO_NAME})(?:{_COMPOUND}|[{_SINGLE}])(?:(?=[{_HAN}]){_GIVEN}){{1,2}}"
_END = rf"(?=[^{_HAN}]|[{_STOP}]|$)"
_ROLES = (
    "联系人|聯繫人|收件人|收货人|寄件人|发件人|户主|患者|病人|本人|当事人|被告人?|原告"
    "|申请人|持卡人|签名"
)
_KIN = (
    "我|他|她|人|名字|姓名|名|儿子|女儿|妻子|丈夫|老婆|老公|妈妈|爸爸|父亲|母亲|哥哥|弟弟|姐姐|妹妹|爷爷|奶奶"
    "|朋友|同事|老板|同学|老师|医生|邻居|孩子"
)
_SAID = (
    rf"(?:(?:{_KIN})(?:叫做?|名叫)|名字?叫做?|(?:姓名|名字|名稱)\s?(?:[:=]|是|为|為|叫)"
    rf"|姓名|(?:{_ROLES}|客户|法人|法定代表人)\s?(?:姓名)?\s?(?:[:=]|是|为|為|叫)"
    r"|(?<![A-Za-z])[Nn]ame(?: is|:))"
)

SAID = PatternRule(
    name="cn_name_said",
    needs=Needs(han=True),
    entity="PERSON",
    pattern=re.compile(rf"{_SAID}[\s\"'“「《]{{0,2}}(?P<value>{_NAME})"),
    score=0.8,
)
# Words that stand before much else as well: only where the name ends clearly.
WEAK = PatternRule(
    name="cn_name_weak",
    needs=Needs(han=True),
    entity="PERSON",
    pattern=re.compile(
        rf"(?:我是|我係|{_ROLES})[\s“「]{{0,2}}(?P<value>{_NAME})(?<![人座头員员迷客者族])"
        rf"{_END}"
    ),
    score=0.7,
)
TITLED = PatternRule(
    name="cn_name_titled",
    needs=Needs(
        han=True,
        cues=any_of(
            "先生",
            "女士",
            "小姐",
            "太太",
            "教授",
            "医生",
            "醫生",
            "律师",
            "律師",
            "老师",
            "老師",
            "同学",
            "经理",
            "主任",
            "师傅",
            "阿姨",
            "叔叔",
            "护士",
            "总监",
            "医师",
            "院长",
            "校长",
            "博士",
        ),
    ),
    entity="PERSON",
    pattern=re.compile(
        rf"(?P<value>{_NAME})(?=\s?(?:先生|女士|小姐|太太|教授|医生|醫生|律师|律師|老师|老師|同学|经理|主任|师傅|阿姨|叔叔|护士|总监|医师|院长|校长|博士))"
    ),
    score=0.7,
)
