"""Expressions of P4_16: their types are checked, and what is left is a function of the cells of a packet."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coppice.text import nearest
from reference.p4.language import syntax as node
from reference.p4.language.tokens import At, refuse
from reference.p4.language.types import (
    BOOL,
    ERROR,
    ERRORS,
    INTEGER,
    BitType,
    CellMemory,
    Cells,
    GroupPlace,
    LeafPlace,
    P4Type,
    RecordType,
    ScalarType,
    Typed,
    wrapped,
)

_ARITHMETIC: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
_MOST_BITS = 1 << 16


@dataclass
class NameScope:
    """Names that are known at a place of the program.

    Attributes:
        memory: Gives out cells.
        outer: What encloses this scope.
        names: Those declared here.
        where: Kind of what it is inside of: ``parser``, ``control``, ``action``, ``deparser``, ``checksum`` or nothing.
        call: Makes a value of a call; set by what knows of methods and externs.
    """

    memory: CellMemory
    outer: NameScope | None = None
    names: dict[str, Any] = field(default_factory=dict)
    where: str = ""
    call: Callable[[node.CallOf, NameScope], Typed] | None = None

    def inner(self, where: str = "") -> NameScope:
        """A scope within this one."""
        return NameScope(self.memory, self, {}, where or self.where, self.call)

    def declare(self, name: str, what: Any, at: At) -> None:
        """Make a name known.

        Raises:
            InputError: If it is known here already.
        """
        if name in self.names:
            refuse(at, f"{name} is declared twice: give one of them another name")
        self.names[name] = what

    def find(self, name: str, at: At) -> Any:
        """What a name means.

        Raises:
            InputError: If it is not known.
        """
        scope: NameScope | None = self
        known: list[str] = []
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            known += scope.names
            scope = scope.outer
        close = nearest(name, known)
        return refuse(at, f"{name} is not declared" + (f": did you mean {close}?" if close else ""))


def resolve_type(written: node.TypeName, scope: NameScope) -> P4Type:
    """The type that is written.

    Raises:
        InputError: If there is none of this name, or its width is none.
    """
    if written.name in ("bit", "int"):
        if written.width is None:
            if written.name == "int":
                refuse(written.at, "expected the width of an int, as in int<32>")
            return BitType(1)
        width = whole_number(typed(written.width, scope))
        if not 1 + (written.name == "int") <= width <= _MOST_BITS:
            refuse(written.at, f"expected a width up to {_MOST_BITS:,} bits, found {width}")
        return BitType(width, written.name == "int")
    if written.name in ("bool", "error"):
        return BOOL if written.name == "bool" else ERROR
    found = scope.find(written.name, written.at)
    if not isinstance(found, (ScalarType, BitType, RecordType)):
        refuse(written.at, f"expected a type, found {written.name}, which is none")
    return found


def is_member(expression: node.Expression | None, of: str, name: str) -> bool:
    """Whether an expression is ``of.name``, as the values of v1model's enumerations are written."""
    match expression:
        case node.MemberOf(base=node.NameOf(name=base), name=member):
            return (base, member) == (of, name)
    return False


def whole_number(value: Typed) -> int:
    """The number that an expression is known to be.

    Raises:
        InputError: If it is not known before a packet comes.
    """
    if value.constant is None or not (value.type is INTEGER or isinstance(value.type, BitType)):
        refuse(value.at, "expected a number that is known when the program is read")
    return int(value.constant)


def boolean(expression: node.Expression, scope: NameScope) -> Typed:
    """A condition.

    Raises:
        InputError: If it is something else.
    """
    found = typed(expression, scope)
    if found.type is not BOOL:
        refuse(found.at, f"expected a condition of type bool, found {found.type}: write a comparison")
    return found


def typed(expression: node.Expression, scope: NameScope) -> Typed:
    """Check an expression.

    Raises:
        InputError: If its types do not go together, or it is none of the subset.
    """
    at = expression.at
    match expression:
        case node.Literal(value=value, width=width, signed=signed):
            number = Typed.known(INTEGER, at, value)
            return number if width is None else number.as_type(BitType(width, signed))
        case node.Truth(value=value):
            return Typed.known(BOOL, at, value)
        case node.NameOf(name=name):
            return _named(scope.find(name, at), name, at)
        case node.MemberOf():
            return _member(expression, scope)
        case node.SliceOf():
            return _slice(expression, scope)
        case node.UnaryOp():
            return _unary(expression, scope)
        case node.BinaryOp():
            return _binary(expression, scope)
        case node.Conditional():
            return _conditional(expression, scope)
        case node.CastTo():
            return _cast(expression, scope)
        case node.CallOf() if scope.call is not None:
            return scope.call(expression, scope)
    return refuse(at, "expected a value")


