"""A byte-level BPE tokenizer.json: text to ids with or without control tokens, ids to bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from floe.core.errors import BadModel

_UNUSED = 5  # GGUF's token type of a padded row


class ByteLevelTokenizer:
    """The tokenizer of a Hugging Face folder, through the tokenizers library.

    `controls` maps ids of control tokens to how they are written; `pieces` maps every id to its
    bytes, empty for control tokens; `n_vocab` counts the real ids.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise BadModel(f"{folder} has no tokenizer file; folder_from_gguf makes a whole folder")
        self._special = Tokenizer.from_file(str(path))
        self._plain = Tokenizer.from_file(str(path))
        self._plain.encode_special_tokens = True
        if "ByteLevel" not in str(self._special.decoder):
            raise BadModel(f"{path} is not a byte-level tokenizer; the torch engine needs one")
        added = self._special.get_added_tokens_decoder()
        self.controls = {i: t.content for i, t in added.items() if t.special}
        self.pieces = {
            i: b"" if i in self.controls else _piece(text, raw=i in added)
            for text, i in self._special.get_vocab(with_added_tokens=True).items()
        }
        self.n_vocab = max(self.pieces) + 1

    def encode(self, text: str, *, special: bool) -> list[int]:
        """Ids of `text`; lone surrogates are replaced, nothing is added at either end."""
        tokenizer = self._special if special else self._plain
        clean = text.encode("utf-8", "replace").decode("utf-8")
        return list(tokenizer.encode(clean, add_special_tokens=False).ids)

    def digest(self) -> str:
        """sha256 over every real token's bytes, counted as `Vocabulary.digest` does (B37)."""
        sha = hashlib.sha256()
        for token in range(self.n_vocab):
            text = self.controls.get(token)
            head = b"\1" if text is None else b"\0" + text.encode()
            data = self.pieces.get(token, b"")
            sha.update(len(data).to_bytes(4, "little") + head + data)
        return sha.hexdigest()


def drop_padding(path: Path, types: Sequence[int]) -> None:
    """Take the unused ids at the end of a GGUF's vocabulary out of a tokenizer.json (B37, B38)."""
    n_real = len(types)
    while n_real and types[n_real - 1] == _UNUSED:
        n_real -= 1
    if n_real == len(types):
        return
    content = json.loads(path.read_text(encoding="utf-8"))
    vocab = content["model"]["vocab"]
    content["model"]["vocab"] = {text: i for text, i in vocab.items() if i < n_real}
    content["added_tokens"] = [t for t in content["added_tokens"] if t["id"] < n_real]
    path.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def _byte_of() -> dict[str, int]:
    """GPT-2's table: printable bytes stand for themselves, the others for U+0100 onwards."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [b for b in range(256) if b not in kept]
    return {chr(b): b for b in kept} | {chr(256 + n): b for n, b in enumerate(moved)}


_BYTE_OF = _byte_of()


def _piece(text: str, *, raw: bool) -> bytes:
    if raw or any(c not in _BYTE_OF for c in text):
        return text.encode("utf-8")
    return bytes(_BYTE_OF[c] for c in text)
