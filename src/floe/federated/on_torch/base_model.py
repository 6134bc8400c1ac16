"""The frozen base that adapters are trained for: a Hugging Face folder, in float32 on the CPU."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
import transformers

from floe.core.errors import BadModel
from floe.federated.examples import Example, Turn
from floe.federated.layers import weights_digest
from floe.federated.rows import Row
from floe.federated.settings import TARGETS

Model: TypeAlias = Any


@dataclass(frozen=True, kw_only=True, eq=False)
class BaseModel:
    """A loaded base; its weights never change.

    `digest` names the base in adapters: the GGUF's where it came from one, so that what is trained
    here fits what is served. `name` is what a PEFT folder calls it. `lock` is held by whoever has
    an adapter in it.
    """

    model: Model
    tokenizer: Any
    digest: str
    name: str
    folder: Path
    lock: Any = field(default_factory=threading.Lock, repr=False)

    @property
    def core(self) -> Model:
        """The blocks without the output layer: ids to hidden states."""
        return self.model.base_model

    @property
    def head(self) -> Model:
        """The output layer: hidden states to logits over the vocabulary."""
        return self.model.get_output_embeddings()

    @property
    def n_layers(self) -> int:
        """How many blocks it has, after a cut."""
        return int(self.model.config.num_hidden_layers)

    def shapes(self, targets: tuple[str, ...] = TARGETS) -> dict[str, tuple[int, int]]:
        """(O, I) of each linear layer whose last name is in `targets`, by module path.

        Raises:
            BadModel: a target that is in no block.
        """
        return _shapes(self.model, targets)

    def encode(self, example: Example) -> Row:
        """The chat template around an example; the answer ends with the end mark.

        Head and answer are tokenized apart, as they are when the model answers.

        Raises:
            BadModel: the template changes what comes before an answer, or has none.
        """
        head = self._rendered(example.turns, prompt=True)
        whole = self._rendered((*example.turns, Turn(role="assistant", content=example.answer)))
        if not whole.startswith(head):
            raise BadModel("the chat template rewrites the prompt once it is answered")
        return self.row(head, _up_to_end(whole[len(head) :], self.tokenizer.eos_token))

    def row(self, head: str, answer: str) -> Row:
        """Ids of two texts as they are, control tokens in them recognised."""
        ids = [self.tokenizer.encode(t, add_special_tokens=False) for t in (head, answer)]
        return Row(ids=(*ids[0], *ids[1]), n_answer=len(ids[1]))

    def cut(self, n_layers: int) -> BaseModel:
        """The same object's first blocks only, for tests and quick benchmarks; drops the others.

        Raises:
            BadModel: fewer than one block, or more than there are.
        """
        if not 1 <= n_layers <= self.n_layers:
            raise BadModel(f"the base has {self.n_layers} layers; cannot keep {n_layers}")
        if n_layers == self.n_layers:
            return self
        config = self.model.config
        self.core.layers = self.core.layers[:n_layers]
        config.num_hidden_layers = n_layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:n_layers]
        digest = hashlib.sha256(f"{self.digest}:layers={n_layers}".encode()).hexdigest()
        return replace(self, digest=digest, name=f"{self.name}-{n_layers}-layers")

    def _rendered(self, turns: tuple[Turn, ...], *, prompt: bool = False) -> str:
        messages = [{"role": t.role, "content": t.content} for t in turns]
        try:
            text = self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=prompt
            )
        except Exception:
            # Template engines raise what they like, and their messages may quote the turns.
            raise BadModel("the chat template of the base cannot render this chat") from None
        return str(text)


def load_base(
    folder: Path, *, digest: str | None = None, name: str = "", n_layers: int | None = None
) -> BaseModel:
    """A base from a Hugging Face folder; nothing is fetched.

    `digest`: of the GGUF that the folder was made from; None = of the folder's weights. `n_layers`
    keeps the first blocks only, which changes the digest.

    Raises:
        BadModel: config, weights, tokenizer or chat template are missing or cannot be read.
    """
    if not (folder / "config.json").is_file():
        raise BadModel(f"{folder} is no Hugging Face model folder: it has no config.json")
    with _quiet():
        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                folder, dtype=torch.float32, local_files_only=True
            )
            # The general class: others rebuild the split of digits that some tokenizers have.
            tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(
                folder, local_files_only=True
            )
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise BadModel(f"cannot load a model from {folder}; see the error above") from error
    if not tokenizer.chat_template or not tokenizer.eos_token:
        raise BadModel(f"the tokenizer of {folder} lacks a chat template or an end token")
    base = BaseModel(
        model=model.eval().requires_grad_(False),
        tokenizer=tokenizer,
        digest=digest or weights_digest(folder),
        name=name or folder.name,
        folder=folder,
    )
    return base if n_layers is None else base.cut(n_layers)


def base_shapes(folder: Path, targets: tuple[str, ...] = TARGETS) -> dict[str, tuple[int, int]]:
    """(O, I) of the layers that adapters would change, from the config alone: no weights are read.

    Raises:
        BadModel: no config that transformers knows, or a target that is in no block.
    """
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)
    except (OSError, ValueError, KeyError) as error:
        raise BadModel(f"{folder} has no config.json of a known language model") from error
    return _shapes(model, targets)


def _shapes(model: Model, targets: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    linears = {
        name: (int(layer.weight.shape[0]), int(layer.weight.shape[1]))
        for name, layer in model.named_modules()
        if isinstance(layer, torch.nn.Linear) and name.rpartition(".")[2] in targets
    }
    missing = set(targets) - {name.rpartition(".")[2] for name in linears}
    if missing:
        raise BadModel(f"the base has no linear layer named {', '.join(sorted(missing))}")
    return linears


def _up_to_end(text: str, end: str) -> str:
    """Without what a template writes behind the end mark, which nobody generates."""
    if end not in text:
        return text + end
    return text[: text.rindex(end) + len(end)]


@contextmanager
def _quiet() -> Iterator[None]:
    """No bars while loading; put back as it was."""
    shown = transformers.utils.logging.is_progress_bar_enabled()
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers.utils.logging.enable_progress_bar()
