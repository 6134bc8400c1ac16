"""Questions and answers for the five shipped adapters, from the data sets in a folder.

Each loader gives examples with a `group`: what must not lie on both sides of a split (a document,
a table, a problem). `fixed` says which side the data set's own split puts an example on.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Example:
    """A user's turn and the answer to learn; `short` is the bare question, without context."""

    prompt: str
    answer: str
    group: str
    short: str
    fixed: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set with what its licence asks to be said, and how examples are parted."""

    name: str
    description: str
    load: Callable[[Path], Iterator[Example]]
    data: str
    licence: str
    attribution: str
    split_rule: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """Examples to train on, to choose the checkpoint on, and never to look at before the end."""

    train: list[Example]
    validation: list[Example]
    held_out: list[Example]


def split(examples: list[Example], *, seed: int, n_held_out: int, n_validation: int) -> Split:
    """Part by group: held-out first, then validation, the rest is training. Seeded.

    Where the data set has its own test part, held-out comes from it and training never does.
    """
    groups: dict[str, list[Example]] = {}
    for example in examples:
        groups.setdefault(example.group, []).append(example)
    keys = sorted(groups)
    random.Random(seed).shuffle(keys)
    has_own = any(e.fixed for e in examples)
    tests = [k for k in keys if groups[k][0].fixed == "test" or not has_own]
    held_out, used = _take(groups, tests, n_held_out)
    trains = [k for k in keys if k not in used and groups[k][0].fixed != "test"]
    validation, used = _take(groups, trains, n_validation)
    train = [e for k in trains if k not in used for e in groups[k]]
    return Split(train=train, validation=validation, held_out=held_out)


def _take(
    groups: dict[str, list[Example]], keys: list[str], count: int
) -> tuple[list[Example], set[str]]:
    taken: list[Example] = []
    used: set[str] = set()
    for key in keys:
        if len(taken) >= count:
            break
        used.add(key)
        taken += groups[key]
    return taken, used


def _lines(path: Path) -> Iterator[dict[str, str]]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)


def maths(folder: Path) -> Iterator[Example]:
    """GSM8K: the question; the steps without calculator marks, then `#### number`."""
    for part, name in (("train", "train_first1500.jsonl"), ("test", "test.jsonl")):
        for row in _lines(folder / "gsm8k" / name):
            answer = re.sub(r"<<[^>]*>>", "", row["answer"]).strip()
            question = row["question"].strip()
            yield Example(
                prompt=question, answer=answer, group=question, short=question, fixed=part
            )


def code(folder: Path) -> Iterator[Example]:
    """MBPP: the task with the function's first line; the whole function in a code block."""
    for row in _lines(folder / "code" / "mbpp_sanitized_for_code_generation.jsonl"):
        head, task = row["prompt"].replace("\r\n", "\n").split("'''")[:2]
        body = row["canonical_solution"].replace("\r\n", "\n").rstrip()
        signature = head.strip().splitlines()[-1]
        text = " ".join(task.split())
        yield Example(
            prompt=f"{text}\n\nBegin with:\n```python\n{signature}\n```",
            answer=f"```python\n{head.strip()}\n{body}\n```",
            group=" ".join(re.sub(r"[^a-z ]", " ", text.lower()).split()),
            short=text,
        )


def medicine(folder: Path) -> Iterator[Example]:
    """PubMedQA: the question, with the abstract's last part if short; decision and conclusion."""
    tests = json.loads((folder / "pubmedqa" / "test_ground_truth.json").read_text("utf-8"))
    rows = json.loads((folder / "pubmedqa" / "ori_pqal_650.json").read_text("utf-8"))
    for key, row in rows.items():
        question = row["QUESTION"].strip()
        context = row["CONTEXTS"][-1].strip()
        prompt = f"{question}\n\n{context}" if len(context) <= 320 else question
        yield Example(
            prompt=prompt,
            answer=f"{row['final_decision'].capitalize()}. {row['LONG_ANSWER'].strip()}",
            group=key,
            short=question,
            fixed="test" if key in tests else "train",
        )


