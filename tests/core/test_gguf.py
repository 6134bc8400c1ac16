"""GGUF headers and files, against the `gguf` package as the reference."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floe.core import gguf
from floe.core.errors import BadModel

reference = pytest.importorskip("gguf")


def fields(path: Path) -> tuple[dict[str, Any], Any]:
    reader = reference.GGUFReader(path)
    found = {k: f.contents() for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    return found, reader


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value


def toy(path: Path) -> Path:
    metadata = {"general.architecture": "llama", "a": [1, 2], "s": ["x", "y"], "f": 0.5}
    gguf.write(path, metadata, {"w": np.arange(6, dtype=np.float32).reshape(2, 3)})
    return path


def test_header_equals_the_reference_reader_on_a_real_model(slm_gguf: Path) -> None:
    arrays = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges", "general.languages")
    header = gguf.read_header(slm_gguf, arrays=arrays)
    expected, reader = fields(slm_gguf)
    assert {k: plain(v) for k, v in header.metadata.items()} == expected
    assert list(header.tensors) == [t.name for t in reader.tensors]
    for tensor in reader.tensors:
        info = header.tensors[tensor.name]
        assert info.shape == tuple(int(n) for n in reversed(tensor.shape))
        assert (info.type, info.offset, info.n_bytes) == (
            int(tensor.tensor_type), int(tensor.data_offset), int(tensor.n_bytes),
        )  # fmt: skip


def test_string_arrays_are_skipped_unless_named(slm_gguf: Path) -> None:
    header = gguf.read_header(slm_gguf)
    assert header.metadata["tokenizer.ggml.tokens"] == gguf.SkippedArray(count=49152)
    named = gguf.read_header(slm_gguf, arrays=["tokenizer.ggml.tokens"])
    assert len(named.metadata["tokenizer.ggml.tokens"]) == 49152
    assert isinstance(named.metadata["tokenizer.ggml.merges"], gguf.SkippedArray)


def test_written_files_are_read_back_by_the_reference(tmp_path: Path) -> None:
    q8 = reference.quants.quantize(
        np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64),
        reference.GGMLQuantizationType.Q8_0,
    )
    metadata = {
        "general.architecture": "llama",
        "text": "grüße",
        "yes": True,
        "small": 7,
        "negative": -7,
        "large": 1 << 40,
        "very.negative": -(1 << 40),
        "real": 0.25,
        "double": np.float64(0.1),
        "numbers": [1, -2, 3],
        "reals": [0.5, 0.25],
        "flags": [True, False],
        "words": ["a", "bc", ""],
        "bytes": np.arange(5, dtype=np.uint8),
    }
    tensors = {
        "f32": np.arange(12, dtype=np.float32).reshape(3, 4),
        "f16": np.arange(7, dtype=np.float16),
        "odd": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1),
        "q8": gguf.RawTensor(shape=(2, 64), type=gguf.Q8_0, load=lambda: q8),
    }
    path = tmp_path / "x.gguf"
    gguf.write(path, metadata, tensors)
    found, reader = fields(path)
    assert found == {k: plain(v) for k, v in metadata.items()}
    by_name = {t.name: t for t in reader.tensors}
    for name, value in tensors.items():
        expected = q8 if isinstance(value, gguf.RawTensor) else value
        np.testing.assert_array_equal(by_name[name].data.reshape(expected.shape), expected)
    header = gguf.read_header(path, arrays=["words"])
    assert {k: plain(v) for k, v in header.metadata.items()} == found
    data = path.read_bytes()
    exact = reference.quants.dequantize(q8, reference.GGMLQuantizationType.Q8_0)
    np.testing.assert_array_equal(gguf.tensor_array(data, header.tensors["q8"]), exact)
    np.testing.assert_array_equal(gguf.tensor_array(data, header.tensors["odd"]), tensors["odd"])
    np.testing.assert_array_equal(gguf.tensor_array(data, header.tensors["f16"]), tensors["f16"])


def test_bf16_is_read() -> None:
    bits = np.array([0x3F80, 0xC000], "<u2")
    info = gguf.TensorInfo(shape=(2,), type=gguf.BF16, offset=0, n_bytes=4)
    np.testing.assert_array_equal(gguf.tensor_array(bits.tobytes(), info), [1.0, -2.0])


def test_types_that_are_not_decoded_are_refused() -> None:
    info = gguf.TensorInfo(shape=(32,), type=3, offset=0, n_bytes=20)
    with pytest.raises(ValueError, match="ggml type id 3 cannot be read here"):
        gguf.tensor_array(bytes(20), info)


def test_raw_metadata_is_copied_without_decoding(slm_gguf: Path, tmp_path: Path) -> None:
    header = gguf.read_header(slm_gguf)
    copy = tmp_path / "copy.gguf"
    gguf.write(copy, gguf.raw_values(slm_gguf, header), {"w": np.zeros(1, np.float32)})
    copied = gguf.read_header(copy)
    assert gguf.raw_values(copy, copied) == gguf.raw_values(slm_gguf, header)
    tokens = "tokenizer.ggml.tokens"
    texts = [gguf.read_header(p, arrays=[tokens]).metadata[tokens] for p in (copy, slm_gguf)]
    assert texts[0] == texts[1]


def test_a_custom_alignment_is_honoured(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    gguf.write(
        path,
        {"general.architecture": "llama", "general.alignment": 64},
        {"a": np.ones(1, np.float32), "b": np.full(3, 2, np.float32)},
    )
    header = gguf.read_header(path)
    assert header.alignment == 64
    assert header.tensors["b"].offset % 64 == 0
    reader = reference.GGUFReader(path)
    assert reader.tensors[1].data.tolist() == [2, 2, 2]
    raw = gguf.raw_values(path, header)
    gguf.write(path, raw, {"b": np.full(3, 2, np.float32)})
    assert gguf.read_header(path).alignment == 64


@given(cut=st.integers(min_value=0, max_value=10_000))
def test_any_truncation_is_a_bad_model(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("gguf")
    data = toy(folder / "x.gguf").read_bytes()
    end = data.index(struct.pack("<3f", 3, 4, 5)) + 12  # padding behind the last tensor may go
    short = data[: cut % end]
    with pytest.raises(BadModel, match=r"truncated|not a GGUF|cannot be"):
        gguf.parse_header(short, source="short")


@given(at=st.integers(min_value=4, max_value=10_000), value=st.integers(0, 255))
def test_any_flipped_byte_is_read_or_refused(
    at: int, value: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = bytearray(toy(tmp_path_factory.mktemp("gguf") / "x.gguf").read_bytes())
    data[at % len(data)] = value
    try:
        header = gguf.parse_header(bytes(data), source="flipped")
    except BadModel as error:
        assert error.message.startswith("flipped ")
        return
    for info in header.tensors.values():
        assert 0 <= info.offset <= info.offset + info.n_bytes <= len(data)


def head(version: int = 3, tensors: int = 0, metadata: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, metadata)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"PK\x03\x04" + bytes(40), "is not a GGUF file"),
        (head(version=1), "has GGUF version 1"),
        (head(metadata=1 << 40), "claims 1099511627776 metadata entries"),
        (head(tensors=1 << 40), "claims 1099511627776 tensors"),
        (head(metadata=1) + text(b"\xff"), "a metadata key that is not UTF-8"),
        (head(metadata=1) + text(b"k") + struct.pack("<I", 99), "unknown value type 99"),
        (head(metadata=1) + text(b"k") + struct.pack("<IIQ", 9, 9, 1), "array of unknown type 9"),
        (head(metadata=1) + text(b"k") + struct.pack("<IIQ", 9, 8, 1 << 50), "strings in metadata"),
        (head(metadata=1) + text(b"k") + struct.pack("<IIQ", 9, 4, 1 << 50), "values in metadata"),
        (head(metadata=1) + struct.pack("<Q", 1 << 50), "truncated: it ends inside a metadata key"),
        (head(metadata=2) + (text(b"k") + struct.pack("<I?", 7, True)) * 2, "'k' twice"),
        (
            head(metadata=1) + text(b"general.alignment") + struct.pack("<II", 4, 33),
            "is no power of two",
        ),
        (head(tensors=1) + text(b"w") + struct.pack("<I", 9), "claims 9 dimensions"),
        (
            head(tensors=1) + text(b"w") + struct.pack("<IQIQ", 1, 1, 77, 0),
            "unknown ggml type id 77",
        ),
        (
            head(tensors=1) + text(b"w") + struct.pack("<IQIQ", 1, 33, 8, 0),
            "do not divide into blocks of 32",
        ),
        (head(tensors=1) + text(b"w") + struct.pack("<IQIQ", 1, 1, 0, 1), "not aligned to 32"),
        (
            head(tensors=2) + (text(b"w") + struct.pack("<IQIQ", 1, 1, 0, 0)) * 2,
            "tensor 'w' twice",
        ),
        (
            head(tensors=1) + text(b"w") + struct.pack("<IQIQ", 1, 1 << 60, 0, 0),
            "is truncated: tensor 'w' ends",
        ),
    ],
)
def test_what_is_wrong_is_named(data: bytes, message: str) -> None:
    with pytest.raises(BadModel, match=message):
        gguf.parse_header(data, source="file.gguf")


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"cannot read .*No such file"):
        gguf.read_header(tmp_path / "none.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(BadModel, match="is empty, not a GGUF file"):
        gguf.read_header(tmp_path / "empty.gguf")


@pytest.mark.parametrize(
    ("metadata", "tensors", "message"),
    [
        ({"k": None}, {}, "cannot be the NoneType"),
        ({"k": 1 << 70}, {}, "cannot be the int"),
        ({"k": [1, "a"]}, {}, "mixes kinds"),
        ({"k": np.zeros((2, 2))}, {}, "array of 2 dimensions"),
        ({"k": np.zeros(2, np.complex64)}, {}, "cannot hold complex64"),
        ({}, {"w": np.zeros(2, np.int64)}, "tensor 'w' is int64"),
        ({}, {"w": np.zeros((1,) * 5, np.float32)}, "has 5 dimensions"),
        (
            {},
            {"w": gguf.RawTensor(shape=(2,), type=gguf.F32, load=lambda: b"123")},
            "gave 3 bytes, its shape needs 8",
        ),
    ],
)
def test_a_refused_write_leaves_the_old_file(
    tmp_path: Path, metadata: dict[str, Any], tensors: dict[str, Any], message: str
) -> None:
    path = toy(tmp_path / "x.gguf")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        gguf.write(path, metadata, tensors)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.gguf"]
