"""Types of P4_16, and the places where values of them are kept while a packet is worked on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from reference.p4.language.tokens import At, refuse

Cells = list[Any]
"""Everything that one packet's way through the program reads and writes: one entry for each scalar; None where a
value is undefined."""

DEVICE = 0
"""Cell that holds the device: its registers, counters and tables."""

PACKET = 1
"""Cell that holds the frame that is taken apart, or put together."""


@dataclass(frozen=True)
class ScalarType:
    """``bool``, ``error``, and the type of numbers without a width."""

    name: str

    def __str__(self) -> str:
        return self.name


BOOL = ScalarType("bool")
ERROR = ScalarType("error")
INTEGER = ScalarType("int")

ERRORS = ("NoError", "PacketTooShort", "NoMatch", "ParserTimeout")
"""Errors of parsers that the interpreter raises; a value of the type ``error`` is a place in this list."""


@dataclass(frozen=True)
class BitType:
    """``bit<width>``, or ``int<width>`` in two's complement."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"

    @property
    def least(self) -> int:
        """The smallest value."""
        return -(1 << self.width - 1) if self.signed else 0

    @property
    def most(self) -> int:
        """The largest value."""
        return (1 << self.width - self.signed) - 1


@dataclass(frozen=True)
class RecordType:
    """A header or a struct."""

    kind: str
    name: str
    fields: tuple[tuple[str, P4Type], ...]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


P4Type = ScalarType | BitType | RecordType


def wrapped(value: int, of: BitType) -> int:
    """A number as so many bits hold it.

    Examples:
        >>> wrapped(2**31, BitType(32, signed=True)) == -(2**31), wrapped(-1, BitType(8))
        (True, 255)
    """
    value &= (1 << of.width) - 1
    return value - (1 << of.width) if of.signed and value >> of.width - 1 else value


@dataclass(frozen=True)
class LeafPlace:
    """Where one scalar is kept.

    Attributes:
        type: Of the value.
        cell: Number of the cell.
        path: As it is written, for messages.
        writable: Whether the program may write it.
    """

    type: P4Type
    cell: int
    path: str
    writable: bool


@dataclass(frozen=True)
class GroupPlace:
    """Where a header or a struct is kept.

    Attributes:
        type: A header or a struct.
        members: Its fields.
        valid: Cell that says whether a header is valid; -1 for a struct.
        path: As it is written, for messages.
        writable: Whether the program may write it.
    """

    type: RecordType
    members: dict[str, LeafPlace | GroupPlace]
    valid: int
    path: str
    writable: bool

    def leaves(self) -> Iterator[LeafPlace]:
        """All scalars in it, in their order."""
        for each in self.members.values():
            if isinstance(each, LeafPlace):
                yield each
            else:
                yield from each.leaves()

    def headers(self) -> Iterator[GroupPlace]:
        """All headers in it, itself included."""
        if self.type.kind == "header":
            yield self
        for each in self.members.values():
            if isinstance(each, GroupPlace):
                yield from each.headers()


@dataclass
class CellMemory:
    """Gives out cells.

    Attributes:
        initial: What each cell holds before a packet comes.
    """

    initial: Cells = field(default_factory=lambda: [None, None])

    def cell(self, value: Any = None) -> int:
        """A new cell."""
        self.initial.append(value)
        return len(self.initial) - 1

    def place(self, of: P4Type, path: str, *, writable: bool, zero: bool = False) -> LeafPlace | GroupPlace:
        """A place for a value of a type.

        Args:
            of: The type.
            path: Its name.
            writable: Whether the program may write it.
            zero: Whether it holds zeros at first, instead of nothing.
        """
        if not isinstance(of, RecordType):
            first: Any = (False if of is BOOL else 0) if zero else None
            return LeafPlace(of, self.cell(first), path, writable)
        valid = self.cell(value=False) if of.kind == "header" else -1
        members = {
            name: self.place(each, f"{path}.{name}", writable=writable, zero=zero and of.kind != "header")
            for name, each in of.fields
        }
        return GroupPlace(of, members, valid, path, writable)


@dataclass(frozen=True)
class Typed:
    """An expression that was checked.

    Attributes:
        type: Of its value.
        at: Where it stands.
        get: Its value for the cells of a packet.
        constant: The value, where it is known already; None otherwise.
        place: Where it is kept, if it has a place.
    """

    type: P4Type
    at: At
    get: Callable[[Cells], Any]
    constant: Any = None
    place: LeafPlace | GroupPlace | None = None

    @classmethod
    def known(cls, of: P4Type, at: At, value: Any) -> Typed:
        """A constant."""
        return cls(of, at, lambda _: value, value)

    def as_type(self, wanted: P4Type) -> Typed:
        """The same as a value of ``wanted``: numbers without a width take it, anything else has to have it.

        Raises:
            InputError: If it has another type, or the number does not fit.
        """
        if self.type is INTEGER and isinstance(wanted, BitType):
            if not wanted.least <= self.constant <= wanted.most:
                refuse(
                    self.at,
                    f"expected a number of {wanted} ({wanted.least} .. {wanted.most}), found {self.constant}",
                )
            return Typed.known(wanted, self.at, self.constant)
        if self.type != wanted:
            refuse(self.at, f"expected a value of type {wanted}, found {self.type}: write a cast")
        return self


def _standard_metadata() -> RecordType:
    widths = {
        "ingress_port": 9,
        "egress_spec": 9,
        "egress_port": 9,
        "instance_type": 32,
        "packet_length": 32,
        "enq_timestamp": 32,
        "enq_qdepth": 19,
        "deq_timedelta": 32,
        "deq_qdepth": 19,
        "ingress_global_timestamp": 48,
        "egress_global_timestamp": 48,
        "mcast_grp": 16,
        "egress_rid": 16,
        "checksum_error": 1,
    }
    fields: list[tuple[str, P4Type]] = [(name, BitType(width)) for name, width in widths.items()]
    return RecordType(
        "struct", "standard_metadata_t", (*fields, ("parser_error", ERROR), ("priority", BitType(3)))
    )


STANDARD_METADATA = _standard_metadata()
"""What v1model tells about each packet, and is told."""
