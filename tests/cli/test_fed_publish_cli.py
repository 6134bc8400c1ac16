"""`floe fed publish | versions | rollback | revoke | keys`, beside a process that serves."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from floe.adapters.store import AdapterStore
from floe.adapters.trust import Trust
from floe.assemble.federated import server_base, server_folder
from floe.assemble.judging import GATES
from floe.cli.main import main
from floe.core.request import Message, Request
from floe.core.sections import FederatedConfig, RoutingConfig
from floe.federated import wire
from floe.federated.publish_gate import gate
from floe.federated.state import Codec, Memory, StateFolder
from floe.federated.update import AdapterState, Factors
from floe.routing.router import Router
from floe.testing.tiny_model import make_tiny_adapter, make_tiny_model


class Done(NamedTuple):
    stdout: str
    stderr: str


class Place:
    """A home with a tiny model; `floe` runs a command there."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.tiny = root, make_tiny_model(root)
        monkeypatch.setenv("FLOE_HOME", str(root))
        monkeypatch.chdir(root)

    def floe(self, *words: str, code: int = 0) -> Done:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as ended:
            main(words)
        done = Done(out.getvalue(), err.getvalue())
        assert (ended.value.code or 0) == code, (words, done)
        return done

    def apart(self, *words: str) -> Done:
        """In a process of its own."""
        command = [sys.executable, "-m", "floe", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return Done(done.stdout, done.stderr)

    def fed(self, *words: str, code: int = 0) -> Done:
        return self.floe("fed", *words, "--model", str(self.tiny.gguf), code=code)

    def folder(self, seed: int) -> Path:
        folder = make_tiny_adapter(self.root / f"f{seed}", seed=seed)
        note = {"encoder_digest": "e", "vector": [1.0, 0.0]}
        (folder / "centroid.json").write_text(json.dumps(note))
        return folder


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path, monkeypatch)


def seen_by_a_server(place: Place) -> tuple[AdapterStore, Router]:
    """A store and a router as a server that started before anything was published has them."""
    from floe.engine.llamacpp import LlamaCppEngine

    engine = LlamaCppEngine(place.tiny.gguf, threads=1)
    info = engine.info
    engine.close()
    store = AdapterStore(
        place.root / "adapters" / info.name, info, trust=Trust(place.root / "trust")
    )
    router = Router(
        embedding=_Topic(), adapters=lambda: [s.manifest for s in store.list()],
        base_names=[info.name], config=RoutingConfig(learner="gate"),
    )  # fmt: skip
    return store, router


class _Topic:
    digest = "e"

    def __call__(self, text: str) -> np.ndarray:
        return np.array([1.0, 0.0] if "pill" in text else [0.0, 1.0], np.float32)


def test_published_rolled_back_and_revoked_beside_a_server(place: Place) -> None:
    assert place.fed("publish", "x", code=4).stderr.count("floe fed keys new")
    public = place.floe("fed", "keys", "new").stdout.strip()
    assert public.startswith("ed25519:") and "PRIVATE" not in public
    assert "A key is never overwritten" in place.floe("fed", "keys", "new", code=2).stderr
    store, router = seen_by_a_server(place)
    about_pills = Request(
        id="r", model="auto", messages=(Message(role="user", content="Which pill?"),)
    )
    assert router.choose(about_pills).how == "base"

    done = place.fed("publish", str(place.folder(1)), "--name", "medicine", "--epsilon", "2.5",
                     "--delta", "1e-5", "--json")  # fmt: skip
    first = json.loads(done.stdout)
    assert (first["version"], first["epsilon"], first["public_key"]) == (1, 2.5, public)
    chosen = router.choose(about_pills)  # without a restart
    assert [s.name for s in chosen.shares] == ["medicine"] and chosen.how == "routed"
    assert chosen.shares[0].digest == first["digest"]

    done = place.apart(
        "fed", "publish", str(place.folder(2)), "--name", "medicine", "--model",
        str(place.tiny.gguf),
    )  # fmt: skip
    assert "published medicine version 2: rank 4" in done.stdout and "routed" in done.stdout
    second = router.choose(about_pills).shares[0].digest
    assert second != first["digest"]
    rows = json.loads(place.fed("versions", "medicine", "--json").stdout)
    assert [(r["statement"]["version"], r["is_current"]) for r in rows] == [(1, False), (2, True)]

    done = place.fed("rollback", "medicine")
    assert done.stdout == "medicine is version 3 now, with what was in 1\n"
    assert router.choose(about_pills).shares[0].digest == first["digest"]

    done = place.fed("revoke", "medicine", "--reason", "a wrong data set")
    assert done.stdout == f"revoked digest {first['digest'][:20]}\n"
    assert router.choose(about_pills).how == "base"
    [entry] = store.entries()
    assert entry.is_refused and "was revoked: a wrong data set" in entry.reason
    listing = place.fed("versions", "medicine").stdout
    assert listing.count("revoked") == 2 and "(version 1 again)" in listing
    assert "epsilon 2.5" in listing and "not judged" in listing
    assert "it was revoked before" in place.fed("revoke", first["digest"]).stdout

    assert place.fed("rollback", "medicine").stdout.endswith("with what was in 2\n")
    assert router.choose(about_pills).shares[0].digest == second
    place.fed("revoke", public)
    assert store.list() == ()
    assert (
        "the key that signed it was revoked"
        in place.fed("publish", str(place.folder(3)), "--name", "law", code=5).stderr
    )


