"""What a federation has learned so far, as PEFT folders: no torch is needed for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from floe.assemble.federated import server_base, server_folder
from floe.assemble.judging import read_gates
from floe.assemble.models import model_files
from floe.core.errors import NotFound
from floe.core.sections import FederatedConfig
from floe.federated import wire
from floe.federated.peft_folder import Fact, write_peft_folder
from floe.federated.publish_gate import GateResult
from floe.federated.report import read_reports
from floe.federated.state import Codec, StateFolder
from floe.federated.update import AdapterState


@dataclass(frozen=True, kw_only=True, eq=False)
class ClusterAdapter:
    """A cluster's newest adapter; `members` are the devices that it was learned from or is for.

    `gate` is what they judged of it, None where nobody was asked.
    """

    cluster: str
    state: AdapterState
    members: tuple[str, ...]
    gate: GateResult | None = None


def cluster_adapters(
    fed: FederatedConfig, *, home: Path, base_digest: str
) -> tuple[ClusterAdapter, ...]:
    """Every cluster that has an adapter, by its id.

    Raises:
        NotFound: no round has given one yet. BadRound: the state is damaged or of another base.
    """
    folder = server_folder(fed, home=home)
    state = StateFolder(folder, codec=Codec(pack=wire.encode, unpack=wire.decode))
    memory = state.read(base_digest)
    gates = read_gates(folder, memory.adapters)
    found = []
    for cluster, digest in sorted(memory.adapters.items()):
        adapter = state.adapter(digest)
        if adapter is not None:
            members = tuple(sorted(d for d, c in memory.clusters.items() if c == cluster))
            found.append(
                ClusterAdapter(
                    cluster=cluster, state=adapter, members=members, gate=gates.get(cluster)
                )
            )
    if not found:
        raise NotFound(f"no round of {fed.name!r} has given an adapter yet; see: floe fed simulate")
    return tuple(found)


def export(fed: FederatedConfig, model: str, out: Path, *, home: Path) -> dict[str, Path | str]:
    """Write each cluster's adapter to `out`/CLUSTER, with what its training spent in the card.

    Cluster -> its folder, or why the gate stopped it. Raises as `cluster_adapters`, and what
    finding the base raises.
    """
    digest, _ = server_base(fed, model, home=home)
    base = base_name(fed, model, home=home)
    facts = _run_facts(fed, server_folder(fed, home=home))
    folders: dict[str, Path | str] = {}
    for one in cluster_adapters(fed, home=home, base_digest=digest):
        if one.gate is not None and not one.gate.passes:
            folders[one.cluster] = one.gate.why
            continue
        card: dict[str, Fact] = {
            "description": f"learned by {len(one.members)} devices",
            "cluster": one.cluster,
            "base_digest": digest,
            **facts,
            **(one.gate.facts() if one.gate is not None else {}),
        }
        folders[one.cluster] = write_peft_folder(one.state, out / one.cluster, base, facts=card)
    return folders


def base_name(fed: FederatedConfig, model: str, *, home: Path) -> str:
    """The publisher's full name of the base, as a PEFT folder names it."""
    folder = Path(fed.base).expanduser()
    if fed.base and folder.is_dir():
        return folder.resolve().name
    pulled = model_files(fed.base or model, home=home)
    names = sorted(pulled.base_names, key=lambda n: ("/" not in n, n))
    return names[0] if names else pulled.name


def _run_facts(fed: FederatedConfig, folder: Path) -> dict[str, Fact]:
    """Rounds held, and the epsilon so far with its delta where privacy was accounted for."""
    counted = [r for r in read_reports(folder) if not r["void"]]
    last = counted[-1] if counted else None
    spent = last.get("epsilon") if last else None
    facts: dict[str, Fact] = {"round": int(last["round_number"]) if last else 0}
    return facts | ({} if spent is None else {"epsilon": float(spent), "delta": fed.delta})
