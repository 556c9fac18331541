"""Reduction programs of a group: sequences of collectives over its parts, typed by the data that devices hold.

A program is a list of instructions (slice, form, operation) on a hierarchy (N. Xie et al., MLSys 2022). A slice is all
devices that agree on so many outer levels. A form says which devices work together:

* ``inside(s)``: those of each slice of depth s;
* ``parallel(s, e)``: those at the same position of all slices of depth s that lie in one slice of depth e;
* ``master(s, e)``: of these only the ones at the first position; other devices wait.

The state of a device is a matrix of booleans: a row for each chunk of the data, a column for each contribution in it.
An instruction is valid where it neither adds a contribution twice nor loses one, and it has to change something.

Whether a program is valid depends on the number of levels and not on their sizes, as all rows are cut along levels.
So programs are searched on a hierarchy of two devices a level, and those of a real one are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from math import prod


class GroupOperation(StrEnum):
    """Collective of an instruction."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    REDUCE = "reduce"
    BROADCAST = "broadcast"


_SHORT = {
    GroupOperation.ALL_REDUCE: "AR",
    GroupOperation.REDUCE_SCATTER: "RS",
    GroupOperation.ALL_GATHER: "AG",
    GroupOperation.REDUCE: "R",
    GroupOperation.BROADCAST: "B",
}


class Form(StrEnum):
    """Devices that take part in an instruction together."""

    INSIDE = "inside"
    PARALLEL = "parallel"
    MASTER = "master"


@dataclass(frozen=True, slots=True)
class ReductionCall:
    """One collective of a program, in many groups concurrently."""

    form: Form  # Which devices work together
    depth: int  # Depth of the slices: 0 is the whole group
    ancestor: int  # Depth of the slice in which slices work together; the same as `depth` for `inside`
    operation: GroupOperation  # What they do

    def members(self, sizes: Sequence[int]) -> list[list[int]]:
        """Devices of each group, the first the master; numbered with the innermost level fastest.

        Examples:
            >>> ReductionCall(Form.PARALLEL, 1, 0, GroupOperation.ALL_REDUCE).members([2, 3])
            [[0, 3], [1, 4], [2, 5]]
        """
        outer = prod(sizes[: self.ancestor])
        if self.form is Form.INSIDE:
            inner = prod(sizes[self.depth :])
            return [list(range(o * inner, (o + 1) * inner)) for o in range(outer)]
        across, inner = prod(sizes[self.ancestor : self.depth]), prod(sizes[self.depth :])
        positions = range(inner) if self.form is Form.PARALLEL else range(1)
        return [
            [(o * across + a) * inner + position for a in range(across)]
            for o in range(outer)
            for position in positions
        ]

    def words(self, levels: Sequence[str]) -> str:
        """Description of the instruction with names of levels.

        Examples:
            >>> ReductionCall(Form.PARALLEL, 1, 0, GroupOperation.ALL_REDUCE).words(["node", "gpu"])
            'all_reduce across node'
            >>> ReductionCall(Form.INSIDE, 1, 1, GroupOperation.REDUCE).words(["node", "gpu"])
            'reduce in node'
            >>> ReductionCall(Form.INSIDE, 0, 0, GroupOperation.ALL_REDUCE).words(["node", "gpu"])
            'all_reduce'
        """
        if self.form is Form.INSIDE:
            return f"{self.operation} in {levels[self.depth - 1]}" if self.depth else str(self.operation)
        within = f" in {levels[self.ancestor - 1]}" if self.ancestor else ""
        across = " x ".join(levels[self.ancestor : self.depth])
        only = " masters" if self.form is Form.MASTER else ""
        return f"{self.operation} across {across}{only}{within}"

    def short(self, levels: Sequence[str]) -> str:
        """Abbreviation of the instruction.

        Examples:
            >>> ReductionCall(Form.MASTER, 1, 0, GroupOperation.ALL_REDUCE).short(["node", "gpu"])
            'AR x node masters'
        """
        words = self.words(levels).replace(" across ", " x ")
        return words.replace(str(self.operation), _SHORT[self.operation], 1)

    def slice_name(self, levels: Sequence[str]) -> str | None:
        """Level whose slices work together; None for the whole group."""
        return levels[self.depth - 1] if self.depth else None

    def ancestor_name(self, levels: Sequence[str]) -> str | None:
        """Level of the slice in which they do; None for the whole group, and inside slices."""
        return levels[self.ancestor - 1] if self.ancestor and self.form is not Form.INSIDE else None