def _named(found: Any, name: str, at: At) -> Typed:
    if isinstance(found, Typed):
        return Typed(found.type, at, found.get, found.constant)
    if isinstance(found, GroupPlace):
        return Typed(found.type, at, _no_value, place=found)
    if isinstance(found, LeafPlace):
        return _kept(found, at)
    return refuse(at, f"expected a value, found {name}, which has none")


def _no_value(_: Cells) -> Any:
    raise AssertionError("a header or struct as a whole has no value")


def _kept(place: LeafPlace, at: At) -> Typed:
    """What a place holds; to read what was never written is an error, as P4 leaves undefined what comes then."""
    cell, path = place.cell, place.path

    def get(cells: Cells) -> Any:
        value = cells[cell]
        if value is None:
            refuse(at, f"{path} is read where nothing was written to it, or its header is not valid")
        return value

    return Typed(place.type, at, get, place=place)


def _member(expression: node.MemberOf, scope: NameScope) -> Typed:
    at, base = expression.at, expression.base
    if isinstance(base, node.NameOf) and base.name == "error":
        if expression.name not in ERRORS:
            refuse(at, f"expected one of the errors {', '.join(ERRORS)}, found {expression.name}")
        return Typed.known(ERROR, at, ERRORS.index(expression.name))
    if isinstance(base, node.CallOf) and expression.name in ("hit", "miss") and scope.call is not None:
        hit = scope.call(base, scope)
        if hit.type is not BOOL:
            refuse(at, "only the apply of a table has hit and miss")
        if expression.name == "hit":
            return hit
        return Typed(BOOL, at, lambda cells: not hit.get(cells))
    group = typed(base, scope).place
    if not isinstance(group, GroupPlace):
        refuse(at, f"only headers and structs have fields, such as {expression.name}")
    found = group.members.get(expression.name)
    if found is None:
        close = nearest(expression.name, group.members)
        refuse(
            at, f"{group.type} has no field {expression.name}" + (f": did you mean {close}?" if close else "")
        )
    return _named(found, expression.name, at)


def _slice(expression: node.SliceOf, scope: NameScope) -> Typed:
    base = typed(expression.base, scope)
    high = whole_number(typed(expression.high, scope))
    low = whole_number(typed(expression.low, scope))
    if not isinstance(base.type, BitType):
        refuse(expression.at, f"expected bits to take a part of, found {base.type}")
    if not 0 <= low <= high < base.type.width:
        refuse(expression.at, f"expected a part of the bits {base.type.width - 1} .. 0, found [{high}:{low}]")
    of, get = BitType(high - low + 1), base.get
    mask = of.most
    return Typed(of, expression.at, lambda cells: get(cells) >> low & mask)


def _unary(expression: node.UnaryOp, scope: NameScope) -> Typed:
    at, operand = expression.at, typed(expression.operand, scope)
    if expression.operator == "!":
        inner = boolean(expression.operand, scope).get
        return Typed(BOOL, at, lambda cells: not inner(cells))
    if operand.type is INTEGER and expression.operator == "-":
        return Typed.known(INTEGER, at, -operand.constant)
    if not isinstance(operand.type, BitType):
        refuse(at, f"{expression.operator} takes bits, found {operand.type}")
    of, get = operand.type, operand.get
    act = operator.neg if expression.operator == "-" else operator.invert
    return _folded(of, at, lambda cells: wrapped(act(get(cells)), of), operand)


def _folded(of: P4Type, at: At, get: Callable[[Cells], Any], *parts: Typed) -> Typed:
    """An expression, which is a constant if all its parts are."""
    if all(each.constant is not None for each in parts):
        return Typed.known(of, at, get([]))
    return Typed(of, at, get)


def _binary(expression: node.BinaryOp, scope: NameScope) -> Typed:
    at, symbol = expression.at, expression.operator
    if symbol in ("&&", "||"):
        one, two = (boolean(each, scope).get for each in (expression.left, expression.right))
        if symbol == "&&":
            return Typed(BOOL, at, lambda cells: one(cells) and two(cells))
        return Typed(BOOL, at, lambda cells: one(cells) or two(cells))
    left, right = typed(expression.left, scope), typed(expression.right, scope)
    if symbol in ("<<", ">>"):
        return _shift(symbol, left, right, at)
    if symbol == "++":
        return _concatenation(left, right, at)
    if symbol in ("/", "%"):
        if left.type is not INTEGER or right.type is not INTEGER or right.constant <= 0 or left.constant < 0:
            refuse(at, f"{symbol} is for numbers that are known when the program is read, and not negative")
        act = operator.floordiv if symbol == "/" else operator.mod
        return Typed.known(INTEGER, at, act(left.constant, right.constant))
    left, right = _alike(left, right, symbol, at)
    one, two = left.get, right.get
    if symbol in _COMPARISONS:
        compare = _COMPARISONS[symbol]
        if symbol not in ("==", "!=") and not (left.type is INTEGER or isinstance(left.type, BitType)):
            refuse(at, f"{symbol} compares numbers, found {left.type}")
        return _folded(BOOL, at, lambda cells: compare(one(cells), two(cells)), left, right)
    act = _ARITHMETIC[symbol]
    if left.type is INTEGER:
        return Typed.known(INTEGER, at, act(left.constant, right.constant))
    if not isinstance(left.type, BitType):
        refuse(at, f"{symbol} takes numbers, found {left.type}")
    of = left.type
    if of.signed or symbol == "-":
        return _folded(of, at, lambda cells: wrapped(act(one(cells), two(cells)), of), left, right)
    mask = of.most
    return _folded(of, at, lambda cells: act(one(cells), two(cells)) & mask, left, right)


