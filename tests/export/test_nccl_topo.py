"""Corrections of topology files: NCCL's parser can read them, and nothing changes but what was asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from coppice.cli.export import export
from coppice.errors import InputError
from coppice.export.formats import Exported, NcclTopoXmlOptions
from coppice.export.nccl.topo_xml import MOST_NODES, export_nccl_topo_xml, ports_of, xml_text
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from coppice.topology.readers import read
from coppice.topology.readers.xml_tree import Element
from support.reader_samples import BRIDGE, XML_AMD, XML_DIRECT, XML_SWITCHED, gpu_xml, nic_xml, nvlink, xml
from support.shared_data import SHARED, needs_shared

LINE = re.compile(r'((?:  )*)<(/?)([A-Za-z_][\w.-]*)((?: [A-Za-z_][\w.-]*="[^"<>&\']*")*)(/?)>')


def correction(topology: Topology, **options: Any) -> Exported:
    return export_nccl_topo_xml(topology, NcclTopoXmlOptions(**options))


def parsed(text: str) -> list[tuple[int, str, dict[str, str]]]:
    """The elements in order, by the rules of NCCL's parser: (depth, tag, attributes)."""
    assert text.endswith(">\n")
    assert "\t" not in text
    assert "\r" not in text
    stack: list[str] = []
    found = []
    for line in text.splitlines():
        match = LINE.fullmatch(line)
        assert match is not None, line
        if match[2]:
            assert stack.pop() == match[3]
            assert len(match[1]) == 2 * len(stack)
            continue
        assert len(match[1]) == 2 * len(stack)
        pairs = re.findall(r' ([\w.-]+)="([^"]*)"', match[4])
        assert len(pairs) <= 16
        assert all(len(part) <= 253 for pair in pairs for part in pair)
        found.append((len(stack), match[3], dict(pairs)))
        if not match[5]:
            stack.append(match[3])
    assert not stack
    assert found[0][1] == "system"
    assert "version" in found[0][2]
    return found


def nets(text: str) -> dict[str, dict[str, str]]:
    return {attributes["name"]: attributes for _, tag, attributes in parsed(text) if tag == "net"}


