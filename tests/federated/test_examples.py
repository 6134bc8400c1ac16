"""A device's examples: both forms, the split, and errors that never hold a text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core.errors import BadRequest, NotFound
from floe.federated import examples as module
from floe.federated.examples import Example, Turn, read_examples, split_examples
from floe.federated.rows import Row, batches, epochs, rows_of

SECRET = "my sister was admitted"


def write(folder: Path, *lines: str) -> Path:
    path = folder / "data.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_both_forms_are_read_and_empty_lines_passed_over(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": "one?"},
        {"role": "assistant", "content": "1"},
        {"role": "user", "content": "two?"},
        {"role": "assistant", "content": "2"},
    ]
    path = write(
        tmp_path, json.dumps({"prompt": "p", "answer": "a"}), "  ", json.dumps({"messages": chat})
    )
    one, two = read_examples(path)
    assert one == Example.of("p", "a")
    assert two.answer == "2"
    assert two.turns == tuple(Turn(role=m["role"], content=m["content"]) for m in chat[:-1])


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"prompt": "' + SECRET, "line 1 of"),
        (json.dumps([SECRET]), "is no example"),
        (json.dumps({"prompt": SECRET}), "is no example"),
        (json.dumps({"prompt": SECRET, "answer": " "}), "texts that are not empty"),
        (json.dumps({"prompt": SECRET, "answer": 3}), "is no example"),
        ('{"prompt": "' + SECRET + ' \\ud800", "answer": "b"}', "is no example"),
        (json.dumps({"messages": [{"role": "user", "content": SECRET}]}), "list of two or more"),
        (
            json.dumps({"messages": [{"role": SECRET, "content": SECRET}] * 2}),
            "message 1 needs a role (system, user, assistant)",
        ),
        (
            json.dumps({"messages": [{"role": "user", "content": SECRET}] * 2}),
            "ends with the assistant's answer",
        ),
        ("[" * 5000 + SECRET, "is not JSON"),
    ],
)
def test_a_wrong_line_is_named_by_its_number_and_its_text_is_not_shown(
    tmp_path: Path, line: str, says: str
) -> None:
    with pytest.raises(BadRequest) as caught:
        read_examples(write(tmp_path, line))
    assert says in caught.value.message
    assert "line 1" in caught.value.message
    chain: BaseException | None = caught.value
    while chain is not None:  # a debug run prints causes as well
        assert "sister" not in str(chain)
        chain = chain.__cause__


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_bytes(b'{"prompt": "\xff\xfe", "answer": "a"}\n')
    with pytest.raises(BadRequest, match="not JSON in UTF-8"):
        read_examples(path)


def test_no_file_no_example_too_many_and_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match="no file of examples"):
        read_examples(tmp_path / "absent.jsonl")
    with pytest.raises(BadRequest, match="holds no example; write one a line"):
        read_examples(write(tmp_path, "", " "))
    monkeypatch.setattr(module, "MAX_EXAMPLES", 2)
    line = json.dumps({"prompt": "p", "answer": "a"})
    with pytest.raises(BadRequest, match="more than 2 examples"):
        read_examples(write(tmp_path, line, line, line))
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 20)
    with pytest.raises(BadRequest, match=r"line 1 of .* longer than 20 bytes"):
        read_examples(write(tmp_path, line))


def test_texts_stay_out_of_a_repr() -> None:
    shown = repr(Example.of(SECRET, SECRET)) + repr(Turn(role="user", content=SECRET))
    assert "sister" not in shown + repr(Row(ids=(77,), n_answer=1)).replace("77", "sister")


@given(
    prompts=st.lists(st.text(min_size=1, max_size=4), min_size=2, max_size=30),
    share=st.floats(0.01, 0.99),
)
def test_a_split_keeps_equal_prompts_together_and_fills_both_sides(
    prompts: list[str], share: float
) -> None:
    examples = [Example.of(p, f"answer {n}") for n, p in enumerate(prompts)]
    if len(set(prompts)) < 2:
        with pytest.raises(BadRequest, match="1 different prompts are too few"):
            split_examples(examples, validation_share=share)
        return
    found = split_examples(examples, validation_share=share)
    assert found.train and found.validation
    assert sorted(e.answer for e in (*found.train, *found.validation)) == sorted(
        e.answer for e in examples
    )
    assert not {e.turns for e in found.train} & {e.turns for e in found.validation}
    assert found == split_examples(examples, validation_share=share)


def test_a_split_takes_about_the_share_and_the_salt_changes_it() -> None:
    examples = [Example.of(f"p{n}", "a") for n in range(1000)]
    found = split_examples(examples, validation_share=0.2)
    assert 150 < len(found.validation) < 250
    assert found != split_examples(examples, validation_share=0.2, salt="other")
    with pytest.raises(BadRequest, match="must lie between 0 and 1"):
        split_examples(examples, validation_share=1.0)


def test_zero_examples_and_examples_too_long_are_refused() -> None:
    def encode(example: Example) -> Row:
        return Row(ids=tuple(range(len(example.turns[0].content))), n_answer=1)

    with pytest.raises(BadRequest, match="no example to train on"):
        rows_of([], encode, max_tokens=5)
    with pytest.raises(BadRequest, match="each of the 1 examples is longer than 5 tokens"):
        rows_of([Example.of("123456", "a")], encode, max_tokens=5)
    kept, longer = rows_of([Example.of("123456", "a"), Example.of("12", "a")], encode, max_tokens=5)
    assert [len(r.ids) for r in kept] == [2]
    assert longer == 1


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=40), size=st.integers(1, 9))
def test_each_pass_sees_a_row_at_most_once_in_batches_of_near_lengths(
    lengths: list[int], size: int
) -> None:
    rows = [Row(ids=(n,) * length, n_answer=1) for n, length in enumerate(lengths)]
    size = min(size, len(rows))
    stream = epochs(rows, size, seed=4)
    chunk = 10 * size
    per_pass = sum(
        len(rows[i : i + chunk]) // size for i in range(0, len(rows), chunk)
    )  # incomplete batches are left out
    first = [next(stream) for _ in range(per_pass)]
    seen = [r.ids for b in first for r in b]
    assert len(seen) == len(set(seen))
    assert all(len(b) == size for b in first)
    assert [len(b) for b in batches(rows, size)].count(size) == len(rows) // size
    again = epochs(rows, size, seed=4)
    assert [next(again) for _ in range(per_pass)] == first


def test_no_rows_give_no_batches() -> None:
    with pytest.raises(ValueError, match="no rows to draw batches from"):
        next(epochs([], 4, seed=0))
