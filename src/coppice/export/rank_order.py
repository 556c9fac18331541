"""Export a rank order as the rankfile or hostfile of a launcher."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from coppice.arguments import expect_one_of
from coppice.errors import InputError
from coppice.export.formats import Exported, RankOrderOptions
from coppice.fitting.rank_order import RankOrder, rank_order, read_groups
from coppice.topology.model import Topology

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def export_rank_order(topology: Topology, options: RankOrderOptions) -> Exported:
    """Export a rank order for a topology and its groups for a launcher.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> made = export_rank_order(preset("fat-tree", leaves=2, gpus_per_leaf=2), RankOrderOptions(launcher="mpich"))
        >>> made.text.splitlines()
        ['host0:1', 'host1:1', 'host2:1', 'host3:1']
    """
    launcher, groups = options.launcher, options.groups
    read = None if groups is None else read_groups(groups, topology.num_ranks)
    order = rank_order(topology, groups=read, whole_hosts=options.whole_hosts, names=options.names)
    return Exported(
        text=rank_order_text(order, launcher, cores=options.cores),
        notes=(*_gain(order), LAUNCHERS[launcher][1]),
        suffix=".json" if launcher == "json" else ".txt",
    )


def rank_order_text(order: RankOrder, launcher: str, *, cores: int = 1) -> str:
    """Encode the file of a launcher.

    Args:
        launcher: One of :data:`LAUNCHERS`.
        cores: Cores that a rank of Open MPI is bound to.
    """
    expect_one_of("launcher", launcher, LAUNCHERS)
    if cores < 1:
        raise InputError(f"expected 1 core or more for each rank, found {cores}.")
    if launcher != "json":
        for host, _ in order.host_order:
            if not _HOST.fullmatch(host):
                raise InputError(
                    f"expected names of hosts of letters, digits, dots and dashes, found {host!r}: give the names."
                )
    if launcher == "open-mpi":
        return _open_mpi(order, cores)
    return LAUNCHERS[launcher][0](order)


def _gain(order: RankOrder) -> tuple[str, ...]:
    before, after = order.before, order.after
    found = f"rings of {_groups(order)} cross {after.words} from host to host, {before.words} as numbered"
    if order.bound is None:
        return (found,)
    return (found, f"no order crosses fewer than {order.bound} links")


def _groups(order: RankOrder) -> str:
    names = dict.fromkeys(group.name for group in order.groups)
    return ", ".join(names) if len(names) <= 6 else f"{len(names)} groups"


def _hosts(order: RankOrder) -> str:
    _require_whole(order, "a list of hosts")
    return _lines(host for host, _ in order.host_order)


def _slurm(order: RankOrder) -> str:
    return _lines(order.hosts)


def _open_mpi(order: RankOrder, cores: int) -> str:
    def slot(local: int) -> str:
        first = local * cores
        return str(first) if cores == 1 else f"{first}-{first + cores - 1}"

    return _lines(
        f"rank {rank}={host} slot={slot(local)}"
        for rank, (host, local) in enumerate(zip(order.hosts, order.local, strict=True))
    )


def _one_core(order: RankOrder) -> str:
    return _open_mpi(order, 1)


def _mpich(order: RankOrder) -> str:
    _require_whole(order, "an MPICH machine file")
    return _lines(f"{host}:{count}" for host, count in order.host_order)


def _torchrun(order: RankOrder) -> str:
    _require_whole(order, "torchrun")
    if len({count for _, count in order.host_order}) > 1:
        raise InputError(
            "torchrun numbers ranks by node only where all nodes have equally many, found different numbers."
        )
    rows = ["node_rank\tnproc_per_node\tfirst_rank\thost"]
    first = 0
    for node, (host, count) in enumerate(order.host_order):
        rows.append(f"{node}\t{count}\t{first}\t{host}")
        first += count
    return _lines(rows)


def _json(order: RankOrder) -> str:
    topology = order.topology
    ids = [topology.node_ids[int(topology.rank_nodes[gpu])] for gpu in order.gpus]
    document = {
        "format": "coppice-rank-order",
        "version": 1,
        "topology": topology.name,
        "topology_sha256": topology.sha256,
        "groups": [
            {"name": group.name, "weight": group.weight, "ranks": list(group.ranks)} for group in order.groups
        ],
        "before": order.before.record(),
        "after": order.after.record(),
        "bound_links": order.bound,
        "ranks": [
            {"rank": rank, "host": host, "local": local, "topology_rank": gpu, "gpu": name}
            for rank, (host, local, gpu, name) in enumerate(
                zip(order.hosts, order.local, order.gpus, ids, strict=True)
            )
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _require_whole(order: RankOrder, what: str) -> None:
    if not order.whole_hosts:
        raise InputError(
            f"{what} keeps the ranks of a host together, and this order does not: leave out `whole_hosts=no`, "
            "or take slurm, open-mpi or json."
        )


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


LAUNCHERS: dict[str, tuple[Callable[[RankOrder], str], str]] = {
    "json": (_json, "the place of a rank among those of its host (local) is the index of its GPU there"),
    "hosts": (
        _hosts,
        "one host in a line, in the order of their ranks, for launchers that fill hosts in turn",
    ),
    "slurm": (
        _slurm,
        "SLURM_HOSTFILE=FILE srun --distribution=arbitrary --ntasks=N: line r is the host of rank r",
    ),
    "open-mpi": (
        _one_core,
        "mpirun --rankfile FILE (before 5.0) or --map-by rankfile:file=FILE; ranks are bound to their slots, cores",
    ),
    "mpich": (_mpich, "mpiexec -f FILE; Hydra fills host after host, so the ranks of a host are consecutive"),
    "torchrun": (
        _torchrun,
        "run torchrun with --node-rank and --nproc-per-node of its line on each host, with a static rendezvous",
    ),
}
"""Writers, and how each file is used."""
