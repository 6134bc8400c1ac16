"""`floe privacy scan`, `test`, `explain` and `policy`: what they print, and what they never do."""

from __future__ import annotations

import codecs
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from floe.cli import privacy_input
from floe.cli.main import app
from floe.core.errors import BadConfig, BadRequest, FloeError, NotFound

LETTER = "Hello,\nmy card is 4111 1111 1111 1111 ok\r\n我的手机号是13812345678。\n"
BALANCED = '[privacy]\npolicy = "balanced"\n[tenants.press.entities]\nEMAIL_ADDRESS = "allow"\n'


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No NER model: rules only."""
    monkeypatch.setenv("FLOE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, stdin: str | bytes = "") -> Result:
    return CliRunner().invoke(app, ["privacy", *arguments], input=stdin)


def failure(*arguments: str) -> FloeError:
    done = run(*arguments)
    assert done.exit_code != 0
    assert isinstance(done.exception, FloeError)
    return done.exception


def test_scan_names_places_and_not_the_text() -> None:
    Path("letter.txt").write_bytes(LETTER.encode())
    done = run("scan", "letter.txt")
    assert done.exit_code == 1
    assert done.stdout == (
        "letter.txt:2:12: CREDIT_CARD 0.95 credit_card local\n"
        "letter.txt:3:7: PHONE_NUMBER " + done.stdout.split("PHONE_NUMBER ")[1]
    )
    assert "2 private places (2 local)" in done.stderr
    assert "4111" not in done.output
    assert "138" not in done.output


def test_scan_shows_the_text_when_asked_and_escapes_it() -> None:
    done = run("scan", "-", "--show", stdin="mail \x1b[31mada@example.org\n")
    assert done.stdout.startswith("stdin:1:")
    assert "ada@example.org" in done.stdout
    assert "\x1b" not in done.stdout


def test_scan_prints_json_lines() -> None:
    rows = [
        json.loads(line)
        for line in run("scan", "-", "--json", stdin=LETTER).stdout.split("\n")[:-1]
    ]
    assert [(r["line"], r["column"], r["entity"], r["action"]) for r in rows] == [
        (2, 12, "CREDIT_CARD", "local"),
        (3, 7, "PHONE_NUMBER", "local"),
    ]
    assert all("text" not in row for row in rows)
    (row,) = (
        json.loads(x)
        for x in run("scan", "-", "--json", "--show", stdin="x ada@example.org").stdout.splitlines()
    )
    assert row["text"] == "ada@example.org"


def test_scan_ends_with_0_when_nothing_is_private_or_all_is_allowed() -> None:
    clean = run("scan", "-", stdin="What is 2 + 2?\n")
    assert (clean.exit_code, clean.stdout) == (0, "")
    assert "nothing private found" in clean.stderr
    Path("floe.toml").write_text(BALANCED)
    allowed = run("scan", "-", "--tenant", "press", stdin="ada@example.org")
    assert (allowed.exit_code, allowed.stdout.split()[-1]) == (0, "allow")
    assert "nothing private found (1 allowed)" in allowed.stderr
    assert run("scan", "-", stdin="ada@example.org").stdout.split()[-1] == "mask"
    assert (
        run("scan", "-", "--tenant", "other", stdin="ada@example.org").stdout.split()[-1] == "local"
    )


@pytest.mark.parametrize("command", [("scan", "-"), ("explain", "-"), ("policy",)])
def test_a_tenant_that_nobody_configured_is_named(command: tuple[str, ...]) -> None:
    Path("floe.toml").write_text(BALANCED)
    said = 'no tenant "pres" is configured: judged by the strictest policy'
    assert said in run(*command, "--tenant", "pres", stdin="hello").stderr
    assert "no tenant" not in run(*command, "--tenant", "press", stdin="hello").stderr
    assert "no tenant" not in run(*command, stdin="hello").stderr


def test_scan_says_what_cannot_be_read() -> None:
    error = failure("scan", "gone.txt")
    assert isinstance(error, NotFound)
    assert error.message == "cannot read gone.txt: No such file or directory"
    Path("folder").mkdir()
    assert "cannot read folder: Is a directory" in failure("scan", "folder").message


@pytest.mark.parametrize(
    "data",
    [
        codecs.BOM_UTF8 + b"4111 1111 1111 1111",
        codecs.BOM_UTF16_LE + "4111 1111 1111 1111".encode("utf-16-le"),
        codecs.BOM_UTF16_BE + "4111 1111 1111 1111".encode("utf-16-be"),
        b"4111 1111 1111 1111 \xff\xfe",
    ],
)
def test_scan_reads_text_with_marks_and_broken_bytes(data: bytes) -> None:
    assert run("scan", "-", stdin=data).stdout.startswith("stdin:1:1: CREDIT_CARD")


@pytest.mark.parametrize(
    ("text", "encoding", "named"),
    [
        ("患者张伟，住院\n手机13812345678", "gbk", "GB18030 (Chinese)"),
        ("Grüße an Größe, tel 0151 23456789", "cp1252", "Windows-1252 (Western European)"),
    ],
)
def test_scan_reads_files_of_windows_and_says_so(text: str, encoding: str, named: str) -> None:
    done = run("scan", "-", "--show", stdin=text.encode(encoding))
    assert f"not UTF-8: read as {named}" in done.stderr
    assert done.stdout == run("scan", "-", "--show", stdin=text).stdout
    assert "PHONE_NUMBER" in done.stdout


def test_scan_counts_what_it_could_not_read_and_refuses_what_is_no_text() -> None:
    broken = "你好，世界 ".encode() + b"\xff 4111 1111 1111 1111"
    done = run("scan", "-", stdin=broken)
    assert "1 place is no text in this encoding; what stands there was not read" in done.stderr
    assert "CREDIT_CARD" in done.stdout
    Path("image.png").write_bytes(b"PNG\x00\x01\xff")
    error = failure("scan", "image.png")
    assert isinstance(error, BadRequest)
    assert error.message == (
        "the file holds zero bytes, so it is no text. Save it as text (UTF-8) first"
    )


def test_line_ends_and_characters_across_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    data = "a\r\nb\rc王\n\r\nd".encode()
    for size in range(1, 8):
        monkeypatch.setattr(privacy_input, "_PIECE_BYTES", size)
        shown: list[int] = []
        text = "".join(privacy_input.texts(io.BytesIO(data), shown.append))
        assert text == "a\nb\rc王\n\nd"
        assert shown[-1] == len(data)
        lines = privacy_input.lines(privacy_input.texts(io.BytesIO(data), shown.append))
        assert list(lines) == ["a", "b\rc王", "", "d"]


LABELLED = (
    '{"text": "mail ada@example.org",'
    ' "spans": [{"entity": "EMAIL_ADDRESS", "start": 5, "end": 20}]}\n'
    '{"text": "I am Hidden Person", "spans": [{"entity": "PERSON", "start": 5, "end": 18}]}\n'
    '{"text": "hello", "private": false}\n'
)


def test_test_prints_figures_and_line_numbers() -> None:
    Path("labelled.jsonl").write_text(LABELLED)
    done = run("test", "labelled.jsonl")
    assert done.exit_code == 0
    assert "3 texts, 2 private: recall 0.500, precision 1.000" in done.stdout
    assert "1 x PERSON reported as (missed)" in done.stdout
    assert "most missed in lines 2 (12 characters)" in done.stdout
    assert "Hidden" not in done.output and "ada@" not in done.output
    data = json.loads(run("test", "-", "--json", stdin=LABELLED).stdout)
    assert data["private_recall"] == 0.5
    assert data["entities"]["EMAIL_ADDRESS"]["recall"] == 1.0
    assert data["worst"] == [{"line": 2, "missed_chars": 12}]
    assert {"labelled": "PERSON", "reported": "(missed)", "count": 1} in data["confusion"]


def test_test_suggests_scores() -> None:
    Path("labelled.jsonl").write_text(LABELLED)
    assert "no other scores would do better" in run("test", "labelled.jsonl", "--suggest").stderr
    Path("floe.toml").write_text("[privacy.scores]\nEMAIL_ADDRESS = 0.99\n")
    assert "other scores would do better: add --suggest" in run("test", "labelled.jsonl").stderr
    suggested = run("test", "labelled.jsonl", "--suggest").stdout.split("[privacy.scores]\n")[1]
    assert suggested == "EMAIL_ADDRESS = 0.95\n"


def test_test_refuses_what_is_not_labelled() -> None:
    Path("plain.txt").write_text("just my secret text\n")
    assert failure("test", "plain.txt").message.startswith("line 1 has no label")
    Path("empty.txt").write_text("\n")
    error = failure("test", "empty.txt")
    assert isinstance(error, BadRequest)
    assert error.message == "there are no labelled texts in empty.txt"


def test_explain_shows_what_would_be_sent() -> None:
    Path("floe.toml").write_text(BALANCED)
    text = "write to ada@example.org [now]"
    data = json.loads(run("explain", text, "--json").stdout)
    assert data["verdict"] == "mask"
    assert data["sent"] == "write to [EMAIL_ADDRESS_1] [now]"
    assert data["placeholders"] == {"[EMAIL_ADDRESS_1]": "ada@example.org"}
    assert [(f["entity"], f["action"]) for f in data["findings"]] == [("EMAIL_ADDRESS", "mask")]
    printed = run("explain", "-", stdin=text).stdout
    assert "sent      write to [EMAIL_ADDRESS_1] [now]" in printed
    assert "[EMAIL_ADDRESS_1] stands for ada@example.org" in printed
    press = json.loads(run("explain", text, "--tenant", "press", "--json").stdout)
    assert (press["verdict"], press["sent"]) == ("allow", text)
    local = json.loads(run("explain", text, "--tenant", "nobody", "--json").stdout)
    assert (local["verdict"], local["sent"], local["placeholders"]) == ("local", None, {})
    assert "sent      nothing" in run("explain", text, "--tenant", "nobody").stdout


def test_policy_prints_what_becomes_of_each_entity() -> None:
    Path("floe.toml").write_text(BALANCED + "[tenants.press.scores]\nPERSON = 0.8\n")
    rows = json.loads(run("policy", "--json").stdout)
    assert rows["PERSON"] == {"action": "mask", "least_score": 0.5}
    assert rows["CREDIT_CARD"] == {"action": "local", "least_score": 0.5}
    press = run("policy", "--tenant", "press").stdout.splitlines()
    assert [" ".join(x.split()) for x in press if x.startswith(("PERSON", "EMAIL"))] == [
        "EMAIL_ADDRESS allow from 0.50",
        "PERSON mask from 0.80",
    ]


@pytest.mark.parametrize("command", [("scan", "-"), ("test", "-"), ("explain", "x"), ("policy",)])
def test_b23_a_wrong_policy_stops_every_command(command: tuple[str, ...]) -> None:
    Path("floe.toml").write_text('[privacy.entities]\nEMAIL_ADRESS = "mask"\n')
    error = failure(*command)
    assert isinstance(error, BadConfig)
    assert 'did you mean "EMAIL_ADDRESS"' in error.message


def test_a_bar_is_shown_only_on_a_terminal_and_for_large_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for size in (None, 10, 10**9):
        with privacy_input.bar("scan", size) as show:
            show(5)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    with privacy_input.bar("scan", 10**9) as show:
        show(5)
    assert capsys.readouterr().out == ""
