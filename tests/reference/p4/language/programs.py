"""A P4_16 text for v1model as a program that can be run: its declarations checked, its blocks made functions."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from reference.p4.language import syntax as node
from reference.p4.language.blocks import Returned, declared_variable, statement_task
from reference.p4.language.calls import (
    ActionSymbol,
    CounterSymbol,
    RegisterSymbol,
    TableSymbol,
    Task,
    call_of,
)
from reference.p4.language.expressions import NameScope, is_member, resolve_type, typed, whole_number
from reference.p4.language.grammar import parsed
from reference.p4.language.states import parser_task
from reference.p4.language.tokens import At, refuse
from reference.p4.language.types import (
    STANDARD_METADATA,
    BitType,
    CellMemory,
    Cells,
    GroupPlace,
    LeafPlace,
    P4Type,
    RecordType,
    Typed,
)

_MATCHES = ("exact", "ternary", "lpm")
_MOST_CELLS = 1 << 24

# Names of core.p4 and v1model.p4 that no declaration of a program may have (within its blocks they may be hidden).
_DECLARED = (
    "packet_in",
    "packet_out",
    "register",
    "counter",
    "CounterType",
    "HashAlgorithm",
    "mark_to_drop",
    "verify_checksum",
    "update_checksum",
    "V1Switch",
    *_MATCHES,
)

# Roles of V1Switch in their order: what they are, where they stand for checks of calls, their parameters.
_ROLES = (
    ("parser", "parser", ("packet_in", "out H", "inout M", "inout S")),
    ("control", "checksum", ("inout H", "inout M")),
    ("control", "control", ("inout H", "inout M", "inout S")),
    ("control", "control", ("inout H", "inout M", "inout S")),
    ("control", "checksum", ("inout H", "inout M")),
    ("control", "deparser", ("packet_out", "in H")),
)


@dataclass
class P4Program:
    """A program that was checked.

    Attributes:
        initial: What each cell holds before a packet comes.
        headers: The headers of a packet.
        standard: What v1model tells and is told about it.
        blocks: Parser, verification, ingress, egress, checksums and deparser.
        tables: By name, with that of the control before it.
        registers: The same.
        counters: The same.
        constants: Numbers that are declared outside of all blocks.
    """

    initial: Cells
    headers: GroupPlace
    standard: GroupPlace
    blocks: tuple[Task, ...]
    tables: dict[str, TableSymbol] = field(default_factory=dict)
    registers: dict[str, RegisterSymbol] = field(default_factory=dict)
    counters: dict[str, CounterSymbol] = field(default_factory=dict)
    constants: dict[str, int] = field(default_factory=dict)


def read_program(text: str, *, file: str = "the program") -> P4Program:
    """Read a program, and check its types.

    Args:
        text: A P4_16 text for v1model, within the subset that is known.
        file: Its name, for messages.

    Raises:
        InputError: If it is no such text; the message says where, by line and column.

    Examples:
        >>> read_program("const bit<8> BIG = 256;", file="big.p4")
        Traceback (most recent call last):
        coppice.errors.InputError: big.p4:1:20: expected a number of bit<8> (0 .. 255), found 256.
    """
    return _Compiler(file).program(parsed(text, file=file))


class _Compiler:
    def __init__(self, file: str) -> None:
        self.file = file
        self.memory = CellMemory()
        self.scope = NameScope(self.memory, call=call_of)
        self.scope.names.update(dict.fromkeys(_DECLARED, "declared by core.p4 or v1model.p4"))
        self.scope.names.update(standard_metadata_t=STANDARD_METADATA)
        self.scope.names["NoAction"] = ActionSymbol("NoAction", (), lambda _: None)
        self.tables: dict[str, TableSymbol] = {}
        self.registers: dict[str, RegisterSymbol] = {}
        self.counters: dict[str, CounterSymbol] = {}

    def program(self, declarations: Sequence[node.Statement]) -> P4Program:
        """All of it."""
        parts: dict[str, node.ParserDeclaration | node.ControlDeclaration] = {}
        package: node.PackageInstance | None = None
        constants: dict[str, int] = {}
        for each in declarations:
            if isinstance(each, (node.ParserDeclaration, node.ControlDeclaration)):
                self.scope.declare(each.name, each, each.at)
                parts[each.name] = each
            elif isinstance(each, node.PackageInstance):
                package = each
            elif isinstance(each, node.TypeDeclaration):
                self.scope.declare(each.name, self.type_of(each), each.at)
            elif isinstance(each, node.ConstantDeclaration):
                value = constant_of(each, self.scope)
                self.scope.declare(each.name, value, each.at)
                constants[each.name] = value.constant
        if package is None or package.package != "V1Switch" or package.name != "main":
            refuse(package.at if package else At(self.file, 1, 1), "expected V1Switch(...) main; at the end")
        if len(package.parts) != len(_ROLES):
            refuse(package.at, f"V1Switch has {len(_ROLES)} parts, found {len(package.parts)}")
        shared: dict[str, GroupPlace] = {}
        blocks = []
        for part, role in zip(package.parts, _ROLES, strict=True):
            if part.name not in parts:
                refuse(part.at, f"{part.name} is no parser or control of this program")
            blocks.append(self.block(parts[part.name], role, shared))
        return P4Program(
            self.memory.initial,
            shared["H"],
            shared["S"],
            tuple(blocks),
            self.tables,
            self.registers,
            self.counters,
            constants,
        )

    def type_of(self, declaration: node.TypeDeclaration) -> P4Type:
        """The type that is declared."""
        if declaration.of is not None:
            return resolve_type(declaration.of, self.scope)
        fields: dict[str, P4Type] = {}
        for each in declaration.fields:
            if each.name in fields:
                refuse(each.at, f"{declaration.name} has the field {each.name} twice")
            of = resolve_type(each.type, self.scope)
            if declaration.kind == "header" and not isinstance(of, BitType):
                refuse(each.at, f"a header has fields of bits, found {of}")
            fields[each.name] = of
        found = RecordType(declaration.kind, declaration.name, tuple(fields.items()))
        if found.kind == "header":
            width = sum(of.width for of in fields.values() if isinstance(of, BitType))
            if width == 0 or width % 8:
                refuse(declaration.at, f"expected a header of whole bytes, found {width} bits")
        return found

    def block(
        self,
        declaration: node.ParserDeclaration | node.ControlDeclaration,
        role: tuple[str, str, tuple[str, ...]],
        shared: dict[str, GroupPlace],
    ) -> Task:
        """One part of the switch as a function."""
        kind, where, wanted = role
        if kind != ("parser" if isinstance(declaration, node.ParserDeclaration) else "control"):
            refuse(declaration.at, f"expected {declaration.name} to be a {kind}")
        scope = self.scope.inner(where)
        if len(declaration.parameters) != len(wanted):
            refuse(
                declaration.at,
                f"expected the parameters ({', '.join(wanted)}), found {len(declaration.parameters)}",
            )
        for parameter, form in zip(declaration.parameters, wanted, strict=True):
            scope.declare(parameter.name, self.parameter(parameter, form, shared), parameter.at)
        if isinstance(declaration, node.ParserDeclaration):
            return parser_task(declaration, scope)
        starts = [task for each in declaration.locals if (task := self.local(each, declaration.name, scope))]
        body = statement_task(declaration.body, scope)

        def perform(cells: Cells) -> None:
            with suppress(Returned):
                for start in starts:
                    start(cells)
                body(cells)

        return perform

    def parameter(
        self, parameter: node.ParameterDeclaration, form: str, shared: dict[str, GroupPlace]
    ) -> GroupPlace | str:
        """What a parameter of a part stands for."""
        direction, _, letter = form.rpartition(" ")
        if letter in ("packet_in", "packet_out"):
            if parameter.type.name != letter:
                refuse(parameter.at, f"expected a parameter of type {letter}, found {parameter.type.name}")
            return letter
        if parameter.direction != direction:
            refuse(parameter.at, f"expected the direction {direction}, found {parameter.direction or 'none'}")
        of = resolve_type(parameter.type, self.scope)
        if not isinstance(of, RecordType) or of.kind != "struct":
            refuse(parameter.at, f"expected a struct, found {of}")
        if letter == "S" and of != STANDARD_METADATA:
            refuse(parameter.at, f"expected standard_metadata_t, found {of}")
        place = shared.get(letter)
        if place is None:
            made = self.memory.place(of, parameter.name, writable=True, zero=letter != "H")
            assert isinstance(made, GroupPlace)
            place = shared[letter] = made
        if place.type != of:
            refuse(parameter.at, f"expected {place.type}, as the parser has it, found {of}")
        return place if direction != "in" else _read_only(place)

    def local(self, declaration: node.Statement, control: str, scope: NameScope) -> Task | None:
        """A declaration within a control; a variable may have a value to begin with."""
        match declaration:
            case node.VariableDeclaration():
                return declared_variable(declaration, scope)
            case node.ConstantDeclaration(name=name, at=at):
                scope.declare(name, constant_of(declaration, scope), at)
            case node.ActionDeclaration(name=name, at=at):
                scope.declare(name, self.action(declaration, scope), at)
            case node.TableDeclaration(name=name, at=at):
                table = self.table(declaration, f"{control}.{name}", scope)
                self.tables[table.name] = table
                scope.declare(name, table, at)
            case node.ExternInstance(name=name, at=at):
                scope.declare(name, self.extern(declaration, f"{control}.{name}", scope), at)
            case _:
                refuse(
                    declaration.at, "expected a declaration of a variable, action, table, register or counter"
                )
        return None

    def action(self, declaration: node.ActionDeclaration, outer: NameScope) -> ActionSymbol:
        """An action."""
        scope = outer.inner("action")
        parameters = []
        for each in declaration.parameters:
            if each.direction not in ("", "in"):
                refuse(each.at, f"expected no direction, or in, found {each.direction}")
            of = resolve_type(each.type, scope)
            place = self.memory.place(of, each.name, writable=False)
            if not isinstance(place, LeafPlace):
                refuse(each.at, f"expected a parameter of bits, found {of}")
            scope.declare(each.name, place, each.at)
            parameters.append(place)
        body = statement_task(declaration.body, scope)

        def perform(cells: Cells) -> None:
            with suppress(Returned):
                body(cells)

        return ActionSymbol(declaration.name, tuple(parameters), perform)

    def table(self, declaration: node.TableDeclaration, name: str, scope: NameScope) -> TableSymbol:
        """A table, without entries."""
        keys = []
        for each in declaration.keys:
            key = typed(each.expression, scope)
            if not isinstance(key.type, BitType) or key.type.signed:
                refuse(each.at, f"expected bits as a key, found {key.type}")
            if each.match not in _MATCHES:
                refuse(each.at, f"expected one of {', '.join(_MATCHES)}, found {each.match}")
            keys.append((key, each.match))
        if sum(match == "lpm" for _, match in keys) > 1:
            refuse(declaration.at, "expected at most one key of the kind lpm")
        actions: dict[str, ActionSymbol] = {}
        for wanted in declaration.actions:
            found = scope.find(wanted.name, wanted.at)
            if not isinstance(found, ActionSymbol):
                refuse(wanted.at, f"{wanted.name} is no action")
            actions[wanted.name] = found
        default: tuple[ActionSymbol, tuple[Any, ...]] = (self.scope.names["NoAction"], ())
        if declaration.default is not None:
            default = self.default(declaration.default, actions, scope)
        size = 1024 if declaration.size is None else whole_number(typed(declaration.size, scope))
        return TableSymbol(name, tuple(keys), actions, default, size)

    def default(
        self, call: node.CallOf, actions: dict[str, ActionSymbol], scope: NameScope
    ) -> tuple[ActionSymbol, tuple[Any, ...]]:
        """The default action of a table with its arguments."""
        assert isinstance(call.target, node.NameOf)
        action = actions.get(call.target.name)
        if action is None:
            refuse(call.at, f"{call.target.name} is none of the actions of this table: add it to them")
        if len(call.arguments) != len(action.parameters):
            refuse(call.at, f"expected {len(action.parameters)} arguments, found {len(call.arguments)}")
        values = []
        for argument, parameter in zip(call.arguments, action.parameters, strict=True):
            value = typed(argument, scope).as_type(parameter.type)
            values.append(whole_number(value))
        return action, tuple(values)

    def extern(
        self, declaration: node.ExternInstance, name: str, scope: NameScope
    ) -> RegisterSymbol | CounterSymbol:
        """A register or a counter."""
        given = declaration.arguments
        if declaration.type.name == "register":
            of = resolve_type(declaration.type.arguments[0], scope)
            if not isinstance(of, BitType):
                refuse(declaration.at, f"expected a register of bits, found {of}")
            if len(given) != 1:
                refuse(declaration.at, "expected the number of cells")
            register = RegisterSymbol(name, of, self.cells(given[0], scope))
            self.registers[name] = register
            return register
        kind = given[1] if len(given) == 2 else None
        if not is_member(kind, "CounterType", "packets"):
            refuse(declaration.at, "expected the number of cells and CounterType.packets")
        counter = CounterSymbol(name, self.cells(given[0], scope))
        self.counters[name] = counter
        return counter

    def cells(self, expression: node.Expression, scope: NameScope) -> int:
        """How many cells an array has."""
        found = whole_number(typed(expression, scope))
        if not 1 <= found <= _MOST_CELLS:
            refuse(expression.at, f"expected 1 to {_MOST_CELLS:,} cells, found {found}")
        return found


def constant_of(declaration: node.ConstantDeclaration, scope: NameScope) -> Typed:
    """The value of a constant.

    Raises:
        InputError: If it is not known when the program is read, or of another type.
    """
    of = resolve_type(declaration.type, scope)
    value = typed(declaration.value, scope).as_type(of)
    if value.constant is None:
        refuse(
            declaration.at, f"expected a value of {declaration.name} that is known when the program is read"
        )
    return value


def _read_only(place: GroupPlace) -> GroupPlace:
    members: dict[str, LeafPlace | GroupPlace] = {
        name: _read_only(each)
        if isinstance(each, GroupPlace)
        else LeafPlace(each.type, each.cell, each.path, writable=False)
        for name, each in place.members.items()
    }
    return GroupPlace(place.type, members, place.valid, place.path, writable=False)
