"""Small topology files of every format, made up for the tests."""

from __future__ import annotations

JSON = b"""{"format": "coppice-topology", "version": 1, "name": "two boxes", "source": "made up",
 "nodes": [
  {"id": "a0", "kind": "gpu", "host": "a"}, {"id": "a1", "kind": "gpu", "host": "a"},
  {"id": "b0", "kind": "gpu", "host": "b"}, {"id": "b1", "kind": "gpu", "host": "b", "rank": null},
  {"id": "wire", "kind": "switch", "multicast": true, "aggregate": false},
  {"id": "card", "kind": "nic", "host": "b"}],
 "links": [
  {"from": "a0", "to": "a1", "gb_per_s": 300},
  {"from": "a0", "to": "wire", "gb_per_s": 12.5, "latency_us": 1.5},
  {"from": "a1", "to": "wire", "gb_per_s": "75/7", "duplex": false},
  {"from": "wire", "to": "card", "gb_per_s": 0.1},
  {"from": "card", "to": "b0", "gb_per_s": 25, "duplex": true},
  {"from": "b0", "to": "b1", "gb_per_s": 3e2}]}
"""

YAML = b"""# the same as YAML
format: coppice-topology
version: 1
name: two boxes
source: made up
nodes:
  - {id: a0, kind: gpu, host: a}
  - {id: a1, kind: gpu, host: a}
  - {id: b0, kind: gpu, host: b}
  - id: b1
    kind: gpu
    host: b
    rank: null
  - {id: wire, kind: switch, multicast: true, aggregate: false}
  - {id: card, kind: nic, host: b}
links:
  - {from: a0, to: a1, gb_per_s: 300}
  - {from: a0, to: wire, gb_per_s: 12.5, latency_us: 1.5}
  - {from: a1, to: wire, gb_per_s: 75/7, duplex: false}
  - {from: wire, to: card, gb_per_s: 0.1}
  - {from: card, to: b0, gb_per_s: 25, duplex: true}
  - {from: b0, to: b1, gb_per_s: 3e2}
"""

_PCI = 'vendor="0x10de" device="0x20b0" subsystem_vendor="0x0000" subsystem_device="0x0000"'
_GEN4 = 'link_speed="16.0 GT/s PCIe" link_width="16"'


def _gpu(bus: str, rank: int, body: str, *, sm: int = 80, link: str = _GEN4) -> str:
    return (
        f'<pci busid="0000:{bus}:00.0" class="0x030200" {_PCI} {link}>\n'
        f'<gpu dev="{rank}" sm="{sm}" rank="{rank}" gdr="1">\n{body}\n</gpu>\n</pci>\n'
    )


def _nic(bus: str, name: str, *, speed: str = "200000", dev: int = 0) -> str:
    return (
        f'<pci busid="0000:{bus}:00.0" class="0x020000" vendor="0x15b3" device="0x1021" {_GEN4}>\n'
        f'<nic>\n<net name="{name}" dev="{dev}" speed="{speed}" port="1" latency="1.5" guid="0x1"/>\n</nic>\n'
        "</pci>\n"
    )


def xml(body: str, *, second: str | None = None, cpu: str = 'vendor="AuthenticAMD"') -> bytes:
    """A topology XML with ``body`` in its first CPU and ``second`` in its second."""
    head = f'arch="x86_64" {cpu} familyid="6" modelid="143"'
    text = f'<system version="1">\n<cpu numaid="0" {head}>\n{body}</cpu>\n'
    if second is not None:
        text += f'<cpu numaid="1" {head}>\n{second}</cpu>\n'
    return (text + "</system>\n").encode()


gpu_xml = _gpu
nic_xml = _nic


def nvlink(bus: str, count: int = 4, tclass: str = "0x030200") -> str:
    """An nvlink element."""
    return f'<nvlink target="0000:{bus}:00.0" count="{count}" tclass="{tclass}"/>'


BRIDGE = f'<pci busid="0000:01:00.0" class="0x060400" vendor="0x1000" device="0x1" {_GEN4}>\n'

XML_DIRECT = xml(
    BRIDGE + _gpu("02", 0, nvlink("05")) + _nic("03", "mlx5_0") + "</pci>\n",
    second=_gpu("05", 1, nvlink("02")) + _nic("06", "mlx5_1", dev=1),
)

