"""OpenAI's request bodies to what is asked of Floe. Nothing that matters is dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from floe.core.errors import BadRequest
from floe.core.request import AdapterScale, Message, Request, Role, Sampling
from floe.serving import fields
from floe.serving.deadline import budgets_of, extension_of, may_use_cloud, power_of
from floe.serving.unsupported import IGNORED, NEUTRAL, refuse_unsupported

Kind = Literal["chat", "completion"]

MOST_STOPS = 16
MOST_STOP_CHARS = 500
MOST_TOP = 20
MOST_TOKENS = 2**31 - 1
MOST_SCALE = 16.0

_SHARED = {
    *("model", "stream", "stream_options", "stop", "seed", "temperature", "top_p"),
    *("max_tokens", "n", "logprobs", "lora", "floe"),
}
_CHAT = _SHARED | {"messages", "max_completion_tokens", "top_logprobs"}
_COMPLETION = _SHARED | {"prompt"}
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_MESSAGE_IGNORED = {"name", "tool_call_id", "refusal", "annotations", "audio"}
_MESSAGE_REFUSED = {"tool_calls", "function_call"}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """A request and the form its answer should have."""

    request: Request
    kind: Kind
    stream: bool
    include_usage: bool
    log_probs: bool


def chat_ask(body: Mapping[str, Any], *, request_id: str, default_max_tokens: int) -> Ask:
    """What a body of /v1/chat/completions asks for.

    Raises:
        BadRequest: naming the field that is wrong.
    """
    given = _given(body, _CHAT)
    extension = extension_of(given)
    log_probs = "logprobs" in given and fields.boolean(given["logprobs"], "logprobs")
    top = 0
    if "top_logprobs" in given:
        top = fields.integer(given["top_logprobs"], "top_logprobs", low=0, high=MOST_TOP)
        if not log_probs:
            raise BadRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    most = _one_of(given, "max_completion_tokens", "max_tokens")
    request = Request(
        id=request_id,
        model=_model(given),
        messages=_messages(given),
        sampling=_sampling(given, most, default_max_tokens),
        lora=_lora(given),
        top_log_probs=top,
        cloud=may_use_cloud(extension),
        budgets=budgets_of(extension),
        power=power_of(extension),
    )
    return _asked(given, request, kind="chat", log_probs=log_probs)


def completion_ask(body: Mapping[str, Any], *, request_id: str, default_max_tokens: int) -> Ask:
    """What a body of /v1/completions asks for.

    Raises:
        BadRequest: naming the field that is wrong.
    """
    given = _given(body, _COMPLETION)
    extension = extension_of(given)
    top = 0
    if "logprobs" in given:
        top = fields.integer(given["logprobs"], "logprobs", low=0, high=MOST_TOP)
    request = Request(
        id=request_id,
        model=_model(given),
        prompt=_prompt(given),
        sampling=_sampling(given, "max_tokens", default_max_tokens),
        lora=_lora(given),
        top_log_probs=top,
        cloud=may_use_cloud(extension),
        budgets=budgets_of(extension),
        power=power_of(extension),
    )
    return _asked(given, request, kind="completion", log_probs="logprobs" in given)


def _given(body: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    """The fields with a value; null is the same as absent."""
    refuse_unsupported(body)
    fields.only(body, known | IGNORED.keys() | NEUTRAL.keys())
    return {key: value for key, value in body.items() if value is not None}


def _asked(given: Mapping[str, Any], request: Request, *, kind: Kind, log_probs: bool) -> Ask:
    if "n" in given and fields.integer(given["n"], "n", low=1, high=2**31) != 1:
        raise BadRequest("n must be 1: send the request again for another answer", param="n")
    stream = "stream" in given and fields.boolean(given["stream"], "stream")
    usage = False
    if "stream_options" in given:
        if not stream:
            raise BadRequest("stream_options needs stream: true", param="stream_options")
        options = fields.members(given["stream_options"], "stream_options")
        fields.only(options, {"include_usage", "include_obfuscation"}, where="stream_options.")
        for name, value in options.items():
            if value is not None:
                fields.boolean(value, f"stream_options.{name}")
        usage = bool(options.get("include_usage"))
    return Ask(request=request, kind=kind, stream=stream, include_usage=usage, log_probs=log_probs)


def _one_of(given: Mapping[str, Any], first: str, second: str) -> str:
    """The name that is given; both only with one value."""
    if first in given and second in given and given[first] != given[second]:
        raise BadRequest(f"{first} and {second} disagree: send {first} only", param=second)
    return first if first in given else second


def _model(given: Mapping[str, Any]) -> str:
    if "model" not in given:
        raise BadRequest(
            'model is required: "auto", or a name that /v1/models lists', param="model"
        )
    return fields.text(given["model"], "model", least=1, most=256)


def _sampling(given: Mapping[str, Any], most: str, default_max_tokens: int) -> Sampling:
    off = Sampling()
    max_tokens, temperature, top_p, seed = default_max_tokens, off.temperature, off.top_p, None
    if most in given:
        max_tokens = fields.integer(given[most], most, low=1, high=MOST_TOKENS)
    if "temperature" in given:
        temperature = fields.number(given["temperature"], "temperature", low=0, high=2)
    if "top_p" in given:
        top_p = fields.number(given["top_p"], "top_p", low=0, high=1)
    if "seed" in given:
        # generators take no negative seeds; two's complement keeps different seeds different
        seed = fields.integer(given["seed"], "seed", low=-(2**63), high=2**63 - 1) % 2**64
    return Sampling(
        max_tokens=max_tokens,
        fits_room=most not in given,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        stop=_stop(given),
    )


def _stop(given: Mapping[str, Any]) -> tuple[str, ...]:
    stop = given.get("stop", [])
    if isinstance(stop, str):
        return (fields.text(stop, "stop", least=1, most=MOST_STOP_CHARS),)
    if not isinstance(stop, list):
        raise BadRequest("stop must be a string or an array of strings", param="stop")
    fields.elements(stop, "stop", least=0, most=MOST_STOPS)
    return tuple(
        fields.text(s, f"stop[{i}]", least=1, most=MOST_STOP_CHARS) for i, s in enumerate(stop)
    )


def _lora(given: Mapping[str, Any]) -> tuple[AdapterScale, ...]:
    mix: list[AdapterScale] = []
    for i, entry in enumerate(fields.elements(given.get("lora", []), "lora", least=0, most=16)):
        where = f"lora[{i}]"
        one = fields.members(entry, where)
        fields.only(one, {"id", "scale"}, where=f"{where}.")
        name = fields.text(one.get("id"), f"{where}.id", least=1, most=256)
        scale = fields.number(
            one.get("scale", 1.0), f"{where}.scale", low=-MOST_SCALE, high=MOST_SCALE
        )
        if any(earlier.name == name for earlier in mix):
            raise BadRequest(f"{where}.id is given twice", param=f"{where}.id")
        mix.append(AdapterScale(name=name, scale=scale))
    return tuple(mix)


def _prompt(given: Mapping[str, Any]) -> str:
    if "prompt" not in given:
        raise BadRequest("prompt is required", param="prompt")
    prompt = given["prompt"]
    if isinstance(prompt, list):
        if len(prompt) != 1 or not isinstance(prompt[0], str):
            raise BadRequest(
                "prompt must be one string; send token arrays as text, several prompts one by one",
                param="prompt",
            )
        prompt = prompt[0]
    return fields.text(prompt, "prompt", least=1)


def _messages(given: Mapping[str, Any]) -> tuple[Message, ...]:
    if "messages" not in given:
        raise BadRequest("messages is required", param="messages")
    entries = fields.elements(given["messages"], "messages", least=1, most=100_000)
    return tuple(_message(entry, f"messages[{i}]") for i, entry in enumerate(entries))


def _message(entry: Any, where: str) -> Message:
    one = fields.members(entry, where)
    fields.only(one, {"role", "content"} | _MESSAGE_IGNORED | _MESSAGE_REFUSED, where=f"{where}.")
    for name in _MESSAGE_REFUSED:
        if one.get(name) not in (None, []):
            raise BadRequest(f"{where}.{name}: Floe does not call tools", param=f"{where}.{name}")
    role = one.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        raise BadRequest(f"{where}.role must be one of {', '.join(_ROLES)}", param=f"{where}.role")
    return Message(role=_ROLES[role], content=_content(one.get("content"), f"{where}.content"))


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return fields.text(content, where)
    if not isinstance(content, list) or not content:
        raise BadRequest(f"{where} must be a string or an array of text parts", param=where)
    return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    one = fields.members(part, where)
    if one.get("type") != "text":
        raise BadRequest(
            f"{where}: only parts of type text are understood, no images, sound or files",
            param=where,
        )
    fields.only(one, {"type", "text"}, where=f"{where}.")
    return fields.text(one.get("text"), f"{where}.text")
