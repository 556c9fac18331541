"""Real machine files: read right, or refused with the reason."""

from __future__ import annotations

import random
import resource
import time
from fractions import Fraction
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.topology.model import NodeKind, Topology
from coppice.topology.readers import Reading, read
from support.injuries import injured
from support.reader_samples import SAMPLES
from support.shared_data import SHARED, needs_shared

FILES = SHARED / "topologies"
pytestmark = needs_shared


def real(name: str, **options: str) -> Reading:
    path = FILES / name
    if not path.is_file():
        pytest.skip(f"{path} is absent")
    return read(path, options=options)


def rates(topology: Topology) -> dict[tuple[str, str], Fraction]:
    return {(link.src, link.dst): link.gb_per_s for link in topology.links()}


def counts(topology: Topology) -> tuple[int, int]:
    """Numbers of GPUs and NICs."""
    kinds = topology.kind.tolist()
    return kinds.count(NodeKind.GPU), kinds.count(NodeKind.NIC)


def sent_to_gpus(topology: Topology, gpu: str) -> Fraction:
    return sum(
        (rate for (a, b), rate in rates(topology).items() if a == gpu and b.startswith("gpu")), Fraction(0)
    )


def test_every_file_is_known_here() -> None:
    known = Path(__file__).read_text()
    assert [path.name for path in FILES.iterdir() if path.name not in known] == []


def test_perlmutter_a100_4x_nid001056_xml() -> None:
    reading = real("perlmutter_a100_4x_nid001056.xml")
    topology = reading.topology
    assert reading.warnings == ()
    assert counts(topology) == (4, 4)
    assert all(sent_to_gpus(topology, f"gpu{i}") == 240 for i in range(4))
    assert rates(topology)["gpu0", "gpu3"] == 80
    assert rates(topology)["gpu0", "cpu3"] == 24
    assert rates(topology)["cxi3", "cpu3"] == 24
    assert rates(topology)["cpu0", "cpu2"] == 16
    assert sent_to_gpus(real("perlmutter_a100_4x_nid001056.xml", rates="nominal").topology, "gpu0") == 300


def test_azure_ncv4_topo_xml() -> None:
    name = "azure_ncv4-topo.xml"
    with pytest.raises(InputError, match=r"azure_ncv4-topo\.xml:5 leads from GPU 0001:00:00\.0 to itself"):
        real(name)
    reading = real(name, self_links="drop")
    assert counts(reading.topology) == (4, 1)
    assert rates(reading.topology)["gpu0", "cpu0"] == 12
    assert rates(reading.topology)["eth0", "cpu0"] == Fraction(25, 2)
    assert any(":5, 15, 22, 29: a link from a GPU to itself" in warning for warning in reading.warnings)


def test_aws_p4d_24xl_topo_xml() -> None:
    name = "aws_p4d-24xl-topo.xml"
    with pytest.raises(InputError, match=r"8 GPUs by PCI class only \(first at aws_p4d-24xl-topo\.xml:18\)"):
        real(name)
    topology = real(name, gpu="a100").topology
    assert counts(topology) == (8, 4)
    assert rates(topology)["gpu0", "nvswitch"] == 240
    assert rates(topology)["gpu0", "pcie-ffff:ff:01.0"] == 12
    assert rates(topology)["cpu0", "cpu1"] == 10


def test_rccl_topo_8p_940_xml() -> None:
    reading = real("rccl_topo_8p_940.xml")
    topology = reading.topology
    assert reading.warnings == ()
    assert counts(topology) == (8, 8)
    assert all(sent_to_gpus(topology, f"gpu{i}") == 7 * 48 for i in range(8))
    assert rates(topology)["cpu0", "cpu1"] == 22
    assert rates(topology)["mlx5_0", "pcie-0000:05:00.0"] == 48


def test_rccl_topo_16p1h_xml() -> None:
    reading = real("rccl_topo_16p1h.xml")
    topology = reading.topology
    assert reading.warnings == ()
    assert counts(topology) == (16, 8)
    assert rates(topology)["gpu0", "gpu1"] == 4 * 36
    assert rates(topology)["gpu0", "gpu4"] == 2 * 36
    assert rates(topology)["gpu1", "gpu3"] == 36
    assert {sent_to_gpus(topology, f"gpu{i}") for i in range(16)} == {Fraction(7 * 36)}
    assert rates(topology)["gpu0", "pcie-0000:41:00.0"] == 12


