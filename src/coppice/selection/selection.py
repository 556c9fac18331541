"""Request and result of a selection, and the language of decision tables, whose evaluator records each test.

Language of decision tables, and an evaluator that records each test. A table is a list of rules, read from the top; the
first one that holds decides. A rule is a line ``CONDITION: OUTCOME`` or, where the decision goes on, an object with the
condition and the rules below it::

    {"if": "P < 4", "rules": ["m < 32: pipeline", "m < 256: binary", "otherwise: linear"]}

A condition is ``otherwise``, or terms joined by ``and``. A term compares a number that is known about the call with a
number or with another such number (``P < 4``, ``elements < P``), or names a fact, with or without ``not`` in front
(``commutative``, ``not commutative``, ``P is a power of two``).
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Value
from coppice.selection.nccl.costs import CostCell
from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.timing import PickJson
    from coppice.selection.nccl.communicator import FoundCommunicator

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


@dataclass(frozen=True, kw_only=True)
class SelectionPart:
    """A pick within a composition, such as the reduction within each box."""

    role: str
    selection: Selection


@dataclass(frozen=True, kw_only=True, repr=False)
class Selection:
    """The pick of a library for one call."""

    library: str  # Name of the library, as it writes it
    version: str  # Version whose rules these are
    source: str  # File of the library that holds them
    function: str  # The library's own function
    collective: Collective  # What it performs
    ranks: int  # Number of ranks, P
    size_bytes: int  # M (see :mod:`coppice.collectives`)
    component: str  # Part of the library that decides
    algorithm: str  # The library's own name of the algorithm
    id: int | None = None  # Number that the library gives it, or None where it has none
    # The algorithm that the library then runs: another one where the chosen one falls back on it
    runs_as: str = ""
    ours: str | None = None  # Name in the catalogue of what runs, or None where that has no such schedule
    # Parameters of the algorithm of the catalogue
    parameters: Mapping[str, Value] = field(default_factory=dict)
    reason: str | None = None  # Why `ours` is None
    why: tuple[RuleTest, ...] = ()  # Trail of the rules that were tested
    parts: tuple[SelectionPart, ...] = ()  # Picks inside a composition
    assumptions: tuple[str, ...] = ()  # What was not given and had to be assumed
    notes: tuple[str, ...] = ()  # What differs between the pick and the schedule, and other traps
    cells: tuple[CostCell, ...] = ()  # Predicted times of a library with a cost model, in its own order
    taken: CostCell | None = None  # Cost of the pick where that is not the least one: a limit decided
    # Channels that NCCL's kernel may take, those that get data, and threads of each; None where nothing tells
    channels: int | None = None
    channels_filled: int | None = None
    threads: int | None = None
    # What NCCL's search found: the channels, rings and trees that the pick runs on; None without a search
    found: FoundCommunicator | None = field(default=None, compare=False)

    def __repr__(self) -> str:
        runs = f", which runs {self.runs_as}" if self.runs_as not in ("", self.algorithm) else ""
        return (
            f"Selection({self.library}: {self.function} of {self.size_bytes:,} bytes "
            f"among {self.ranks:,} ranks by {self.algorithm}{runs})"
        )

    @property
    def model_name(self) -> str | None:
        """Model of the library's own estimate, with its version; None without one."""
        return f"{self.library} {self.version} {self.component}" if self.cells else None

    @property
    def cell(self) -> CostCell | None:
        """Cost of the pick, None without a cost model."""
        if self.taken is not None:
            return self.taken
        timed = [cell for cell in self.cells if cell.time_us is not None]
        return min(timed, key=lambda cell: cell.model_us, default=None)

    def pick_record(self) -> PickJson:
        """What is picked, and the library's own estimate, as JSON values."""
        return {
            "library": self.library,
            "library_version": self.version,
            "pick": self.algorithm,
            "channels": self.channels,
            "channels_filled": self.channels_filled,
            "threads": self.threads,
            "predicted_us": None if self.cell is None else self.cell.time_us,
            "predicted_by": self.model_name,
        }

    def record(self) -> dict[str, Any]:
        """The selection as JSON values."""
        steps = [
            {
                "table": step.table,
                "rule": step.rule,
                "with_values": step.values,
                "values": step.values,
                "held": step.held,
                "depth": step.depth,
            }
            for step in self.why
        ]
        return {
            "library": self.library,
            "library_version": self.version,
            "version": self.version,
            "source": self.source,
            "function": self.function,
            "collective": self.collective.value,
            "ranks": self.ranks,
            "size_bytes": self.size_bytes,
            "component": self.component,
            "algorithm": self.algorithm,
            "algorithm_id": self.id,
            "id": self.id,
            "runs_as": self.runs_as or self.algorithm,
            "protocol": None if self.cell is None else self.cell.protocol,
            "time_us": None if self.cell is None else self.cell.time_us,
            "promised_us": None if self.cell is None else self.cell.promised_us,
            "predicted_by": self.model_name,
            "channels": self.channels,
            "channels_filled": self.channels_filled,
            "threads": self.threads,
            "ours": self.ours,
            "parameters": dict(self.parameters),
            "reason": self.reason,
            "decision": steps,
            "why": steps,
            "parts": [{"role": part.role, **part.selection.record()} for part in self.parts],
            "assumptions": list(self.assumptions),
            "notes": list(self.notes),
            "cells": [cell.record() for cell in self.cells],
        }


