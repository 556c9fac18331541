"""Language of decision tables, and an evaluator that records each test.

A table is a list of rules, read from the top; the first one that holds decides. A rule is a line ``CONDITION: OUTCOME``
or, where the decision goes on, an object with the condition and the rules below it::

    {"if": "P < 4", "rules": ["m < 32: pipeline", "m < 256: binary", "otherwise: linear"]}

A condition is ``otherwise``, or terms joined by ``and``. A term compares a number that is known about the call with a
number or with another such number (``P < 4``, ``elements < P``), or names a fact, with or without ``not`` in front
(``commutative``, ``not commutative``, ``P is a power of two``).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from coppice.errors import InputError

OTHERWISE = "otherwise"

Facts = Mapping[str, int | bool]
"""What is known about a call: numbers and facts by name."""

_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
}
_COMPARISON = re.compile(r"([A-Za-z_]+) (<=|<|==|>=|>) ([A-Za-z_]+|[0-9]+)")


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a condition."""

    text: str  # As the table has it
    left: str  # Name of a number or of a fact
    compare: str | None = None  # Comparison, or None where `left` is a fact
    right: int | str = 0  # What is compared with: a number, or the name of one
    negated: bool = False  # The fact must not hold

    def test(self, facts: Facts) -> tuple[bool, str]:
        """Evaluate the term; return the outcome and its text with the numbers substituted."""
        left = facts[self.left]
        if self.compare is None:
            return bool(left) != self.negated, f"{self.left}: {'yes' if left else 'no'}"
        right = self.right if isinstance(self.right, int) else int(facts[self.right])
        return _COMPARE[self.compare](int(left), right), f"{int(left)} {self.compare} {right}"


@dataclass(frozen=True, slots=True)
class TableRule:
    """A condition and its outcome: an algorithm, or further rules."""

    condition: str
    terms: tuple[Term, ...]
    outcome: str | tuple[TableRule, ...]


@dataclass(frozen=True, slots=True)
class RuleTest:
    """One evaluated test."""

    table: str  # Table that the rule is in
    rule: str  # The condition as the table has it
    values: str  # The condition with the numbers put in; empty for `otherwise`
    held: bool  # Whether it held: rules above it in the same list did not
    depth: int  # Nesting of the rule, 0 at the top


def parse_rules(data: Any, where: str) -> tuple[TableRule, ...]:
    """Parse the rules of a table.

    Args:
        data: Decoded JSON: a list of lines and objects.
        where: Name of the table, for messages.

    Examples:
        >>> few = {"if": "P < 4", "rules": ["m < 32: ring", "otherwise: chain"]}
        >>> rules = parse_rules([few, "otherwise: tree"], "an example")
        >>> decide(rules, {"P": 3, "m": 32}, table="t")[0]
        'chain'
    """
    rules = tuple(_parse_rule(entry, where) for entry in data)
    if not rules or rules[-1].condition != OTHERWISE or any(r.condition == OTHERWISE for r in rules[:-1]):
        raise InputError(
            f"expected rules that end with one {OTHERWISE!r}, found another end in {where}: add or move it."
        )
    return rules


def decide(rules: tuple[TableRule, ...], facts: Facts, *, table: str) -> tuple[str, tuple[RuleTest, ...]]:
    """Evaluate a table; return the outcome and the tests that led to it.

    Args:
        facts: What is known about the call.
        table: Name of the table, for the trail.
    """
    trail: list[RuleTest] = []
    depth = 0
    while True:
        for rule in rules:
            tests = [term.test(facts) for term in rule.terms]
            held = all(holds for holds, _ in tests)
            trail.append(
                RuleTest(table, rule.condition, " and ".join(text for _, text in tests), held, depth)
            )
            if held:
                break
        if isinstance(rule.outcome, str):
            return rule.outcome, tuple(trail)
        rules, depth = rule.outcome, depth + 1


def _parse_rule(entry: Any, where: str) -> TableRule:
    if isinstance(entry, str):
        condition, colon, outcome = entry.partition(": ")
        if colon and outcome.strip():
            return TableRule(condition, _parse_terms(condition, where), outcome.strip())
    elif isinstance(entry, dict) and set(entry) == {"if", "rules"}:
        condition = entry["if"]
        return TableRule(
            condition, _parse_terms(condition, where), parse_rules(entry["rules"], f"{where}, {condition}")
        )
    raise InputError(
        f'expected a rule "CONDITION: OUTCOME" or {{"if": ..., "rules": ...}} in {where}, found {entry!r}.'
    )


def _parse_terms(condition: str, where: str) -> tuple[Term, ...]:
    if condition == OTHERWISE:
        return ()
    return tuple(_parse_term(text, where) for text in condition.split(" and "))


def _parse_term(text: str, where: str) -> Term:
    match = _COMPARISON.fullmatch(text)
    if match:
        right = match[3]
        return Term(text, match[1], match[2], int(right) if right.isdecimal() else right)
    if not re.fullmatch(r"[A-Za-z][A-Za-z ]*", text):
        raise InputError(f'expected a term such as "P < 4" or the name of a fact in {where}, found {text!r}.')
    fact = text.removeprefix("not ")
    return Term(text, fact, negated=fact != text)
