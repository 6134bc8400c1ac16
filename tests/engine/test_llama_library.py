"""The door to llama.cpp: a wrong struct layout is caught, and the library is found in order."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from floe.core.errors import BadModel, Missing
from floe.engine import llama_library
from floe.engine.llama_library import LAYOUTS, Layout, candidates, defaults_differing, library
from floe.testing.tiny_model import make_tiny_model

NEW, OLD = LAYOUTS  # with and without moe_cache_size
SRC = Path(llama_library.__file__).parents[2]


def _path() -> Path:
    return library().path


@pytest.fixture
def c() -> ctypes.CDLL:
    """A second handle on the library, whose calls may be bound to wrong structs."""
    return ctypes.CDLL(str(_path()))


def test_there_is_one_struct_table_per_supported_build() -> None:
    assert [layout.build.split()[0] for layout in LAYOUTS] == ["b11549", "0c1e57098"]
    assert library().layout is NEW
    fields = [[f[0] for f in x.context_params._fields_] for x in (NEW, OLD)]
    assert [f for f in fields[0] if f not in fields[1]] == ["moe_cache_size"]
    assert fields[0].index("moe_cache_size") == fields[0].index("abort_callback") - 1


def test_the_right_layout_reads_back_every_default(c: ctypes.CDLL) -> None:
    llama_library._bind(c, NEW)
    assert defaults_differing(c) == []


def test_a_layout_without_one_field_is_caught(c: ctypes.CDLL) -> None:
    """The shift seen between builds 0c1e57098 and b11549: plausible values, nothing crashes."""
    llama_library._bind(c, OLD)
    assert {"offload_kqv", "no_perf", "op_offload"} <= set(defaults_differing(c))


def _stretch(params: type[ctypes.Structure], name: str) -> type[ctypes.Structure]:
    """As if the library had lost the field before `name`."""
    at = next(i for i, f in enumerate(params._fields_) if f[0] == name)
    phantom = ("phantom", params._fields_[at][1])
    fields = [*params._fields_[:at], phantom, *params._fields_[at:]]
    return type("Stretched", (ctypes.Structure,), {"_fields_": fields})


WATCHED = (
    *("n_batch", "n_outputs_max", "n_threads", "ctx_type", "pooling_type", "rope_freq_base"),
    *("yarn_orig_ctx", "defrag_thold", "cb_eval", "type_k", "abort_callback", "embeddings"),
)


@pytest.mark.parametrize("name", WATCHED)
def test_a_shift_in_the_context_is_caught(c: ctypes.CDLL, name: str) -> None:
    shifted = Layout(
        build="x", model_params=NEW.model_params, context_params=_stretch(NEW.context_params, name)
    )
    llama_library._bind(c, shifted)
    assert defaults_differing(c)


@pytest.mark.parametrize("name", ["devices", "n_gpu_layers", "split_mode", "vocab_only"])
def test_a_shift_in_the_model_is_caught(c: ctypes.CDLL, name: str) -> None:
    shifted = Layout(
        build="x", model_params=_stretch(NEW.model_params, name), context_params=NEW.context_params
    )
    llama_library._bind(c, shifted)
    assert defaults_differing(c)


def test_what_a_newer_library_writes_beyond_the_fields_stays_inside_the_struct() -> None:
    """Structs come back by value: a longer one would overwrite the stack."""
    for layout in LAYOUTS:
        for params in (layout.model_params, layout.context_params):
            assert params._fields_[-1][0] == "tail"
            assert ctypes.sizeof(params) - params.tail.offset >= 256  # type: ignore[attr-defined]


class _FakeLibrary:
    """Exports every call; gives defaults of its own."""

    def __init__(self, **context: object) -> None:
        self.context = context

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("llama_"):
            raise AttributeError(name)

        def call(*_: object) -> Any:
            params = call.restype()  # type: ignore[attr-defined]
            kind = "_MODEL" if "model" in name else "_CONTEXT"
            for key, value in getattr(llama_library, f"{kind}_DEFAULTS").items():
                setattr(params, key, value)
            for key, value in self.context.items() if kind == "_CONTEXT" else ():
                setattr(params, key, value)
            return params

        setattr(self, name, call)
        return call


def test_a_library_of_an_unknown_build_is_refused_by_what_differs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = _FakeLibrary(no_perf=False, n_seq_max=7)
    monkeypatch.setattr(ctypes, "CDLL", lambda _: fake)
    wanted = r"its struct layout is none of \['b11549.*defaults differ in n_seq_max, no_perf"
    with pytest.raises(Missing, match=wanted):
        llama_library._open(Path("libllama.so"))


@pytest.mark.parametrize("absent", ["llama_decode", "llama_init_from_model"])
def test_a_library_without_a_call_is_refused(absent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Lacking(_FakeLibrary):
        def __getattr__(self, name: str) -> Any:
            if name == absent:
                raise AttributeError(name)
            return super().__getattr__(name)

    monkeypatch.setattr(ctypes, "CDLL", lambda _: Lacking())
    with pytest.raises(Missing, match=f"it does not export {absent}"):
        llama_library._open(Path("libllama.so"))


# --- finding it; each in a process of its own, for the choice is made once ---

SHOW = """
import sys
from floe.engine.llama_library import library
from floe.core.errors import Missing
try:
    print("path", library().path)
