"""Bank accounts: UK sort code with account; Chinese and European ones by name."""

from __future__ import annotations

import re

from floe.privacy.rules.base import FIRST, RIGHT, PatternRule, named, words
from floe.privacy.rules.hints import Needs

SORT_CODE = PatternRule(
    name="uk_sort_code",
    entity="BANK_ACCOUNT",
    pattern=re.compile(
        rf"{FIRST}[0-9]{{1}}([ -]?)[0-9]{{2}}\1[0-9]{{2}}"
        rf"(?:[\s,;/]{{1,3}}(?:a/?c|account|acc)?[a-z .:#]{{0,12}}[0-9]{{8}})?{RIGHT}",
        re.IGNORECASE,
    ),
    score=0.0,
    context=words("sort code", "sortcode", "sort-code", "bacs", "faster payment"),
    context_score=0.9,
    needs=Needs(digits=6),
)
NAMED = named(
    name="bank_account",
    entity="BANK_ACCOUNT",
    names=(
        "kontonummer", "konto-nr", "kontonr", "konto", "numéro de compte", "compte bancaire",
        "número de cuenta", "cuenta bancaria", "numero di conto", "conto corrente",
        "rekeningnummer", "bankrekening", "numer konta", "nr konta", "numer rachunku",
        "银行卡", "銀行卡", "卡号", "储蓄卡", "借记卡", "工资卡", "银行账户", "银行账号",
        "银行帐号", "銀行帳號", "銀行帳戶", "账户", "账号", "帐号", "帳號", "帳戶", "对公账户",
        "开户账号", "收款账号", "口座番号", "工行卡", "建行卡", "农行卡", "招行卡", "中行卡",
    ),
    value=r"[0-9](?:[ -]?[0-9]){7,25}",
    score=0.78,  # below an insurance card's number
    digits=8,
)  # fmt: skip
