"""Eight devices learn together, and a server answers with what they learned: end to end.

    python scripts/learn_together.py --work /tmp/together

Two devices each hold examples of medicine, law, maths and code, a tenth of them of another domain;
they can carry ranks 4, 8, 16 and 32. Nobody says which is which. Step by step:

1. devices train and a server adds up what they learned, by clusters that it finds itself,
2. each cluster's members judge its adapter on examples of their own (counts alone are told),
3. public prompts say where each adapter is routed to,
4. the adapters are signed and put into a store,
5. `floe serve` is asked held-out questions of each domain and routes them by content,
6. the reference answers' log-likelihood under the adapter that was chosen is compared with the
   base's.

Ends with exit code 1 if a cluster mixes domains, an adapter's prompts go elsewhere, or an answer
does not get likelier. The examples are shipped (scripts/learn_together_data, with licences).
Takes about five minutes of one core, and a minute more the first time (the base is dequantized).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
import urllib.request
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from floe.adapters.store import AdapterStore
from floe.assemble import chat_format, open_embedding, open_engine, open_store
from floe.assemble.exported import ClusterAdapter, cluster_adapters
from floe.assemble.learning import open_base
from floe.core.config import home as user_home
from floe.core.config import load_config
from floe.core.errors import BadRound
from floe.core.request import Message, Request
from floe.core.sections import FederatedConfig
from floe.evaluation.servers import floe_server
from floe.federated.centroids import contrasted, public_centroid
from floe.federated.examples import Example
from floe.federated.on_torch.base_model import BaseModel
from floe.federated.on_torch.train import answer_loss
from floe.federated.peft_folder import write_peft_folder
from floe.federated.report import RoundReport
from floe.flower.settings import AppSettings
from floe.flower.simulate import simulate

DOMAINS = ("code", "law", "maths", "medicine")
DATA = Path(__file__).parent / "learn_together_data"
SEED = 29
CONFIG = """[model]
threads = 1

[adapters]
shipped = false
signatures = "require"

[routing]
learner = "gate"
top_k = 1
threshold = 0.1
"""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A domain's examples by part, as (prompt, answer)."""

    train: list[tuple[str, str]]
    public: list[tuple[str, str]]
    held_out: list[tuple[str, str]]


def say(text: str) -> None:
    print(text, flush=True)


def read_samples(folder: Path) -> dict[str, Sample]:
    out = {}
    for domain in DOMAINS:
        rows = [json.loads(x) for x in (folder / f"{domain}.jsonl").read_text("utf-8").splitlines()]
        parts = {part: [(r["prompt"], r["answer"]) for r in rows if r["part"] == part]
                 for part in ("train", "public", "held_out")}  # fmt: skip
        out[domain] = Sample(**parts)
    return out