MOST_RANKS = 2**31 - 1
"""Ranks of a communicator are counted by 32-bit integers."""


@dataclass(frozen=True, kw_only=True)
class SelectionRequest:
    """A collective call whose algorithm is to be predicted."""

    collective: Collective  # What is performed
    ranks: int  # Number of ranks, P
    size_bytes: int  # M (see :mod:`coppice.collectives`)
    # Ranks in each box, or None where nothing is known about boxes: all ranks share one then
    ranks_per_box: int | None = None
    even: bool = True  # All boxes have the same number of ranks; `ranks_per_box` is the largest otherwise
    boxes: int = 1  # Number of boxes
    commutative: bool = True  # The operation commutes
    builtin: bool = True  # The operation is one of the library's own
    element_bytes: int = 4  # Bytes of an element

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= MOST_RANKS:
            raise InputError(f"expected 1 .. {MOST_RANKS:,} ranks, found {self.ranks:,}.")
        if not 0 <= self.size_bytes < 2**63:
            raise InputError(f"expected a size of 0 .. 2^63 - 1 bytes, found {self.size_bytes:,}.")
        if self.element_bytes < 1:
            raise InputError(f"expected elements of 1 byte or more, found {self.element_bytes}.")

    @property
    def block_bytes(self) -> int:
        """Bytes of one rank's block; M where the buffer is not divided among the ranks."""
        return self.size_bytes // self.collective.shards(self.ranks)

    @property
    def per_box(self) -> int:
        """Ranks per box; all ranks where boxes are unknown."""
        return self.ranks if self.ranks_per_box is None else self.ranks_per_box

    def within(self, ranks: int, collective: Collective, size_bytes: int) -> SelectionRequest:
        """The call at one level of a composition: all ranks in one box, or each in its own."""
        alone = ranks == self.boxes and self.boxes > 1
        return replace(
            self,
            collective=collective,
            ranks=ranks,
            size_bytes=size_bytes,
            ranks_per_box=1 if alone else ranks,
            boxes=ranks if alone else 1,
        )

    def facts(self, measure: str) -> Facts:
        """Variables of the decision tables.

        Args:
            measure: What the table calls ``m``: ``total`` (M) or ``block`` (the block of one rank).

        Examples:
            >>> request = SelectionRequest(collective=Collective.ALL_GATHER, ranks=12, size_bytes=4096)
            >>> facts = request.facts("block")
            >>> facts["m"], facts["total"], facts["P is a power of two"], facts["floor_pow"]
            (341, 4096, False, 8)
        """
        power = 1 << (self.ranks.bit_length() - 1)
        return {
            "P": self.ranks,
            "m": self.block_bytes if measure == "block" else self.size_bytes,
            "total": self.size_bytes,
            "block": self.block_bytes,
            "elements": self.size_bytes // self.element_bytes,
            "floor_pow": power,
            "others": self.ranks - 1,
            "segments_of_8_KiB": -(-self.size_bytes // 8192),
            "segments_of_512_KiB": -(-self.size_bytes // 524288),
            "boxes": self.boxes,
            "per_box": self.per_box,
            "P is a power of two": power == self.ranks,
            "P is even": self.ranks % 2 == 0,
            "commutative": self.commutative,
            "built in": self.builtin,
            "one box": self.boxes == 1,
            "one rank in each box": self.boxes == self.ranks and self.ranks > 1,
            "equal boxes": self.even,
        }


def box_sizes(topology: Topology) -> list[int] | None:
    """Ranks of each box, or None where the topology does not record the boxes of ranks.

    Examples:
        >>> from coppice.topology.presets import preset
        >>> box_sizes(preset("dgx-a100", boxes=2)), box_sizes(preset("star", gpus=4))
        ([8, 8], None)
    """
    hosts = topology.host[topology.rank_nodes]
    if (hosts < 0).any():
        return None
    return [int(count) for count in np.unique(hosts, return_counts=True)[1]]
