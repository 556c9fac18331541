"""Rates of NVLink, xGMI, PCIe and sockets in GB/s per direction: the table, and the rules that look a link up.

Two classes of figures exist. *Measured* figures are what the GPU runtimes reckon with, close to what a link
carries in practice; *nominal* figures are what data sheets say. Where no nominal figure is published (between
CPU sockets) the measured one stands for both. Sources: the tables in ``src/graph/topo.h`` of NCCL and of RCCL
for the measured class; data sheets of NVIDIA (P100 to B200), of AMD (MI50 to MI355X) and the PCI Express base
specifications for the nominal class.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from fractions import Fraction

LOCAL_GB_PER_S = Fraction(5000)
"""Rate of a connection inside one chip: never the bottleneck."""

DEFAULT_NET_MBIT_PER_S = 10_000
"""Speed of a network port that does not state a positive one, as NCCL takes it."""

MAX_NET_MBIT_PER_S = 3_200_000
"""Network ports that claim more than this are taken for a driver's mistake."""


class RateClass(enum.StrEnum):
    """Class of a rate: nominal, or as NCCL counts it."""

    MEASURED = "measured"
    NOMINAL = "nominal"


@dataclass(frozen=True, kw_only=True, slots=True)
class LinkRate:
    """One link's rate in both classes, GB/s per direction."""

    measured: Fraction
    nominal: Fraction

    @classmethod
    def of(cls, measured: str, nominal: str) -> LinkRate:
        """Parse decimal text."""
        return cls(measured=Fraction(measured), nominal=Fraction(nominal))

    def at(self, rates: RateClass) -> Fraction:
        """Rate in one class."""
        return self.nominal if rates is RateClass.NOMINAL else self.measured


# NVLink by compute capability x 10: the first row whose capability is reached.
_NVLINK = (
    (100, LinkRate.of("40.1", "50")),
    (90, LinkRate.of("20.6", "25")),
    (87, LinkRate.of("20", "25")),
    (86, LinkRate.of("12", "14.0625")),
    (80, LinkRate.of("20", "25")),
    (70, LinkRate.of("20", "25")),
    (60, LinkRate.of("18", "20")),
)
_NVLINK_OTHERWISE = LinkRate.of("20", "25")

# xGMI by architecture name; older files give only the digits, with 910 for the MI200 family.
_XGMI = (
    (("gfx95", "95"), LinkRate.of("48", "76.8")),
    (("gfx94", "94"), LinkRate.of("48", "64")),
    (("gfx90a", "910", "90a"), LinkRate.of("36", "50")),
)
_XGMI_OTHERWISE = LinkRate.of("24", "46")

# PCIe link speed as Linux prints it (matched as a prefix), in units of 0.1 Gbit/s that a lane carries.
_PCIE_MEASURED = {
    "2.5 GT/s": 15,
    "5 GT/s": 30,
    "8 GT/s": 60,
    "16 GT/s": 120,
    "32 GT/s": 240,
    "64 GT/s": 480,
    "5.0 GT/s PCIe": 30,
    "8.0 GT/s PCIe": 60,
    "16.0 GT/s PCIe": 120,
    "32.0 GT/s PCIe": 240,
    "64.0 GT/s PCIe": 480,
}
_PCIE_OTHERWISE = 60
# Nominal GB/s of a lane by signalling rate; the line code is counted for the 8b/10b generations only.
_PCIE_NOMINAL = {
    Fraction(5, 2): Fraction(1, 4),
    Fraction(5): Fraction(1, 2),
    Fraction(8): Fraction(1),
    Fraction(16): Fraction(2),
    Fraction(32): Fraction(4),
    Fraction(64): Fraction(8),
}
_SIGNALLING = re.compile(r"(\d{1,3}(?:\.\d{1,3})?) GT/s")

