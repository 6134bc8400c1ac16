"""A text as the mean of its tokens' rows in a fixed matrix: no network to run, half a millisecond.

From the mean, the mean of ordinary texts (the background) can be taken away: what is left is what
a text has of its own. `scripts/evaluate_routing.py`, with and without `--raw`, shows what that is
worth to the router.

Legend: V rows of the matrix (token ids), D width, T tokens of a text.
"""

from __future__ import annotations

import hashlib
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from floe.core.adapter import Centroid
from floe.core.errors import BadModel

FloatArray = NDArray[np.float32]

_MAX_TOKENS = 512
# More characters than 512 tokens hold in any prose: bounds the tokenizer's work on long texts.
_MAX_CHARS = 16_384
_MAX_HEADER_BYTES = 1 << 20


class StaticEmbedding:
    """Texts to unit vectors. Centroids belong to one `digest` (B35): weights and background.

    The matrix stays float16 and on disk; the system keeps the rows that are used in memory.
    """

    def __init__(
        self, *, weights: Path, tokenizer: Path, digest: str, background: Centroid | None = None
    ) -> None:
        """Open the files; they are not hashed, the weights' `digest` is known from the pull.

        Raises:
            BadModel: a file that is not what it should be, or a background of other weights.
        """
        self._matrix_VD = _map_matrix(weights)
        self.digest, self._background_D = digest, np.zeros(self.width, dtype=np.float32)
        if background is not None:
            if background.encoder_digest != digest or len(background.vector) != self.width:
                raise BadModel(f"the background was made with other weights than {weights}")
            self._background_D = np.array(background.vector, dtype=np.float32)
            whole = digest.encode() + self._background_D.astype("<f4").tobytes()
            self.digest = hashlib.sha256(whole).hexdigest()
        try:
            self._tokenizer = Tokenizer.from_file(str(tokenizer))
        except Exception as error:  # the library raises bare Exception
            raise BadModel(f"{tokenizer} is not a tokenizer file: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        if self._tokenizer.get_vocab_size() > len(self._matrix_VD):
            raise BadModel(
                f"{tokenizer} has {self._tokenizer.get_vocab_size()} tokens, "
                f"{weights} only {len(self._matrix_VD)} rows: they do not belong together"
            )

    @property
    def width(self) -> int:
        """D."""
        return int(self._matrix_VD.shape[1])

    def __call__(self, text: str) -> FloatArray:
        """The text's direction, shape (D,), length 1; zeros for a text without tokens.

        The first 512 tokens count, without special ones.
        """
        ids_T = self._ids(text)
        if not ids_T:
            return np.zeros(self.width, dtype=np.float32)
        mean_D: FloatArray = self._matrix_VD[ids_T].astype(np.float32).mean(axis=0)
        return _unit(_unit(mean_D) - self._background_D)

    def count_tokens(self, text: str) -> int:
        """How many tokens of the text count."""
        return len(self._ids(text))

    def _ids(self, text: str) -> list[int]:
        # Halves of surrogate pairs can come in through JSON; the tokenizer refuses them.
        clean = text[:_MAX_CHARS].encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        return ids[:_MAX_TOKENS]


def shipped_background(weights_digest: str) -> Centroid | None:
    """The background that comes with Floe, if it was made with these weights."""
    data = json.loads(files("floe.routing").joinpath("background.json").read_text("utf-8"))
    if data["encoder_digest"] != weights_digest:
        return None
    return Centroid(encoder_digest=weights_digest, vector=tuple(data["vector"]))


def _unit(vector_D: FloatArray) -> FloatArray:
    length = np.linalg.norm(vector_D)
    return vector_D / length if length > 0 else vector_D


def _map_matrix(path: Path) -> NDArray[np.float16]:
    """The file's only tensor, mapped: `safetensors` would read all of it into memory."""
    try:
        with path.open("rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            if header_bytes > _MAX_HEADER_BYTES:
                raise BadModel(f"{path} is not a safetensors file")
            header: dict[str, Any] = json.loads(file.read(header_bytes))
        tensors = [entry for name, entry in header.items() if name != "__metadata__"]
        if len(tensors) != 1 or tensors[0]["dtype"] != "F16" or len(tensors[0]["shape"]) != 2:
            raise BadModel(f"{path} must hold one F16 matrix and nothing else")
        rows, width = tensors[0]["shape"]
        begin, end = tensors[0]["data_offsets"]
        if end - begin != rows * width * 2 or path.stat().st_size < 8 + header_bytes + end:
            raise BadModel(f"{path} is cut short or has a wrong header")
        return np.memmap(
            path, dtype="<f2", mode="r", offset=8 + header_bytes + begin, shape=(rows, width)
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadModel(f"{path} cannot be read as a safetensors file: {error}") from error
