"""The machine that NCCL would see: the same one in every spelling of it."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection import Selection, select
from coppice.selection.nccl_machine import NcclMachine, machine_of
from coppice.topology.composition.compose import Host, compose, default_ports, repeated
from coppice.topology.composition.fabric import SwitchFabric
from coppice.topology.load import load
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.operations import remove_links, subset
from coppice.topology.presets import preset
from coppice.topology.readers.document import topology_json, write_topology
from support.reader_samples import gpu_xml, nic_xml, nvlink, xml


def pick(topology: Topology, size: int = 2**24, collective: Collective = Collective.ALL_REDUCE) -> Selection:
    return select("nccl", collective, size, topology=topology)


def quietly(source: object, **options: object) -> Topology:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return load(source, **options)  # type: ignore[arg-type]


def nvidia_xml(sm: int, links: int, *, pcie: str, mbit: str, cpu: str) -> bytes:
    """Eight GPUs on NVSwitches, each beside a NIC on a PCIe switch of its own, on two CPUs."""
    halves = []
    for half in range(2):
        body = ""
        for i in range(4 * half, 4 * half + 4):
            lane = f'link_speed="{pcie} GT/s PCIe" link_width="16"'
            body += f'<pci busid="0000:a{i}:00.0" class="0x060400" vendor="0x1000" device="0x1" {lane}>\n'
            body += gpu_xml(f"1{i}", i, nvlink("f0", links, "0x068000"), sm=sm, link=lane)
            body += nic_xml(f"2{i}", f"mlx5_{i}", speed=mbit, dev=i).replace("16.0 GT/s", f"{pcie} GT/s")
            body += "</pci>\n"
        halves.append(body)
    return xml(halves[0], second=halves[1], cpu=f'vendor="{cpu}"')


SPELLINGS = {
    "dgx-a100": (nvidia_xml(80, 12, pcie="16.0", mbit="200000", cpu="AuthenticAMD"), "NV12", {"cpu": "amd"}),
    "dgx-h100": (nvidia_xml(90, 18, pcie="32.0", mbit="400000", cpu="GenuineIntel"), "NV18", {}),
    "dgx-b200": (
        nvidia_xml(100, 18, pcie="32.0", mbit="400000", cpu="GenuineIntel"),
        "NV18",
        {"gpu": "b200"},
    ),
}


def smi(cell: str) -> bytes:
    """``nvidia-smi topo -m`` of such a box: GPU i and NIC i on one PCIe switch, four of each on a CPU."""
    names = [*(f"GPU{i}" for i in range(8)), *(f"NIC{i}" for i in range(8))]
    rows = ["\t" + "\t".join(names)]
    for a, row in enumerate(names):
        cells = []
        for b in range(len(names)):
            if a == b:
                cells.append("X")
            elif a < 8 and b < 8:
                cells.append(cell)
            elif a % 8 == b % 8:
                cells.append("PIX")
            else:
                cells.append("NODE" if a % 8 // 4 == b % 8 // 4 else "SYS")
        rows.append("\t".join([row, *cells]))
    return ("\n".join(rows) + "\n").encode()


def two_of(box: Topology, name: str = "mycluster") -> Topology:
    hosts = repeated(Host(name="h", topology=box, ports=default_ports(box)), 2)
    return compose(hosts, SwitchFabric(), name=name)


def require_one_pick(boxes: dict[str, Topology]) -> None:
    """NCCL picks the same of all, whatever the size and the collective."""
    for size in (2**10, 2**16, 2**20, 2**24, 2**30):
        for collective in (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.BROADCAST):
            picks = {
                how: (found.algorithm, found.cell and found.cell.model_us)
                for how, box in boxes.items()
                for found in [pick(box, size, collective)]
            }
            assert len(set(picks.values())) == 1, (size, collective, picks)


@pytest.mark.parametrize("name", SPELLINGS)
def test_all_spellings_of_a_box_are_one_machine(name: str, tmp_path: Path) -> None:
    text, cell, options = SPELLINGS[name]
    given = {key: value for key, value in options.items() if key != "cpu"}
    own = preset(name)
    write_topology(replace(own, name="mybox"), tmp_path / "box.json")
    boxes = {
        "preset": own,
        "measured": preset(name, rates="measured"),
        "renamed": replace(own, name="mybox"),
        "file": load(tmp_path / "box.json"),
        "xml": quietly(text),
        "xml, nominal": quietly(text, rates="nominal"),
        "xml without PCIe": quietly(text, pcie="nics"),
        "smi": quietly(smi(cell), **given),
    }
    require_one_pick(boxes)


@pytest.mark.parametrize("name", SPELLINGS)
def test_all_spellings_of_two_boxes_are_one_machine(name: str, tmp_path: Path) -> None:
    text, cell, options = SPELLINGS[name]
    given = {key: value for key, value in options.items() if key != "cpu"}
    own = preset(name, boxes=2)
    write_topology(two_of(quietly(text)), tmp_path / "cluster.json")
    boxes = {
        "preset": own,
        "measured": preset(name, boxes=2, rates="measured"),
        "renamed": replace(own, name="mycluster"),
        "file": load(tmp_path / "cluster.json"),
        "xml": two_of(quietly(text)),
        "xml without PCIe": two_of(quietly(text, pcie="nics")),
        "smi": two_of(quietly(smi(cell), **given)),
    }
    require_one_pick(boxes)


def test_a_cluster_keeps_its_machine_under_another_name() -> None:
    """16 MiB among two DGX A100 called mycluster: 275 us by Ring/LL128, not NVLSTree of a DGX H100."""
    found = pick(replace(preset("dgx-a100", boxes=2), name="mycluster"))
    assert found.algorithm == "Ring/LL128"
    assert found.record()["time_us"] == pytest.approx(275, abs=1)


def test_what_is_read_off_is_not_assumed() -> None:
    found = machine_of(preset("dgx-a100", boxes=2))
    assert found == NcclMachine(
        generation="ampere",
        told_by="",
        cpu="amd",
        nvswitch=True,
        adds=False,
        within_gb_per_s=240.0,
        path_gb_per_s=240.0,
        within_type="NVL",
        across_type=None,
        nics=8,
        nic_gb_per_s=24.0,
    )
    words = " ".join(pick(preset("dgx-a100")).assumptions)
    for word in ("dgx", "processors", "GPUs"):
        assert word not in words


def test_v100_boxes_have_no_nvls() -> None:
    cube = machine_of(replace(preset("dgx-1v"), name="box"))
    assert (cube.generation, cube.nvswitch, cube.within_gb_per_s, cube.path_gb_per_s) == (
        "volta",
        False,
        120.0,
        20.0,
    )
    for size in (2**10, 2**20, 2**30):
        assert "NVLS" not in pick(replace(preset("dgx-1v"), name="box"), size).algorithm


def test_nics_keep_their_number_and_rate() -> None:
    one = machine_of(preset("ndv2", boxes=2))
    assert (one.nics, one.nic_gb_per_s, one.across_type) == (1, 12.0, "PIX")
    four = machine_of(preset("dgx-1v", boxes=2))
    assert (four.nics, four.nic_gb_per_s) == (4, 12.0)
    # NICs of GPUs that do not take part are not NCCL's.
    assert machine_of(subset(preset("dgx-a100", boxes=2), [0, 1, 8, 9])).nics == 2


def pcie_box(*, gpus: int = 4, nic: str = "plx") -> Topology:
    nodes = [Node(id=f"gpu{i}", host="h", arch="sm_90") for i in range(gpus)]
    nodes += [
        Node(id=f"{name}{i}", kind=NodeKind.SWITCH, host="h") for name in ("plx", "cpu") for i in range(2)
    ]
    nodes.append(Node(id="nic0", kind=NodeKind.NIC, host="h"))
    gen5 = Fraction(48)
    links = [Link(src=f"gpu{i}", dst=f"plx{2 * i // gpus}", gb_per_s=gen5) for i in range(gpus)]
    links += [Link(src=f"plx{i}", dst=f"cpu{i}", gb_per_s=gen5) for i in range(2)]
    links += [
        Link(src="cpu0", dst="cpu1", gb_per_s=Fraction(40)),
        Link(src=f"{nic}0", dst="nic0", gb_per_s=gen5),
    ]
    return Topology.of("PCIe", nodes, links)


def test_boxes_without_nvlink_are_held_to_their_pcie() -> None:
    found = machine_of(pcie_box())
    assert (found.within_type, found.within_gb_per_s, found.nvswitch) == ("SYS", 40.0, False)
    words = " ".join(pick(pcie_box()).assumptions)
    assert "no NVLink joins all GPUs of a box: paths of class SYS" in words
    reasons = {cell.unavailable for cell in pick(pcie_box()).cells}
    assert "LL128 needs NVLink between GPUs, found SYS" in reasons
    assert "NVLS needs NVSwitches that add, and Hopper or later" in reasons
    assert machine_of(subset(pcie_box(), [0, 1])).within_type == "PIX"


def test_paths_to_nics_have_their_class() -> None:
    assert machine_of(two_of(pcie_box())).across_type == "PIX"
    assert machine_of(two_of(pcie_box(nic="cpu"))).across_type == "PHB"


def test_a_gpu_whose_nvlink_is_down_sends_all_over_pcie() -> None:
    box = quietly(SPELLINGS["dgx-b200"][0])
    down = machine_of(remove_links(box, [("gpu2", "nvswitch")]))
    assert (down.within_type, down.nvswitch, down.adds) == ("PHB", False, False)
    assert down.within_gb_per_s == 48.0


def test_what_nothing_tells_is_assumed_aloud_or_given() -> None:
    bare = replace(preset("dgx-a100"), name="box", arch=(), cpu=())
    found = pick(bare)
    assert (
        "GPUs of ampere, by the 300 GB/s of NVLink of a GPU (`generation` says otherwise)"
        in found.assumptions
    )
    assert "processors of amd" in found.assumptions
    odd = pick(replace(preset("star", gpus=4), name="box"))
    assert "GPUs of hopper (nothing here tells: `generation` says it)" in odd.assumptions
    told = select(
        "nccl",
        Collective.ALL_REDUCE,
        2**24,
        topology=preset("star", gpus=4),
        settings={"generation": "volta"},
    )
    assert not any(words.startswith("GPUs of") for words in told.assumptions)
    named = pick(replace(preset("star", gpus=4), name="four v100"))
    assert "GPUs of volta, by the topology's name (`generation` says otherwise)" in named.assumptions


def test_a_given_generation_keeps_the_links() -> None:
    """Half the NVLinks and one NIC of 100 Gbit/s stay what they are."""
    nodes = [Node(id=f"gpu{i}", host="h", arch="sm_80") for i in range(4)]
    nodes.append(Node(id="nvs", kind=NodeKind.SWITCH, host="h"))
    nodes.append(Node(id="nic", kind=NodeKind.NIC, host="h"))
    links = [Link(src=f"gpu{i}", dst="nvs", gb_per_s=Fraction(150)) for i in range(4)]
    links.append(Link(src="gpu0", dst="nic", gb_per_s=Fraction(25, 2)))
    cluster = two_of(Topology.of("box", nodes, links))
    for generation in ("ampere", "hopper"):
        found = machine_of(cluster, generation)
        assert (found.generation, found.nics, found.nic_gb_per_s) == (generation, 1, 12.0)
    assert machine_of(cluster, "ampere").within_gb_per_s == 120.0
    assert machine_of(cluster, "hopper").within_gb_per_s == pytest.approx(6 * 20.6)


def test_gpus_of_another_make_are_refused() -> None:
    with pytest.raises(InputError, match=r"expected GPUs of NVIDIA, found gfx942 \(gpu0 of mi300x\)"):
        pick(preset("mi300x"))


def test_boxes_without_a_nic_are_refused() -> None:
    cut = remove_links(preset("dgx-a100", boxes=2), [(f"box1/nic{i}", f"rail{i % 2}") for i in range(8)])
    with pytest.raises(InputError, match="ranks reach none"):
        pick(cut)


def test_unequal_boxes_count_as_the_least_of_them() -> None:
    boxes = [
        Host(name=f"h{links}", topology=box, ports=default_ports(box))
        for links, box in ((12, preset_box("dgx-a100", "a")), (18, preset_box("dgx-h100", "b")))
    ]
    found = machine_of(compose(boxes, SwitchFabric(), name="both"))
    assert (found.generation, found.cpu, found.within_gb_per_s, found.adds) == (
        "ampere",
        "mixed",
        240.0,
        False,
    )


def preset_box(name: str, host: str) -> Topology:
    box = quietly(SPELLINGS[name][0])
    return replace(box, hosts=(host,))


def test_a_written_file_says_what_its_gpus_are() -> None:
    document = json.loads(topology_json(preset("dgx-h100")))
    assert document["nodes"][0] == {
        "id": "gpu0",
        "kind": "gpu",
        "host": "box",
        "arch": "sm_90",
        "cpu": "intel",
    }
    assert "arch" not in document["nodes"][8]


def test_the_command_line_keeps_the_machine(tmp_path: Path) -> None:
    def run(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "coppice", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout

    run("topology", "compose", "2xdgx-a100", "--name", "mycluster", "-o", "c.json")
    record = json.loads(run("select", "c.json", "--library", "nccl", "--size", "16M", "--json"))
    assert record["algorithm"] == "Ring/LL128"