def test_dgx1v_8x_v100_4ib_txt() -> None:
    topology = real("dgx1v_8x_v100_4ib.txt").topology
    assert counts(topology) == (8, 4)
    assert all(sent_to_gpus(topology, f"gpu{i}") == 120 for i in range(8))
    assert rates(topology)["gpu0", "gpu3"] == 40
    assert ("gpu0", "gpu5") not in rates(topology)
    assert rates(topology)["mlx5_0", "pcie0"] == rates(topology)["gpu1", "pcie0"] == 12
    assert rates(topology)["pcie0", "cpu0"] == rates(topology)["pcie1", "cpu0"] == 12
    assert rates(topology)["cpu0", "cpu1"] == 10


def test_dgx_a100_8x_txt() -> None:
    reading = real("dgx_a100_8x.txt")
    topology = reading.topology
    assert counts(topology) == (8, 12)
    assert all(rates(topology)[f"gpu{i}", "nvswitch"] == 240 for i in range(8))
    assert rates(topology)["mlx5_0", "pcie0"] == rates(topology)["gpu1", "pcie0"] == 24
    assert rates(topology)["pcie0", "cpu3"] == 24
    assert any("mlx5_4, mlx5_5, mlx5_10, mlx5_11 share no" in warning for warning in reading.warnings)


def test_hgx_h100_8x_10nic_txt() -> None:
    reading = real("hgx_h100_8x_10nic.txt")
    topology = reading.topology
    assert counts(topology) == (8, 10)
    assert rates(topology)["gpu7", "nvswitch"] == Fraction("370.8")
    assert topology.multicast[topology.node_index["nvswitch"]]
    assert rates(topology)["gpu3", "pcie3"] == rates(topology)["NIC5", "pcie3"] == 48
    assert any("NIC3, NIC4 share no" in warning for warning in reading.warnings)


def test_rocm_smi_mi300a_4x_txt() -> None:
    topology = real("rocm_smi_mi300a_4x.txt").topology
    assert counts(topology) == (4, 0)
    assert set(rates(topology).values()) == {Fraction(96)}
    assert topology.num_links == 12


@pytest.mark.parametrize(
    ("name", "options", "gpus_and_nics", "from_gpu0"),
    [
        ("azure_ndv4-topo.xml", {"gpu": "a100"}, (8, 8), {"nvswitch": 240, "pcie-ffff:ff:01.0": 24}),
        ("azure_ndv5-topo.xml", {"gpu": "h100"}, (8, 8), {"nvswitch": Fraction(1854, 5)}),
        ("gb200_tray_4x.txt", {}, (4, 0), {"nvswitch": Fraction(1854, 5), "cpu0": 48}),
        ("h800_8x.txt", {}, (8, 0), {"nvswitch": 160, "cpu0": 24}),
        ("hgx_b200_8x.txt", {}, (8, 0), {"nvswitch": Fraction(1854, 5), "cpu0": 48}),
        ("hgx_b200_8x.xml", {}, (8, 2), {"nvswitch": Fraction(3609, 5), "pcie-0000:45:00.0": 48}),
        ("hgx_b200_8x_gpu2_nvlink_down.txt", {}, (8, 0), {"nvswitch": Fraction(1854, 5), "cpu0": 48}),
        ("hgx_h200_8x.txt", {}, (8, 8), {"nvswitch": Fraction(1854, 5), "pcie0": 48}),
        ("hgx_h200_8x.xml", {}, (8, 2), {"nvswitch": Fraction(1854, 5), "cpu0": 48}),
        ("oci_bm_gpu_h100_8x.xml", {}, (8, 16), {"nvswitch": Fraction(1854, 5), "pcie-0000:08:00.0": 48}),
        ("perlmutter_a100_4x.txt", {}, (4, 0), {"gpu1": 80, "gpu2": 80, "gpu3": 80, "cpu3": 24}),
        ("rccl_topo_4p_940.xml", {}, (4, 4), {"gpu1": 48, "gpu2": 48, "gpu3": 48, "cpu2": 48}),
        ("rccl_topo_8p6l_4nic.xml", {}, (8, 4), {"gpu1": 24, "gpu7": 24, "cpu0": 24}),
        ("v100_sxm2_8x_1nic.txt", {}, (8, 1), {"gpu1": 20, "gpu2": 20, "gpu3": 40, "gpu4": 40, "cpu0": 12}),
    ],
)
def test_more_machines(
    name: str, options: dict[str, str], gpus_and_nics: tuple[int, int], from_gpu0: dict[str, Fraction]
) -> None:
    topology = real(name, **options).topology
    assert counts(topology) == gpus_and_nics
    found = rates(topology)
    assert {node: found["gpu0", node] for node in from_gpu0} == from_gpu0


