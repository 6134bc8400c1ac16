"""An adapter on a frozen base, as PEFT's own layers with our factors in them.

The scale is folded into B, so PEFT gets lora_alpha = r for every layer (bug-log C19).

Legend: R rank, I inputs of a linear layer, O its outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import peft
import torch

from floe.core.errors import BadUpdate
from floe.federated.on_torch.base_model import BaseModel
from floe.federated.update import AdapterState, Factors

Tensor: TypeAlias = Any
_NAME = "default"


@dataclass(frozen=True, kw_only=True, eq=False)
class Attached:
    """Factors that live in the model: `a` (R, I) and `b` (O, R) by module path, to be trained.

    `model` is PEFT's, for those who hook its layers.
    """

    model: Any
    a: Mapping[str, Tensor]
    b: Mapping[str, Tensor]

    def state(self, base_digest: str) -> AdapterState:
        """A copy of the factors as they are now."""
        return AdapterState(
            base_digest=base_digest,
            modules={
                name: Factors(a_RI=_array(self.a[name]), b_OR=_array(self.b[name]))
                for name in self.a
            },
        )


def check_start(base: BaseModel, state: AdapterState) -> None:
    """Nothing, where `state` fits the base.

    Raises:
        BadUpdate: it is of another base, has no modules, or one that the base lacks or has in
            another shape.
    """
    if state.base_digest != base.digest:
        raise BadUpdate(
            f"the adapter is for the base {state.base_digest[:12]}, this device trains on "
            f"{base.digest[:12]}",
            reason="wrong-base",
        )
    if not state.modules:
        raise BadUpdate("the adapter has no modules", reason="zero-size")
    layers = dict(base.model.named_modules())
    for name, factors in state.modules.items():
        layer = layers.get(name)
        if not isinstance(layer, torch.nn.Linear):
            raise BadUpdate(f"the base has no linear layer {name!r}", reason="wrong-shapes")
        if tuple(layer.weight.shape) != factors.shape or factors.b_OR.shape[1] != factors.rank:
            raise BadUpdate(
                f"{name!r}: the change is {factors.shape}, the layer {tuple(layer.weight.shape)}",
                reason="wrong-shapes",
            )


@contextmanager
def attached(base: BaseModel, state: AdapterState) -> Iterator[Attached]:
    """The base with `state` in it until the block ends; others wait, the base stays as it was.

    Raises:
        BadUpdate: as `check_start`.
    """
    with base.lock:
        check_start(base, state)
        plain = {name: base.model.get_submodule(name) for name in state.modules}
        try:
            wrapped = peft.get_peft_model(base.model, _config(state))
            layers = {name: base.model.get_submodule(name) for name in state.modules}
            found = Attached(
                model=wrapped,
                a={name: layer.lora_A[_NAME].weight for name, layer in layers.items()},
                b={name: layer.lora_B[_NAME].weight for name, layer in layers.items()},
            )
            with torch.no_grad():
                for name, factors in state.modules.items():
                    found.a[name].copy_(_tensor(factors.a_RI))
                    found.b[name].copy_(_tensor(factors.b_OR))
            yield found
        finally:
            _take_off(base.model, plain)


def _config(state: AdapterState) -> Any:
    ranks = {name: f.rank for name, f in state.modules.items()}
    common = Counter(ranks.values()).most_common(1)[0][0]
    others = {name: rank for name, rank in ranks.items() if rank != common}
    return peft.LoraConfig(
        r=common,
        lora_alpha=common,
        rank_pattern=dict(others),
        alpha_pattern=dict(others),
        target_modules=sorted(ranks),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def _take_off(model: Any, plain: Mapping[str, Any]) -> None:
    """Put the plain layers back, also where PEFT failed half-way."""
    for name, layer in plain.items():
        parent, _, leaf = name.rpartition(".")
        setattr(model.get_submodule(parent), leaf, layer)
    model.__dict__.pop("peft_config", None)
    model.eval().requires_grad_(False)


def _tensor(array: Any) -> Tensor:
    return torch.from_numpy(np.array(array, np.float32))  # a copy: some are read-only


def _array(tensor: Tensor) -> Any:
    return tensor.detach().numpy().copy()
