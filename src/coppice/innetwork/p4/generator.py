"""Generator of the switch of SwitchML, FPISA or ATP as a P4_16 program for v1model, for given hosts, slots and values.

Source: Sapio et al., "Scaling Distributed Machine Learning with In-Network Aggregation" (NSDI'21), section 3.4, and
the packets of p4lang/p4app-switchML; Yuan et al. (NSDI'22) for floats; Lao et al. (NSDI'21) for ATP. The programs are
our own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address
from os import PathLike
from pathlib import Path
from typing import Literal

import msgspec

from coppice.arguments import checked
from coppice.decoding import decode_json
from coppice.errors import InputError
from coppice.files import file_name, read_bytes, write_atomically
from coppice.innetwork.p4 import atp
from coppice.innetwork.p4.adders import each_value, floats, integers
from coppice.innetwork.p4.frames import FRAMES
from coppice.innetwork.p4.switchml import HEAD, PIPELINE
from coppice.innetwork.p4.variants import GUARDED, PUBLISHED
from coppice.innetwork.serving.settings import SWITCHML_COUNTS
from coppice.text import plural

MOST_WORKERS = 32
_MAC = re.compile(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}")


def number_of_mac(text: str) -> int:
    """A MAC address as a number.

    Examples:
        >>> number_of_mac("02:00:00:00:01:00") == 0x020000000100
        True
    """
    if not _MAC.fullmatch(text):
        raise InputError(
            f"expected a MAC address such as 02:00:00:00:01:00, found {text!r}: write six bytes in hexadecimal."
        )
    return int(text.replace(":", ""), 16)


class SwitchAddress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Addresses that workers send to."""

    mac: str  # Such as `02:00:00:00:00:01`
    ipv4: str  # Such as `10.0.0.254`