_MAKERS_OF_ARCH = {"arm64": "arm", "ppc64": "ibm"}
_MAKERS = {
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "CentaurHauls": "zhaoxin",
    "  Shanghai  ": "zhaoxin",
}
_INTEL_FAMILY_6 = ((0xCF, 40), (0x8F, 22), (0x55, 10))


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuModel:
    """A GPU model: its links, and the parts it is usually sold with."""

    name: str  # Name for options, such as `a100`
    arch: str  # Architecture as compilers name it, such as `sm_80`
    links: int  # NVLink or xGMI links per GPU
    link: LinkRate  # Rate of one such link
    xgmi: bool = False  # The links are xGMI, else NVLink
    # Numbers of GPUs that boards join pairwise, with `links / (GPUs - 1)` links each
    mesh: tuple[int, ...] = ()
    switched: tuple[int, ...] = ()  # Numbers of GPUs that boards join by switches
    multicast: bool = False  # Switches of its generation copy and add in hardware
    pcie_speed: str  # PCIe speed as Linux prints it
    socket_gb_per_s: Fraction  # Rate between the sockets of its usual CPU
    nic_gb_per_s: Fraction  # Rate of its usual NIC


def _nvidia(
    name: str,
    links: int,
    sm: int,
    pcie_speed: str,
    *,
    socket: int,
    nic: str,
    mesh: tuple[int, ...] = (),
    switched: tuple[int, ...] = (),
) -> GpuModel:
    return GpuModel(
        name=name,
        arch=f"sm_{sm}",
        links=links,
        link=_nvlink(sm),
        mesh=mesh,
        switched=switched,
        multicast=sm >= 90,
        pcie_speed=pcie_speed,
        socket_gb_per_s=Fraction(socket),
        nic_gb_per_s=Fraction(nic),
    )


def _amd(
    name: str, links: int, gcn: str, pcie_speed: str, *, nic: str, mesh: tuple[int, ...] = ()
) -> GpuModel:
    return GpuModel(
        name=name,
        arch=gcn,
        links=links,
        link=_xgmi(gcn),
        xgmi=True,
        mesh=mesh,
        pcie_speed=pcie_speed,
        socket_gb_per_s=Fraction(16),
        nic_gb_per_s=Fraction(nic),
    )


def _nvlink(sm: int) -> LinkRate:
    return next((rate for capability, rate in _NVLINK if sm >= capability), _NVLINK_OTHERWISE)


def _xgmi(gcn: str) -> LinkRate:
    return next((rate for prefixes, rate in _XGMI if gcn.startswith(prefixes)), _XGMI_OTHERWISE)


GPU_MODELS = {
    model.name: model
    for model in (
        _nvidia("p100", 4, 60, "8 GT/s", socket=6, nic="12.5"),
        _nvidia("v100", 6, 70, "8 GT/s", socket=10, nic="12.5", mesh=(4,), switched=(16,)),
        _nvidia("a6000", 4, 86, "16 GT/s", socket=16, nic="12.5", mesh=(2,)),
        _nvidia("a100", 12, 80, "16 GT/s", socket=16, nic="25", mesh=(4,), switched=(8, 16)),
        _nvidia("a800", 8, 80, "16 GT/s", socket=16, nic="25", switched=(8,)),
        _nvidia("h100", 18, 90, "32 GT/s", socket=22, nic="50", mesh=(4,), switched=(8,)),
        _nvidia("h800", 8, 90, "32 GT/s", socket=22, nic="50", switched=(8,)),
        _nvidia("h20", 18, 90, "32 GT/s", socket=22, nic="50", switched=(8,)),
        _nvidia("h200", 18, 90, "32 GT/s", socket=22, nic="50", mesh=(4,), switched=(8,)),
        _nvidia("b200", 18, 100, "32 GT/s", socket=40, nic="50", switched=(8,)),
        _nvidia("b300", 18, 100, "64 GT/s", socket=40, nic="100", switched=(8,)),
        _amd("mi50", 2, "gfx906", "16 GT/s", nic="12.5"),
        _amd("mi100", 3, "gfx908", "16 GT/s", nic="25", mesh=(4,)),
        _amd("mi250", 8, "gfx90a", "16 GT/s", nic="25"),
        _amd("mi300a", 6, "gfx942", "32 GT/s", nic="25", mesh=(4,)),
        _amd("mi300x", 7, "gfx942", "32 GT/s", nic="50", mesh=(8,)),
        _amd("mi325x", 7, "gfx942", "32 GT/s", nic="50", mesh=(8,)),
        _amd("mi350x", 7, "gfx950", "32 GT/s", nic="50", mesh=(8,)),
        _amd("mi355x", 7, "gfx950", "32 GT/s", nic="50", mesh=(8,)),
    )
}
"""GPU models by the name that the option ``gpu`` takes."""


