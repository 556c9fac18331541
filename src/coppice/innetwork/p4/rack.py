"""The hosts attached to a switch: addresses and ports of workers and others."""

from __future__ import annotations

import re
from ipaddress import AddressValueError, IPv4Address
from os import PathLike

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.files import file_name, read_bytes

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

    @property
    def attached(self) -> tuple[AttachedWorker | AttachedHost, ...]:
        """All hosts that have a port."""
        return (*self.workers, *self.others)


def default_rack(workers: int) -> Rack:
    """Make a rack of workers at ports 0, 1, ..., with addresses of their own.

    Examples:
        >>> default_rack(2).workers[1]
        AttachedWorker(mac='02:00:00:00:01:01', ipv4='10.0.0.2', port=1)
    """
    return Rack(
        SwitchAddress("02:00:00:00:00:01", "10.0.0.254"),
        tuple(AttachedWorker(f"02:00:00:00:01:{w:02x}", f"10.0.0.{w + 1}", w) for w in range(workers)),
    )


def read_rack(path: str | PathLike[str]) -> Rack:
    """Read a rack from a JSON file with the fields of :class:`Rack`."""
    name = file_name(path)
    data = read_bytes(path, what="the hosts", hint="name a JSON file with switch, workers and others")
    try:
        rack = msgspec.json.decode(data, type=decodable(Rack))
    except msgspec.MsgspecError as error:
        raise InputError(
            f"{name}: {error}: write an object with switch, workers and others, as docs/in-network.md shows."
        ) from None
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
