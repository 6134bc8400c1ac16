"""The training material, split by groups: variants of one item never straddle.

train, cal (calibration) and test are drawn by a keyed hash of the group, so nothing depends on the
order of files. ConfAIde, IFEval and MT-bench are for the test only.
"""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = "floe-semantic-1"
_WORDS = re.compile(r"[a-z]+")
_MAX_CHARS = 1500


@dataclass(frozen=True, kw_only=True)
class Text:
    """`split` is train, cal or test."""

    source: str
    split: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Case:
    """One PrivacyLens case."""

    name: str
    split: str
    instruction: str
    story: str
    matter: str
    items: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def text(self) -> str:
        """What the edge model would see: the instruction, then the private notes."""
        return "\n".join((self.instruction, *self.items))


def split_of(key: str, train: float, cal: float) -> str:
    """train, cal or test, by share."""
    digest = hashlib.sha256(f"{SEED}:{key}".encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return "train" if place < train else "cal" if place < train + cal else "test"


def privacy_lens(data: Path) -> list[Case]:
    """60 % train, 15 % cal, 25 % test, by groups of one kind of data or of alike stories."""
    raw = json.loads((data / "privacy_lens/main_data_220.json").read_text("utf-8"))
    parent = list(range(len(raw)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    kinds = [entry["seed"]["data_type"].lower().strip() for entry in raw]
    shingles = [_shingles(entry["vignette"]["story"]) for entry in raw]
    for i in range(len(raw)):
        for j in range(i):
            shared = len(shingles[i] & shingles[j]) / min(len(shingles[i]), len(shingles[j]))
            if kinds[i] == kinds[j] or shared > 0.25:
                parent[root(i)] = root(j)
    return [_case(entry, raw[root(i)]["name"]) for i, entry in enumerate(raw)]


def _case(entry: dict[str, Any], group: str) -> Case:
    trajectory = entry["trajectory"]
    items = tuple(trajectory["sensitive_info_items"])
    return Case(
        name=entry["name"],
        split=split_of(f"pl:{group}", 0.6, 0.15),
        instruction=trajectory["user_instruction"],
        story=entry["vignette"]["story"],
        matter=entry["vignette"]["data_type_concrete"],
        items=items,
        notes=tuple(_notes(trajectory["executable_trajectory"], items)),
    )


def _notes(trajectory: str, items: tuple[str, ...]) -> Iterator[str]:
    """Sentences of the notes met on the way that say much the same as a sensitive item."""
    for found in re.findall(r'"(?:content|message|body|text)": ?"((?:[^"\\]|\\.)*)"', trajectory):
        for sentence in re.split(r"(?<=[.!?])\s+|\n+", found.replace("\\n", "\n")):
            words = set(_WORDS.findall(sentence.lower()))
            told = (set(_WORDS.findall(item.lower())) for item in items)
            if any(len(words & t) > 0.6 * max(4, len(t)) for t in told):
                yield sentence.replace('\\"', '"')


def _shingles(text: str) -> set[tuple[str, ...]]:
    words = _WORDS.findall(text.lower())
    return set(zip(words, words[1:], words[2:], strict=False))


def confaide(data: Path) -> list[Text]:
    """Stories (tier 3) and meetings (tier 4) that hold a secret. Test only."""
    found = []
    for tier in (3, 4):
        text = (data / f"privacy_confaide/tier_{tier}.txt").read_text("utf-8")
        stories = re.findall(r"<BEGIN><[^>]*>\n(.*?)\n*<END>", text, re.DOTALL)
        found += [Text(source=f"confaide_{tier}", split="test", text=s.strip()) for s in stories]
    return found


def negatives(data: Path) -> list[Text]:
    """Texts of the public and questions of anybody; see docs/privacy-card.md."""
    return [
        *_instructions(data / "instructions"),
        *_mathematics_and_code(data),
        *_medicine(data / "pubmedqa"),
        *_law(data / "legalbench"),
        *_encyclopaedia(data / "wikitext2"),
        *_finance(data / "tatqa"),
        *_small_tasks(data / "instruction_induction/induce"),
    ]


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def _instructions(data: Path) -> Iterator[Text]:
    for name in ("self_instruct_seed_tasks", "self_instruct_user_oriented"):
        for task in _lines(data / f"{name}.jsonl"):
            text = f"{task['instruction']}\n{task['instances'][0]['input']}".strip()
            split = split_of(task["id"], 0.38, 0.12)
            yield Text(source="self_instruct", split=split, text=text)
    for task in _lines(data / "mt_bench_question.jsonl"):
        yield Text(source="mt_bench", split="test", text=task["turns"][0])
    for task in _lines(data / "ifeval_input_data.jsonl"):
        yield Text(source="ifeval", split="test", text=task["prompt"])


def _mathematics_and_code(data: Path) -> Iterator[Text]:
    for task in _lines(data / "gsm8k/train_first1500.jsonl")[:900]:
        split = split_of(task["question"], 0.8, 0.2)
        yield Text(source="gsm8k", split=split, text=task["question"])
    for task in _lines(data / "gsm8k/test.jsonl")[:400]:
        yield Text(source="gsm8k", split="test", text=task["question"])
    for task in _lines(data / "code/mbpp_sanitized_for_code_generation.jsonl"):
        split = split_of(task["task_id"], 0.5, 0.2)
        yield Text(source="mbpp", split=split, text=task["prompt"])


def _medicine(data: Path) -> Iterator[Text]:
    held_out = set(json.loads((data / "test_ground_truth.json").read_text("utf-8")))
    for key, entry in json.loads((data / "ori_pqal_650.json").read_text("utf-8")).items():
        split = "test" if key in held_out else split_of(key, 0.8, 0.2)
        yield Text(source="pubmedqa", split=split, text=entry["QUESTION"])
        abstract = " ".join(entry["CONTEXTS"])[:_MAX_CHARS]
        yield Text(source="pubmedqa_abstracts", split=split, text=abstract)


def _law(data: Path) -> Iterator[Text]:
    for path in sorted(data.glob("*.tsv")):
        if path.name == "LICENCES.tsv":
            continue
        split = split_of(f"law:{path.stem.split('_')[0]}", 0.5, 0.15)
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                text = next((row[k] for k in ("text", "question", "contract") if row.get(k)), "")
                if len(text) > 20:
                    yield Text(source="legalbench", split=split, text=text[:2000])


def _encyclopaedia(data: Path) -> Iterator[Text]:
    for name in ("valid", "test"):
        for line in (data / f"{name}.txt").read_text("utf-8").splitlines():
            text = re.sub(r" @(.)@ ", r"\1", line.strip()).replace("<unk>", "it")
            text = re.sub(r" ([,.)';])", r"\1", text).replace("( ", "(")
            if len(text) > 80 and text[0] != "=":
                split = "test" if name == "test" else split_of(line, 0.8, 0.2)
                yield Text(source="wikitext", split=split, text=text[:_MAX_CHARS])


def _finance(data: Path) -> Iterator[Text]:
    for entry in json.loads((data / "tatqa_dataset_dev_200.json").read_text("utf-8")):
        split = split_of(entry["table"]["uid"], 0.5, 0.2)
        texts = [entry["questions"][0]["question"], entry["paragraphs"][0]["text"]]
        yield from (Text(source="tatqa", split=split, text=t[:_MAX_CHARS]) for t in texts)


def _small_tasks(data: Path) -> Iterator[Text]:
    for path in sorted(data.glob("*.json")):
        examples = list(json.loads(path.read_text("utf-8"))["examples"].values())[:40]
        for example in examples:
            text = example.get("input") or example.get("sentence") or ""
            if isinstance(text, str) and len(text) > 12:
                split = split_of(f"small:{path.stem}", 0.6, 0.15)
                yield Text(source="small_tasks", split=split, text=text)


def by_source(texts: list[Text], split: str) -> dict[str, list[str]]:
    """The texts of a split, by source."""
    found: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        if text.split == split:
            found[text.source].append(text.text)
    return dict(found)