XML_SWITCHED = xml(
    BRIDGE
    + "".join(
        _gpu(f"1{i}", i, nvlink("f0", 9, "0x068000") + "\n" + nvlink("f1", 9, "0x068000"), sm=90)
        for i in range(3)
    )
    + "</pci>\n"
)

XML_AMD = b"""
<system version="2">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:4e:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="104" gcn="910" rank="0" gdr="1">
        <xgmi target="0000:51:00.0" count="4" tclass="0x038000"/>
      </gpu>
    </pci>
    <pci busid="0000:51:00.0" class="0x038000" link_speed="16.0 GT/s PCIe" link_width="8">
      <gpu dev="1" sm="104" gcn="gfx90a" rank="1" gdr="1">
        <xgmi target="0000:4e:00.0" count="4" tclass="0x038000"/>
      </gpu>
    </pci>
  </cpu>
</system>
"""

XML_SKELETON = xml(
    BRIDGE
    + "".join(f'<pci busid="0000:2{i}:00.0" class="0x030200" {_PCI} {_GEN4}/>\n' for i in range(8))
    + f'<pci busid="0000:30:00.0" class="0x020000" {_PCI} {_GEN4}/>\n</pci>\n'
)

NVIDIA_DIRECT = b"""\tGPU0\tGPU1\tGPU2\tGPU3\tmlx5_0\tmlx5_1\tCPU Affinity
GPU0\t X \tNV2\tNV1\tSYS\tPIX\tSYS\t0-19
GPU1\tNV2\t X \tSYS\tNV1\tPIX\tSYS\t0-19
GPU2\tNV1\tSYS\t X \tNV2\tSYS\tPXB\t20-39
GPU3\tSYS\tNV1\tNV2\t X \tSYS\tPHB\t20-39
mlx5_0\tPIX\tPIX\tSYS\tSYS\t X \tSYS\t
mlx5_1\tSYS\tSYS\tPXB\tPHB\tSYS\t X \t

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
"""

NVIDIA_SWITCHED = b"""\x1b[4m\
        GPU0    GPU1    GPU2    NIC0    NIC1    CPU Affinity    NUMA Affinity   GPU NUMA ID\x1b[0m
GPU0     X      NV12    NV12    PXB     SYS     0-15            0               N/A
GPU1    NV12     X      NV12    PXB     SYS     0-15            0               N/A
GPU2    NV12    NV12     X      SYS     SYS     16-31           1               N/A
NIC0    PXB     PXB     SYS      X      SYS
NIC1    SYS     SYS     SYS     SYS      X

Legend:

  X    = Self

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_0
"""

ROCM = b"""
============================ ROCm System Management Interface ============================
================================ Weight between two GPUs =================================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            15           15           30
GPU1   15           0            30           15
GPU2   15           30           0            15
GPU3   30           15           15           0

================================= Hops between two GPUs ==================================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            1            1            1
GPU1   1            0            1            1
GPU2   1            1            0            1
GPU3   1            1            1            0

=============================== Link Type between two GPUs ===============================
       GPU0         GPU1         GPU2         GPU3
GPU0   0            XGMI         XGMI         XGMI
GPU1   XGMI         0            XGMI         XGMI
GPU2   XGMI         XGMI         0            XGMI
GPU3   XGMI         XGMI         XGMI         0

======================================= Numa Nodes =======================================
GPU[0]\t\t: (Topology) Numa Node: 0
GPU[0]\t\t: (Topology) Numa Affinity: 0
GPU[1]\t\t: (Topology) Numa Node: 0
GPU[2]\t\t: (Topology) Numa Node: 1
GPU[3]\t\t: (Topology) Numa Node: 1
================================== End of ROCm SMI Log ===================================
"""

# Name, content, options with which it reads.
SAMPLES: dict[str, tuple[bytes, dict[str, str]]] = {
    "json": (JSON, {}),
    "yaml": (YAML, {}),
    "xml_direct": (XML_DIRECT, {}),
    "xml_switched": (XML_SWITCHED, {}),
    "xml_amd": (XML_AMD, {}),
    "xml_skeleton": (XML_SKELETON, {"gpu": "a100"}),
    "nvidia_direct": (NVIDIA_DIRECT, {}),
    "nvidia_switched": (NVIDIA_SWITCHED, {}),
    "rocm": (ROCM, {"xgmi_links": "1"}),
}