except Missing as error:
    print("missing", error.message)
print("imported", sorted(m for m in ("xllamacpp", "llama_cpp") if m in sys.modules))
"""


def _python(code: str, *path: Path, **environment: str) -> str:
    search = os.pathsep.join(map(str, (*path, SRC)))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": search, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_the_environment_chooses_the_library(tmp_path: Path) -> None:
    chosen = tmp_path / "libllama.so"
    chosen.symlink_to(_path())
    assert f"path {chosen}" in _python(SHOW, FLOE_LLAMA_LIBRARY=str(chosen))


@pytest.mark.parametrize("content", [None, b"not a library"])
def test_a_chosen_library_that_does_not_load_is_not_replaced(
    tmp_path: Path, content: bytes | None
) -> None:
    """No silent fallback to another one; the message names file, reason and remedy."""
    chosen = tmp_path / "mine.so"
    if content is not None:
        chosen.write_bytes(content)
    out = _python(SHOW, FLOE_LLAMA_LIBRARY=str(chosen))
    assert f"missing no usable llama.cpp library ({chosen}: " in out
    assert "pip install 'floe[serve]'" in out
    assert "set FLOE_LLAMA_LIBRARY to a libllama.so of a supported build" in out


def test_a_library_that_is_not_llama_cpp_is_named() -> None:
    libc = next(Path("/").glob("lib*/*/libc.so.6"), None) or Path("/lib64/libc.so.6")
    if not libc.exists():
        pytest.skip("no libc.so.6 where this test looks for one")
    assert "it does not export llama_" in _python(SHOW, FLOE_LLAMA_LIBRARY=str(libc))


def test_without_any_package_the_message_says_how_to_get_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(llama_library.ENVIRONMENT, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert candidates() == []
    library.cache_clear()
    with pytest.raises(Missing, match=r"\(none found\)\. Install one with: pip install"):
        library()


def test_packages_are_looked_for_in_order_and_not_imported(tmp_path: Path) -> None:
    for package, file in (("xllamacpp", "xllamacpp.abi3.so"), ("llama_cpp", "lib/libllama.so")):
        so = tmp_path / package / file
        so.parent.mkdir(parents=True)
        so.write_bytes(b"")
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('imported')")
    code = "from floe.engine.llama_library import candidates\nprint(*candidates(), sep='\\n')"
    found = _python(code, tmp_path, FLOE_LLAMA_LIBRARY="").split()
    assert found == [
        str(tmp_path / "xllamacpp/xllamacpp.abi3.so"),
        str(tmp_path / "llama_cpp/lib/libllama.so"),
    ]
    both_bad = _python(SHOW, tmp_path, FLOE_LLAMA_LIBRARY="")
    assert both_bad.count(".so: ") >= 2
    assert "imported []" in both_bad


def test_a_usable_library_behind_an_unusable_one_is_taken(tmp_path: Path) -> None:
    bad, good = tmp_path / "xllamacpp/xllamacpp.so", tmp_path / "llama_cpp/lib/libllama.so"
    for so in (bad, good):
        so.parent.mkdir(parents=True)
    for package in ("xllamacpp", "llama_cpp"):
        (tmp_path / package / "__init__.py").touch()
    bad.write_bytes(b"broken")
    good.symlink_to(_path())
    assert f"path {good}" in _python(SHOW, tmp_path, FLOE_LLAMA_LIBRARY="")


# --- what it says when llama.cpp refuses ---


def test_a_refusal_carries_llama_cpps_reason(tmp_path: Path) -> None:
    """The cause, not only that it failed; and not the cause of an older refusal."""
    path = tmp_path / "x.gguf"
    path.write_bytes(b"GGUF")
    lib = library()
    with pytest.raises(BadModel, match=r"cannot load .*x\.gguf: .+ failed to load"):
        lib.load_model(path)
    model = lib.load_model(make_tiny_model(tmp_path / "tiny").gguf)
    try:
        with pytest.raises(BadModel, match="cannot create a context: ") as caught:
            lib.new_context(model, n_ctx=64, n_seq_max=100_000)
        assert "n_seq_max" in caught.value.message
        assert "failed to load" not in caught.value.message
    finally:
        lib.c.llama_model_free(model)


def test_a_context_that_ignores_a_field_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line of defence against a layout whose defaults look right."""
    lib = library()
    model = lib.load_model(make_tiny_model(tmp_path).gguf)
    wrong: Callable[[int], int] = lambda _: 99  # noqa: E731
    monkeypatch.setattr(lib.c, "llama_n_seq_max", wrong)
    try:
        with pytest.raises(BadModel, match="ignores n_seq_max: its struct layout is not"):
            lib.new_context(model, n_ctx=64, n_seq_max=1)
    finally:
        lib.c.llama_model_free(model)
