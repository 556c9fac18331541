"""Rules about hosts: for each the smallest input that breaks it, and a sound one beside it; and the real dumps."""

from __future__ import annotations

import pytest

from coppice.doctor import diagnose
from coppice.doctor.diagnose import rules_for
from coppice.doctor.framework import Diagnosis
from coppice.errors import InputError
from support.shared_data import SHARED

X16 = 'link_speed="16.0 GT/s PCIe" link_width="16"'
X8 = 'link_speed="16.0 GT/s PCIe" link_width="8"'
GEN3 = 'link_speed="8.0 GT/s PCIe" link_width="16"'


def gpu(number: int, *, link: str = X16, gdr: int = 1, nvlinks: int = 4, peer: int | None = None) -> str:
    bus = f"0000:{10 + number}:00.0"
    nvlink = ""
    if peer is not None and nvlinks:
        nvlink = f'<nvlink target="0000:{10 + peer}:00.0" count="{nvlinks}" tclass="0x030200"/>'
    return (
        f'<pci busid="{bus}" class="0x030200" {link}><gpu dev="{number}" sm="80" rank="{number}" gdr="{gdr}">'
        f"{nvlink}</gpu></pci>"
    )


def nic(number: int, *, link: str = X16, gdr: int = 1, mbit: int = 100_000) -> str:
    return (
        f'<pci busid="0000:{30 + number}:00.0" class="0x020700" {link}><nic><net name="mlx5_{number}" dev="{number}" '
        f'speed="{mbit}" port="1" guid="0x{number + 1}" gdr="{gdr}"/></nic></pci>'
    )


def switch(number: int, *parts: str) -> str:
    return f'<pci busid="0000:0{number}:00.0" class="0x060400" {X16}>{"".join(parts)}</pci>'


def host(*sockets: str) -> bytes:
    cpu = '<cpu host_hash="0x1" numaid="{}" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">{}</cpu>'
    return f'<system version="1">{"".join(cpu.format(i, text) for i, text in enumerate(sockets))}</system>'.encode()


def found(data: bytes, **facts: str) -> dict[str, str]:
    diagnosis: Diagnosis = diagnose(data, "host", options=facts, file="host.xml")
    return {finding.rule: finding.text for finding in diagnosis.findings}


SOUND = host(switch(1, gpu(0, peer=1), nic(0)) + switch(2, gpu(1, peer=0), nic(1)))

PAIRS = {
    "H01": (host(gpu(0, peer=1) + gpu(1, peer=0) + nic(0) + nic(1)), "12.5 GB/s"),
    "H02": (host(switch(1, gpu(0, peer=1)) + switch(2, gpu(1, peer=0)), switch(3, nic(0), nic(1))), "5 GB/s"),
    "H03": (host(switch(1, gpu(0, peer=1, link=X8), nic(0)) + switch(2, gpu(1, peer=0), nic(1))), "12 GB/s less"),
    "H04": (host(switch(1, gpu(0, peer=1), nic(0, mbit=400_000)) + switch(2, gpu(1, peer=0), nic(1))), "26 GB/s"),
    "H05": (host(switch(1, gpu(0, peer=1), gpu(1, peer=0), nic(0))), "6.25 GB/s for each"),
    "H06": (host(switch(1, gpu(0, peer=1), gpu(1, peer=0), nic(0), nic(1)), switch(3, nic(2))), "mlx5_2"),
    "H07": (host(switch(1, gpu(0, peer=1), nic(0, gdr=0)) + switch(2, gpu(1, peer=0), nic(1, gdr=0))), "12.5 GB/s"),
    "H08": (
        host(
            switch(1, gpu(0, peer=1, nvlinks=2), nic(0)) + switch(2, gpu(1, peer=0, nvlinks=2), nic(1))
            + switch(3, gpu(2, peer=3), nic(2)) + switch(4, gpu(3, peer=2), nic(3))
        ),
        "40 GB/s less",
    ),
    "H09": (host(switch(1, gpu(0), nic(0)) + switch(2, gpu(1), nic(1))), "24 GB/s of PCIe"),
}  # fmt: skip


@pytest.mark.parametrize("rule", sorted(PAIRS))
def test_wiring(rule: str) -> None:
    data, cost = PAIRS[rule]
    assert cost in found(data)[rule]
    assert found(SOUND) == {}


