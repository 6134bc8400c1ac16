"""Recognisers of countries and kinds added later: a text and what must be found in it.

The values are the issuers' published examples or made up with a right check digit.
"""

from __future__ import annotations

import pytest

from floe.privacy.detector import RuleDetector

DETECTOR = RuleDetector()

ROWS = [
    ("MAC_ADDRESS", "eth0 ether 00:1B:44:11:3A:B7 up", ["00:1B:44:11:3A:B7"]),
    ("MAC_ADDRESS", "网卡00-1b-44-11-3a-b7已连接", ["00-1b-44-11-3a-b7"]),
    ("MAC_ADDRESS", "mac 001b.4411.3ab7.", ["001b.4411.3ab7"]),
    ("MAC_ADDRESS", "EUI-64 02:00:5e:10:00:00:00:01", ["02:00:5e:10:00:00:00:01"]),
    ("MAC_ADDRESS", "ff:ff:ff:ff:ff:ff 00:00:00:00:00:00 00:1B:44:11:3A at 10:02:11", []),
    ("MAC_ADDRESS", "00:1B:44:11:3A:B7:99:00:11 and x00-1b-44-11-3a-b7", []),
    ("COORDINATES", "GPS: 40.712776, -74.005974", ["40.712776, -74.005974"]),
    ("COORDINATES", "坐标31.230416,121.473701附近", ["31.230416,121.473701"]),
    ("COORDINATES", '{"lat": 31.2304, "lng": 121.4737}', ['31.2304, "lng": 121.4737']),
    ("COORDINATES", "geo:48.858370,2.294481;u=35", ["geo:48.858370,2.294481"]),
    ("COORDINATES", "maps?q=51.5007,-0.1246&z=3", ["?q=51.5007,-0.1246"]),
    ("COORDINATES", "40°26′46″N 79°58′56″W", ["40°26′46″N 79°58′56″W"]),
    ("COORDINATES", "40º26'46\"N, 79º58'56\"W", ["40º26'46\"N, 79º58'56\"W"]),
    ("COORDINATES", "at 31.2304 N, 121.4737 E", ["31.2304 N, 121.4737 E"]),
    ("COORDINATES", "北纬31.2304度，东经121.4737度", ["北纬31.2304度，东经121.4737度"]),
    ("COORDINATES", "纬度：31.2304，经度：121.4737", ["纬度：31.2304，经度：121.4737"]),
    ("COORDINATES", "loss 0.123456, 0.234567 and 12.3456 78.9012", []),
    ("COORDINATES", "90° turn, 20 °C N, 3.1415 N", []),
    ("INSURANCE_NUMBER", "my insurance policy number is HX-4471-88213", ["HX-4471-88213"]),
    ("INSURANCE_NUMBER", "Member ID: W2345 67890", ["W2345 67890"]),
    ("INSURANCE_NUMBER", "医保卡号：3301020012345678", ["3301020012345678"]),
    ("INSURANCE_NUMBER", "保单号是P20231234567，请查", ["P20231234567"]),
    ("INSURANCE_NUMBER", "insurance for 2 people, policy no later than 2024, health plan 2030", []),
    ("US_MBI", "Medicare 1EG4-TE5-MK73", ["1EG4-TE5-MK73"]),
    ("US_MBI", "MBI 1eg4te5mk73", ["1eg4te5mk73"]),
    ("US_MBI", "1SG4-TE5-MK73 0EG4-TE5-MK73 1EG4-TE5-MK7", []),
    ("US_ITIN", "ITIN 912-70-1234", ["912-70-1234"]),
    ("US_ITIN", "my itin: 912701234", ["912701234"]),
    ("US_ITIN", "912-93-1234 812-70-1234 912701234", []),
    ("US_EIN", "EIN 12-3456789", ["12-3456789"]),
    ("US_EIN", "EIN 07-3456789 and 12-3456789", ["12-3456789"]),
    ("US_EIN", "being 12-3456789", []),
    ("US_PASSPORT", "US passport number 340020013", ["340020013"]),
    ("US_PASSPORT", "passport A12345678", ["A12345678"]),
    ("US_PASSPORT", "passport photos 35x45, order 12345", []),
    ("UK_PASSPORT", "my British passport is 925665416", ["925665416"]),
    ("DE_PASSPORT", "Reisepass C01X00T47", ["C01X00T47"]),
    ("FR_PASSPORT", "passeport 12AB34567", ["12AB34567"]),
    ("IT_PASSPORT", "passaporto YA1234567", ["YA1234567"]),
    ("IN_PASSPORT", "Indian passport A2096457", ["A2096457"]),
    ("CN_PASSPORT", "护照号E12345678，有效", ["E12345678"]),
    ("CN_PASSPORT", "护照EA1234567", ["EA1234567"]),
    ("PASSPORT", "pasaporte ABC123456", ["ABC123456"]),
    ("PASSPORT", "pass port ABC123456, ABC123456", []),
    ("US_DRIVER_LICENSE", "My driver's license number is F162823540116", ["F162823540116"]),
    ("US_DRIVER_LICENSE", "driver’s license (California): D1234567", ["D1234567"]),
    ("US_DRIVER_LICENSE", "DL#: 6940579", ["6940579"]),
    ("US_DRIVER_LICENSE", "driver license renewal in 2024, license plates", []),
    ("UK_DRIVING_LICENCE", "MORGA657054SM9IJ", ["MORGA657054SM9IJ"]),
    ("UK_DRIVING_LICENCE", "MORGA673054SM9IJ 12MORGA657054SM9IJ", []),
    ("IT_DRIVER_LICENSE", "patente AB1234567C", ["AB1234567C"]),
    ("IT_DRIVER_LICENSE", "AB1234567C", []),
    ("DRIVER_LICENSE", "Führerschein Nr. B072RRE2I55", ["B072RRE2I55"]),
    ("DRIVER_LICENSE", "驾驶证号是310101199003077771", []),  # the resident id is the better name
    ("CN_RESIDENT_ID", "驾驶证号是310101199003077771", ["310101199003077771"]),
    ("ABA_ROUTING_NUMBER", "routing number 021000021", ["021000021"]),
    ("ABA_ROUTING_NUMBER", "routing number 021000022, 021000021x", []),
    ("ABA_ROUTING_NUMBER", "021000021", []),
    ("US_BANK_NUMBER", "account number: 000123456789", ["000123456789"]),
    ("US_BANK_NUMBER", "my checking account 1234567890 is empty", ["1234567890"]),
    ("US_BANK_NUMBER", '"accountId":"123456789012" and accountable 123456789', []),
    ("BANK_ACCOUNT", "sort code 20-00-00 account 55779911", ["20-00-00 account 55779911"]),
    ("BANK_ACCOUNT", "on 20-00-00", []),
    ("BANK_ACCOUNT", "银行卡号6222021234567890123", ["6222021234567890123"]),
    ("BANK_ACCOUNT", "收款账号：1100 1018 2000 5312 345", ["1100 1018 2000 5312 345"]),
    ("BANK_ACCOUNT", "Kontonummer 532013000", ["532013000"]),
    ("BANK_ACCOUNT", "账号登录失败3次，错误码10023", []),
    ("ZIP_CODE", "Springfield, IL 62704", ["62704"]),
    ("ZIP_CODE", "Austin TX 78701-1234", ["78701-1234"]),
    ("ZIP_CODE", "my zip code is 880", ["880"]),
    ("ZIP_CODE", "PLZ 53113 und 邮编：200120", ["53113", "200120"]),
    ("ZIP_CODE", "IN 12345 OR 54321, zip file 12, Texas 78701 people, zip 7 files", []),
    ("UK_POSTCODE", "London SW1A 1AA", ["SW1A 1AA"]),
    ("UK_POSTCODE", "postcode m11ae", ["m11ae"]),
    ("UK_POSTCODE", "QQ1 1AA, SW1A 1CC, ASW1A 1AA, A4 2AB5 and m11ae", []),
    ("US_NPI", "NPI 1234567893", ["1234567893"]),
    ("US_NPI", "NPI 1234567894 and 1234567893x", []),
    ("MEDICAL_LICENSE", "DEA number AB1234563", ["AB1234563"]),
    ("MEDICAL_LICENSE", "DEA AB1234564", []),
    ("UK_UTR", "UTR 1955839661", ["1955839661"]),
    ("UK_UTR", "order 1955839661", []),
    ("MEDICAL_LICENSE", "part AB1234563", []),
    ("IT_VAT_CODE", "12345670017", []),
    ("UK_UTR", "UTR 2955839661; order 1955839662", []),
    ("DE_ID_CARD", "Personalausweis T220001293", ["T220001293"]),
    ("DE_ID_CARD", "Ausweisnummer L01X00T47", ["L01X00T47"]),
    ("DE_ID_CARD", "T220001294 T220001293 ausweislich", []),
    ("DE_SOCIAL_SECURITY", "RVNR 65 070803 A 013?", []),
    ("DE_SOCIAL_SECURITY", "Sozialversicherungsnummer 15070649C103", ["15070649C103"]),
    ("DE_SOCIAL_SECURITY", "15070649C104 15990649C103", []),
    ("DE_HEALTH_INSURANCE", "KVNR A123456780", ["A123456780"]),
    ("DE_HEALTH_INSURANCE", "KVNR A123456781 Z123456780", []),
    ("FR_NIR", "1 85 05 78 006 084 91", ["1 85 05 78 006 084 91"]),
    ("FR_NIR", "sécu 255081416802538", ["255081416802538"]),
    ("FR_NIR", "255081416802539", []),
    ("FR_NIR", "né en Corse: 1 85 05 2A 006 084 35", ["1 85 05 2A 006 084 35"]),
    ("FR_CNI", "carte d'identité 880692310285", ["880692310285"]),
    ("FR_CNI", "880692310285", []),
    ("IT_VAT_CODE", "P.IVA 12345670017", ["12345670017"]),
    ("IT_VAT_CODE", "P.IVA 12345670018", []),
    ("IT_IDENTITY_CARD", "carta d'identità CA12345AA", ["CA12345AA"]),
    ("IT_IDENTITY_CARD", "CA12345AA", []),
    ("PL_NIP", "NIP 123-456-32-18", ["123-456-32-18"]),
    ("PL_NIP", "NIP 123-456-32-19 lub 1234563218", ["1234563218"]),
    ("PL_NIP", "nipple 1234563218", []),
    ("PL_REGON", "REGON 123456785", ["123456785"]),
    ("PL_REGON", "REGON 12345678512347", ["12345678512347"]),
    ("PL_REGON", "REGON 123456786", []),
    ("PL_ID_CARD", "dowód osobisty ABA300000", ["ABA300000"]),
    ("PL_ID_CARD", "dowód ABA400000, ABA300000x", []),
    ("IN_VOTER", "voter id ABC1234567", ["ABC1234567"]),
    ("IN_VOTER", "ABC1234567", []),
    ("IN_VEHICLE_REGISTRATION", "car MH 12 AB 1234", ["MH 12 AB 1234"]),
    ("IN_VEHICLE_REGISTRATION", "DL1CAB1234 and 22BH1234AA", ["DL1CAB1234", "22BH1234AA"]),
    ("IN_VEHICLE_REGISTRATION", "XX12AB1234 MH12AB12345", []),
    ("IN_GSTIN", "GSTIN 27AAPFU0939F1ZV", ["27AAPFU0939F1ZV"]),
    ("IN_GSTIN", "27AAPFU0939F1ZW", []),
    ("CN_RESIDENT_ID", "旧身份证号310101800101123", ["310101800101123"]),
    ("CN_RESIDENT_ID", "身份证号110105199912310021", ["110105199912310021"]),
    ("CN_RESIDENT_ID", "订单310101800101123", []),
    ("CN_SOCIAL_CREDIT_CODE", "代码91350100M000100Y43。", ["91350100M000100Y43"]),
    ("CN_SOCIAL_CREDIT_CODE", "91350100M000100Y44", []),
    ("CN_SOCIAL_CREDIT_CODE", "税号911101080000000007", ["911101080000000007"]),
    ("CN_SOCIAL_CREDIT_CODE", "税号911101080000000006, 订单", []),
    ("GOVERNMENT_ID", "港澳通行证C12345678", ["C12345678"]),
    ("GOVERNMENT_ID", "学号：2019302110", ["2019302110"]),
    ("USER_NAME", "微信号：zhang_wei88", ["zhang_wei88"]),
    ("USER_NAME", "我的QQ是123456789", ["123456789"]),
    ("USER_NAME", "微信支付, QQ群, wechat mini-program", []),
    ("HK_ID", "身份證A123456(3)", ["A123456(3)"]),
    ("HK_ID", "HKID A1234563", ["A1234563"]),
    ("HK_ID", "A123456(4) A1234563", []),
    ("PHONE_NUMBER", "电话+852 9123 4567", ["+852 9123 4567"]),
    ("PHONE_NUMBER", "打我手機0912-345-678", ["0912-345-678"]),
    ("PHONE_NUMBER", "香港電話：2123 4567", ["2123 4567"]),
    ("TW_ID", "身分證A123456789", ["A123456789"]),
    ("TW_ID", "居留證 A800000014", ["A800000014"]),
    ("TW_ID", "A123456788", []),
    ("LICENSE_PLATE", "京A1234警 使014578 粤AD12345", ["京A1234警", "使014578", "粤AD12345"]),
    ("LICENSE_PLATE", "WJ京12345", ["WJ京12345"]),
    ("LICENSE_PLATE", "使014578次请求", []),
]


def found(text: str) -> list[tuple[str, str, str]]:
    return [
        (s.entity, text[s.start : s.end], s.recogniser)
        for s in DETECTOR.find(text)
        if s.score >= 0.5
    ]


@pytest.mark.parametrize(("entity", "text", "values"), ROWS)
def test_recogniser_of_the_world(entity: str, text: str, values: list[str]) -> None:
    assert [v for e, v, _ in found(text) if e == entity] == values


@pytest.mark.parametrize(("entity", "text", "values"), [row for row in ROWS if row[2]])
def test_chinese_around_changes_nothing(entity: str, text: str, values: list[str]) -> None:
    assert [v for e, v, _ in found(f"请看{text}谢谢") if e == entity] == values