def test_what_cannot_be_published_is_said(place: Place) -> None:
    public = place.floe("fed", "keys", "new", "--key", "mine.key").stdout.strip()
    folder = str(place.folder(1))
    done = place.fed("publish", folder, "--key", "mine.key", code=5)
    assert f"does not trust {public} itself" in done.stderr
    (place.root / "floe.toml").write_text('[adapters]\ntrusted_keys = ["mine.pub"]\n')
    done = place.fed("publish", folder, "--key", "mine.key", "--epsilon", "1", code=2)
    assert "an epsilon means nothing without its delta" in done.stderr
    (place.root / "f1/card.json").write_text('{"worse": 1, "not_worse": 3}')
    done = place.fed("publish", folder, "--key", "mine.key", code=5)
    assert "1 of 4 members find it worse" in done.stderr
    (place.root / "f1/card.json").write_text('{"worse": 0, "not_worse": 4, "round": 3}')
    place.fed("publish", folder, "--key", "mine.key", "--name", "law")
    assert "0 of 4 worse" in place.fed("versions", "law").stdout
    shown = json.loads(place.floe("fed", "keys", "show", "--json").stdout)
    assert shown == {"own": "", "trusted": [public], "signatures": "off"}
    inspected = json.loads(place.floe(
        "adapters", "inspect", "law", "--json", "--model", str(place.tiny.gguf)
    ).stdout)  # fmt: skip
    assert (inspected["version"], inspected["signed_by"]) == (1, public)
    assert (
        "there is no adapter 'none' here; there are: law"
        in place.fed("revoke", "none", code=4).stderr
    )
    assert "'none' has no signed version" in place.fed("versions", "none", code=4).stderr


def test_adapters_are_published_in_smaller_ranks_with_what_was_revoked(place: Place) -> None:
    place.floe("fed", "keys", "new")
    place.fed("publish", str(place.folder(1)), "--name", "medicine")
    place.fed("revoke", "0" * 64)
    model = ("--model", str(place.tiny.gguf))
    place.floe("adapters", "publish", "out", "--ranks", "2", *model)
    index = json.loads((place.root / "out/index.json").read_text())
    assert [v["manifest"]["rank"] for v in index["variants"]] == [2]
    assert json.loads((place.root / "out/revoked.json").read_text())["entries"]
    for ranks in ("x", "0"):
        assert (
            "--ranks"
            in place.floe("adapters", "publish", "out", "--ranks", ranks, *model, code=2).stderr
        )


def test_what_a_federation_learned_is_exported_and_published(place: Place) -> None:
    (place.root / "hf").rename(place.root / "tiny-llama")
    (place.root / "floe.toml").write_text('[federated]\nbase = "tiny-llama"\ndp = "example"\n')
    words = ("--config", "floe.toml")
    assert (
        "no round of 'default' has given an adapter yet"
        in place.fed("export", "learned", *words, code=4).stderr
    )
    fed = FederatedConfig(base="tiny-llama")
    digest, shapes = server_base(fed, "", home=place.root)
    folder = server_folder(fed, home=place.root)
    state = StateFolder(folder, codec=Codec(pack=wire.encode, unpack=wire.decode))
    rng = np.random.default_rng(0)
    modules = {
        path: Factors(
            a_RI=rng.normal(0, 0.1, (2, i)).astype(np.float32),
            b_OR=rng.normal(0, 0.1, (o, 2)).astype(np.float32),
        )
        for path, (o, i) in shapes.items()
    }
    digests = {
        cluster: state.put_adapter(AdapterState(base_digest=digest, modules=modules))
        for cluster in ("c0", "c1", "c2")
    }
    state.write(
        Memory(
            base_digest=digest, next_round=3, adapters=digests,
            clusters={"a": "c0", "b": "c0", "c": "c1", "d": "c2"},
        )
    )  # fmt: skip
    state.put_report({"round_number": 2, "attempt": 1, "void": "", "epsilon": 2.5})
    good, bad = gate({"a": False, "b": False}, min_members=2), gate({"c": True}, min_members=1)
    gates = {
        cluster: {"adapter": digests[cluster], "result": dataclasses.asdict(result)}
        for cluster, result in (("c0", good), ("c1", bad))
    }
    (folder / GATES).write_text(json.dumps(gates))
    done = json.loads(place.fed("export", "learned", *words, "--json").stdout)
    assert done == {
        "folders": {"c0": "learned/c0", "c2": "learned/c2"},
        "left_out": {"c1": "1 of 1 members are worse off with it"},
    }
    card = json.loads((place.root / "learned/c0/card.json").read_text())
    assert (card["worse"], card["not_worse"], card["round"]) == (0, 2, 2)
    assert (card["epsilon"], card["delta"], card["base_digest"]) == (2.5, 1e-5, digest)
    assert "left out: 1 of 1" in place.fed("export", "again", *words).stdout
    place.floe("fed", "keys", "new")
    place.fed("publish", "learned/c0", "--name", "sums")
    assert "epsilon 2.5  0 of 2 worse" in place.fed("versions", "sums").stdout
