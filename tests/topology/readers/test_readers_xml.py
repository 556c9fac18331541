"""NCCL and RCCL topology XML: rates, structure, and the quirks of real files."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.errors import InputError
from coppice.topology.model import NodeKind
from coppice.topology.readers import read
from coppice.topology.readers.link_rates import RateClass, inter_socket_gb_per_s, pcie_gb_per_s
from support.reader_samples import (
    BRIDGE,
    XML_AMD,
    XML_DIRECT,
    XML_SKELETON,
    XML_SWITCHED,
    gpu_xml,
    nic_xml,
    nvlink,
    xml,
)
from topology.readers.reading import parsed, rates, refused

LINK = 'link_speed="16.0 GT/s PCIe" link_width="16"'


def test_direct_links_bridges_nics_and_sockets() -> None:
    reading = parsed(XML_DIRECT)
    topology = reading.topology
    assert reading.warnings == ()
    assert topology.node_ids == ("gpu0", "gpu1", "mlx5_0", "mlx5_1", "pcie-0000:01:00.0", "cpu0", "cpu1")
    assert topology.hosts == ("box",)
    assert topology.host.tolist() == [0] * 7
    assert [NodeKind(kind).name for kind in topology.kind] == ["GPU"] * 2 + ["NIC"] * 2 + ["SWITCH"] * 3
    half = {
        ("gpu0", "gpu1"): Fraction(80),
        ("gpu0", "pcie-0000:01:00.0"): Fraction(24),
        ("mlx5_0", "pcie-0000:01:00.0"): Fraction(24),
        ("pcie-0000:01:00.0", "cpu0"): Fraction(24),
        ("gpu1", "cpu1"): Fraction(24),
        ("mlx5_1", "cpu1"): Fraction(24),
        ("cpu0", "cpu1"): Fraction(16),
    }
    assert rates(topology) == half | {(b, a): rate for (a, b), rate in half.items()}
    nic = topology.node_index["mlx5_0"]
    assert topology.latency_us[(topology.src == nic) | (topology.dst == nic)].tolist() == [1.5, 1.5]


def test_nominal_rates() -> None:
    found = rates(parsed(XML_DIRECT, rates="nominal").topology)
    assert found["gpu0", "gpu1"] == 100
    assert found["gpu1", "cpu1"] == 32
    assert found["mlx5_1", "cpu1"] == 25


def test_all_switches_are_one_node_that_copies_from_capability_90() -> None:
    topology = parsed(XML_SWITCHED).topology
    assert topology.node_ids[:4] == ("gpu0", "gpu1", "gpu2", "nvswitch")
    assert rates(topology)["gpu1", "nvswitch"] == rates(topology)["nvswitch", "gpu1"] == 18 * Fraction("20.6")
    assert topology.multicast.tolist() == topology.aggregate.tolist() == [False] * 3 + [True] + [False]
    older = parsed(XML_SWITCHED.replace(b'sm="90"', b'sm="80"')).topology
    assert rates(older)["gpu1", "nvswitch"] == 360
    assert not older.multicast.any()
    assert not older.aggregate.any()


def test_switches_out_of_sight_and_uneven_counts() -> None:
    links = [nvlink("f0", 4, "0x068000").replace("0000:f0:00.0", "fffffff:ffff:ff.0")] * 3
    data = xml(
        BRIDGE + gpu_xml("02", 0, links[0]) + gpu_xml("03", 1, links[0] + links[1]) + "</pci>", second=None
    )
    reading = parsed(data)
    assert rates(reading.topology)["gpu0", "nvswitch"] == 80
    assert rates(reading.topology)["gpu1", "nvswitch"] == 160
    assert "gpu0 has 4 links to the NVSwitches, others 8" in reading.warnings[0]


def test_amd_links_follow_the_architecture_in_both_spellings() -> None:
    topology = parsed(XML_AMD).topology
    assert rates(topology)["gpu0", "gpu1"] == rates(topology)["gpu1", "gpu0"] == 4 * 36
    assert topology.source.startswith("RCCL")
    newer = XML_AMD.replace(b'"910"', b'"gfx942:sramecc+"').replace(b'"gfx90a"', b'"gfx942"')
    assert rates(parsed(newer).topology)["gpu0", "gpu1"] == 4 * 48
    assert rates(parsed(newer, rates="nominal").topology)["gpu0", "gpu1"] == 4 * 64


def test_gpus_are_what_the_file_says() -> None:
    assert parsed(XML_SWITCHED).topology.arch == ("sm_90",) * 3 + (None,) * (
        parsed(XML_SWITCHED).topology.num_nodes - 3
    )
    direct = parsed(XML_DIRECT).topology
    assert {direct.arch[v] for v in direct.rank_nodes.tolist()} == {"sm_80"}
    assert {direct.cpu[v] for v in direct.rank_nodes.tolist()} == {"amd"}
    # Older files of RCCL give digits, and an `sm` that means nothing.
    amd = parsed(XML_AMD).topology
    assert [amd.arch[v] for v in amd.rank_nodes.tolist()] == ["gfx90a", "gfx90a"]
    newer = parsed(XML_AMD.replace(b'"910"', b'"gfx942:sramecc+"').replace(b'"gfx90a"', b'"942"')).topology
    assert [newer.arch[v] for v in newer.rank_nodes.tolist()] == ["gfx942", "gfx942"]
    skeleton = parsed(XML_SKELETON, gpu="a100").topology
    assert {skeleton.arch[v] for v in skeleton.rank_nodes.tolist()} == {"sm_80"}
    assert parsed(XML_SKELETON, gpu="pcie").topology.arch == ()


def test_each_direction_is_as_listed() -> None:
    data = xml(gpu_xml("02", 0, nvlink("03", 4)) + gpu_xml("03", 1, nvlink("02", 2)))
    reading = parsed(data)
    found = rates(reading.topology)
    assert (found["gpu0", "gpu1"], found["gpu1", "gpu0"]) == (80, 40)
    assert "gpu0 lists more links to gpu1" in reading.warnings[0]


def test_bridges_in_a_row_are_one_link_of_the_least_rate() -> None:
    narrow = BRIDGE.replace("01:00", "08:00").replace('width="16"', 'width="4"')
    chain = BRIDGE + narrow + BRIDGE.replace("01:00", "09:00") + gpu_xml("02", 0, "") + "</pci></pci></pci>"
    topology = parsed(xml(chain + gpu_xml("03", 1, ""))).topology
    assert topology.node_ids == ("gpu0", "gpu1", "cpu0")
    assert rates(topology)["gpu0", "cpu0"] == rates(topology)["cpu0", "gpu0"] == 6


def test_dead_ends_are_left_out() -> None:
    empty = BRIDGE.replace("01:00", "0a:00") + BRIDGE.replace("01:00", "0b:00") + "</pci></pci>"
    data = xml(empty + gpu_xml("02", 0, "") + gpu_xml("03", 1, ""), second=empty)
    assert parsed(data).topology.node_ids == ("gpu0", "gpu1", "cpu0")


def test_two_level_broadcom_switches_work_as_one() -> None:
    def level(bus: str, subdevice: str, body: str) -> str:
        ids = f'vendor="0x1000" device="0xc010" subsystem_vendor="0x1000" subsystem_device="{subdevice}"'
        return f'<pci busid="0000:{bus}:00.0" class="0x060400" {ids} {LINK}>{body}</pci>'

    def machine(subdevice: str) -> bytes:
        inner = [
            level(
                f"1{i}", subdevice, gpu_xml(f"2{2 * i}", 2 * i, "") + gpu_xml(f"2{2 * i + 1}", 2 * i + 1, "")
            )
            for i in range(2)
        ]
        return xml(level("01", "0xa096", "".join(inner)))

    flat = parsed(machine("0xa096")).topology
    assert flat.node_ids[4:] == ("pcie-0000:01:00.0",)
    assert rates(flat)["gpu3", "pcie-0000:01:00.0"] == 24
    assert len(parsed(machine("0xb096")).topology.node_ids) == 4 + 3 - 1


@pytest.mark.parametrize(
    ("speed", "width", "measured", "nominal"),
    [
        ("2.5 GT/s PCIe", 16, 3, 4),
        ("5.0 GT/s PCIe", 8, 3, 4),
        ("5 GT/s", 16, 6, 8),
        ("8 GT/s", 16, 12, 16),
        ("16.0 GT/s PCIe", 16, 24, 32),
        ("32 GT/s", 16, 48, 64),
        ("32.0 GT/s PCIe", 8, 24, 32),
        ("32.0 GT/s", 16, 12, 64),
        ("64.0 GT/s PCIe", 16, 96, 128),
        ("Unknown", 16, 12, 16),
        ("", 0, 12, 16),
    ],
)
def test_pcie_rates(speed: str, width: int, measured: int, nominal: int) -> None:
    assert pcie_gb_per_s(speed, width, RateClass.MEASURED) == measured
    assert pcie_gb_per_s(speed, width, RateClass.NOMINAL) == nominal


@pytest.mark.parametrize(
    ("cpu", "rate"),
    [
        (("x86_64", "GenuineIntel", 6, 0x4F), 6),
        (("x86_64", "GenuineIntel", 6, 85), 10),
        (("x86_64", "GenuineIntel", 6, 143), 22),
        (("x86_64", "GenuineIntel", 6, 0xCF), 40),
        (("x86_64", "AuthenticAMD", 25, 1), 16),
        (("ppc64", "", 0, 0), 32),
        (("arm64", "", 0, 0), 6),
        (("x86_64", "CentaurHauls", 7, 0x5B), 9),
        (("x86_64", "  Shanghai  ", 7, 1), 6),
        (("x86_64", "Other", 0, 0), 5000),
    ],
)
def test_inter_socket_rates(cpu: tuple[str, str, int, int], rate: int) -> None:
    assert inter_socket_gb_per_s(*cpu) == rate


def test_unknown_speed_and_width_zero_are_told_with_their_lines() -> None:
    data = XML_AMD.replace(LINK.encode(), b'link_speed="" link_width="0"')
    reading = parsed(data)
    assert rates(reading.topology).get(("gpu0", "cpu0")) == 12
    assert reading.warnings == (
        "input:4: the PCIe speed '' is unknown and taken for 8 GT/s.",
        "input:4: a PCIe width of 0 is taken for 16.",
    )


def test_impossible_nic_speed_is_clamped_with_its_line() -> None:
    data = xml(gpu_xml("02", 0, "") + gpu_xml("04", 1, "") + nic_xml("03", "fast", speed="200000000"))
    reading = parsed(data)
    assert rates(reading.topology)["fast", "cpu0"] == 24
    line = data.split(b"\n").index(next(row for row in data.split(b"\n") if b"fast" in row)) + 1
    assert any(f"input:{line}: no NIC has 200000000 Mbit/s" in warning for warning in reading.warnings)
    bare = '<nic><net name="fast" dev="0" speed="200000000"/></nic>'
    message = refused(xml(gpu_xml("02", 0, "") + bare))
    assert "nic_gb_per_s" in message
    with_option = parsed(xml(gpu_xml("02", 0, "") + bare), nic_gb_per_s="50").topology
    assert rates(with_option)["fast", "cpu0"] == 50


def test_ports_without_speed_ports_that_share_a_card_and_virtual_functions() -> None:
    two = nic_xml("03", "p0", speed="100000").replace(
        "</nic>", '<net name="p1" dev="1" speed="100000"/><net name="off"/></nic>'
    )
    function = nic_xml("03", "p2", speed="-1", dev=2).replace("03:00.0", "03:00.1")
    silent = "".join(f'<pci busid="0000:40:{i:02x}.0" class="0x020000" {LINK}/>\n' for i in range(200))
    reading = parsed(xml(gpu_xml("02", 0, "") + two + function + silent))
    found = rates(reading.topology)
    assert reading.topology.node_ids == ("gpu0", "p0", "p1", "p2", "pcie-0000:03:00.0", "cpu0")
    assert found["p0", "pcie-0000:03:00.0"] == found["p1", "pcie-0000:03:00.0"] == Fraction(25, 2)
    assert found["p2", "pcie-0000:03:00.0"] == Fraction(5, 4)
    assert any("10000 Mbit/s" in warning for warning in reading.warnings)


def test_self_links_are_refused_or_dropped() -> None:
    data = xml(gpu_xml("02", 0, nvlink("02", 12)) + gpu_xml("03", 1, nvlink("03", 12)))
    message = refused(data)
    assert "input:5" in message
    assert "self_links=drop" in message
    reading = parsed(data, self_links="drop")
    assert set(rates(reading.topology)) == {
        ("gpu0", "cpu0"),
        ("cpu0", "gpu0"),
        ("gpu1", "cpu0"),
        ("cpu0", "gpu1"),
    }
    assert any("input:5, 10: a link from a GPU to itself" in warning for warning in reading.warnings)


def test_skeletons_are_refused_or_completed_by_model() -> None:
    message = refused(XML_SKELETON)
    assert "8 GPUs by PCI class only" in message
    assert "input:4" in message
    assert "gpu=a100" in message
    found = rates(parsed(XML_SKELETON, gpu="a100").topology)
    assert found["gpu7", "nvswitch"] == 240
    assert rates(parsed(XML_SKELETON, gpu="A100", rates="nominal").topology)["gpu7", "nvswitch"] == 300
    assert rates(parsed(XML_SKELETON, gpu="mi300x").topology)["gpu7", "gpu0"] == 48
    h100 = parsed(XML_SKELETON, gpu="h100").topology
    assert h100.multicast[h100.node_index["nvswitch"]]
    alone = parsed(XML_SKELETON, gpu="pcie")
    assert "nvswitch" not in alone.topology.node_ids
    assert rates(alone.topology)["nic-0000:30:00.0", "pcie-0000:01:00.0"] == 24
    assert "no known board joins 8 GPUs of model v100" in refused(XML_SKELETON, gpu="v100")
    assert "did you mean 'a100'" in refused(XML_SKELETON, gpu="a10")


def test_four_gpus_of_a_skeleton_are_joined_pairwise() -> None:
    data = xml("".join(f'<pci busid="0000:2{i}:00.0" class="0x030200" {LINK}/>\n' for i in range(4)))
    found = rates(parsed(data, gpu="a100").topology)
    assert found["gpu0", "gpu3"] == 80
    assert rates(parsed(data, gpu="h100").topology)["gpu2", "gpu1"] == 6 * Fraction("20.6")


def test_a_gpu_that_lost_its_links_and_targets_out_of_sight_are_told() -> None:
    data = xml(
        gpu_xml("02", 0, nvlink("03")) + gpu_xml("03", 1, nvlink("02") + nvlink("99")) + gpu_xml("04", 2, "")
    )
    warnings = " ".join(parsed(data).warnings)
    assert "does not describe" in warnings
    assert "is it degraded?" in warnings


def test_ranks_follow_the_file_and_gpus_outside_the_job_are_left_out_or_relays() -> None:
    data = xml(gpu_xml("02", 9, nvlink("03")) + gpu_xml("03", 8, nvlink("02")))
    topology = parsed(data).topology
    assert topology.node_ids[:2] == ("gpu8", "gpu9")
    assert topology.rank[:2].tolist() == [0, 1]
    crossed = parsed(data.replace(b'dev="9"', b'dev="0"').replace(b'dev="8"', b'dev="1"')).topology
    assert crossed.node_ids[:2] == ("gpu1", "gpu0")
    outside = f'<pci busid="0000:05:00.0" class="0x030200" {LINK}/>'
    reading = parsed(data.replace(b"</cpu>", outside.encode() + b"</cpu>"))
    assert reading.topology.num_ranks == 2
    assert "without rank" in reading.warnings[0]
    relay = parsed(data.replace(b'rank="9"', b'rank="-1"')).topology
    assert relay.num_ranks == 1
    assert relay.rank[relay.node_index["gpu9"]] == -1


def test_c2c_links_lead_to_the_cpu() -> None:
    data = xml(gpu_xml("02", 0, '<c2c bw="44712" count="10"/>') + gpu_xml("03", 1, ""), cpu='vendor="ARM"')
    assert rates(parsed(data).topology)["gpu0", "cpu0"] == 24 + Fraction(447120, 1000)


def test_hosts_are_told_apart_by_their_hash() -> None:
    body = gpu_xml("02", 0, nvlink("f0", 18, "0x068000"), sm=100)
    other = gpu_xml("02", 1, nvlink("f0", 18, "0x068000"), sm=100)
    text = xml(body, second=other).replace(b'numaid="0"', b'numaid="0" host_hash="0x1"')
    text = text.replace(b'numaid="1"', b'numaid="0" host_hash="0x2"')
    topology = parsed(text).topology
    assert topology.hosts == ("box.0", "box.1")
    assert (
        rates(topology)["box.0/gpu0", "nvswitch"]
        == rates(topology)["box.1/gpu1", "nvswitch"]
        == Fraction("721.8")
    )


def test_dropping_pcie_keeps_gpus_and_their_links() -> None:
    assert parsed(XML_DIRECT, pcie="drop").topology.node_ids == ("gpu0", "gpu1")
    assert parsed(XML_SWITCHED, pcie="drop").topology.node_ids == ("gpu0", "gpu1", "gpu2", "nvswitch")
    assert "without any link" in refused(xml(gpu_xml("02", 0, "") + gpu_xml("03", 1, "")), pcie="drop")


def test_overrides() -> None:
    found = rates(
        parsed(XML_DIRECT, gpu_link_gb_per_s="45/2", socket_gb_per_s="0.5", nic_gb_per_s="12.5").topology
    )
    assert found["gpu0", "gpu1"] == 90
    assert found["cpu0", "cpu1"] == Fraction(1, 2)
    assert found["mlx5_1", "cpu1"] == Fraction(25, 2)


def test_rates_can_be_rounded() -> None:
    found = rates(parsed(XML_DIRECT, gpu_link_gb_per_s="100/7", round="2").topology)
    assert found["gpu0", "gpu1"] == Fraction(5714, 100)


def test_blank_lines_before_the_file_keep_the_line_numbers() -> None:
    text = b"\n\n<?xml version='1.0'?>\n" + XML_DIRECT.replace(b'count="4"', b'count="x"', 1)
    assert "on <nvlink> at input:9" in refused(text)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"<graphs version='1'/>", ["input:1", "graphs that NCCL wrote", "NCCL_TOPO_DUMP_FILE"]),
        (b"<algo name='x'/>", ["MSCCL"]),
        (b"<system>\n<cpu>\n</system>", ["input:3", "mismatched tag"]),
        (b"<system/>", ["no GPU"]),
        (b'<!DOCTYPE x [<!ENTITY a "b">]>\n<system>&a;</system>', ["input:1", "document type"]),
        (b'<!DOCTYPE system SYSTEM "http://example.org/x.dtd"><system/>', ["input:1", "document type"]),
        (b"<system>&a;</system>", ["undefined entity"]),
        (b"<system" + b"".join(b" a%d='1'" % i for i in range(99)) + b"/>", ["limits"]),
        (b"<system a='" + b"x" * 9000 + b"'/>", ["8192"]),
        (b"<system>" + b"<a>" * 100 + b"</a>" * 100 + b"</system>", ["limits", "64 levels"]),
        (b"<system>" + b"<a/>" * 60000 + b"</system>", ["limits", "50000"]),
        (xml('<pci class="0x0302"/>'), ["input:3", "attribute busid"]),
        (xml(gpu_xml("02", 0, nvlink("02", 4).replace('count="4"', 'count="9999"'))), ["input:5", "count"]),
        (xml(gpu_xml("02", 0, "") + gpu_xml("02", 1, "")), ["bus id 0000:02:00.0", "input:8"]),
        (xml(gpu_xml("02", 0, nvlink("03"), sm=-1) + gpu_xml("03", 1, nvlink("02"))), ["input:4", "sm"]),
    ],
)
def test_bad_files_are_refused_with_the_line(data: bytes, words: list[str]) -> None:
    message = refused(data)
    assert all(word in message for word in words), message


def skeleton(groups: int, nics: int) -> bytes:
    """Switches with devices of which only the link is known."""
    body = "".join(
        f'<pci busid="0000:{16 * g + 1:02x}:00.0">\n'
        + "".join(
            f'<pci busid="0000:{16 * g + 2 + n:02x}:00.0" link_speed="32.0 GT/s PCIe" link_width="16"/>\n'
            for n in range(nics)
        )
        + "</pci>\n"
        for g in range(groups)
    )
    return xml(body)


def test_a_skeleton_without_classes_gets_a_gpu_beside_each_group() -> None:
    with pytest.raises(InputError, match=r"32 devices without a class on 8 PCIe switches .*`gpu=h100`"):
        read(skeleton(8, 4))
    reading = read(skeleton(8, 4), options={"gpu": "h100", "nic_gb_per_s": "12.5"})
    kinds = reading.topology.kind.tolist()
    assert (kinds.count(NodeKind.GPU), kinds.count(NodeKind.NIC)) == (8, 32)
    found = {(link.src, link.dst): link.gb_per_s for link in reading.topology.links()}
    assert found["gpu3", "pcie-0000:31:00.0"] == 48
    assert found["nic-0000:32:00.0", "pcie-0000:31:00.0"] == Fraction(25, 2)
    assert sum(src.startswith("gpu") and dst == "nvswitch" for src, dst in found) == 8
    assert any("taken for NICs" in each for each in reading.warnings)


def test_a_completed_file_says_so_and_whether_the_model_can_be_right() -> None:
    body = "".join(gpu_xml(f"{16 * i + 1:02x}", i, "", sm=90) for i in range(8))
    right, wrong = (read(xml(body), options={"gpu": model}).warnings for model in ("h100", "b200"))
    assert any("no NVLink or xGMI link is listed: those of a board of 8 GPUs" in each for each in right)
    assert not any("is it another model" in each for each in right)
    assert any("compute capability 9.0, whose NVLinks are not those of gpu=b200" in each for each in wrong)