def test_a_gpu_without_its_links_is_told() -> None:
    reading = real("hgx_b200_8x_gpu2_nvlink_down.txt")
    assert any(":4: GPU2 has no NVLink while others have" in warning for warning in reading.warnings)
    assert ("gpu2", "nvswitch") not in rates(reading.topology)


def test_gpus_named_by_class_need_a_model() -> None:
    for name in ("azure_ndv4-topo.xml", "azure_ndv5-topo.xml"):
        with pytest.raises(InputError, match="8 GPUs by PCI class only"):
            real(name)


FEW, MANY = 200, 10_000
MOST_SECONDS_EACH = 60.0  # or it hangs
MOST_MEMORY_KB = 300_000


def survive(sample: str, runs: int) -> None:
    data, options = SAMPLES[sample]
    rng = random.Random(f"coppice {sample}")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    read_well = 0
    for run in range(runs):
        damaged = injured(rng, sample, data)
        begin = time.perf_counter()
        try:
            topology = read(damaged, options=options).topology
        except InputError as error:
            assert 0 < len(str(error)) < 2000, (run, str(error)[:200])  # noqa: PT017
        else:
            read_well += 1
            assert isinstance(topology, Topology)
            assert topology.num_nodes <= len(damaged)
            assert len(topology.sha256) == 64
        assert time.perf_counter() - begin < MOST_SECONDS_EACH, (run, damaged[:200])
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < MOST_MEMORY_KB
    assert 0 < read_well < runs, "the injuries must neither all be fatal nor all be harmless"


@pytest.mark.parametrize("sample", SAMPLES)
def test_a_few_hundred_damaged_files(sample: str) -> None:
    survive(sample, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_ten_thousand_damaged_files(sample: str) -> None:
    survive(sample, MANY)


@pytest.mark.parametrize(
    "bomb",
    [
        b"[" * 1_000_000,
        b'{"format":' * 100_000,
        b"<a>" * 1_000_000,
        b"<system>" + b"<cpu numaid='0'/>" * 200_000 + b"</system>",
        b"<system>" + b"<cpu numaid='0' arch='x'><pci/></cpu>" * 1000,
        b"nodes: " + b"[" * 1_000_000,
        b"nodes: " + b"{a: " * 100_000,
        b"nodes: &a [1]\nlinks: [" + b"*a, " * 100_000 + b"]",
        b"GPU0 " * 200_000,
        b"GPU0 GPU1\n" * 200_000,
        b"GPU0 GPU1\nGPU0 " + b"NV1" * 6000 + b"?",
        b"Weight between two GPUs\nGPU0 GPU1\nGPU0 " + b"9" * 19_000 + b"?",
        b"Weight between two GPUs\n" + b"=" * 1_000_000,
        b"\n" * 3_000_000,
        b"GPU0 GPU1\n" + b"\r" * 3_000_000,
        b"GPU0 GPU1\n" + b" " * 3_000_000 + b"GPU0",
        (b"[" * 70 + b"m GPU0 ") * 40_000,
        b"GPU" + b"\x1b[32m" * 500_000 + b"x",
        b"GPU" + b"\x1b[" * 500_000 + b"x",
    ],
    ids=lambda bomb: bomb[:12].decode(),
)
def test_bombs_are_refused(bomb: bytes) -> None:
    begin = time.perf_counter()
    with pytest.raises(InputError):
        read(bomb)
    assert time.perf_counter() - begin < MOST_SECONDS_EACH