def dump(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "dump.xml"
    path.write_bytes(data)
    return path


def a100(*, boxes: int = 2) -> Topology:
    return preset("dgx-a100", boxes=boxes)


@pytest.mark.parametrize("data", [XML_DIRECT, XML_SWITCHED, XML_AMD])
def test_reads_back_as_the_same_topology(data: bytes, tmp_path: Path) -> None:
    path = dump(tmp_path, data)
    for spaced in (
        data,
        b"\n\n" + data.replace(b"><", b">\n\t<").replace(b"/>", b" />").replace(b'" ', b'"\n '),
    ):
        path.write_bytes(spaced)
        made = correction(a100(), base=path, rails=["none"])
        assert not any("rank" in attributes for _, tag, attributes in parsed(made.text) if tag == "gpu")
        again = tmp_path / "dump2.xml"
        again.write_text(made.text)
        assert read(again, name="m").topology.sha256 == read(path, name="m").topology.sha256


@needs_shared
@pytest.mark.parametrize(
    "name", ["perlmutter_a100_4x_nid001056.xml", "rccl_topo_8p_940.xml", "rccl_topo_16p1h.xml"]
)
def test_real_dumps(name: str, tmp_path: Path) -> None:
    path = SHARED / "topologies" / name
    made = correction(a100(), base=path, rails=["none"])
    assert len(parsed(made.text)) > 20
    again = tmp_path / name
    again.write_text(made.text)
    assert read(again).topology.sha256 == read(path).topology.sha256


def test_rails_of_the_topology(tmp_path: Path) -> None:
    """Odd and even NICs of a DGX A100 are on two switches."""
    body = (
        BRIDGE
        + gpu_xml("02", 0, "")
        + "".join(nic_xml(f"1{i}", f"mlx5_{i}", dev=i) for i in range(4))
        + "</pci>\n"
    )
    path = dump(tmp_path, xml(body))
    made = correction(a100(), base=path)
    assert {name: port["rail"] for name, port in nets(made.text).items()} == {
        "mlx5_0": "0",
        "mlx5_1": "1",
        "mlx5_2": "0",
        "mlx5_3": "1",
    }
    assert "4 ports on rails 0, 1" in made.notes
    second = correction(a100(), base=path, host="box1")
    assert second.text == made.text
    given = correction(a100(), base=path, rails=["mlx5_2:7"], planes=["mlx5_0:1", "mlx5_1:0"])
    ports = nets(given.text)
    assert [port.get("rail") for port in ports.values()] == [None, None, "7", None]
    assert [port.get("plane") for port in ports.values()] == ["1", "0", None, None]


def test_speeds(tmp_path: Path) -> None:
    path = dump(
        tmp_path, xml(BRIDGE + gpu_xml("02", 0, "") + nic_xml("03", "mlx5_0", speed="100000") + "</pci>\n")
    )
    made = correction(a100(), base=path, speeds=True)
    assert nets(made.text)["mlx5_0"]["speed"] == "200000"
    assert "port mlx5_0: 200000 Mbit/s instead of 100000" in made.notes
    assert nets(correction(a100(), base=path).text)["mlx5_0"]["speed"] == "100000"


def test_incomplete_pcie_speeds_are_completed(tmp_path: Path) -> None:
    """NCCL knows "32 GT/s" and "32.0 GT/s PCIe", and takes "32.0 GT/s" for PCIe 3."""
    body = gpu_xml("02", 0, "", link='link_speed="32.0 GT/s" link_width="16"')
    body += gpu_xml("03", 1, "", link='link_speed="32 GT/s" link_width="16"')
    body += gpu_xml("04", 2, "", link='link_speed="Unknown" link_width="16"')
    made = correction(a100(), base=dump(tmp_path, xml(body)), rails=["none"])
    found = [attributes["link_speed"] for _, tag, attributes in parsed(made.text) if tag == "pci"]
    assert found == ["32.0 GT/s PCIe", "32 GT/s", "Unknown"]
    assert "1 texts of PCIe speeds completed, which NCCL takes for 8 GT/s" in made.notes


def test_nvlinks(tmp_path: Path) -> None:
    path = dump(tmp_path, XML_DIRECT)
    kept = correction(a100(), base=path, rails=["none"])
    assert sum(tag == "nvlink" for _, tag, _ in parsed(kept.text)) == 2
    gone = correction(a100(), base=path, rails=["none"], nvlinks=False)
    assert not any(tag == "nvlink" for _, tag, _ in parsed(gone.text))
    assert "2 entries of GPU links left out, for NCCL to detect" in gone.notes


@pytest.mark.parametrize(
    ("data", "values", "words"),
    [
        (b"<graphs version='1'/>", {}, "expected <system>"),
        (b"<system><cpu numaid='0'/></system>", {}, "expected version="),
        (
            b"<system version='1'><cpu numaid='0' host_hash='0x1'/><cpu numaid='0' host_hash='0x2'/></system>",
            {},
            "found 2 hosts",
        ),
        (XML_DIRECT, {"rails": ["mlx5_0"]}, "port:rail such as"),
        (XML_DIRECT, {"rails": ["mlx5_9:0"]}, "has no port 'mlx5_9': did you mean"),
        (XML_DIRECT.replace(b"mlx5_1", b"mlx5_0"), {}, "two ports have the name 'mlx5_0'"),
        (XML_DIRECT.replace(b"mlx5_1", b"ens7"), {"rails": ["topology"]}, "has no NIC 'ens7'"),
        (XML_DIRECT.replace(b"mlx5_1", b"a&amp;b"), {}, "cannot read name='a&b'"),
        (XML_DIRECT.replace(b"mlx5_1", b"m" * 254), {}, "cannot read name="),
        (XML_DIRECT, {"host": "box7", "rails": ["topology"]}, "no host 'box7': did you mean 'box"),
    ],
)
def test_what_cannot_be_corrected(data: bytes, values: dict[str, object], words: str, tmp_path: Path) -> None:
    given: dict[str, object] = {"rails": ["none"], **values}
    with pytest.raises(InputError, match=words):
        correction(a100(), base=dump(tmp_path, data), **given)  # type: ignore[arg-type]


def test_limits_of_the_parser() -> None:
    def system(version: str, count: int, attributes: int = 1) -> Element:
        child = {f"a{i}": "1" for i in range(attributes)}
        children = [Element(tag="cpu", attributes=child, line=2, file="f") for _ in range(count)]
        return Element(tag="system", attributes={"version": version}, line=1, file="f", children=children)

    for version, most in MOST_NODES.items():
        assert len(parsed(xml_text(system(version, most - 1)))) == most
        with pytest.raises(InputError, match=f"at most {most} elements"):
            xml_text(system(version, most))
    assert len(parsed(xml_text(system("1", 1, 16)))) == 2
    with pytest.raises(InputError, match="keeps 16 attributes"):
        xml_text(system("1", 1, 17))


def test_topologies_without_ports() -> None:
    with pytest.raises(InputError, match="nics=node"):
        ports_of(preset("dgx-h100", boxes=2))
    assert len(ports_of(preset("dgx-h100", boxes=2, nics="node"))) == 8
    with pytest.raises(InputError, match="has no host"):
        ports_of(preset("star", gpus=2), "box0")


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = dump(tmp_path, XML_DIRECT)
    assert nvlink("02").encode() in XML_DIRECT
    options = [f"base={path}", "planes=mlx5_0:0,mlx5_1:1", "speeds=yes", "nvlinks=no"]
    export("dgx-a100", to="nccl-topo-xml", boxes=2, options=options)
    ports = nets(capsys.readouterr().out)
    assert [(port["rail"], port["plane"]) for port in ports.values()] == [("0", "0"), ("1", "1")]
    with pytest.raises(InputError, match="begins with a dump"):
        export("dgx-a100", to="nccl-topo-xml", boxes=2)