def _alike(left: Typed, right: Typed, symbol: str, at: At) -> tuple[Typed, Typed]:
    """Both operands in one type."""
    if left.type is INTEGER and isinstance(right.type, BitType):
        left = left.as_type(right.type)
    elif right.type is INTEGER and isinstance(left.type, BitType):
        right = right.as_type(left.type)
    for each in (left, right):
        if isinstance(each.place, GroupPlace):
            refuse(each.at, f"{symbol} takes values, found {each.type} as a whole")
    if left.type != right.type:
        refuse(at, f"{symbol} takes operands of one type, found {left.type} and {right.type}: write a cast")
    return left, right


def _shift(symbol: str, left: Typed, right: Typed, at: At) -> Typed:
    if right.type is INTEGER and right.constant < 0:
        refuse(at, f"expected to shift by 0 bits or more, found {right.constant}")
    if isinstance(right.type, BitType) and right.type.signed:
        refuse(at, f"expected to shift by an unsigned number, found {right.type}: write a cast")
    if right.type is not INTEGER and not isinstance(right.type, BitType):
        refuse(at, f"expected to shift by a number, found {right.type}")
    one, two = left.get, right.get
    act = operator.lshift if symbol == "<<" else operator.rshift
    if left.type is INTEGER and right.type is INTEGER:
        return Typed.known(INTEGER, at, act(left.constant, right.constant))
    if not isinstance(left.type, BitType):
        refuse(at, f"expected bits to shift, found {left.type}: write a width or a cast")
    of = left.type
    most = of.width
    # A shift by the width or more leaves nothing (the sign, to the right).
    return _folded(of, at, lambda cells: wrapped(act(one(cells), min(two(cells), most)), of), left, right)


def _concatenation(left: Typed, right: Typed, at: At) -> Typed:
    for each in (left, right):
        if not isinstance(each.type, BitType) or each.type.signed:
            refuse(at, f"++ joins unsigned bits, found {each.type}: write a width or a cast")
    assert isinstance(left.type, BitType)
    assert isinstance(right.type, BitType)
    one, two, by = left.get, right.get, right.type.width
    return _folded(
        BitType(left.type.width + by), at, lambda cells: one(cells) << by | two(cells), left, right
    )


def _conditional(expression: node.Conditional, scope: NameScope) -> Typed:
    condition = boolean(expression.condition, scope).get
    then, otherwise = typed(expression.then, scope), typed(expression.otherwise, scope)
    if then.type is INTEGER and otherwise.type is INTEGER:
        refuse(expression.at, "expected a choice with a width: write one at a number, as in 8w1")
    then, otherwise = _alike(then, otherwise, "? :", expression.at)
    one, two = then.get, otherwise.get
    return Typed(then.type, expression.at, lambda cells: one(cells) if condition(cells) else two(cells))


def _cast(expression: node.CastTo, scope: NameScope) -> Typed:
    of, operand, at = resolve_type(expression.type, scope), typed(expression.operand, scope), expression.at
    get = operand.get
    if operand.type == of:
        return Typed(of, at, get, operand.constant)
    if isinstance(of, BitType):
        if operand.type is INTEGER:
            return Typed.known(of, at, wrapped(operand.constant, of))
        if isinstance(operand.type, BitType) and (
            operand.type.signed == of.signed or operand.type.width == of.width
        ):
            return _folded(of, at, lambda cells: wrapped(get(cells), of), operand)
        if operand.type is BOOL and of == BitType(1):
            return _folded(of, at, lambda cells: int(get(cells)), operand)
    if of is BOOL and operand.type == BitType(1):
        return _folded(of, at, lambda cells: bool(get(cells)), operand)
    return refuse(
        at, f"there is no cast from {operand.type} to {of}: change the width and the sign one after the other"
    )
