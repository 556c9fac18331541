"""PCIe of a machine as a way between its GPUs: kept, left out, or left out with the NICs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from coppice import Collective, InputError, Problem, bound, load
from coppice.topology import NodeKind, Topology
from coppice.topology.readers import read
from support.reader_samples import XML_DIRECT

PAIRS = ("PIX", "SYS")


def smi(gpus: int, nics: int, *, cell: str = "NV12") -> bytes:
    """A machine of `nvidia-smi topo -m`: GPUs by NVLink, each second one under one PCIe switch with its NICs."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"mlx5_{i}" for i in range(nics)]

    def place(number: int) -> int:
        return number // 2 if number < gpus else (number - gpus) * gpus // (2 * nics)

    rows = [["", *names, "NUMA Affinity"]]
    for a, name in enumerate(names):
        cells = []
        for b in range(len(names)):
            near = PAIRS[place(a) != place(b)]
            cells.append("X" if a == b else cell if max(a, b) < gpus else near)
        rows.append([name, *cells, str(place(a)) if a < gpus else ""])
    return "\n".join("\t".join(row) for row in rows).encode()


def machine(data: bytes, **options: Any) -> Topology:
    return read(data, options={"gpu": "a100", **options}).topology


def rate(topology: Topology) -> Fraction:
    return bound(Problem(topology=topology, collective=Collective.ALL_GATHER)).algbw_gb_per_s


@pytest.mark.parametrize(("gpus", "nics"), [(8, 8), (8, 16), (4, 4)])
def test_nics_stay_and_gpus_have_the_rate_of_the_preset(gpus: int, nics: int) -> None:
    kept, only = (machine(smi(gpus, nics), pcie=pcie) for pcie in ("keep", "nics"))
    assert int((only.kind == NodeKind.NIC).sum()) == nics
    switches = 1 if nics == gpus else 1 + gpus  # the NVSwitch, and one for each GPU with several NICs
    assert int((only.kind == NodeKind.SWITCH).sum()) == switches
    bare = machine(smi(gpus, nics), pcie="drop")
    assert rate(only) == rate(bare) < rate(kept)
    if gpus == 8:
        assert rate(only) == rate(load("dgx-a100", rates="measured"))
    assert {reached(only, gpu, NodeKind.NIC) for gpu in only.rank_nodes.tolist()} == {nics // gpus}
    assert only.capacity_in[only.kind == NodeKind.NIC].tolist() == [24] * nics


def reached(topology: Topology, start: int, kind: NodeKind) -> int:
    """How many nodes of this kind are one link, or one PCIe switch, away."""
    near = set(topology.dst[topology.src == start].tolist())
    beyond = {
        node
        for v in near
        if topology.node_ids[v].startswith("pcie")
        for node in topology.dst[topology.src == v].tolist()
    }
    return sum(topology.kind[v] == kind for v in near | beyond - {start})


def test_fewer_nics_than_gpus_are_shared() -> None:
    """Two GPUs use a NIC at its own rate, and nothing leads from one to the other but that NIC."""
    only = machine(smi(8, 4), pcie="nics")
    nics = np.flatnonzero(only.kind == NodeKind.NIC).tolist()
    assert only.capacity_in[nics].tolist() == only.capacity_out[nics].tolist() == [24] * 4
    for v in nics:
        [into] = only.src[only.dst == v].tolist()
        [out] = only.dst[only.src == v].tolist()
        for ends in (only.src[only.dst == into], only.dst[only.src == out]):
            assert [only.node_ids[end] for end in ends] == [f"gpu{2 * (v - 9)}", f"gpu{2 * (v - 9) + 1}"]


def test_the_rate_to_a_nic_is_that_of_the_narrowest_part() -> None:
    """XML: gpu0 and a NIC under one bridge, gpu1 and another on a CPU."""
    kept, only = (read(XML_DIRECT, options={"pcie": pcie}).topology for pcie in ("keep", "nics"))
    assert [name for name in kept.node_ids if "mlx5" in name] == ["mlx5_0", "mlx5_1"]
    assert set(only.node_ids) == {"gpu0", "gpu1", "mlx5_0", "mlx5_1"}
    for v in (only.node_index["mlx5_0"], only.node_index["mlx5_1"]):
        [end] = only.dst[only.src == v].tolist()
        assert only.gb_per_s(only.link_index[v, end]) <= kept.capacity_in[v] / kept.denominator
    ends = only.node_index["gpu0"], only.node_index["gpu1"]
    assert only.gb_per_s(only.link_index[ends]) == kept.gb_per_s(kept.link_index[ends])


@pytest.mark.parametrize("pcie", ["nics", "drop"])
def test_gpus_that_only_pcie_joins_keep_it(pcie: str) -> None:
    with pytest.raises(
        InputError, match=rf"pcie={pcie} leaves gpu0 of .* without any link to a GPU: keep PCIe"
    ):
        machine(smi(4, 4, cell="PHB"), pcie=pcie, gpu="pcie")
