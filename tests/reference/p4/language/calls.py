"""What P4_16 programs call: methods of headers, tables, registers and counters, and functions of v1model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from reference.p4.language import syntax as node
from reference.p4.language.expressions import NameScope, boolean, is_member, typed
from reference.p4.language.tokens import At, refuse
from reference.p4.language.types import (
    BOOL,
    DEVICE,
    ERRORS,
    PACKET,
    STANDARD_METADATA,
    BitType,
    Cells,
    GroupPlace,
    LeafPlace,
    P4Type,
    ScalarType,
    Typed,
)

Task = Callable[[Cells], None]
"""What is done with the cells of a packet."""

DROPPED = 511
"""Port that v1model sends nothing to."""

_VOID = ScalarType("void")


@dataclass
class FrameCursor:
    """A frame that is taken apart, and put together again.

    Attributes:
        data: What came.
        place: Bytes of it that were extracted.
        out: Headers that were emitted.
    """

    data: bytes
    place: int = 0
    out: bytes = b""


class ParsingError(Exception):
    """A parser gave up; the packet goes on with what was extracted before.

    Attributes:
        error: Its place in the list of errors.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.error = ERRORS.index(name)


@dataclass
class RegisterSymbol:
    """An array of cells that stay from packet to packet."""

    name: str
    type: P4Type
    cells: int


@dataclass
class CounterSymbol:
    """An array of counts of packets."""

    name: str
    cells: int


@dataclass
class ActionSymbol:
    """An action: its parameters are set, then it is performed."""

    name: str
    parameters: tuple[LeafPlace, ...]
    perform: Task

    def call(self, cells: Cells, arguments: Sequence[Any]) -> None:
        """Perform it with values for its parameters."""
        for parameter, value in zip(self.parameters, arguments, strict=True):
            cells[parameter.cell] = value
        self.perform(cells)


@dataclass
class TableSymbol:
    """A table.

    Attributes:
        name: With that of its control before it.
        keys: What is looked up, and how: ``exact``, ``ternary`` or ``lpm``.
        actions: Those that its entries may name.
        default: What is done where no entry matches, with its arguments.
        size: Most entries.
    """

    name: str
    keys: tuple[tuple[Typed, str], ...]
    actions: dict[str, ActionSymbol]
    default: tuple[ActionSymbol, tuple[Any, ...]]
    size: int

    def apply(self, cells: Cells) -> bool:
        """Perform the action of the entry that matches, or the default; whether one did."""
        found = cells[DEVICE].tables[self.name].look_up(tuple(key.get(cells) for key, _ in self.keys))
        action, arguments = self.default if found is None else found
        action.call(cells, arguments)
        return found is not None


