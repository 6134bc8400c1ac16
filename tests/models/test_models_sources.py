"""References and the list of known models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from floe.core.errors import BadRequest
from floe.core.files import safe_name
from floe.models.registry import KNOWN
from floe.models.sources import (
    Hub,
    Local,
    Web,
    WheelMember,
    Wheels,
    parse_source,
    source_file_name,
    source_key,
)


@pytest.mark.parametrize(
    ("ref", "source", "file_name"),
    [
        (
            "pypi:llm-x==0.1.2/llm_x/a.gguf",
            Wheels(members=(WheelMember(requirement="llm-x==0.1.2", member="llm_x/a.gguf"),)),
            "a.gguf",
        ),
        ("hf:Qwen/Q2.5-x/sub/b.gguf", Hub(repo="Qwen/Q2.5-x", path="sub/b.gguf"), "b.gguf"),
        ("hf:o/r/b.gguf@ab12", Hub(repo="o/r", path="b.gguf", revision="ab12"), "b.gguf"),
        ("hf:o/r/b.gguf@refs/pr/1", Hub(repo="o/r", path="b.gguf", revision="refs/pr/1"), "b.gguf"),
        ("https://h.example/p/c.gguf?k=v", Web(url="https://h.example/p/c.gguf?k=v"), "c.gguf"),
        ("/models/d.gguf", Local(path=Path("/models/d.gguf")), "d.gguf"),
        ("./e.gguf", Local(path=Path.cwd() / "e.gguf"), "e.gguf"),
        ("~/f.gguf", Local(path=Path.home() / "f.gguf"), "f.gguf"),
    ],
)
def test_a_reference_names_its_source(ref: str, source: object, file_name: str) -> None:
    parsed = parse_source(ref)
    assert parsed == source
    assert parsed is not None
    assert source_file_name(parsed) == file_name


def test_a_plain_name_is_no_source() -> None:
    assert parse_source("smollm2-135m-instruct") is None


@pytest.mark.parametrize(
    ("ref", "message"),
    [
        ("pypi:llm-x/a.gguf", "write pypi:package==version/path/in/wheel"),
        ("pypi:--index-url==1/a", "write pypi:package==version/path/in/wheel"),
        ("pypi:x==1/../../etc/passwd", r"inside the wheel must be plain: no '\.\.'"),
        ("pypi:x==1//etc/passwd", r"inside the wheel must be plain: no '\.\.', no '//'"),
        ("hf:only-a-name", "write hf:owner/repo/path"),
        ("hf:o/r/../x", "inside the repository must be plain"),
        ("https://host-only", "needs a host and a path to a file"),
        ("http://h.example/x.gguf", "http:// is refused"),
        ("HTTP://h.example/x.gguf", "http:// is refused"),
        ("ftp:x", 'unknown kind of source "ftp:"; use pypi:, hf:, https: or a path'),
    ],
)
def test_malformed_references_say_the_form(ref: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        parse_source(ref)


def test_labels_hold_no_keys() -> None:
    label = Web(url="https://user:secret@h.example/x.gguf?token=secret#secret").label
    assert label == "https://h.example/x.gguf"


def test_source_keys_differ() -> None:
    sources = [s for m in KNOWN.values() for f in m.files for s in f.sources]
    assert len({source_key(s) for s in sources}) == len(sources)


@pytest.mark.parametrize("name", sorted(KNOWN))
def test_known_models_are_pinned_and_come_from_their_publisher_first(name: str) -> None:
    model = KNOWN[name]
    assert safe_name(name, what="model") == model.name == name
    assert model.licence
    assert all(base == base.lower() for base in model.base_names)
    for file in model.files:
        assert re.fullmatch("[0-9a-f]{64}", file.sha256 or "")
        assert file.size_bytes
        assert safe_name(file.file_name, what="file") == file.file_name
        assert [type(source) for source in file.sources] == [Hub, Wheels]
        for source in file.sources:
            if isinstance(source, Wheels):
                assert all(member.wheel_sha256 for member in source.members)
