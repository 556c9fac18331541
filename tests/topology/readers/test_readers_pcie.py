"""PCIe of a machine as a way between its GPUs: kept, left out, or left out with the NICs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from coppice import Collective, InputError, Problem, bound, load
from coppice.topology import NodeKind, Topology
from coppice.topology.readers import read
from support.reader_samples import NVIDIA_DIRECT, NVIDIA_SWITCHED, ROCM, XML_DIRECT
from topology.readers.reading import parsed, rates, refused

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


def both(half: dict[tuple[str, str], int]) -> dict[tuple[str, str], Fraction]:
    return {pair: Fraction(rate) for (a, b), rate in half.items() for pair in ((a, b), (b, a))}


def uniform(cell: str, gpus: int) -> bytes:
    names = [f"GPU{i}" for i in range(gpus)]
    rows = [[name, *("X" if name == other else cell for other in names)] for name in names]
    return "\n".join("\t".join(row) for row in [["", *names], *rows]).encode()


def test_direct_links_and_the_pcie_tree() -> None:
    reading = parsed(NVIDIA_DIRECT)
    topology = reading.topology
    assert topology.hosts == ("box",)
    assert "6 links" not in reading.warnings[0]
    assert "model v100" in reading.warnings[0]
    assert rates(topology) == both(
        {
            ("gpu0", "gpu1"): 40,
            ("gpu0", "gpu2"): 20,
            ("gpu1", "gpu3"): 20,
            ("gpu2", "gpu3"): 40,
            ("gpu0", "pcie0"): 12,
            ("gpu1", "pcie0"): 12,
            ("mlx5_0", "pcie0"): 12,
            ("pcie0", "cpu0"): 12,
            ("gpu2", "pcie1"): 12,
            ("mlx5_1", "pcie1"): 12,
            ("pcie1", "cpu1"): 12,
            ("gpu3", "cpu1"): 12,
            ("cpu0", "cpu1"): 10,
        }
    )
    assert topology.kind[topology.node_index["mlx5_0"]] == NodeKind.NIC


def test_only_a_model_that_is_given_becomes_a_fact() -> None:
    assert parsed(NVIDIA_DIRECT).topology.arch == ()
    told = parsed(NVIDIA_DIRECT, gpu="v100").topology
    assert {told.arch[v] for v in told.rank_nodes.tolist()} == {"sm_70"}
    amd = parsed(ROCM, xgmi_links="1").topology
    assert all((amd.arch[v] or "").startswith("gfx") for v in amd.rank_nodes.tolist())


def test_rows_beyond_the_links_of_a_gpu_mean_switches() -> None:
    reading = parsed(NVIDIA_SWITCHED)
    topology = reading.topology
    found = rates(topology)
    assert found["gpu0", "nvswitch"] == found["nvswitch", "gpu2"] == 240
    assert not topology.multicast.any()
    assert topology.node_ids[4:6] == ("mlx5_0", "mlx5_bond_0")
    assert found["gpu0", "pcie0"] == found["mlx5_0", "pcie0"] == found["gpu2", "cpu1"] == 24
    assert found["cpu0", "cpu1"] == 16
    assert any("mlx5_bond_0 share no PCIe switch or CPU" in warning for warning in reading.warnings)
    assert rates(parsed(NVIDIA_SWITCHED, rates="nominal").topology)["gpu0", "nvswitch"] == 300


@pytest.mark.parametrize(
    ("cell", "gpus", "options", "pair", "rate"),
    [
        ("NV18", 8, {}, ("gpu0", "nvswitch"), 18 * Fraction("20.6")),
        ("NV18", 8, {"gpu": "b200"}, ("gpu0", "nvswitch"), 18 * Fraction("40.1")),
        ("NV6", 16, {}, ("gpu0", "nvswitch"), 120),
        ("NV8", 8, {}, ("gpu0", "nvswitch"), 160),
        ("NV8", 8, {"gpu": "h800"}, ("gpu0", "nvswitch"), 8 * Fraction("20.6")),
        ("NV4", 4, {}, ("gpu0", "gpu3"), 80),
        ("NV6", 4, {}, ("gpu0", "gpu3"), 6 * Fraction("20.6")),
        ("NV6", 4, {"gpu": "v100"}, ("gpu0", "nvswitch"), 120),
        ("NV12", 2, {}, ("gpu0", "gpu1"), 240),
        ("NV4", 2, {"gpu": "a6000"}, ("gpu0", "gpu1"), 48),
        ("NV12", 8, {"gpu_link_gb_per_s": "25"}, ("gpu0", "nvswitch"), 300),
    ],
)
def test_direct_or_switched(
    cell: str, gpus: int, options: dict[str, str], pair: tuple[str, str], rate: Fraction
) -> None:
    assert rates(parsed(uniform(cell, gpus), **options).topology)[pair] == rate


def test_switches_from_hopper_on_copy_and_add() -> None:
    topology = parsed(uniform("NV18", 8)).topology
    switch = topology.node_index["nvswitch"]
    assert topology.multicast[switch]
    assert topology.aggregate[switch]


def test_a_gpu_without_links_is_told() -> None:
    text = uniform("NV12", 4).decode().split("\n")
    rows = [line.split("\t") for line in text]
    for i in range(1, 5):
        if i != 2:
            rows[2][i] = rows[i][2] = "SYS"
    reading = parsed("\n".join("\t".join(row) for row in rows).encode())
    assert ("gpu1", "nvswitch") not in rates(reading.topology)
    assert any("input:3: GPU1 has no NVLink while others have" in warning for warning in reading.warnings)


def test_without_nvlink_everything_is_pcie() -> None:
    reading = parsed(uniform("PHB", 2))
    assert rates(reading.topology) == both({("gpu0", "cpu0"): 24, ("gpu1", "cpu0"): 24})
    assert "no NVLink" in reading.warnings[0]
    found = rates(parsed(uniform("SYS", 2), pcie_gb_per_s="11", socket_gb_per_s="7").topology)
    assert found == both({("gpu0", "cpu0"): 11, ("gpu1", "cpu1"): 11, ("cpu0", "cpu1"): 7})


def test_pcie_switches_stack() -> None:
    names = ["GPU0", "GPU1", "GPU2", "GPU3", "mlx5_0"]
    near = {(0, 1): "PIX", (2, 3): "PIX", (0, 2): "PXB", (0, 3): "PXB", (1, 2): "PXB", (1, 3): "PXB"}
    rows = [
        [name, *("X" if i == j else near.get((min(i, j), max(i, j)), "NODE") for j in range(5))]
        for i, name in enumerate(names)
    ]
    text = "\n".join("\t".join(row) for row in [["", *names], *rows])
    found = rates(parsed(text.encode()).topology)
    assert found == both(
        {
            ("gpu0", "pcie1"): 24,
            ("gpu1", "pcie1"): 24,
            ("gpu2", "pcie2"): 24,
            ("gpu3", "pcie2"): 24,
            ("pcie1", "pcie0"): 24,
            ("pcie2", "pcie0"): 24,
            ("pcie0", "cpu0"): 24,
            ("mlx5_0", "cpu0"): 24,
        }
    )


def test_spaces_tabs_colours_and_line_ends_read_the_same() -> None:
    plain = parsed(NVIDIA_DIRECT).topology.sha256
    spaced = NVIDIA_DIRECT.replace(b"\t", b"     ")
    coloured = NVIDIA_DIRECT.replace(b"NV2", b"\x1b[32mNV2\x1b[0m")
    for text in (
        spaced,
        coloured,
        NVIDIA_DIRECT.replace(b"\n", b"\r\n"),
        NVIDIA_DIRECT.decode().encode("utf-16"),
    ):
        assert parsed(text).topology.sha256 == plain


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"GPU1\tNV2\t X", b"GPU1\tNV1\t X", ["GPU0 to GPU1", "input:2", "the other way round"]),
        (b"GPU0\t X ", b"GPU0\tPIX", ["input:2", "X where GPU0 meets itself"]),
        (b"GPU3\tSYS\tNV1\tNV2\t X \tSYS\tPHB\t20-39\n", b"", ["a row for GPU3", "cut"]),
        (b"\t X \tSYS\tPHB\t20-39", b"", ["6 cells in the row GPU3", "input:5", "found 3"]),
        (b"GPU1\tNV2", b"GPU0\tNV2", ["the row GPU0", "input:3", "repeats line 2"]),
        (b"GPU3\tmlx5_0", b"GPU0\tmlx5_0", ["header at input:1", "GPU0 twice"]),
        (b"PXB", b"PQR", ["'PQR'", "input:4"]),
        (b"NV2", b"NV99", ["'NV99'"]),
    ],
)
def test_damaged_matrices_are_refused_with_the_line(old: bytes, new: bytes, words: list[str]) -> None:
    message = refused(NVIDIA_DIRECT.replace(old, new))
    assert all(word in message for word in words), message


def test_links_that_fit_no_machine_are_refused() -> None:
    assert "neither direct" in refused(NVIDIA_DIRECT.replace(b"NV2", b"NV12").replace(b"NV1\t", b"NV12\t"))


def test_rocm_reads_weights_not_hops() -> None:
    topology = parsed(ROCM, xgmi_links="1").topology
    found = rates(topology)
    assert ("gpu0", "gpu3") not in found
    assert ("gpu1", "gpu2") not in found
    assert found["gpu0", "gpu1"] == found["gpu0", "gpu2"] == found["gpu3", "gpu1"] == 36
    assert found["gpu0", "cpu0"] == found["gpu3", "cpu1"] == 24
    assert found["cpu0", "cpu1"] == 16
    assert rates(parsed(ROCM, xgmi_links="2", rates="nominal").topology)["gpu0", "gpu1"] == 100


def test_rocm_needs_the_number_of_links_where_it_differs() -> None:
    message = refused(ROCM)
    assert "how many xGMI links" in message
    assert "xgmi_links=N" in message


def test_rocm_meshes_are_recognised() -> None:
    mesh = ROCM.replace(b"30", b"15")
    reading = parsed(mesh)
    assert "mi100" in reading.warnings[0]
    assert rates(reading.topology)["gpu0", "gpu3"] == 24
    joined = mesh.replace(b"Numa Node: 1\nGPU[3]", b"Numa Node: 2\nGPU[3]").replace(
        b"GPU[1]\t\t: (Topology) Numa Node: 0", b"GPU[1]\t\t: (Topology) Numa Node: 3"
    )
    topology = parsed(joined).topology
    assert rates(topology)["gpu0", "gpu3"] == 2 * 48
    assert topology.num_nodes == 4
    eight = [f"GPU{i}" for i in range(8)]

    def table(title: str, cell: str) -> str:
        rows = [" ".join([a, *("0" if a == b else cell for b in eight)]) for a in eight]
        return "\n".join([f"==== {title} ====", "  " + " ".join(eight), *rows, ""])

    text = table("Weight between two GPUs", "15") + "\n" + table("Link Type between two GPUs", "XGMI")
    assert rates(parsed(text.encode()).topology)["gpu0", "gpu7"] == 48
    assert rates(parsed(text.encode(), gpu="mi355x").topology)["gpu0", "gpu7"] == 48
    far = text.replace("XGMI", "PCIE").replace("15", "40")
    assert rates(parsed(far.encode()).topology) == both({(g.lower(), "cpu0"): 24 for g in eight})


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"Weight between", b"Wait between", ["no table 'Weight between two GPUs'"]),
        (b"Link Type between two GPUs", b"", ["no table 'Link Type between two GPUs'"]),
        (
            b"GPU0   0            15",
            b"GPU0   0            12",
            ["weight from GPU0 to GPU1 is 12 at input:5", "15"],
        ),
        (
            b"GPU0   0            XGMI",
            b"GPU0   0            NIC",
            ["link type from GPU0 to GPU1 is NIC at input:19"],
        ),
        (b"XGMI", b"LINK", ["'LINK'", "input:19"]),
        (b"15", b"near", ["'near'", "input:5"]),
        (b"GPU3   30           15           15           0", b"", ["a row for GPU3"]),
    ],
)
def test_damaged_rocm_text_is_refused(old: bytes, new: bytes, words: list[str]) -> None:
    message = refused(ROCM.replace(old, new), xgmi_links="1")
    assert all(word in message for word in words), message
