"""Parsers of P4_16: states, and the selects between them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reference.p4.language import syntax as node
from reference.p4.language.blocks import declared_variable, statement_task
from reference.p4.language.calls import ParsingError, Task
from reference.p4.language.expressions import NameScope, typed, whole_number
from reference.p4.language.tokens import refuse
from reference.p4.language.types import Cells, P4Type

_MOST_STATES = 256
_ENDS = ("accept", "reject")
_Matcher = Callable[[Any], bool]


def parser_task(declaration: node.ParserDeclaration, scope: NameScope) -> Task:
    """What a parser does with a frame.

    Raises:
        InputError: If it is none of the subset.
    """
    starts: list[Task] = []
    for local in declaration.locals:
        if not isinstance(local, node.VariableDeclaration):
            refuse(local.at, "expected a variable: parsers have no other declarations here")
        starts.append(declared_variable(local, scope))
    names = [each.name for each in declaration.states]
    for each in declaration.states:
        if names.count(each.name) > 1 or each.name in _ENDS:
            refuse(each.at, f"the state {each.name} is declared twice, or has the name of an end")
    if "start" not in names:
        refuse(declaration.at, "expected a state start")
    states = {each.name: _state(each, names, scope) for each in declaration.states}

    def parse(cells: Cells) -> None:
        for start in starts:
            start(cells)
        name = "start"
        for _ in range(_MOST_STATES):
            statements, following = states[name]
            for statement in statements:
                statement(cells)
            name = following(cells)
            if name == "accept":
                return
            if name == "reject":
                break
        raise ParsingError("NoMatch" if name == "reject" else "ParserTimeout")

    return parse


def _state(
    state: node.StateDeclaration, names: list[str], outer: NameScope
) -> tuple[list[Task], Callable[[Cells], str]]:
    """Statements of a state, and which state comes after it."""
    scope = outer.inner()
    tasks = [statement_task(each, scope) for each in state.statements]
    transition = state.transition
    if transition is None:
        return tasks, lambda _: "reject"
    for case in transition.cases:
        if case.state not in names and case.state not in _ENDS:
            refuse(case.at, f"there is no state {case.state}")
    if not transition.keys:
        only = transition.cases[0].state
        return tasks, lambda _: only
    keys = [typed(each, scope) for each in transition.keys]
    getters = [each.get for each in keys]
    cases = [
        (_matchers(case.keyset, [each.type for each in keys], scope), case.state) for case in transition.cases
    ]

    def following(cells: Cells) -> str:
        values = [get(cells) for get in getters]
        for matchers, name in cases:
            if all(match(value) for match, value in zip(matchers, values, strict=True)):
                return name
        return "reject"

    return tasks, following


def _matchers(keyset: node.Expression, types: list[P4Type], scope: NameScope) -> list[_Matcher]:
    if isinstance(keyset, node.Whatever):
        return [lambda _: True] * len(types)
    parts = keyset.parts if isinstance(keyset, node.ListOf) else (keyset,)
    if len(parts) != len(types):
        refuse(keyset.at, f"expected {len(types)} values to compare with, found {len(parts)}")
    return [_matcher(part, of, scope) for part, of in zip(parts, types, strict=True)]


def _matcher(part: node.Expression, of: P4Type, scope: NameScope) -> _Matcher:
    def number(expression: node.Expression) -> int:
        return whole_number(typed(expression, scope).as_type(of))

    match part:
        case node.Whatever():
            return lambda _: True
        case node.MaskedKey(value=value, mask=mask):
            bits = number(mask)
            wanted = number(value) & bits
            return lambda found: found & bits == wanted
        case node.KeysetRange(low=low, high=high):
            least, most = number(low), number(high)
            return lambda found: least <= found <= most
    only = number(part)
    return lambda found: found == only
