"""GPU boxes as presets: a box, its network ports and the fabric that joins several of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from coppice.errors import InputError
from coppice.text import suggestion
from coppice.topology.composition.compose import Host, Port, compose, repeated
from coppice.topology.composition.fabric import FABRIC_KINDS, Fabric, fabric_from_fields
from coppice.topology.model import Link, Node, NodeKind, Topology
from coppice.topology.presets.registry import Preset, PresetParameter, integer, text
from coppice.topology.readers.link_rates import RateClass

__all__ = ["GpuBox", "box_preset", "nics_parameter", "rail_ports", "switched"]

MAX_BOXES = 65_536

_FABRIC_FIELDS = tuple(
    dict.fromkeys(
        field
        for kind in FABRIC_KINDS.values()
        for field in kind.__struct_fields__
        if field not in ("name", "cables")
    )
)


@dataclass(frozen=True, slots=True)
class GpuBox:
    """One box: nodes and links inside, and the ports it has when there is a network."""

    nodes: list[Node]
    links: list[Link]
    ports: tuple[Port, ...]


def switched(gpus: int, gb_per_s: Fraction, *, in_network: bool = False) -> tuple[list[Node], list[Link]]:
    """GPUs on one NVSwitch node, ``gb_per_s`` each way per GPU.

    Args:
        gpus: Number of GPUs.
        gb_per_s: Rate between a GPU and the switch.
        in_network: The switch can copy and add.
    """
    nodes = [Node(id=f"gpu{i}") for i in range(gpus)]
    nodes.append(Node(id="nvswitch", kind=NodeKind.SWITCH, multicast=in_network, aggregate=in_network))
    return nodes, [Link(src=f"gpu{i}", dst="nvswitch", gb_per_s=gb_per_s) for i in range(gpus)]


def rail_ports(gpus: int, *, nic: Fraction, pcie: Fraction, nics: str, name: str = "nic") -> tuple[Port, ...]:
    """One NIC per GPU, in GPU order.

    Args:
        gpus: Number of GPUs.
        nic: Rate of the NIC's cable.
        pcie: Rate between GPU and NIC.
        nics: ``node`` for NIC nodes; ``link`` folds each NIC into the link from its GPU to the network.
        name: NICs are called this with a number.

    Raises:
        InputError: If ``nics`` is neither.
    """
    if nics not in ("link", "node"):
        msg = f"expected nics=link or nics=node, found nics={nics!r}."
        raise InputError(msg)
    if nics == "link":
        return tuple(Port(at=f"gpu{i}", gb_per_s=min(nic, pcie)) for i in range(gpus))
    return tuple(Port(at=f"gpu{i}", gb_per_s=nic, nic=f"{name}{i}", nic_gb_per_s=pcie) for i in range(gpus))


def nics_parameter(default: str) -> PresetParameter:
    """The parameter ``nics`` of :func:`rail_ports`."""
    return PresetParameter(
        name="nics",
        parse=text,
        default=default,
        description="node: NICs are nodes; link: folded into the GPU's network link",
    )


def box_preset(
    *,
    name: str,
    description: str,
    source: str,
    measured: str,
    box: Callable[..., GpuBox],
    fabric: Fabric,
    parameters: tuple[PresetParameter, ...] = (),
) -> Preset:
    """A preset made of equal boxes.

    Args:
        name: Name of the preset.
        description: One line.
        source: Where the nominal figures come from.
        measured: Where the measured figures of the links come from.
        box: Makes one box from the class of rates and the values of ``parameters``.
        fabric: Joins several boxes unless the caller chooses another.
        parameters: Beyond ``rates`` and the fabric's.
    """
    own = {parameter.name for parameter in parameters}

    def host(*, rates: str = "nominal", **values: Any) -> Host:
        made = box(_rate_class(rates), **values)
        figures = source if rates == RateClass.NOMINAL else f"{measured} (measured); {source}"
        inside = Topology.of(name, made.nodes, made.links, source=figures)
        return Host(name="box", topology=inside, ports=made.ports)

    def build(*, boxes: int = 1, rates: str = "nominal", **values: Any) -> Topology:
        if not 1 <= boxes <= MAX_BOXES:
            msg = f"expected 1 .. {MAX_BOXES} boxes of {name}, found {boxes}."
            raise InputError(msg)
        inside = {key: value for key, value in values.items() if key in own}
        chosen = _chosen_fabric(fabric, {key: value for key, value in values.items() if key not in own})
        one = host(rates=rates, **inside)
        title = name if boxes == 1 else f"{boxes} x {name}"
        hosts = repeated(one, boxes)
        return compose(hosts, None if boxes == 1 else chosen, name=title, source=one.topology.source)

    fixed = (
        PresetParameter(name="boxes", parse=integer, default="1", description="number of boxes"),
        PresetParameter(name="rates", parse=text, default="nominal", description="nominal or measured"),
    )
    network = (
        PresetParameter(
            name="fabric",
            parse=text,
            default=_kind(fabric),
            description=f"joins several boxes: {', '.join(FABRIC_KINDS)}",
        ),
        *(
            PresetParameter(name=field, parse=text, default="", description="field of the fabric")
            for field in _FABRIC_FIELDS
        ),
    )
    return Preset(
        name=name,
        description=description,
        source=f"{source}; measured rates: {measured}",
        parameters=(*fixed, *parameters, *network),
        build=build,
        host=host,
    )


def _rate_class(rates: str) -> RateClass:
    if rates not in list(RateClass):
        msg = f"expected rates nominal or measured, found {rates!r}: {suggestion(rates, list(RateClass))}"
        raise InputError(msg)
    return RateClass(rates)


def _kind(fabric: Fabric) -> str:
    return next(kind for kind, record in FABRIC_KINDS.items() if isinstance(fabric, record))


def _chosen_fabric(default: Fabric, values: Mapping[str, Any]) -> Fabric:
    """The default fabric with some fields changed, or another kind."""
    fields = dict(values)
    chosen = fields.pop("fabric", None)
    if chosen is not None and not isinstance(chosen, str):
        return chosen  # type: ignore[no-any-return]  # a Fabric from Python
    if chosen is None or chosen == _kind(default):
        given = {field: getattr(default, field) for field in default.__struct_fields__}
        return fabric_from_fields(_kind(default), {**given, **fields}) if fields else default
    return fabric_from_fields(chosen, fields)