def finance(folder: Path) -> Iterator[Example]:
    """TAT-QA: the question with its table or paragraphs; the derivation if any, and the answer."""
    reports = json.loads((folder / "tatqa" / "tatqa_dataset_dev_200.json").read_text("utf-8"))
    for report in reports:
        table = "\n".join(
            " | ".join(cell.strip() for cell in row) for row in report["table"]["table"]
        )
        paragraphs = {str(p["order"]): p["text"].strip() for p in report["paragraphs"]}
        for q in report["questions"]:
            parts = [table] if "table" in q["answer_from"] else []
            if "text" in q["answer_from"]:
                parts += [paragraphs[i] for i in q["rel_paragraphs"] if i in paragraphs]
            context = "\n\n".join(parts)
            question = q["question"].strip()
            yield Example(
                prompt=f"{question}\n\n{context}",
                answer=_finance_answer(q),
                group=report["table"]["uid"],
                short=question,
            )


def _finance_answer(q: dict) -> str:
    values = q["answer"] if isinstance(q["answer"], list) else [q["answer"]]
    text = "; ".join(str(v) for v in values)
    if q["scale"] and not text.endswith("%"):
        text += "%" if q["scale"] == "percent" else f" {q['scale']}"
    if q["answer_type"] == "arithmetic" and q["derivation"]:
        return f"{q['derivation'].strip()} = {text}"
    return text


# Left out: tasks under CC BY-SA (definition_*), without their choices (maud_*), or far too long.
_PHRASES = {
    "rofr-rofo-rofn": "a right of first refusal, first offer or first negotiation",
    "unlimited-all-you-can-eat-license": "an unlimited usage licence",
    "no-solicit of customers": "a duty not to solicit customers",
    "no-solicit of employees": "a duty not to solicit employees",
    "covenant not to sue": "a covenant not to sue",
    "cap on liability": "a cap on liability",
    "change of control": "a change of control",
}
_QUESTIONS = {
    "cuad": "Does this contract clause concern {phrase}?\n\n{text}",
    "contract_nli": "Does this clause of a non-disclosure agreement provide for {phrase}?"
    "\n\n{text}",
    "contract_qa": "{question}\n\n{text}",
    "diversity": "{text} Is there diversity jurisdiction?",
    "function_of_decision_section": "Which function does this part of a court's decision have: "
    "facts, procedural history, issue, rule, analysis, conclusion or decree?\n\n{Paragraph}",
    "hearsay": "{text} Is this hearsay?",
    "international_citizenship_questions": "{question}",
    "jcrew_blocker": "Does this clause of a loan agreement contain a J.Crew blocker?\n\n{text}",
    "legal_reasoning_causality": "Does the court rely on statistical evidence to infer "
    "causality here?\n\n{text}",
    "nys_judicial_ethics": "{question}",
    "oral_argument_question_purpose": "What is the purpose of this question by a judge at oral "
    "argument?\n\n{question}",
    "overruling": "Does this sentence overrule an earlier decision?\n\n{text}",
    "personal_jurisdiction": "{text} Does the court have personal jurisdiction?",
    "privacy_policy_qa": "Is this part of a privacy policy relevant to the question "
    '"{question}"?\n\n{text}',
    "proa": "Does this statute contain a private right of action?\n\n{text}",
    "successor_liability": "Which exceptions make the buyer liable as a successor?\n\n{text}",
    "telemarketing_sales_rule": "{text}",
    "ucc_v_common_law": "{contract}",
    "unfair_tos": "Which kind of unfair term, if any, is in this sentence of the terms of "
    "service?\n\n{text}",
    "citation_prediction_classification": "Does {citation} support this statement?\n\n{text}",
}
_ANSWERS = {
    "cuad": ("Yes, this clause concerns {phrase}.", "No, this clause does not concern {phrase}."),
    "contract_nli": (
        "Yes, this clause provides for {phrase}.",
        "No, this clause does not provide for {phrase}.",
    ),
    "diversity": ("Yes, there is diversity jurisdiction.", "No, diversity jurisdiction is absent."),
    "hearsay": ("Yes, this is hearsay.", "No, this is not hearsay."),
    "jcrew_blocker": (
        "Yes, the clause contains a J.Crew blocker.",
        "No, the clause contains no J.Crew blocker.",
    ),
    "overruling": (
        "Yes, this sentence overrules an earlier decision.",
        "No, this sentence overrules nothing.",
    ),
    "personal_jurisdiction": (
        "Yes, the court has personal jurisdiction.",
        "No, the court lacks personal jurisdiction.",
    ),
    "proa": (
        "Yes, the statute contains a private right of action.",
        "No, the statute contains no private right of action.",
    ),
}


