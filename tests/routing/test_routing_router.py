"""The router's order of precedence, its refusals, and what it routes by."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from floe.core.adapter import AdapterManifest, Centroid
from floe.core.errors import BadRequest, NotFound, Untrusted
from floe.core.request import AdapterScale, Message, Request
from floe.core.sections import RoutingConfig
from floe.routing.router import Router

ENCODER = "e" * 64


class WordEmbedding:
    """Counts of three words, normalised."""

    digest = ENCODER

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, text: str) -> NDArray[np.float32]:
        self.calls += 1
        words = text.split()
        vector = np.array([words.count(w) for w in ("sum", "loop", "rain")], dtype=np.float32)
        length = np.linalg.norm(vector)
        return vector / length if length else vector


def adapter(
    name: str, vector: Sequence[float] | None, *, encoder: str = ENCODER
) -> AdapterManifest:
    centroid = None if vector is None else Centroid(encoder_digest=encoder, vector=tuple(vector))
    return AdapterManifest(
        name=name,
        digest=f"digest-{name}",
        base_model="tiny",
        architecture="llama",
        rank=8,
        modules=4,
        file_bytes=100,
        created_at="",
        centroid=centroid,
    )


MATHS, CODE = adapter("maths", (2.0, 0.0, 0.0)), adapter("code", (0.0, 1.0, 0.0))


def router(*adapters: AdapterManifest, embedding: bool = True, **config: float) -> Router:
    settings = {"temperature": 0.1, "top_k": 2, "threshold": 0.3, "min_share": 0.1, **config}
    return Router(
        embedding=WordEmbedding() if embedding else None,
        adapters=lambda: adapters or (MATHS, CODE),
        base_names={"tiny", "org/tiny"},
        config=RoutingConfig(**settings),  # type: ignore[arg-type]
    )


def ask(text: str = "sum", *, model: str = "auto", lora: Sequence[AdapterScale] = ()) -> Request:
    return Request(id="r", model=model, prompt=text, lora=tuple(lora))


def test_auto_takes_the_nearest_adapter() -> None:
    route = router().choose(ask("sum sum"))
    assert route.how == "routed"
    assert route.key == (("digest-maths", 1.0),)
    assert route.reason == "nearest adapter maths, cosine 1.00"
    assert [name for name, _ in route.scores] == ["maths", "code"]
    assert sum(score for _, score in route.scores) == pytest.approx(1)


def test_auto_mixes_near_ones_in_rounded_shares() -> None:
    route = router().choose(ask("sum loop"))
    assert {s.name: s.weight for s in route.shares} == {"maths": 0.5, "code": 0.5}


def test_auto_far_from_all_is_the_plain_base() -> None:
    route = router(threshold=0.4).choose(ask("rain rain rain sum"))
    assert (route.how, route.shares) == ("base", ())
    assert route.reason == "nearest adapter maths, cosine 0.32, below 0.40"
    assert len(route.scores) == 2


def test_auto_looks_at_the_last_user_message() -> None:
    messages = (
        Message(role="user", content="loop"),
        Message(role="assistant", content="loop"),
        Message(role="user", content="sum"),
    )
    route = router().choose(Request(id="r", messages=messages))
    assert route.shares[0].name == "maths"


def test_auto_without_content_or_embedding_or_centroids_is_the_base_and_says_why() -> None:
    assert router().choose(ask("")).reason == "nothing in the prompt to route by"
    route = router(embedding=False).choose(ask("sum"))
    assert (route.how, route.reason) == ("base", "no embedding model: floe pull wordllama-256")
    assert (
        router(adapter("plain", None)).choose(ask("sum")).reason
        == "no adapter has a place to route by; not routed to: plain (it has no centroid)"
    )


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (adapter("old", (1, 0, 0), encoder="x"), "its centroid was made with another embedding"),
        (adapter("old", (1, 0)), "its centroid has 2 numbers, the embedding 3"),
        (adapter("old", (0, 0, 0)), "its centroid has no direction"),
        (adapter("old", (math.nan, 0, 0)), "its centroid has no direction"),
        (adapter("old", (math.inf, 0, 0)), "its centroid has no direction"),
        (adapter("old", None), "it has no centroid"),
    ],
)
def test_b35_a_centroid_of_another_embedding_is_not_routed_by(
    bad: AdapterManifest, why: str
) -> None:
    both = router(bad, CODE)
    route = both.choose(ask("loop"))
    assert route.key == (("digest-code", 1.0),)
    assert route.reason.endswith(f"; not routed to: old ({why})")
    assert [name for name, _ in route.scores] == ["code"]
    assert both.choose(ask(model="old")).shares[0].name == "old"


def test_a_reason_shared_by_many_adapters_is_said_once() -> None:
    several = [adapter(f"a{n}", None) for n in range(7)]
    reason = router(*several, CODE).choose(ask("loop")).reason
    assert reason.endswith(
        "; not routed to: a0, a1, a2, a3, a4 and 2 more (each of 7: it has no centroid)"
    )


def test_what_cannot_be_loaded_is_not_routed_to_and_answers_by_name() -> None:
    broken = {"maths"}
    chooses = Router(
        embedding=WordEmbedding(),
        adapters=lambda: (MATHS, CODE),
        base_names={"tiny"},
        config=RoutingConfig(threshold=0.3),
        fault=lambda manifest: "its file is gone" if manifest.name in broken else "",
    )
    route = chooses.choose(ask("sum loop"))
    assert [s.name for s in route.shares] == ["code"]
    assert "maths (it cannot be loaded; see the model's reason in /v1/models)" in route.reason
    assert chooses.choose(ask("sum", model="maths")).shares[0].name == "maths"
    broken.clear()
    assert chooses.choose(ask("sum")).shares[0].name == "maths"


def test_a_name_that_is_refused_says_why_to_those_who_may_know_it() -> None:
    chooses = Router(
        embedding=WordEmbedding(),
        adapters=lambda: (MATHS,),
        base_names={"tiny"},
        config=RoutingConfig(threshold=0.3),
        refusal=lambda name: Untrusted("was revoked", param="model") if name == "law" else None,
        allowed=lambda tenant: ("maths",) if tenant == "ward" else None,
    )
    asked = (ask(model="law"), ask(lora=[AdapterScale(name="law", scale=1.0)]))
    for request in asked:
        with pytest.raises(Untrusted, match="was revoked"):
            chooses.choose(request)
        with pytest.raises(NotFound, match=r"known: .*maths"):
            chooses.choose(replace(request, tenant="ward"))
    with pytest.raises(NotFound, match="does not exist; known: auto, tiny, maths"):
        chooses.choose(ask(model="other"))
    assert chooses.choose(ask("sum")).shares[0].name == "maths"


def test_one_adapter_under_two_names_has_one_share() -> None:
    twin = replace(MATHS, name="sums")
    route = router(MATHS, twin, CODE).choose(ask("sum"))
    assert [(s.name, s.weight) for s in route.shares] == [("maths", 1.0)]
    assert len(route.scores) == 2


def test_a_new_adapter_is_routed_to_at_once() -> None:
    held = [CODE]
    chooses = Router(
        embedding=WordEmbedding(),
        adapters=lambda: held,
        base_names={"tiny"},
        config=RoutingConfig(threshold=0.3),
    )
    assert chooses.choose(ask("sum")).how == "base"
    held.append(MATHS)
    assert chooses.choose(ask("sum")).shares[0].name == "maths"
    held.clear()
    assert chooses.choose(ask("sum")).how == "base"


@pytest.mark.parametrize("model", ["tiny", "Org/Tiny"])
def test_the_base_by_name_is_plain(model: str) -> None:
    route = router().choose(ask("sum", model=model))
    assert (route.how, route.shares) == ("base", ())


def test_an_adapter_by_name_is_applied_as_trained() -> None:
    route = router().choose(ask("loop", model="maths"))
    assert route.how == "explicit"
    assert route.key == (("digest-maths", 1.0),)


@pytest.mark.parametrize("model", ["auto", "tiny", "code"])
def test_a20_lora_is_the_whole_mix_whatever_the_model(model: str) -> None:
    lora = [AdapterScale(name="code", scale=-0.5), AdapterScale(name="maths", scale=0.0)]
    route = router().choose(ask("sum", model=model, lora=lora))
    assert route.how == "explicit"
    assert route.key == (("digest-code", -0.5),)


def test_a20_scales_do_not_outlive_their_request() -> None:
    chooses = router()
    before = chooses.choose(ask("sum"))
    chooses.choose(ask("sum", lora=[AdapterScale(name="code", scale=3.0)]))
    assert chooses.choose(ask("sum")) == before


@pytest.mark.parametrize("scale", [math.nan, math.inf, -math.inf, 4.01, -1e9])
def test_a20_absurd_scales_are_refused(scale: float) -> None:
    with pytest.raises(BadRequest, match=r"lora\[1\].scale must be a number between -4 and 4") as e:
        lora = [AdapterScale(name="code"), AdapterScale(name="maths", scale=scale)]
        router().choose(ask(lora=lora))
    assert e.value.param == "lora[1].scale"


def test_a20_unknown_and_doubled_adapters_are_refused() -> None:
    with pytest.raises(NotFound, match=r"lora\[0\]: no adapter `law`; known: code, maths"):
        router().choose(ask(lora=[AdapterScale(name="law")]))
    with pytest.raises(BadRequest, match=r"lora\[1\]: adapter code is listed twice; list it once"):
        router().choose(ask(lora=[AdapterScale(name="code"), AdapterScale(name="code")]))
    twins = router(MATHS, replace(MATHS, name="sums"))
    with pytest.raises(BadRequest, match=r"adapter sums is the same as maths; list it once"):
        twins.choose(ask(lora=[AdapterScale(name="maths"), AdapterScale(name="sums")]))
    with pytest.raises(BadRequest, match="lora has 9 adapters; at most 8"):
        router().choose(ask(lora=[AdapterScale(name="code")] * 9))


def test_an_unknown_model_lists_the_known() -> None:
    with pytest.raises(NotFound) as caught:
        router().choose(ask("private words", model="gpt-4" + "x" * 500))
    assert caught.value.message == (
        f"The model `gpt-4{'x' * 59}` does not exist; known: auto, org/tiny, tiny, code, maths"
    )
    assert caught.value.param == "model"
    with pytest.raises(NotFound, match="The model `nonsense` does not exist"):
        router().choose(ask(model="nonsense", lora=[AdapterScale(name="code")]))


def test_no_reason_holds_the_users_words() -> None:
    for model in ("auto", "tiny", "maths"):
        assert "sum" not in router().choose(ask("sum sum", model=model)).reason
