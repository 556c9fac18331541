"""Statements of P4_16 as functions of the cells of a packet."""

from __future__ import annotations

from reference.p4.language import syntax as node
from reference.p4.language.calls import Task, writable
from reference.p4.language.expressions import NameScope, boolean, resolve_type, typed
from reference.p4.language.tokens import refuse
from reference.p4.language.types import Cells, LeafPlace


class Returned(Exception):  # noqa: N818 (no error: the way out of an action or a control)
    """``return`` was met."""


class Exited(Exception):  # noqa: N818 (no error: the way out of ingress or egress)
    """``exit`` was met."""


def _return(_: Cells) -> None:
    raise Returned


def _exit(_: Cells) -> None:
    raise Exited


def statement_task(statement: node.Statement, scope: NameScope) -> Task:
    """What a statement does.

    Raises:
        InputError: If it is none of the subset, or its types do not go together.
    """
    match statement:
        case node.BlockStatement(statements=inner):
            within = scope.inner()
            tasks = [statement_task(each, within) for each in inner]

            def block(cells: Cells) -> None:
                for task in tasks:
                    task(cells)

            return block
        case node.IfStatement():
            return _if(statement, scope)
        case node.ReturnStatement():
            return _return
        case node.ExitStatement():
            return _exit
        case node.VariableDeclaration():
            return declared_variable(statement, scope)
        case node.Assignment():
            return _assignment(statement, scope)
    return refuse(statement.at, "expected a statement")


def _if(statement: node.IfStatement, scope: NameScope) -> Task:
    if scope.where == "action":
        refuse(statement.at, "actions of v1model know no if: write it in the apply of the control")
    condition = boolean(statement.condition, scope).get
    then = statement_task(statement.then, scope)
    if statement.otherwise is None:

        def one(cells: Cells) -> None:
            if condition(cells):
                then(cells)

        return one
    otherwise = statement_task(statement.otherwise, scope)

    def either(cells: Cells) -> None:
        if condition(cells):
            then(cells)
        else:
            otherwise(cells)

    return either


def _assignment(statement: node.Assignment, scope: NameScope) -> Task:
    if statement.target is None:
        if not isinstance(statement.value, node.CallOf):
            refuse(statement.at, "expected an assignment or a call")
        call = typed(statement.value, scope).get

        def perform(cells: Cells) -> None:
            call(cells)

        return perform
    place = writable(statement.target, scope)
    cell, get = place.cell, typed(statement.value, scope).as_type(place.type).get
    header = _header_of(statement.target, scope)

    def assign(cells: Cells) -> None:
        if header is not None and not cells[header]:
            refuse(statement.at, f"{place.path} is written where its header is not valid")
        cells[cell] = get(cells)

    return assign


def _header_of(target: node.Expression, scope: NameScope) -> int | None:
    """Cell that says whether the header is valid whose field is written."""
    if not isinstance(target, node.MemberOf):
        return None
    base = typed(target.base, scope).place
    valid: int = getattr(base, "valid", -1)
    return valid if valid >= 0 else None


def declared_variable(declaration: node.VariableDeclaration, scope: NameScope) -> Task:
    """Declare a variable; what is left to do is to give it its first value, or none.

    Raises:
        InputError: If its value is of another type.
    """
    of = resolve_type(declaration.type, scope)
    place = scope.memory.place(of, declaration.name, writable=True)
    if not isinstance(place, LeafPlace):
        refuse(declaration.at, f"expected a variable of bits or bool, found {of}")
    get = None if declaration.value is None else typed(declaration.value, scope).as_type(of).get
    scope.declare(declaration.name, place, declaration.at)
    cell = place.cell

    def begin(cells: Cells) -> None:
        cells[cell] = None if get is None else get(cells)

    return begin