def internet_checksum(data: bytes) -> int:
    """The checksum of Internet headers over bytes (RFC 1071); an odd one gets a zero behind it.

    Examples:
        >>> hex(internet_checksum(bytes.fromhex("00010002")))
        '0xfffc'
    """
    total = sum(int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big") for at in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def writable(expression: node.Expression, scope: NameScope) -> LeafPlace:
    """Where a value may be written to.

    Raises:
        InputError: If it is no place, is a whole header, or must not be written.
    """
    place = typed(expression, scope).place
    if not isinstance(place, LeafPlace):
        refuse(expression.at, "expected a field or a variable to write to")
    if not place.writable:
        refuse(expression.at, f"{place.path} is only read here: give the parameter the direction inout")
    return place


def call_of(expression: node.CallOf, scope: NameScope) -> Typed:
    """A call, checked; those that have no value have a type of their own.

    Raises:
        InputError: If there is nothing of this name to call, or its arguments are others.
    """
    target = expression.target
    if isinstance(target, node.MemberOf):
        return _method(expression, target, scope)
    if not isinstance(target, node.NameOf):
        refuse(expression.at, "expected the name of an action or a function to call")
    if target.name in _FUNCTIONS:
        return _done(expression.at, _FUNCTIONS[target.name](expression, scope))
    found = scope.find(target.name, target.at)
    if not isinstance(found, ActionSymbol):
        refuse(target.at, f"{target.name} cannot be called: it is no action")
    values = _arguments(expression, [each.type for each in found.parameters], scope)
    getters = [each.get for each in values]
    return _done(expression.at, lambda cells: found.call(cells, [get(cells) for get in getters]))


def _done(at: At, task: Task) -> Typed:
    return Typed(_VOID, at, task)


def _arguments(expression: node.CallOf, types: Sequence[P4Type], scope: NameScope) -> list[Typed]:
    given = expression.arguments
    if len(given) != len(types):
        refuse(expression.at, f"expected {len(types)} arguments, found {len(given)}")
    return [typed(each, scope).as_type(of) for each, of in zip(given, types, strict=True)]


def _only_in(scope: NameScope, at: At, what: str, *where: str) -> None:
    if scope.where not in where:
        refuse(at, f"{what} is for {' and '.join(where)}, found in {scope.where or 'no control'}")


def _method(expression: node.CallOf, target: node.MemberOf, scope: NameScope) -> Typed:
    at, base = expression.at, target.base
    found: Any = scope.find(base.name, base.at) if isinstance(base, node.NameOf) else typed(base, scope).place
    match found, target.name:
        case GroupPlace(valid=valid), ("isValid" | "setValid" | "setInvalid") as name if valid >= 0:
            _arguments(expression, (), scope)
            return _of_header(found, name, at)
        case TableSymbol(), "apply":
            _only_in(scope, at, "a table", "control")
            _arguments(expression, (), scope)
            return Typed(BOOL, at, found.apply)
        case RegisterSymbol(), "read":
            return _done(at, _register_read(found, expression, scope))
        case RegisterSymbol(), "write":
            return _done(at, _register_write(found, expression, scope))
        case CounterSymbol(), "count":
            return _done(at, _count(found, expression, scope))
        case "packet_in", "extract":
            _only_in(scope, at, "extract", "parser")
            return _done(at, _extract(_header(expression, scope)))
        case "packet_out", "emit":
            _only_in(scope, at, "emit", "deparser")
            return _done(at, _emit(_header(expression, scope), at))
    return refuse(at, f"there is no {target.name} to call here")


def _of_header(header: GroupPlace, name: str, at: At) -> Typed:
    valid, leaves = header.valid, [each.cell for each in header.leaves()]
    if name == "isValid":
        return Typed(BOOL, at, lambda cells: cells[valid])
    if not header.writable:
        refuse(at, f"{header.path} is only read here: give the parameter the direction inout")

    def put(cells: Cells) -> None:
        if cells[valid] != (name == "setValid"):
            for cell in leaves:
                cells[cell] = None
        cells[valid] = name == "setValid"

    return _done(at, put)


def _index(expression: node.Expression, most: int, scope: NameScope, what: str) -> Callable[[Cells], int]:
    """Which cell of an array is meant; one beyond its end is an error, as v1model leaves that undefined."""
    at, get = expression.at, typed(expression, scope).as_type(BitType(32)).get

    def index(cells: Cells) -> int:
        found: int = get(cells)
        if found >= most:
            refuse(at, f"{what} has {most} cells, found the index {found}")
        return found

    return index


def _register_read(register: RegisterSymbol, expression: node.CallOf, scope: NameScope) -> Task:
    if len(expression.arguments) != 2:
        refuse(expression.at, "expected where to read to, and the index")
    place = writable(expression.arguments[0], scope)
    if place.type != register.type:
        at = expression.arguments[0].at
        refuse(at, f"{register.name} holds {register.type}, found {place.type} to read it to")
    index = _index(expression.arguments[1], register.cells, scope, register.name)
    name, cell = register.name, place.cell

    def read(cells: Cells) -> None:
        cells[cell] = cells[DEVICE].registers[name].get(index(cells), 0)

    return read


def _register_write(register: RegisterSymbol, expression: node.CallOf, scope: NameScope) -> Task:
    if len(expression.arguments) != 2:
        refuse(expression.at, "expected the index and the value")
    index = _index(expression.arguments[0], register.cells, scope, register.name)
    value, name = typed(expression.arguments[1], scope).as_type(register.type).get, register.name

    def write(cells: Cells) -> None:
        cells[DEVICE].registers[name][index(cells)] = value(cells)

    return write


def _count(counter: CounterSymbol, expression: node.CallOf, scope: NameScope) -> Task:
    if len(expression.arguments) != 1:
        refuse(expression.at, "expected the index")
    index, name = _index(expression.arguments[0], counter.cells, scope, counter.name), counter.name

    def count(cells: Cells) -> None:
        cells[DEVICE].counters[name][index(cells)] += 1

    return count


def _header(expression: node.CallOf, scope: NameScope) -> GroupPlace:
    if len(expression.arguments) == 1:
        place = typed(expression.arguments[0], scope).place
        if isinstance(place, GroupPlace) and place.valid >= 0:
            return place
    return refuse(expression.at, "expected one header")


def _fields(header: GroupPlace) -> list[tuple[int, BitType, int]]:
    """Cell, type and position from the right of each field."""
    found, left = [], 0
    for leaf in reversed(list(header.leaves())):
        assert isinstance(leaf.type, BitType)
        found.append((leaf.cell, leaf.type, left))
        left += leaf.type.width
    return found[::-1]


def _width(header: GroupPlace) -> int:
    return sum(of.width for _, of, _ in _fields(header))


def _extract(header: GroupPlace) -> Task:
    fields, width, valid = _fields(header), _width(header) // 8, header.valid

    def extract(cells: Cells) -> None:
        frame: FrameCursor = cells[PACKET]
        data = frame.data[frame.place : frame.place + width]
        if len(data) < width:
            name = "PacketTooShort"
            raise ParsingError(name)
        frame.place += width
        number = int.from_bytes(data, "big")
        for cell, of, left in fields:
            value = number >> left & (1 << of.width) - 1
            cells[cell] = value - (1 << of.width) if of.signed and value > of.most else value
        cells[valid] = True

    return extract


def _joined(header: GroupPlace, cells: Cells, fields: list[tuple[int, BitType, int]], at: At) -> int:
    number = 0
    for cell, of, left in fields:
        value = cells[cell]
        if value is None:
            refuse(at, f"a field of {header.path} leaves the switch, and nothing was written to it")
        number |= (value & (1 << of.width) - 1) << left
    return number


def _emit(header: GroupPlace, at: At) -> Task:
    fields, width, valid = _fields(header), _width(header) // 8, header.valid

    def emit(cells: Cells) -> None:
        if cells[valid]:
            cells[PACKET].out += _joined(header, cells, fields, at).to_bytes(width, "big")

    return emit


def _mark_to_drop(expression: node.CallOf, scope: NameScope) -> Task:
    _only_in(scope, expression.at, "mark_to_drop", "control", "action")
    place = typed(expression.arguments[0], scope).place if len(expression.arguments) == 1 else None
    if not isinstance(place, GroupPlace) or place.type != STANDARD_METADATA:
        refuse(expression.at, "expected the standard_metadata_t of the control")
    port, group = place.members["egress_spec"], place.members["mcast_grp"]
    assert isinstance(port, LeafPlace)
    assert isinstance(group, LeafPlace)

    def drop(cells: Cells) -> None:
        cells[port.cell], cells[group.cell] = DROPPED, 0

    return drop


def _checksum(expression: node.CallOf, scope: NameScope) -> tuple[Typed, Callable[[Cells], int]]:
    """Condition of a checksum, and the checksum of the values that it is over."""
    given = expression.arguments
    _only_in(scope, expression.at, "a checksum", "checksum")
    if len(given) != 4 or not isinstance(given[1], node.ListOf):
        refuse(expression.at, "expected a condition, a list of values, where the checksum is, and its kind")
    kind = given[3]
    if not is_member(kind, "HashAlgorithm", "csum16"):
        refuse(kind.at, "expected HashAlgorithm.csum16")
    parts: list[tuple[Callable[[Cells], int], BitType]] = []
    for each in given[1].parts:
        value = typed(each, scope)
        if not isinstance(value.type, BitType):
            refuse(each.at, f"expected bits, found {value.type}: write a width")
        parts.append((value.get, value.type))
    width = sum(of.width for _, of in parts)
    if width % 16:
        refuse(given[1].at, f"expected values of a multiple of 16 bits together, found {width}")

    def calculate(cells: Cells) -> int:
        number = 0
        for get, of in parts:
            number = number << of.width | get(cells) & (1 << of.width) - 1
        return internet_checksum(number.to_bytes(width // 8, "big"))

    return boolean(given[0], scope), calculate


def _verify_checksum(expression: node.CallOf, scope: NameScope) -> Task:
    condition, calculate = _checksum(expression, scope)
    found = typed(expression.arguments[2], scope).as_type(BitType(16)).get

    def verify(cells: Cells) -> None:
        if condition.get(cells) and calculate(cells) != found(cells):
            cells[cells[DEVICE].checksum_error] = 1

    return verify


def _update_checksum(expression: node.CallOf, scope: NameScope) -> Task:
    condition, calculate = _checksum(expression, scope)
    place = writable(expression.arguments[2], scope)
    if place.type != BitType(16):
        refuse(expression.at, f"expected 16 bits for the checksum, found {place.type}")

    def update(cells: Cells) -> None:
        if condition.get(cells):
            cells[place.cell] = calculate(cells)

    return update


_FUNCTIONS: dict[str, Callable[[node.CallOf, NameScope], Task]] = {
    "mark_to_drop": _mark_to_drop,
    "verify_checksum": _verify_checksum,
    "update_checksum": _update_checksum,
}
