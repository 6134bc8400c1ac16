"""A GGUF model's tokenizer through llama.cpp: text to ids, ids to bytes, real ids only."""

from __future__ import annotations

import ctypes
import hashlib
from functools import cached_property

from floe.core.errors import FloeError
from floe.engine.llama_library import Library

_UNUSED = 1 << 1  # LLAMA_TOKEN_ATTR_UNUSED: a padded row, not a token (bug-log B37, B38)


class Vocabulary:
    """Reads the tokenizer of a loaded model; holds no pointer of its own beyond the model's."""

    def __init__(self, library: Library, model: int) -> None:
        self._c = library.c
        self._vocab = self._c.llama_model_get_vocab(model)
        self.n_rows = int(self._c.llama_vocab_n_tokens(self._vocab))
        self.n_vocab = self._count_real()
        self.eos_ids = frozenset(t for t in self.control_ids if self._is_end(t))
        self._closed = False
        self._pieces: dict[int, bytes] = {}

    def _count_real(self) -> int:
        n = self.n_rows
        while n > 0 and self._c.llama_vocab_get_attr(self._vocab, n - 1) & _UNUSED:
            n -= 1
        return n

    def _is_end(self, token: int) -> bool:
        return bool(self._c.llama_vocab_is_eog(self._vocab, token))

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Ids of control tokens, which stand for no text; the end is one whatever its type says."""
        is_control = self._c.llama_vocab_is_control
        ids = {t for t in range(self.n_vocab) if is_control(self._vocab, t)}
        end = int(self._c.llama_vocab_eos(self._vocab))
        return frozenset(ids | {end} if 0 <= end < self.n_vocab else ids)

    @cached_property
    def control_texts(self) -> tuple[str, ...]:
        """How control tokens are written, e.g. "<|im_start|>"."""
        texts = (self._c.llama_vocab_get_text(self._vocab, t) for t in sorted(self.control_ids))
        return tuple(t.decode("utf-8", "replace") for t in texts if t)

    @cached_property
    def bos_text(self) -> str:
        """The beginning-of-text token as templates name it; empty when there is none."""
        return self._text(int(self._c.llama_vocab_bos(self._vocab)))

    @cached_property
    def eos_text(self) -> str:
        """The end-of-text token as templates name it."""
        return self._text(int(self._c.llama_vocab_eos(self._vocab)))

    @cached_property
    def digest(self) -> str:
        """sha256 over every real token's bytes: equal digests mean equal ids (bug-log B37)."""
        sha = hashlib.sha256()
        for token in range(self.n_vocab):
            piece = b"\0" + self._text(token).encode() if token in self.control_ids else b"\1"
            data = self.token_bytes(token)
            sha.update(len(data).to_bytes(4, "little") + piece + data)
        return sha.hexdigest()

    def _text(self, token: int) -> str:
        if token < 0:
            return ""
        text = self._c.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace") if text else ""

    def tokenize(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; lone surrogates are replaced, nothing is added at either end.

        Raises:
            FloeError: the model has been freed.
        """
        if self._closed:
            raise FloeError("the engine is closed; its tokenizer has gone with it")
        data = text.encode("utf-8", "replace")
        room = len(data) + 8
        ids = (ctypes.c_int32 * room)()
        n = self._c.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        if n < 0:
            room = -n
            ids = (ctypes.c_int32 * room)()
            n = self._c.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        return list(ids[:n])

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token; empty for control tokens and unknown ids."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._piece(token)
        return piece

    def close(self) -> None:
        """The model is about to be freed: calls fail from now on instead of reading its memory."""
        self._closed = True

    def _piece(self, token: int) -> bytes:
        if self._closed:
            raise FloeError("the engine is closed; its tokenizer has gone with it")
        if not 0 <= token < self.n_vocab or token in self.control_ids:
            return b""
        buffer = ctypes.create_string_buffer(256)
        n = self._c.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = self._c.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True)
        return buffer.raw[:n]
