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
from coppice.selection.nccl.communicator import FoundCommunicator, found_by
from coppice.selection.nccl.machine import HostMachine
from coppice.selection.nccl.machines import machines_of
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


def nvidia_xml(sm: int, links: int, *, pcie: str, mbit: str, cpu: str, each: int = 1) -> bytes:
    """Eight GPUs on NVSwitches, so many of them on a PCIe switch, each beside a NIC, on two CPUs."""
    halves = []
    lane = f'link_speed="{pcie} GT/s PCIe" link_width="16"'
    for half in range(2):
        body = ""
        for i in range(4 * half, 4 * half + 4, each):
            body += f'<pci busid="0000:a{i}:00.0" class="0x060400" vendor="0x1000" device="0x1" {lane}>\n'
            for gpu in range(i, i + each):
                body += gpu_xml(f"1{gpu}", gpu, nvlink("f0", links, "0x068000"), sm=sm, link=lane)
            for nic in range(i, i + each):
                text = nic_xml(f"2{nic}", f"mlx5_{nic}", speed=mbit, dev=nic).replace(
                    "16.0 GT/s", f"{pcie} GT/s"
                )
                body += text.replace('latency="1.5"', 'latency="0"').replace('guid="0x1"', f'guid="0x{nic}"')
            body += "</pci>\n"
        halves.append(body)
    return xml(halves[0], second=halves[1], cpu=f'vendor="{cpu}"')


SPELLINGS = {
    "dgx-a100": (
        nvidia_xml(80, 12, pcie="16.0", mbit="200000", cpu="AuthenticAMD", each=2),
        "NV12",
        {"cpu": "amd"},
    ),
    "dgx-h100": (nvidia_xml(90, 18, pcie="32.0", mbit="400000", cpu="GenuineIntel"), "NV18", {}),
    "dgx-b200": (
        nvidia_xml(100, 18, pcie="32.0", mbit="400000", cpu="GenuineIntel"),
        "NV18",
        {"gpu": "b200"},
    ),
}


def smi(cell: str, each: int) -> bytes:
    """``nvidia-smi topo -m`` of such a box: so many GPUs and NICs on one PCIe switch, four of each on a CPU."""
    names = [*(f"GPU{i}" for i in range(8)), *(f"NIC{i}" for i in range(8))]
    rows = ["\t" + "\t".join(names)]
    for a, row in enumerate(names):
        cells = []
        for b in range(len(names)):
            if a == b:
                cells.append("X")
            elif a < 8 and b < 8:
                cells.append(cell)
            elif a % 8 // each == b % 8 // each:
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
        "smi": quietly(smi(cell, 2 if name == "dgx-a100" else 1), **given),
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
        "smi": two_of(quietly(smi(cell, 2 if name == "dgx-a100" else 1), **given)),
        "smi without PCIe": two_of(quietly(smi(cell, 2 if name == "dgx-a100" else 1), pcie="nics", **given)),
    }
    require_one_pick(boxes)


def test_switches_of_which_gpus_and_nics_alone_are_kept() -> None:
    """Readers cut such a switch in two, one for each direction: its NICs are still beside its GPUs."""
    rows = ["GPU0", "GPU1", "GPU2", "GPU3", "NIC0", "NIC1"]
    links = [
        *("X NV12 NV12 NV12 PXB SYS", "NV12 X NV12 NV12 PXB SYS", "NV12 NV12 X NV12 SYS PXB"),
        *("NV12 NV12 NV12 X SYS PXB", "PXB PXB SYS SYS X SYS", "SYS SYS PXB PXB SYS X"),
    ]
    text = "\t".join(["", *rows]) + "\n"
    text += "".join("\t".join([row, *line.split()]) + "\n" for row, line in zip(rows, links, strict=True))
    options = {"gpu": "a100", "nic_gb_per_s": 25}
    require_one_pick(
        {pcie: two_of(quietly(text.encode(), pcie=pcie, **options)) for pcie in ("keep", "nics")}
    )