HEAD = "n1:7:7 [0] NCCL INFO "
RUN = f"{HEAD}Using network IB\n{HEAD}Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0/GDRDMA\n"
LINES = {
    "H10": (
        f"{HEAD}P2P is disabled between connected GPUs 1 and 0.\n{HEAD}Channel 00 : 0[0] -> 1[1] via SHM/direct\n",
        "24 GB/s",
    ),
    "H11": (
        f"{HEAD}GPU Direct RDMA Disabled for HCA 0 (distance 8 > 5)\n{HEAD}Channel 00 : 1[1] -> 2[0] via NET/IB/0\n",
        "distance 8 > 5",
    ),
    "H12": (f"{HEAD}Using network Socket\n", "sockets"),
}


@pytest.mark.parametrize("rule", sorted(LINES))
def test_runs(rule: str) -> None:
    text, words = LINES[rule]
    assert words in found((RUN + text).encode())[rule]
    assert found(RUN.encode()) == {}


@pytest.mark.parametrize(
    ("line", "broken"),
    [
        ("NCCL_P2P_DISABLE set by environment to 1", True),
        ("NCCL_P2P_DISABLE set by environment to 0", False),
        ("NCCL_P2P_LEVEL set by environment to LOC", True),
        ("NCCL_P2P_LEVEL set by environment to NVL", False),
    ],
)
def test_variables_of_p2p(line: str, broken: bool) -> None:
    assert ("H10" in found(f"{RUN}{HEAD}{line}\n".encode())) is broken


def test_rings_cross_sockets_as_often_as_needed(tmp_path: object) -> None:
    box = f"{tmp_path}/box.xml"
    with open(box, "wb") as file:  # noqa: PTH123
        file.write(host(switch(1, gpu(0), gpu(1)), switch(2, gpu(2), gpu(3))))
    ring = f"{RUN}{HEAD}Channel 00/02 :    0   1   2   3\n"
    assert "H13" not in found(ring.encode(), topology=box)
    crossing = f"{RUN}{HEAD}Channel 00/02 :    0   2   1   3\n"
    assert "crosses sockets 4 times, 2 are enough" in found(crossing.encode(), topology=box)["H13"]


BRIDGE = "0000:01:00.0 PCI bridge: Broadcom PEX890xx\n\tLnkCap:\tPort #1, Speed 32GT/s, Width x16\n"
GPU = "0000:17:00.0 3D controller: NVIDIA Corporation GH100\n\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n"
CALM = "\t\tACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-\n"


def test_lspci() -> None:
    whole = "\tLnkSta:\tSpeed 32GT/s, Width x16\n"
    assert found((BRIDGE + whole + CALM + GPU + whole).encode()) == {}
    acs = CALM.replace("ReqRedir-", "ReqRedir+")
    assert "1 PCIe bridge" in found((BRIDGE + whole + acs + GPU + whole).encode())["H14"]
    narrow = "\tLnkSta:\tSpeed 16GT/s (downgraded), Width x8 (downgraded)\n"
    assert (
        "12 GB/s of PCIe, it could 48: 36 GB/s less"
        in found((BRIDGE + whole + CALM + GPU + narrow).encode())["H15"]
    )


def test_what_lacks_is_named() -> None:
    diagnosis = diagnose(SOUND, "host")
    assert {each.rule for each in diagnosis.undecided} == {"H10", "H11", "H12", "H13", "H14", "H15"}
    assert len(rules_for("host")) == 15
    with pytest.raises(InputError):
        diagnose(b"nothing of the kind", "host")


EXPECTED = {
    "oci_bm_gpu_h100_8x.xml": set(),
    "perlmutter_a100_4x_nid001056.xml": {"H01"},
    "hgx_b200_8x_gpu2_nvlink_down.txt": {"H08"},
    "dgx_a100_8x.txt": {"H06"},
    "v100_sxm2_8x_1nic.txt": {"H01", "H02", "H05"},
}


@pytest.mark.skipif(not SHARED.is_dir(), reason="real machine files are not here")
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_real_machines(name: str) -> None:
    assert set(found((SHARED / "topologies" / name).read_bytes())) == EXPECTED[name]