class AttachedWorker(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A worker, whose packets are aggregated and to whom sums go."""

    mac: str  # Its address
    ipv4: str  # Its address
    port: int  # Of the switch


class AttachedHost(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A host that is no worker: its frames are forwarded."""

    mac: str  # Its address
    port: int  # Of the switch


class Rack(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A switch with its attached hosts."""

    switch: SwitchAddress  # Its addresses
    workers: tuple[AttachedWorker, ...]  # In the order of their numbers
    others: tuple[AttachedHost, ...] = ()  # Hosts that are no workers
    server: AttachedWorker | None = None  # Of ATP: who adds up what the switch does not

    @property
    def attached(self) -> tuple[AttachedWorker | AttachedHost, ...]:
        """All hosts that have a port."""
        return (*self.workers, *(() if self.server is None else (self.server,)), *self.others)


def default_rack(workers: int, *, server: bool = False) -> Rack:
    """Make a rack of workers at ports 0, 1, ..., with addresses of their own, and of a server at the next port.

    Examples:
        >>> default_rack(2).workers[1]
        AttachedWorker(mac='02:00:00:00:01:01', ipv4='10.0.0.2', port=1)
    """
    return Rack(
        SwitchAddress("02:00:00:00:00:01", "10.0.0.254"),
        tuple(AttachedWorker(f"02:00:00:00:01:{w:02x}", f"10.0.0.{w + 1}", w) for w in range(workers)),
        server=AttachedWorker("02:00:00:00:02:00", "10.0.0.200", workers) if server else None,
    )


def read_rack(path: str | PathLike[str]) -> Rack:
    """Read a rack from a JSON file with the fields of :class:`Rack`."""
    name = file_name(path)
    data = read_bytes(path, what="the hosts", hint="name a JSON file with switch, workers and others")
    rack = decode_json(
        data,
        Rack,
        lambda fault: (
            f"{name}: {fault}: write an object with switch, workers and others, as docs/in-network.md shows."
        ),
    )
    check_rack(rack, file=name)
    return rack


def check_rack(rack: Rack, *, file: str) -> None:
    """Raise unless all addresses are well formed and belong to one host each."""
    if not 1 <= len(rack.workers) <= MOST_WORKERS:
        raise InputError(
            f"{file}: expected 1 to {MOST_WORKERS} workers, found {len(rack.workers)}: a bitmap has a bit for each."
        )
    macs: set[int] = set()
    addresses: set[str] = set()
    parties: list[tuple[str, SwitchAddress | AttachedWorker | AttachedHost]] = [("$.switch", rack.switch)]
    parties += [(f"$.workers[{at}]", worker) for at, worker in enumerate(rack.workers)]
    parties += [(f"$.others[{at}]", host) for at, host in enumerate(rack.others)]
    parties += [] if rack.server is None else [("$.server", rack.server)]
    for place, each in parties:
        try:
            mac = number_of_mac(each.mac)
            ipv4 = None if isinstance(each, AttachedHost) else str(IPv4Address(each.ipv4))
        except (InputError, AddressValueError) as error:
            raise InputError(
                f"{file}: {place}: {str(error).rstrip('.')}: write a MAC address and an IPv4 address."
            ) from None
        if mac in macs or ipv4 in addresses:
            raise InputError(f"{file}: {place} has the address of another: give each its own.")
        if not isinstance(each, SwitchAddress) and not 0 <= each.port < 511:
            raise InputError(
                f"{file}: {place}: expected a port of 0 .. 510, found {each.port}: name a port of the switch."
            )
        macs.add(mac)
        addresses |= {ipv4} if ipv4 else set()


KINDS = {64: 0x11, 256: 0x13}
"""First byte of a packet with so many values: type 1, and their size."""

VARIANTS = ("guarded", "published")
"""With packet ids checked, or as published."""

SYSTEMS = ("switchml", "fpisa", "atp")
"""Systems whose switch can be written: sums of int32, or of float32, in slots of one job; of int32 in shared slots."""

MODES = ("full", "approximate")
"""How FPISA adds floats."""

MOST_SLOTS = {"switchml": 8192, "fpisa": 8192, "atp": 65536}

_WORKERS_GROUP, _FLOOD_GROUP = 1, 2


@dataclass(frozen=True)
class P4Export:
    """A generated P4 program with its table entries."""

    program: str  # Text of `switchml.p4`, `fpisa.p4` or `atp.p4`
    entries: str  # Text of `entries.txt`: commands of `simple_switch_CLI`
    rack: Rack  # Who is attached
    file_name: str  # Of the program
    values: int  # Of a packet

    def write(self, folder: Path) -> None:
        """Write both files into a folder, which is made if it is not there."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot make the folder {folder} ({error.strerror or error}): choose another place."
            ) from None
        write_atomically(folder / self.file_name, self.program.encode())
        write_atomically(folder / "entries.txt", self.entries.encode())


@checked
def export_p4(
    *,
    workers: int | None = None,  # Workers, 1 to 32; as many as `rack` has by default, or 2
    slots: int = 256,  # Slots, 1 to 8192, each with two sets; of ATP to 65536, with one
    # Values of a packet: 64 or 256, of ATP 62. All are added in one pass, which v1model allows; on hardware 256 values
    # take four passes of 64.
    values: int | None = None,
    # `guarded` keeps the packet id of each set and accepts only that which is due; `published` tells a
    # retransmission by the bitmaps alone. ATP knows packets by their keys
    variant: Literal["guarded", "published"] = "guarded",
    # `fpisa` adds float32, which workers send as it is; the rest is the switch of SwitchML. `atp` shares slots among
    # jobs, and leaves to a server what found none
    system: Literal["switchml", "fpisa", "atp"] = "switchml",
    # Of FPISA: `full` shifts what is kept, too; `approximate` is what switches of today can do
    mode: Literal["full", "approximate"] = "full",
    rack: Rack | None = None,  # Addresses and ports; worker w at port w by default
    job: int = 0,  # Low eight bits of the job's id, which the guarded variant demands; of ATP all 16
    first_packet: int = 0,  # Packet id of the first packet of slot 0, which the guarded variant demands
) -> P4Export:
    """Generate the switch of SwitchML, FPISA or ATP as a P4_16 program for v1model, with its table entries.

    Sums of FPISA are bit for bit those of :func:`coppice.innetwork.numerics.fpisa_sum`, rounded to the nearest.

    Examples:
        >>> made = export_p4(workers=2, slots=16)
        >>> made.entries.splitlines()[1]
        'table_add SwitchIngress.sender serve 02:00:00:00:01:00 10.0.0.1 => 0x1 0x0 0x0'
    """
    if rack is None:
        rack = default_rack(
            2 if workers is None else max(1, min(workers, MOST_WORKERS + 1)), server=system == "atp"
        )
    number = len(rack.workers) if workers is None else workers
    for name, found, least, most in (
        ("workers", number, 1, MOST_WORKERS),
        ("slots", slots, 1, MOST_SLOTS[system]),
        ("job", job, 0, 65535 if system == "atp" else 255),
        ("first_packet", first_packet, 0, 2**32 - 1),
    ):
        if not least <= found <= most:
            raise InputError(
                f"expected `{name}` of {least} .. {most:,}, found {found:,}: choose a number in between."
            )
    sizes = (atp.VALUES,) if system == "atp" else tuple(KINDS)
    values = sizes[0] if values is None else values
    if values not in sizes:
        raise InputError(
            f"expected `values` of {' or '.join(map(str, sizes))}, found {values}: the packets of {system} have "
            f"{plural(len(sizes), 'size')}."
        )
    check_rack(rack, file="the rack")
    if len(rack.workers) != number:
        raise InputError(
            f"expected {plural(number, 'worker')} in the rack, found {len(rack.workers)}: leave out `workers`."
        )
    if system == "atp":
        if rack.server is None:
            raise InputError(
                "expected a server in the rack, found none: name it as `server`, with mac, ipv4 and port."
            )
        if variant != "guarded" or first_packet:
            raise InputError("`variant` and `first_packet` are SwitchML's: leave them out for atp.")
        return P4Export(_atp_program(slots), _atp_entries(rack, rack.server, job), rack, "atp.p4", values)
    adder = integers(values) if system == "switchml" else floats(values, full=mode == "full")
    program = _program(number, slots, values, adder, variant=variant)
    entries = _entries(rack, (job, first_packet) if variant == "guarded" else ())
    return P4Export(program, entries, rack, f"{system}.p4", values)


def _filled(text: str, parts: Mapping[str, str], *, counts: Sequence[str]) -> str:
    """Put parts into a template: each stands in $name$, since braces are P4's."""
    cells = "\n".join(f"const bit<32> {name.upper()} = {index};" for index, name in enumerate(counts))
    # What stands for a part may stand in another one.
    for name, part in {**parts, **FRAMES, "counts": cells, "number_of_counts": str(len(counts))}.items():
        text = text.replace(f"${name}$", part)
    return text


def _program(workers: int, slots: int, values: int, adder: Mapping[str, str], *, variant: str) -> str:
    parts = {
        **adder,
        **(GUARDED if variant == "guarded" else PUBLISHED),
        "variant": variant,
        "workers": str(workers),
        "slots": str(slots),
        "values": str(values),
        "kind": f"{KINDS[values]:#04x}",
        "value_fields": each_value(values, 4, lambda v: f"bit<32> v{v};"),
    }
    return _filled(HEAD + PIPELINE, parts, counts=SWITCHML_COUNTS)


def _atp_program(slots: int) -> str:
    values = atp.VALUES
    parts = {
        "slots": str(slots),
        "values": str(values),
        "value_fields": each_value(values, 4, lambda v: f"int<32> v{v};"),
        "value_registers": each_value(values, 4, lambda v: f"register<int<32>>(SLOTS) value_{v};"),
        "add_values": each_value(
            values,
            8,
            lambda v: (
                f"value_{v}.read(sum, slot); value = hdr.values.v{v}; add(); value_{v}.write(slot, sum); "
                f"hdr.values.v{v} = sum;"
            ),
        ),
        "read_values": each_value(values, 8, lambda v: f"value_{v}.read(hdr.values.v{v}, slot);"),
    }
    return _filled(atp.PROGRAM, parts, counts=atp.COUNTS)


def _entries(rack: Rack, arguments: Sequence[int]) -> str:
    """Commands that fill the tables of SwitchML."""
    words = "".join(f" {each:#x}" for each in arguments)
    senders = [
        f"table_add SwitchIngress.sender serve {each.mac} {IPv4Address(each.ipv4)} => {1 << bit:#x}{words}"
        for bit, each in enumerate(rack.workers)
    ]
    return _commands(rack, senders, [""] * len(rack.workers))


def _atp_entries(rack: Rack, server: AttachedWorker, job: int) -> str:
    """Commands that fill the tables of ATP, for one job with the number 0 in the switch."""
    number = len(rack.workers)
    bits = [1 << bit for bit in range(number)]
    senders = [
        f"table_add SwitchIngress.sender serve {each.mac} {IPv4Address(each.ipv4)} {job:#x} => "
        f"{bit:#x} {number} {sum(bits):#x} 0"
        for each, bit in zip((*rack.workers, server), (*bits, 0), strict=True)
    ]
    return _commands(rack, senders, [f" {bit:#x}" for bit in bits])


def _commands(rack: Rack, senders: Sequence[str], receivers: Sequence[str]) -> str:
    """Commands for all tables: those of senders are given, and what the receiver of each worker is told besides."""
    switch = rack.switch
    lines = [
        f"table_add SwitchIngress.own_address to_switch {switch.mac} {IPv4Address(switch.ipv4)} =>",
        *senders,
    ]
    lines += [
        f"table_add SwitchIngress.forwarding forward {each.mac} => {each.port}" for each in rack.attached
    ]
    # Copies of a sum: number 1 goes to worker 0, and so on.
    lines.append(f"mc_mgrp_create {_WORKERS_GROUP}")
    for bit, (each, told) in enumerate(zip(rack.workers, receivers, strict=True)):
        lines += [
            f"mc_node_create {bit + 1} {each.port}",
            f"mc_node_associate {_WORKERS_GROUP} {bit}",
            f"table_add SwitchEgress.receiver address {bit + 1} => {each.mac} {IPv4Address(each.ipv4)}{told}",
        ]
    # Copies of a frame to a destination that is not known.
    ports = sorted({each.port for each in rack.attached})
    lines.append(f"mc_mgrp_create {_FLOOD_GROUP}")
    lines.append(f"mc_node_create 0 {' '.join(map(str, ports))}")
    lines.append(f"mc_node_associate {_FLOOD_GROUP} {len(rack.workers)}")
    return "\n".join(lines) + "\n"
