"""The device's side of a secure sum: Flower's mod between the server's messages and our update."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flwr.app import Message
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters
from flwr.compat.common import recorddict_compat as compat

from floe.core.errors import BadUpdate, FloeError
from floe.federated.secure_sum import SecureTerms, Vector
from floe.flower.messages import reply_with
from floe.flower.secagg import SEAL, check_stage, failure_of

Change = Callable[[bytes], tuple[Vector, bytes]]
"""A task's bytes -> this device's unmasked vector and its seal."""


def secure_answer(message: Any, context: Any, terms: SecureTerms, change: Change) -> Any:
    """The answer to one step of the protocol; `change` is called in the one that needs it.

    The vector leaves this function masked or not at all.
    """
    try:
        check_stage(message, terms)
        return secaggplus_mod(message, context, lambda m, _c: _unmasked(m, change))
    except FloeError as error:
        return reply_with(failure_of(error), message)
    except (ValueError, KeyError, TypeError) as error:  # the mod's words for a step out of order
        out_of_step = BadUpdate(f"secure sum: {error}", reason="out_of_step")
        return reply_with(failure_of(out_of_step), message)


def _unmasked(message: Any, change: Change) -> Any:
    """What the mod masks: a FitRes that says nothing else of this device."""
    task = compat.recorddict_to_fitins(message.content, keep_input=True).parameters.tensors[0]
    vector_N, sealed = change(task)
    answer = FitRes(
        status=Status(code=Code.OK, message=""),
        parameters=ndarrays_to_parameters([vector_N]),
        num_examples=1,
        metrics={SEAL: sealed},
    )
    return Message(compat.fitres_to_recorddict(answer, keep_input=False), reply_to=message)