def law(folder: Path) -> Iterator[Example]:
    """LegalBench: the tasks that fit a short turn; the label, for Yes/No tasks as a sentence."""
    csv.field_size_limit(1 << 24)
    for path in sorted((folder / "legalbench").glob("*.tsv")):
        family, phrase = _law_family(path.stem)
        if family not in _QUESTIONS:
            continue
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file, delimiter="\t"):
                cells = {k: " ".join(v.split()) for k, v in row.items() if k and v}
                prompt = _QUESTIONS[family].format(phrase=phrase, **cells)
                where = ("document_name", "Citation", "Docket No.", "text")
                yield Example(
                    prompt=prompt,
                    answer=_law_answer(family, phrase, cells["answer"]),
                    group=next((cells[k] for k in where if k in cells), prompt),
                    short=prompt.split("\n\n")[0],
                )


def _law_family(task: str) -> tuple[str, str]:
    for family in ("cuad", "contract_nli"):
        if task.startswith(f"{family}_"):
            phrase = task.removeprefix(f"{family}_").replace("_", " ")
            return family, _PHRASES.get(phrase, phrase)
    return re.sub(r"_\d$", "", task), ""


def _law_answer(family: str, phrase: str, label: str) -> str:
    if family in _ANSWERS and label in ("Yes", "No"):
        return _ANSWERS[family][label == "No"].format(phrase=phrase)
    return f"{label}."


SOURCES = (
    Source(
        name="maths",
        description="Word problems of school mathematics, solved in steps",
        load=maths,
        data="GSM8K, openai/grade-school-math, commit 3101c7d5072418e28b9008a6636bde82a006892c",
        licence="MIT",
        attribution="Cobbe et al., Training Verifiers to Solve Math Word Problems, 2021; "
        "Copyright 2021 OpenAI",
        split_rule="training and validation from the first 1,500 lines of train.jsonl, held-out "
        "from test.jsonl",
    ),
    Source(
        name="code",
        description="Short Python functions from a description",
        load=code,
        data="MBPP sanitised, microsoft/CodeT, commit 35f54d60b152cc31d134b788e702878ad613d9f7",
        licence="MIT (file), CC BY 4.0 (MBPP problems)",
        attribution="Austin et al., Program Synthesis with Large Language Models, Google "
        "Research, 2021; file by Microsoft",
        split_rule="by problem text",
    ),
    Source(
        name="medicine",
        description="Questions of biomedical research, decided and explained",
        load=medicine,
        data="PubMedQA PQA-L, pubmedqa/pubmedqa, commit 1cbae8e92f72f20c8d3747cbb3bf5bc53554d997",
        licence="MIT",
        attribution="Jin et al., PubMedQA: A Dataset for Biomedical Research Question "
        "Answering, EMNLP 2019",
        split_rule="held-out from the ids of the data set's test_ground_truth.json, training and "
        "validation from the others",
    ),
    Source(
        name="law",
        description="Contract clauses, rules and short cases of United States law, classified",
        load=law,
        data="LegalBench training examples, HazyResearch/legalbench, "
        "commit ce482446b8eac4403b6db2c17223af4514bb24e3",
        licence="CC BY 4.0 (most tasks), MIT (nys_judicial_ethics, privacy_policy_qa); the two "
        "CC BY-SA 4.0 tasks are not used",
        attribution="Guha et al., LegalBench, 2023, and each task's authors, among them CUAD "
        "(Hendrycks et al., 2021) and ContractNLI (Koreeda and Manning, 2021)",
        split_rule="by document (contract, opinion, docket), else by text",
    ),
    Source(
        name="finance",
        description="Questions on tables and text of annual reports, with the calculation",
        load=finance,
        data="TAT-QA dev split, first 200 contexts, NExTplusplus/TAT-QA, "
        "commit 870accc41953dcde885aabeb963d94aabdc0fbc3",
        licence="CC BY 4.0",
        attribution="Zhu et al., TAT-QA: A Question Answering Benchmark on a Hybrid of Tabular "
        "and Textual Content in Finance, ACL 2021",
        split_rule="by context (a table and its paragraphs); two contexts may be of one report",
    ),
)
