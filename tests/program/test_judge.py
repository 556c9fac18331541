"""Order, races and values of random executions against what walking through them one step after the other gives."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from numpy.typing import NDArray

import coppice.program.order
from coppice.collectives import Collective
from coppice.program.judge import Judgement
from coppice.program.memory import EVERYONE, NO_CHUNK, memory_of
from coppice.program.order import MemoryAccesses, PointOrder, Points, ProgramExecution, Values, levels

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Layout:
    """An all-reduce of two ranks and three chunks."""

    collective: Collective = Collective.ALL_REDUCE
    num_ranks: int = 2
    num_chunks: int = 3
    root: int = -1
    scratch_chunks: Ints = field(default_factory=lambda: np.array([2, 2]))


def graph(rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """Chains of points, and edges to later ones."""
    points, edges = int(rng.integers(1, 40)), int(rng.integers(0, 60))
    ends = np.sort(rng.integers(0, points, (2, edges)), axis=0)
    ends = ends[:, ends[0] < ends[1]]
    return rng.integers(0, rng.integers(1, 8), points), ends[0], ends[1]


def reached(chain: Ints, earlier: Ints, later: Ints) -> NDArray[np.bool_]:
    """Whether a way leads from one point to another, by closure."""
    points = len(chain)
    found = np.triu(chain[:, None] == chain)
    found[earlier, later] = True
    for middle in range(points):
        found |= found[:, middle : middle + 1] & found[middle]
    return found


@pytest.mark.parametrize("cells", [1, 50, 2**25])
def test_clocks_know_every_way(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coppice.program.order, "_CELLS", cells)
    rng = np.random.default_rng(cells)
    for _ in range(60):
        chain, earlier, later = graph(rng)
        pairs = np.indices((len(chain), len(chain))).reshape(2, -1)
        known = PointOrder(chain, earlier, later).holds(*pairs)
        assert np.array_equal(known.reshape(len(chain), -1), reached(chain, earlier, later))


@pytest.mark.parametrize("patience", [1, 3, 256])
def test_levels_are_the_longest_ways(patience: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coppice.program.order, "_PATIENCE", patience)
    rng = np.random.default_rng(patience)
    for turn in range(60):
        chain, source, target = graph(rng)
        gap = rng.integers(0, 3, len(source)) if turn % 2 else None
        longest = [0] * len(chain)
        order = np.argsort(source, kind="stable")
        for edge in order.tolist():
            length = 1 if gap is None else int(gap[edge])
            longest[target[edge]] = max(longest[target[edge]], longest[source[edge]] + length)
        assert levels(len(chain), source, target, gap).tolist() == longest


def test_levels_of_circles_are_none() -> None:
    source, target = np.array([0, 1, 2, 2]), np.array([1, 2, 1, 3])
    assert levels(4, source, target).tolist() == [0, -1, -1, -1]


@dataclass
class Step:
    """One operation of a random execution: a sum or a copy of slots, some of them from an earlier operation."""

    one: int  # Address, or -1 - (operation that makes it)
    other: int | None  # A second term likewise
    target: int
    count: int


def steps(rng: np.random.Generator, words: int) -> list[Step]:
    found: list[Step] = []
    for number in range(int(rng.integers(1, 25))):
        count = int(rng.integers(1, 3))

        def operand(number: int = number, count: int = count) -> int:
            made = int(rng.integers(0, number)) if number and rng.random() < 0.3 else -1
            if made >= 0 and found[made].count >= count and found[made].count == count:
                return -1 - made
            return int(rng.integers(0, words - count + 1))

        other = operand() if rng.random() < 0.5 else None
        found.append(Step(operand(), other, int(rng.integers(0, words - count + 1)), count))
    return found


def execution_of(program: list[Step], rng: np.random.Generator) -> ProgramExecution:
    """Operations one after the other in time, each a point of one of three chains."""
    rows: list[tuple[int, int, int, bool, int]] = []  # actor, first, count, write, value
    operands: list[list[int]] = []
    for number, step in enumerate(program):
        mine = []
        for term in (step.one, step.other):
            if term is not None and term >= 0:
                rows.append((number, term, step.count, False, 0))
                mine.append(len(rows) - 1)
            else:
                mine.append(-1 if term is None else term - 1)  # values are told apart below
        operands.append(mine)
        rows.append((number, step.target, step.count, True, number))
    actor, first, count, write, value = (np.array(column) for column in zip(*rows, strict=True))
    terms = np.array(operands)
    terms = np.where(terms < -1, len(rows) - 2 - terms, terms)
    steps = len(program)
    ends = np.sort(rng.integers(0, steps, (2, 12)), axis=0)
    return ProgramExecution(
        accesses=MemoryAccesses(
            actor=actor, first=first, count=count,
            stride=np.ones(len(rows), dtype=np.int64), write=write, value=value, time=actor, begin=actor, end=actor,
            also=actor,
        ),
        values=Values(
            actor=np.arange(steps), count=np.array([step.count for step in program]), one=terms[:, 0],
            other=terms[:, 1],
        ),
        points=Points(chain=rng.integers(0, 3, steps), earlier=ends[0], later=ends[1]),
    )  # fmt: skip


def test_races_are_the_conflicts_that_nothing_orders() -> None:
    rng, races = np.random.default_rng(5), 0
    memory = memory_of(Layout(), in_place=False)
    for _ in range(200):
        program = steps(rng, memory.words)
        execution = execution_of(program, rng)
        points, accesses = execution.points, execution.accesses
        known = reached(points.chain, points.earlier, points.later)
        clash = set()
        for one in range(len(accesses.actor)):
            for two in range(len(accesses.actor)):
                a, b = int(accesses.actor[one]), int(accesses.actor[two])
                spans = [
                    range(accesses.first[each], accesses.first[each] + accesses.count[each])
                    for each in (one, two)
                ]
                if a < b and (accesses.write[one] or accesses.write[two]) and set(spans[0]) & set(spans[1]):
                    clash.add((a, b))
        judgement = Judgement(execution, memory)
        rows = judgement.races
        found = {
            (int(accesses.actor[judgement.conflicts.first[row]]), int(accesses.actor[judgement.conflicts.second[row]]))
            for row in rows.tolist()
        }  # fmt: skip
        assert found <= {pair for pair in clash if not known[pair]}
        assert bool(found) == any(not known[pair] for pair in clash)
        races += bool(found)
    assert 50 < races < 200


def test_values_are_those_of_one_step_after_the_other() -> None:
    rng, right = np.random.default_rng(7), 0
    memory = memory_of(Layout(), in_place=False)
    for _ in range(400):
        program = steps(rng, memory.words)
        judgement = Judgement(execution_of(program, rng), memory)
        held: list[tuple[int, frozenset[int]]] = [(NO_CHUNK, frozenset())] * memory.words
        given = memory.given
        for address, chunk, member in zip(
            *map(np.ndarray.tolist, (given.address, given.chunk, given.member)), strict=True
        ):
            held[address] = (chunk, frozenset([member]))  # fmt: skip
        made: list[list[tuple[int, frozenset[int]]]] = []
        wrong = unread = 0
        for step in program:
            terms = [
                made[-1 - term] if term < 0 else held[term : term + step.count]
                for term in (step.one, step.other)
                if term is not None
            ]
            unread += sum(
                chunk == NO_CHUNK
                for term, values in zip(
                    [t for t in (step.one, step.other) if t is not None], terms, strict=True
                )
                for chunk, _ in values
                if term >= 0
            )
            out = list(terms[0])
            for slot, (chunk, members) in enumerate(terms[1] if len(terms) > 1 else ()):
                mine, have = out[slot]
                known = NO_CHUNK not in (chunk, mine)
                wrong += known and (chunk != mine or bool(members & have))
                out[slot] = (chunk if mine == NO_CHUNK else mine, members | have)
            made.append(out)
            held[step.target : step.target + step.count] = out
        values, wanted = judgement.values, memory.wanted
        assert len(values.wrong_sums.value) == wrong
        assert int(values.missing.sum()) == unread
        bad = [
            row
            for row, address in enumerate(wanted.address.tolist())
            if held[address]
            != (wanted.chunk[row], frozenset(range(2)) if wanted.member[row] == EVERYONE else None)
        ]
        assert values.wrong_slots.slot.tolist() == wanted.slot[bad].tolist()
        right += 6 - len(bad)
    assert right > 20
