"""Workload and price list of a purchase: two files, each TOML or JSON.

A *workload* says how many ranks there are, what ports they have, and which collectives an iteration consists of. A
*price list* says what a port, a switch and a cable cost, and how racks stand. docs/design.md describes both.
"""

from __future__ import annotations

import os
import tomllib
from fractions import Fraction
from pathlib import Path

import msgspec

from coppice.collectives import Collective
from coppice.decoding import json_fault
from coppice.errors import InputError
from coppice.files import read_bytes
from coppice.topology.composition.fabric import converted

MOST_RANKS = 1024
COLLECTIVES = (Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER, Collective.ALL_TO_ALL)


class Use(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A collective of every iteration, in all groups concurrently."""

    collective: Collective  # Its name
    size_bytes: int  # M of each group
    count: int = 1  # How often in an iteration
    group_size: int | None = None  # Ranks of a group; None takes all
    stride: int = 1  # Distance of neighbours in a group: 1 for ranks in a row, 8 for every eighth

    def groups(self, ranks: int) -> list[list[int]]:
        """Ranks of every group.

        Examples:
            >>> Use(collective=Collective.ALL_REDUCE, size_bytes=1, group_size=2, stride=2).groups(4)
            [[0, 2], [1, 3]]
        """
        size = ranks if self.group_size is None else self.group_size
        block = size * self.stride
        starts = [base + offset for base in range(0, ranks, block) for offset in range(self.stride)]
        return [[start + place * self.stride for place in range(size)] for start in starts]


class Failures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Simultaneous failures, sampled; the mean counts."""

    links: int = 0  # Cables that fail
    hosts: int = 0  # Hosts that fail; their ranks leave all groups
    samples: int = 8  # Sets of failures that are looked at


class TrainingWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster to buy and its training iteration."""

    ranks: int  # Number of ranks
    collectives: list[Use]  # What an iteration consists of, one after the other
    ports: int = 1  # Network ports of a rank
    gb_per_s: Fraction = Fraction(50)  # Rate of a port
    latency_us: float = 0.5  # Latency of a cable
    ranks_per_host: int = 1  # Ranks that a switch inside of a host joins; 1 for none
    host_gb_per_s: Fraction = Fraction(450)  # Rate of a rank to that switch
    failures: Failures = Failures()  # What fails

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.ranks // self.ranks_per_host

    @property
    def host_ports(self) -> int:
        """Network ports of a host."""
        return self.ports * self.ranks_per_host


class SwitchPrice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A switch: its ports, at the rate of a rank's port, and its price."""

    radix: int
    price: float


class CableClass(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A full-duplex cable up to some length, transceivers included; simplex costs half."""

    max_m: float
    price: float
    name: str = ""


class Prices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A price list."""

    nic_port: float  # A port of a rank
    switches: list[SwitchPrice]  # Switches, by radix
    cables: list[CableClass]  # Cables, by length
    currency: str = "USD"  # Printed with the figures
    hosts_per_rack: int = 4  # Hosts of a rack
    # Distance of neighbouring racks, which stand in a row; switches above the leaves are in the middle
    rack_pitch_m: float = 0.6
    # Length of a cable within a rack, and what every other one has on top of the distance
    slack_m: float = 2.0

    def cable_price(self, length_m: float) -> float:
        """Price of the shortest class that is long enough."""
        fitting = [cable for cable in self.cables if cable.max_m >= length_m]
        if not fitting:
            longest = max((cable.max_m for cable in self.cables), default=0.0)
            raise InputError(
                f"expected a cable of {length_m:.1f} m or more, found up to {longest:g} m: "
                "add a class to the price list."
            )
        return min(fitting, key=lambda cable: cable.max_m).price


def read_workload(path: str | os.PathLike[str]) -> TrainingWorkload:
    """Read a workload from a TOML or JSON file."""
    made = converted(_document(path), TrainingWorkload, str(path), strict=False)
    checks = [
        (2 <= made.ranks <= MOST_RANKS, f"$.ranks of 2 .. {MOST_RANKS}", made.ranks),
        (1 <= made.ports <= 64, "$.ports of 1 .. 64", made.ports),
        (made.gb_per_s > 0, "$.gb_per_s above 0", made.gb_per_s),
        (made.host_gb_per_s > 0, "$.host_gb_per_s above 0", made.host_gb_per_s),
        (0 <= made.latency_us < 1e9, "$.latency_us of 0 or more", made.latency_us),
        (made.ranks_per_host >= 1, "$.ranks_per_host of 1 or more", made.ranks_per_host),
        (bool(made.collectives), "$.collectives with one or more", "none"),
        (made.failures.links >= 0, "$.failures.links of 0 or more", made.failures.links),
        (made.failures.hosts >= 0, "$.failures.hosts of 0 or more", made.failures.hosts),
        (1 <= made.failures.samples <= 1000, "$.failures.samples of 1 .. 1000", made.failures.samples),
    ]
    _hold(checks, path)
    _hold([(made.ranks % made.ranks_per_host == 0, "$.ranks to be whole hosts", made.ranks)], path)
    lost = made.failures.hosts
    survive = (lost < made.hosts - 1, "two hosts to survive $.failures.hosts", lost)
    _hold([(made.hosts >= 2, "two hosts or more", made.hosts), survive], path)
    for place, use in enumerate(made.collectives):
        at = f"$.collectives[{place}]"
        size = made.ranks if use.group_size is None else use.group_size
        _hold(
            [
                (
                    use.collective in COLLECTIVES,
                    f"{at}.collective of {', '.join(COLLECTIVES)}",
                    use.collective,
                ),
                (0 < use.size_bytes < 2**50, f"{at}.size_bytes of 1 byte or more", use.size_bytes),
                (use.count >= 1, f"{at}.count of 1 or more", use.count),
                (2 <= size <= made.ranks, f"{at}.group_size of 2 .. {made.ranks}", size),
                (use.stride >= 1, f"{at}.stride of 1 or more", use.stride),
            ],
            path,
        )
        fits = made.ranks % (size * use.stride) == 0
        _hold([(fits, f"{at}.group_size x stride to divide the {made.ranks} ranks", size * use.stride)], path)
    return made


def read_prices(path: str | os.PathLike[str]) -> Prices:
    """Read a price list from a TOML or JSON file."""
    made = converted(_document(path), Prices, str(path), strict=False)
    checks: list[tuple[bool, str, object]] = [
        (made.nic_port >= 0, "$.nic_port of 0 or more", made.nic_port),
        (bool(made.switches), "$.switches with one or more", "none"),
        (bool(made.cables), "$.cables with one or more", "none"),
        (made.hosts_per_rack >= 1, "$.hosts_per_rack of 1 or more", made.hosts_per_rack),
        (made.rack_pitch_m >= 0, "$.rack_pitch_m of 0 or more", made.rack_pitch_m),
        (made.slack_m >= 0, "$.slack_m of 0 or more", made.slack_m),
    ]
    checks += [
        (s.radix >= 2, f"$.switches[{i}].radix of 2 or more", s.radix) for i, s in enumerate(made.switches)
    ]
    checks += [
        (s.price >= 0, f"$.switches[{i}].price of 0 or more", s.price) for i, s in enumerate(made.switches)
    ]
    checks += [(c.max_m > 0, f"$.cables[{i}].max_m above 0", c.max_m) for i, c in enumerate(made.cables)]
    checks += [
        (c.price >= 0, f"$.cables[{i}].price of 0 or more", c.price) for i, c in enumerate(made.cables)
    ]
    _hold(checks, path)
    return made


def _document(path: str | os.PathLike[str]) -> object:
    """The file as mappings and lists."""
    file = Path(path)
    data = read_bytes(file, hint="check the name")
    try:
        document: object = (
            msgspec.json.decode(data) if file.suffix == ".json" else tomllib.loads(data.decode("utf-8"))
        )
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        kind = "JSON" if file.suffix == ".json" else "TOML"
        known = kind == "JSON" and not isinstance(error, tomllib.TOMLDecodeError)
        fault = json_fault(error, data) if known else str(error).rstrip(".")
        raise InputError(f"expected {file} to be {kind}, found: {fault}.") from None
    return document


def _hold(checks: list[tuple[bool, str, object]], path: str | os.PathLike[str]) -> None:
    for holds, expected, found in checks:
        if not holds:
            raise InputError(f"{path}: expected {expected}, found {found}: mend it there.")