Program = tuple[ReductionCall, ...]

State = tuple[tuple[int, ...], ...]
"""For each device and chunk the set of contributions as bits; 0 where the device does not hold the chunk."""


def start(devices: int) -> State:
    """Initial state: every device holds its own contribution to all chunks."""
    return tuple((1 << device,) * devices for device in range(devices))


def goal(devices: int) -> State:
    """Final state: every device holds all contributions to all chunks."""
    return (((1 << devices) - 1,) * devices,) * devices


def applied(state: State, instruction: ReductionCall, sizes: Sequence[int]) -> State | None:
    """State after an instruction; None where it is invalid, or changes nothing."""
    after = list(state)
    for members in instruction.members(sizes):
        changed = _together([state[device] for device in members], instruction.operation)
        if changed is None:
            return None
        for device, held in zip(members, changed, strict=True):
            after[device] = held
    found = tuple(after)
    return None if found == state else found


def _together(held: list[tuple[int, ...]], operation: GroupOperation) -> list[tuple[int, ...]] | None:
    """What the members of one place hold after an operation, or None where it is not valid."""
    rows = [[row for row, who in enumerate(each) if who] for each in held]
    chunks = range(len(held[0]))
    if operation is GroupOperation.BROADCAST:
        master = held[0]
        dominated = all(who & ~master[row] == 0 for each in held[1:] for row, who in enumerate(each))
        return [master] * len(held) if rows[0] and dominated else None
    if operation is GroupOperation.ALL_GATHER:
        equal = len({len(each) for each in rows}) == 1
        if not rows[0] or not equal or len({row for each in rows for row in each}) < sum(map(len, rows)):
            return None
        union = tuple(max(each[row] for each in held) for row in chunks)
        return [union] * len(held)
    if not rows[0] or any(each != rows[0] for each in rows):
        return None
    total = [0] * len(held[0])
    for each in held:
        if any(total[row] & each[row] for row in rows[0]):
            return None
        total = [a | b for a, b in zip(total, each, strict=True)]
    everything, nothing = tuple(total), (0,) * len(total)
    if operation is GroupOperation.ALL_REDUCE:
        return [everything] * len(held)
    if operation is GroupOperation.REDUCE:
        return [everything] + [nothing] * (len(held) - 1)
    if len(rows[0]) % len(held):
        return None
    part = len(rows[0]) // len(held)
    return [
        tuple(who if row in rows[0][n * part : (n + 1) * part] else 0 for row, who in enumerate(total))
        for n in range(len(held))
    ]


def instructions(depth: int) -> Iterator[ReductionCall]:
    """Distinct instructions on a hierarchy of so many levels."""
    for operation in GroupOperation:
        for s in range(depth):
            yield ReductionCall(Form.INSIDE, s, s, operation)
        for s in range(1, depth):
            for e in range(s):
                yield ReductionCall(Form.PARALLEL, s, e, operation)
                yield ReductionCall(Form.MASTER, s, e, operation)


@cache
def programs(depth: int, most: int = 5) -> tuple[Program, ...]:
    """All reduction programs of up to ``most`` instructions, the shortest first.

    Args:
        depth: Number of levels of two devices or more; 0 has the empty program alone.

    Examples:
        >>> [[each.words(["gpu"]) for each in program] for program in programs(1)]
        [['all_reduce'], ['reduce_scatter', 'all_gather'], ['reduce', 'broadcast']]
    """
    sizes = (2,) * depth
    first, last = start(2**depth), goal(2**depth)
    steps: dict[State, list[tuple[ReductionCall, State]]] = {}
    level = {first}
    for _ in range(most):
        following = set()
        for state in level:
            if state in steps or state == last:
                continue
            after = ((each, applied(state, each, sizes)) for each in instructions(depth))
            steps[state] = [(each, found) for each, found in after if found is not None]
            following |= {found for _, found in steps[state]}
        level = following
    left = {last: 0}
    for count in range(1, most + 1):
        for state, taken in steps.items():
            if state not in left and any(left.get(found) == count - 1 for _, found in taken):
                left[state] = count
    found: list[Program] = []

    def extend(state: State, program: Program) -> None:
        if state == last:
            found.append(program)
            return
        for each, after in steps.get(state, ()):
            if len(program) + 1 + left.get(after, most) <= most:
                extend(after, (*program, each))

    extend(first, ())
    return tuple(sorted(found, key=len))