def write_devices(samples: dict[str, Sample], folder: Path, *, per_device: int) -> dict[str, str]:
    """A file of examples for each of eight devices; device -> the domain of most of them."""
    rng, folder_of = random.Random(SEED), {}
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(2 * len(DOMAINS)):
        domain = DOMAINS[n // 2]
        own = samples[domain].train
        half = len(own) // 2
        rows = own[(n % 2) * half : (n % 2) * half + half][: per_device - n]  # unequal sizes
        others = [r for d in DOMAINS if d != domain for r in samples[d].train]
        rows = rows + rng.sample(others, max(1, len(rows) // 10))
        name = f"device-{n + 1}"
        folder_of[name] = domain
        lines = [json.dumps({"prompt": p, "answer": a}) for p, a in rows]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder_of


def learn(settings: AppSettings) -> None:
    """The rounds, in this process: the same bytes and checks as over a network."""

    def tell(report: RoundReport) -> None:
        groups = "; ".join(f"{c.cluster}: {', '.join(c.clients)}" for c in report.clusters)
        say(f"  round {report.round_number}: {len(report.accepted)} updates, "
            f"{report.bytes_up / 1e6:.1f} MB up, clusters {groups}")  # fmt: skip

    simulate(settings, backend="inline", tell=tell)


def public_gains(
    found: Sequence[ClusterAdapter], samples: dict[str, Sample], base: BaseModel
) -> tuple[list[str], list[str], np.ndarray]:
    """Public prompts, their domains, and by how much each adapter lowers each answer's loss."""
    rows = [(d, p, a) for d in DOMAINS for p, a in samples[d].public]
    encoded = [base.encode(Example.of(p, a)) for _, p, a in rows]
    plain = [answer_loss(base, None, [row]).loss for row in encoded]
    gains = [
        [before - answer_loss(base, one.state, [row]).loss
         for before, row in zip(plain, encoded, strict=True)]
        for one in found
    ]  # fmt: skip
    return [p for _, p, _ in rows], [d for d, _, _ in rows], contrasted(np.array(gains))


def floe(home: Path, *words: str) -> str:
    env = {**os.environ, "FLOE_HOME": str(home)}
    command = [sys.executable, "-m", "floe", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"floe {words[0]} {words[1]}: {done.stderr.strip()}")
    return done.stdout.strip()


def ask(url: str, prompt: str) -> str:
    """The adapter that a running server answers this prompt with; "" for the base."""
    body = {"model": "auto", "max_tokens": 1, "messages": [{"role": "user", "content": prompt}]}
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        route = json.load(response)["floe"]["route"]
    best = max(route["adapters"], key=lambda a: a["weight"], default={"id": ""})
    return str(best["id"])


class Likelihood:
    """Log-likelihood of answers by the engine that serves, nats a token."""

    def __init__(self, config: Any, home: Path) -> None:
        self.engine = open_engine(config.model, home=home)
        self._format = chat_format(self.engine)
        self.store: AdapterStore = open_store(config, self.engine, home=home)
        self._handles = {
            s.manifest.name: self.engine.load_adapter(s.gguf, key=s.manifest.digest)
            for s in self.store.list()
        }

    def of(self, prompt: str, answer: str, adapter: str) -> float:
        messages = (Message(role="user", content=prompt),)
        head = self._format.encode(Request(id="r", messages=messages))
        ids = [
            *self.engine.tokenize(answer), *self.engine.tokenize("<|im_end|>", special=True)
        ]  # fmt: skip
        route = [(self._handles[adapter], 1.0)] if adapter else []
        session = self.engine.session(route).result()
        try:
            total = float(session.feed(head)[ids[0]])
            rest_TV = session.feed(ids[:-1], every=True)
            total += float(rest_TV[np.arange(len(ids) - 1), ids[1:]].sum())
        finally:
            session.close()
        return total / len(ids)


def federated_settings(args: argparse.Namespace, home: Path) -> AppSettings:
    fed = FederatedConfig(
        name="together", data=str(args.work / "devices"), rounds=args.rounds, steps=args.steps,
        batch=args.batch, max_tokens=160, learning_rate=args.learning_rate, seed=SEED,
        ranks=(4, 8, 16, 32), rank=16, min_clients=4, min_members=2, upload_bits=8,
    )  # fmt: skip
    model = load_config(args.config_path).model.name
    return AppSettings(home=str(home), model=model, federated=fed, simulated=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder to work in")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10, help="of each device in each round")
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--data", type=Path, default=DATA, help="DOMAIN.jsonl with parts")
    args = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    began_s, cpu_s = time.monotonic(), time.process_time()
    home = prepared_home(args)
    samples = read_samples(args.data)
    domain_of = write_devices(samples, args.work / "devices", per_device=26)
    settings = federated_settings(args, home)

    say(f"1. eight devices learn, {args.rounds} rounds of {args.steps} steps")
    learn(settings)
    base = open_base(settings.model, home=home)

    say("2. members have judged")
    found = cluster_adapters(settings.federated, home=home, base_digest=base.digest)
    for one in found:
        assert one.gate is not None
        say(f"  {one.cluster}: {one.gate.why or 'passed'} {one.gate.facts()}")
    say("3. public prompts say where each adapter belongs")
    prompts, domains, gains = public_gains(found, samples, base)
    say("4. signed and published")
    floe(home, "fed", "keys", "new") if not (home / "trust/publish.key").exists() else None
    names = publish_all(found, (prompts, domains, gains), args, home, base)
    del base

    say("5. a server routes held-out prompts by content, 6. and answers get likelier")
    faults = check_clusters(found, domain_of) + check_answers(args, home, samples, names)
    say(f"{time.monotonic() - began_s:.0f} s, {time.process_time() - cpu_s:.0f} s of one core here")
    for fault in faults:
        say(f"FAULT: {fault}")
    sys.exit(1 if faults else 0)


def prepared_home(args: argparse.Namespace) -> Path:
    """A FLOE_HOME of its own with the models of the user's."""
    home = Path(args.work) / "home"
    home.mkdir(parents=True, exist_ok=True)
    for name in ("models", "train"):
        place = user_home() / name
        place.mkdir(parents=True, exist_ok=True)
        if not (home / name).exists():
            (home / name).symlink_to(place.resolve(), target_is_directory=True)
    args.config_path = args.work / "floe.toml"
    args.config_path.write_text(CONFIG, encoding="utf-8")
    return home


def publish_all(
    found: Sequence[ClusterAdapter],
    public: tuple[list[str], list[str], np.ndarray],
    args: argparse.Namespace,
    home: Path,
    base: BaseModel,
) -> dict[str, str]:
    """Sign and publish each cluster's adapter that passed; cluster -> its name, by topic."""
    embedding = open_embedding(home=home)
    prompts, domains, gains = public
    vectors = np.array([embedding(p) for p in prompts])
    names: dict[str, str] = {}
    for one, gain in zip(found, gains, strict=True):
        result = one.gate
        if result is None or not result.passes:
            continue
        try:
            centroid = public_centroid(vectors, gain, encoder_digest=embedding.digest, share=0.2)
        except BadRound as error:
            say(f"  {one.cluster}: {error.message}")
            continue
        best = Counter(np.array(domains)[np.argsort(-gain)[: len(gain) // 5]]).most_common(1)[0][0]
        name = best if best not in names.values() else f"{best}-{one.cluster}"
        facts = {
            "description": f"learned by {len(one.members)} devices", "round": args.rounds,
            "base_digest": base.digest, **result.facts(),
        }  # fmt: skip
        folder = args.work / "published" / name
        write_peft_folder(one.state, folder, base.name, facts=facts, centroid=centroid)
        config = str(args.config_path)
        say("  " + floe(home, "fed", "publish", str(folder), "--name", name, "--config", config))
        names[one.cluster] = name
    return names


def check_clusters(found: Sequence[ClusterAdapter], domain_of: dict[str, str]) -> list[str]:
    mixed = [c for c in found if len({domain_of[m] for m in c.members}) > 1]
    faults = [f"cluster {c.cluster} mixes domains: {', '.join(c.members)}" for c in mixed]
    if len(found) != len(DOMAINS):
        faults.append(f"{len(found)} clusters, not {len(DOMAINS)}")
    return faults


def check_answers(
    args: argparse.Namespace, home: Path, samples: dict[str, Sample], names: dict[str, str]
) -> list[str]:
    faults = []
    chosen: dict[str, list[str]] = {}
    with floe_server(home, args.config_path) as server:
        for domain in DOMAINS:
            chosen[domain] = [ask(server.url, p) for p, _ in samples[domain].held_out]
    judge_ = Likelihood(load_config(args.config_path), home)
    try:
        for domain in DOMAINS:
            rows = samples[domain].held_out
            right = [n for n, name in enumerate(chosen[domain]) if name == domain]
            base = [judge_.of(p, a, "") for p, a in rows]
            with_it = [judge_.of(*rows[n], chosen[domain][n]) for n in range(len(rows))]
            say(f"  {domain}: {len(right)} of {len(rows)} prompts to its adapter, log-likelihood "
                f"{statistics.mean(base):.3f} -> {statistics.mean(with_it):.3f} nats a token"
            )  # fmt: skip
            if domain not in names.values():
                faults.append(f"no cluster's adapter is for {domain}")
            if 2 * len(right) <= len(rows):
                faults.append(f"most held-out prompts of {domain} go elsewhere: {chosen[domain]}")
            if statistics.mean(with_it) <= statistics.mean(base):
                faults.append(f"answers of {domain} get no likelier")
    finally:
        judge_.engine.close()
    return faults


if __name__ == "__main__":
    main()