def nvlink_gb_per_s(sm: int, rates: RateClass) -> Fraction:
    """Rate of one NVLink of a GPU with compute capability ``sm / 10``, GB/s per direction.

    >>> nvlink_gb_per_s(80, RateClass.MEASURED), nvlink_gb_per_s(90, RateClass.MEASURED)
    (Fraction(20, 1), Fraction(103, 5))
    """
    return _nvlink(sm).at(rates)


def xgmi_gb_per_s(gcn: str, rates: RateClass) -> Fraction:
    """Rate of one xGMI link of an architecture such as ``gfx942`` or the older ``910``, GB/s per direction.

    >>> xgmi_gb_per_s("910", RateClass.MEASURED), xgmi_gb_per_s("gfx942", RateClass.NOMINAL)
    (Fraction(36, 1), Fraction(64, 1))
    """
    return _xgmi(gcn).at(rates)


def pcie_speed_known(speed: str) -> bool:
    """Whether NCCL and RCCL recognise this text of a PCIe link speed."""
    return speed.startswith(tuple(_PCIE_MEASURED))


def pcie_gb_per_s(speed: str, width: int, rates: RateClass) -> Fraction:
    """Rate of a PCIe link, GB/s per direction.

    Args:
        speed: As Linux prints it, ``"16.0 GT/s PCIe"`` or ``"16 GT/s"``. The runtimes recognise exactly these two
            spellings and take any other text for 8 GT/s; so does the measured class.
        width: Number of lanes; 0 counts as 16.

    Examples:
        >>> pcie_gb_per_s("32.0 GT/s PCIe", 16, RateClass.MEASURED), pcie_gb_per_s("", 0, RateClass.MEASURED)
        (Fraction(48, 1), Fraction(12, 1))
        >>> pcie_gb_per_s("16 GT/s", 16, RateClass.NOMINAL)
        Fraction(32, 1)
    """
    lanes = width or 16
    if rates is RateClass.NOMINAL:
        found = _SIGNALLING.match(speed)
        lane = _PCIE_NOMINAL.get(Fraction(found[1])) if found else None
        return lanes * (Fraction(1) if lane is None else lane)
    unit = next((unit for text, unit in _PCIE_MEASURED.items() if speed.startswith(text)), _PCIE_OTHERWISE)
    return Fraction(lanes * unit, 80)


def cpu_maker(arch: str, vendor: str) -> str | None:
    """CPU vendor of these texts in a topology file, as topologies spell it; None if unknown.

    >>> cpu_maker("x86_64", "GenuineIntel"), cpu_maker("arm64", ""), cpu_maker("", "")
    ('intel', 'arm', None)
    """
    return _MAKERS_OF_ARCH.get(arch) or _MAKERS.get(vendor)


def inter_socket_gb_per_s(arch: str, vendor: str, family: int, model: int) -> Fraction:
    """Rate between two sockets (or NUMA nodes) of a CPU, GB/s per direction; it is the same in both classes.

    >>> inter_socket_gb_per_s("x86_64", "GenuineIntel", 6, 143), inter_socket_gb_per_s("arm64", "", 0, 0)
    (Fraction(22, 1), Fraction(6, 1))
    """
    if arch == "ppc64":
        return Fraction(32)
    if arch == "arm64":
        return Fraction(6)
    if vendor == "GenuineIntel":
        rows = _INTEL_FAMILY_6 if family == 6 else ()
        return Fraction(next((rate for first, rate in rows if model >= first), 6))
    if vendor == "AuthenticAMD":
        return Fraction(16)
    if vendor in ("CentaurHauls", "  Shanghai  "):
        return Fraction(9 if (family, model) == (7, 0x5B) else 6)
    return LOCAL_GB_PER_S