def test_a_cluster_keeps_its_machine_under_another_name() -> None:
    """16 MiB among two DGX A100 called mycluster: 275 us by Ring/LL128, not NVLSTree of a DGX H100."""
    found = pick(replace(preset("dgx-a100", boxes=2), name="mycluster"))
    assert found.algorithm == "Ring/LL128"
    assert found.record()["time_us"] == pytest.approx(275, abs=1)


def found_of(topology: Topology, generation: str | None = None) -> FoundCommunicator:
    return found_by(machines_of(topology, generation).boxes)


def machine_of(topology: Topology, generation: str | None = None) -> HostMachine:
    return machines_of(topology, generation).boxes[0].machine


def test_what_is_read_off_is_not_assumed() -> None:
    found = machines_of(preset("dgx-a100", boxes=2))
    assert (found.generation, found.told_by, found.cpu, found.nics) == ("ampere", "", "amd", 8)
    machine = found.boxes[0].machine
    assert found.boxes[1] is found.boxes[0]
    assert not machine.multicast
    assert [gpu.nvlinks for gpu in machine.gpus] == [(("nvswitch", 240.0),)] * 8
    assert [port.gb_per_s for port in machine.ports] == [25.0] * 8
    words = " ".join(pick(preset("dgx-a100")).assumptions)
    for word in ("dgx", "processors", "GPUs"):
        assert word not in words


def test_v100_boxes_have_no_nvls() -> None:
    cube = found_of(replace(preset("dgx-1v"), name="box")).communicator
    assert (cube.generation, cube.nvswitch, cube.nvls, cube.ring.count, cube.ring.within) == (
        "volta",
        False,
        None,
        6,
        20.0,
    )
    for size in (2**10, 2**20, 2**30):
        assert "NVLS" not in pick(replace(preset("dgx-1v"), name="box"), size).algorithm


def test_nics_keep_their_number_and_rate() -> None:
    one = found_of(preset("ndv2", boxes=2)).communicator
    assert (one.ring.count, one.ring.across, one.ring.across_type) == (1, 12.0, "PIX")
    four = found_of(preset("dgx-1v", boxes=2)).communicator
    assert (four.ring.count, four.ring.across) == (4, 12.0)


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
    ring = found_of(pcie_box()).communicator.ring
    assert (ring.within_type, ring.count * ring.within) == ("SYS", 40.0)
    reasons = {cell.unavailable for cell in pick(pcie_box()).cells}
    assert "LL128 needs NVLink between GPUs, found SYS" in reasons
    assert "NVLS needs NVSwitches that add, and Hopper or later" in reasons
    assert found_of(subset(pcie_box(), [0, 1])).communicator.ring.within_type == "PIX"


def test_paths_to_nics_have_their_class() -> None:
    # The NIC is on the switch of two of the four GPUs, which the others reach through processors.
    near = found_of(two_of(subset(pcie_box(), [0, 1]))).communicator
    assert near.ring.across_type == "PIX"
    assert found_of(two_of(subset(pcie_box(nic="cpu"), [0, 1]))).communicator.ring.across_type == "PHB"


def test_a_gpu_whose_nvlink_is_down_sends_all_over_pcie() -> None:
    box = quietly(SPELLINGS["dgx-b200"][0])
    down = found_of(remove_links(box, [("gpu2", "nvswitch")])).communicator
    assert down.ring.within_type in ("PHB", "SYS")
    assert down.nvls is None
    assert found_of(box).communicator.ring.within_type == "NVL"


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
    for generation, rate in (("ampere", 6 * 20.0), ("hopper", 6 * 20.6)):
        machines = machines_of(cluster, generation)
        assert (machines.generation, machines.nics) == (generation, 1)
        assert [port.gb_per_s for port in machines.boxes[0].machine.ports] == [12.5]
        assert [gpu.nvlinks[0][1] for gpu in machine_of(cluster, generation).gpus] == pytest.approx(
            [rate] * 4
        )


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
    found = found_of(compose(boxes, SwitchFabric(), name="both")).communicator
    assert (found.generation, found.cpu, found.nvls) == ("ampere", "mixed", None)
    assert found.ring.count == 8


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
