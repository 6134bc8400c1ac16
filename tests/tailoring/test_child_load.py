"""An untried file is loaded by a child first; one that aborts takes the child alone with it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from floe.assemble.tailoring import check_in_child
from floe.core import gguf
from floe.core.errors import BadModel, BadPlan
from floe.engine.load_child import COMMAND, main
from floe.tailoring.child_load import try_load
from floe.tailoring.plan import LayerPlan, ModelShape
from floe.tailoring.probes import write_probe

SHAPE = ModelShape(
    base_digest="tiny", n_layers=2, width=64, n_kv_heads=3, q_per_kv=2, head_width=16, n_ffn=64,
    n_vocab=258,
)  # fmt: skip
LAYER = LayerPlan(n_kv_heads=3, q_per_kv=2, n_ffn=64)
# The engine's own check would refuse the file first, so it is taken out here.
UNCHECKED = """
import sys
import floe.engine.llamacpp as engine
from floe.core.gguf import read_header
engine.checked_model = lambda path: read_header(path, arrays=("tokenizer.ggml.tokens",))
from floe.engine.load_child import main
from pathlib import Path
sys.exit(main(Path(sys.argv[1])))
"""


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    path = tmp_path / "probe.gguf"
    write_probe(path, SHAPE, [LAYER, LAYER], {}, context_tokens=512)
    return path


@pytest.fixture
def aborting(probe: Path, tmp_path: Path) -> Path:
    """Five query heads on three KV heads in layer 1: ggml asserts when it builds the graph."""
    header = gguf.read_header(probe)
    metadata = dict(gguf.raw_values(probe, header))
    metadata["deci.attention.head_count"] = np.array([6, 5], np.int32)
    tensors: dict[str, object] = {}
    with probe.open("rb") as file:
        for name, info in header.tensors.items():
            file.seek(info.offset)
            data, shape = file.read(info.n_bytes), info.shape
            if name == "blk.1.attn_q.weight":
                shape = (80, 64)
            elif name == "blk.1.attn_output.weight":
                shape = (64, 80)
            data = data[: gguf.n_bytes_of(shape, info.type)]
            tensors[name] = gguf.RawTensor(shape=shape, type=info.type, load=lambda d=data: d)
    path = tmp_path / "aborting.gguf"
    gguf.write(path, metadata, tensors)  # type: ignore[arg-type]
    return path


def test_a_good_file_decodes(probe: Path) -> None:
    found = check_in_child(probe)
    assert len(found.tokens) == 2 and all(0 <= t < 258 for t in found.tokens)
    assert found.n_vocab == 258 and found.load_ms > 0
    assert found.rss_bytes is None or found.rss_bytes > 0


def test_a_file_that_aborts_takes_the_child_alone(aborting: Path) -> None:
    with pytest.raises(BadModel) as caught:
        try_load(aborting, command=(sys.executable, "-c", UNCHECKED))
    said = caught.value.message
    assert "ends the process that loads it (signal SIGABRT)" in said
    assert "GGML_ASSERT" in said
    assert "Query heads must be a multiple of KV heads" in said and "floe tailor" in said


def test_the_engine_refuses_it_before(aborting: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(BadModel, match=r"cannot be used: .*5 query heads do not divide over 3 kv"):
        check_in_child(aborting)
    assert main(aborting) == BadModel.exit_code
    assert "do not divide" in capfd.readouterr().out


def test_a_child_that_does_not_end(probe: Path) -> None:
    command = (sys.executable, "-c", "import signal; signal.pause()")
    with pytest.raises(BadModel, match=r"was not loaded within 0\.2 s in a process of its own"):
        try_load(probe, command=command, timeout_s=0.2)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('{\"tokens\": [1]}')", "gave no sense"),
        ("import sys; sys.exit(3)", r"\(exit 3\): it said nothing\."),
        ("raise RuntimeError('broken')", r"RuntimeError: broken\."),
        ("print('[1]')", r"\(exit 0\)"),
    ],
)
def test_children_that_say_nothing_good(probe: Path, code: str, words: str) -> None:
    with pytest.raises(BadModel, match=words):
        try_load(probe, command=(sys.executable, "-c", code))


def test_no_child_at_all(probe: Path) -> None:
    with pytest.raises(BadPlan, match="cannot run /no/such/python to try the model: No such file"):
        try_load(probe, command=("/no/such/python",))
    assert COMMAND[0] == sys.executable
