"""Ordinary text gives no finding; shared excerpts hold the rates."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from floe.privacy.detector import RuleDetector

DATA = Path(__file__).parent / "data"
DETECTOR = RuleDetector()

NEGATIVES = {
    "b01_capitals": "AN INTRODUCTORY NOTE ON MARKERS",
    "b01_word": "INTERVENTIONS",
    "b01_codes": "C7 K2 A1B2 XK-42",
    "b02_lock_hash": (
        "integrity sha512-LICm2kq3aPz9Yw4vF0bN8rT6uX1cE5hJ7dS2gK4lQ9oW3yR8tU6iP0aZ1xC5vB7nM2q"
        "L4kJ6hG8fD0sA=="
    ),
    "b02_notice": "public notice m2, replicated v3",
    "b02_git": "commit 9f27d24949b0581701071ea5ef522d77ccd3f50c525cc91eac4d265b0fc2afe5 by phone",
    "b02_uuid": "phone 550e8400-e29b-41d4-a716-446655440000 called",
    "b02_versions": "numpy==1.26.4, linux-6.8.0-45, chrome/124.0.6367.60, v2026.10.11549",
    "b04_numbers": "\n".join(str(1234567 + 7919 * i) for i in range(40)),
    "b04_log": "04/17 10:02:11 WARN netif_scan: index 3, device eth0",
    "b04_access_log": '[29/Nov/2026:17:17:35 +0000] "GET /v1/models HTTP/1.1" 200 5316 0.023',
    "b05_signed": "1650000000.00 -1.25",
    "b13_cloud_trail": (
        '{"eventVersion":"1.08","accountId":"123456789012","eventTime":"2026-11-29T17:17:35Z",'
        '"requestID":"c7a4e1d2-90ab-4cde-8f01-23456789abcd","digest":"sha256:'
        'e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","port":443}'
    ),
    "code": "for i in range(10): total[i] += x[i:i+3] @ w.T  # see a::b and 0x7fff5fbff8c0",
    "code_secret": "def login(user: str, password: str): return post(url, password=password)",
    "maths": "3.14159 * 1,000,000 = 3,141,590; 7/8 + 1/3; 2^64 = 18446744073709551616",
    "measures": "from 1990-2000 to 2010-2020, 12 x 34 x 56 mm, 100 000 000 km, 25 %",
    "prose": "Call me Ishmael. The mobile app was reached by 3000 people at the office in 2019.",
    "chinese": "请用中文解释光合作用，并举三个例子。2023年有12000名学生参加。",
    "chinese_everyday": (
        "我叫了一辆车，我是学生。如何计算圆的面积？北京市是中国的首都，这条路很长。高铁站在5号线旁边，"
        "第3层2号。患者安全管理制度；本人高中毕业，熟悉Python。"
    ),
    "iso_time": "2026-11-29T17:17:35.123456+00:00 took 1234 ms",
    "isbn": "ISBN 978-3-16-148410-0, RFC 3986, ISO 13616-1:2020, DOI 10.1000/182",
    "coordinates_grid": "0.1 0.2 0.3 0.4\n1.5 2.5 3.5 4.5\n",
}


@pytest.mark.parametrize("text", NEGATIVES.values(), ids=NEGATIVES.keys())
def test_ordinary_text_gives_no_finding(text: str) -> None:
    assert [(s.entity, text[s.start : s.end]) for s in DETECTOR.find(text) if s.score >= 0.5] == []


def test_maths_questions_give_no_finding() -> None:
    questions = json.loads((DATA / "gsm8k_questions.json").read_text(encoding="utf-8"))
    assert len(questions) == 50
    flagged = [q for q in questions if any(s.score >= 0.5 for s in DETECTOR.find(q))]
    assert flagged == []


def test_presidio_sentences_reach_the_recall() -> None:
    sentences = json.loads((DATA / "presidio_sentences.json").read_text(encoding="utf-8"))
    total: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    for sentence in sentences:
        found = [s for s in DETECTOR.find(sentence["text"]) if s.score >= 0.5]
        for entity, start, end in sentence["spans"]:
            total[entity] += 1
            hit[entity] += any(s.start < end and start < s.end for s in found)
    recall = {entity: hit[entity] / total[entity] for entity in total}
    assert min(total.values()) >= 12
    assert recall.pop("PHONE_NUMBER") >= 0.9
    assert recall == dict.fromkeys(recall, 1.0)
