"""The instance as a formula, decided by Z3.

Literals: ``has`` (a chunk is on a rank after a step), ``send`` (a chunk takes a route in a step) and ``longer`` (a step
has so many rounds or more). A chunk is on a rank after a step only if it was there before or comes in it; it leaves
only from where it was. Each group carries in each step what its rounds have time for, a pseudo-Boolean constraint, and
all rounds together are R. Nothing forbids that a chunk comes twice: what is of no use is dropped afterwards, and the
formula is smaller without. Chunks of a block are interchangeable: in the order of their numbers they come to the first
rank that takes one from the source.

The arrival times of the paper (integers ``start``) become Booleans by this, so that the formula is left to a solver of
Boolean constraints alone, without arithmetic.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from coppice.display import Brief
from coppice.errors import InputError, MissingExtraError
from coppice.planners.synthesis.method import Status
from coppice.planners.synthesis.sccl.commodities import Block
from coppice.planners.synthesis.sccl.model import Images, Model

__all__ = ["Formula", "Instance", "Send", "Solution", "require_z3"]

MOST_LITERALS = 4_000_000


@dataclass(frozen=True, order=True)
class Instance:
    """Steps, rounds in all, and chunks of a block of weight 1."""

    steps: int
    rounds: int
    chunks: int

    def __str__(self) -> str:
        """As SCCL writes it."""
        return f"(S={self.steps}, R={self.rounds}, C={self.chunks})"


@dataclass(frozen=True, order=True)
class Send:
    """A chunk on a route in a step, numbered from 1."""

    step: int
    slot: int
    chunk: int
    route: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Solution(Brief):
    """What was found out about an instance.

    Attributes:
        status: Whether there is a schedule.
        sends: Its sends, each chunk to each rank once and no further than it is wanted, sorted.
        rounds: Rounds of each step.
        interrupted: Ctrl-C ended the search.
    """

    status: Status
    sends: tuple[Send, ...] = ()
    rounds: tuple[int, ...] = ()
    interrupted: bool = False


def require_z3() -> Any:
    """The module z3.

    Raises:
        MissingExtraError: If it is not installed.
    """
    try:
        import z3
    except ImportError:
        package = "z3-solver"
        raise MissingExtraError.of(package, extra="smt") from None
    return z3


class Formula:
    """The formula of an instance whose schedules the symmetries map to themselves.

    Args:
        model: The problem.
        instance: Steps, rounds and chunks; no fewer steps than the distances ask for, no fewer rounds than steps.
        images: The symmetries.

    Raises:
        InputError: If it has more than four million literals.
        MissingExtraError: If Z3 is not installed.
    """

    def __init__(self, model: Model, instance: Instance, images: Images) -> None:
        self.model, self.instance, self.images = model, instance, images
        self._z3 = require_z3()
        self._context = self._z3.Context()
        self._clauses = self._z3.AstVector(ctx=self._context)
        self._count = 0
        self._send: dict[tuple[int, int, int, int], Any] = {}  # slot, chunk, route, step
        self._longer: dict[tuple[int, int], Any] = {}  # step, rounds
        self._previous: list[Any] = []
        self._state()

    def attempt(
        self,
        *,
        seed: int = 0,
        conflicts: int = 2**32 - 1,
        rounds: tuple[int, ...] | None = None,
        deadline: float | None = None,
    ) -> Solution:
        """Look for a schedule; another seed searches in another order.

        Args:
            seed: Of the solver.
            conflicts: Give up after so many, the same on every machine.
            rounds: Rounds of each step; None leaves them open.
            deadline: Of :func:`time.monotonic`.
        """
        z3 = self._z3
        solver = z3.SimpleSolver(ctx=self._context)
        solver.add(self._clauses)
        if rounds is not None:
            for (step, i), literal in self._longer.items():
                solver.add(literal if rounds[step - 1] >= i else z3.Not(literal))
        solver.set("random_seed", seed % 2**31)
        solver.set("max_conflicts", min(conflicts, 2**32 - 1))
        if deadline is not None:
            solver.set("timeout", max(1, int(1000 * (deadline - time.monotonic()))))
        answer = solver.check()
        if answer == z3.unsat:
            return Solution(status=Status.UNSAT)
        if answer != z3.sat:
            return Solution(status=Status.UNKNOWN, interrupted="interrupted" in solver.reason_unknown())
        return self._solution(solver.model())

    def _state(self) -> None:
        """Add all clauses."""
        self._rounds()
        for block in self.model.representatives(self.images):
            windows = self.model.windows(block, self.instance.steps)
            for chunk in range(block.weight * self.instance.chunks):
                self._chunk(block, chunk, windows)
        self._groups()

    def _solution(self, found: Any) -> Solution:
        """What the solver found, with the images of what was left out."""
        is_true = self._z3.is_true
        rounds = [
            1 + sum(is_true(found[self._longer[step, i]]) for i in range(2, self._most_rounds + 1))
            for step in range(1, self.instance.steps + 1)
        ]
        sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for (slot, chunk, route, step), literal in self._send.items():
            if is_true(found[literal]):
                sent.setdefault((slot, chunk), []).append((step, route))
        sends = []
        for block in self.model.representatives(self.images):
            for chunk in range(block.weight * self.instance.chunks):
                for step, route in _tree(self.model, block, sorted(sent[block.slot, chunk])):
                    for slots, routes in zip(self.images.slot, self.images.route, strict=True):
                        sends.append(Send(step, slots[block.slot], chunk, routes[route]))
        return Solution(status=Status.SAT, sends=tuple(sorted(sends)), rounds=tuple(rounds))

    @property
    def _most_rounds(self) -> int:
        """Rounds that a step can have at most."""
        return self.instance.rounds - self.instance.steps + 1

    def _literal(self) -> Any:
        self._count += 1
        if self._count > MOST_LITERALS:
            msg = (
                f"expected an instance of at most {MOST_LITERALS} literals, found more for {self.instance}: "
                "use fewer steps or chunks, or another method."
            )
            raise InputError(msg)
        return self._z3.Bool(f"b{self._count}", ctx=self._context)

    def _rounds(self) -> None:
        z3, steps, most = self._z3, self.instance.steps, self._most_rounds
        for step in range(1, steps + 1):
            for i in range(2, most + 1):
                self._longer[step, i] = self._literal()
                if i > 2:
                    self._clauses.push(z3.Implies(self._longer[step, i], self._longer[step, i - 1]))
        if self._longer:
            self._clauses.push(z3.AtMost(*self._longer.values(), most - 1))

    def _chunk(self, block: Block, chunk: int, windows: list[Any]) -> None:
        """Where a chunk is after each step, and how it comes there."""
        z3, model, steps = self._z3, self.model, self.instance.steps
        span = model.span(block, steps)
        has: dict[tuple[int, int], Any] = {}  # True, a literal, or missing: it is not there

        def where(rank: int, step: int) -> Any:
            if rank == block.source:
                return True
            earliest, latest = span[rank]
            if step < earliest or earliest > latest:
                return False
            if rank in block.targets and step >= steps:
                return True
            step = min(step, latest)
            if (rank, step) not in has:
                has[rank, step] = self._literal()
            return has[rank, step]

        coming: dict[tuple[int, int], list[Any]] = {}
        for window in windows:
            src, dst = model.routes.src[window.route], model.routes.dst[window.route]
            for step in range(window.first, window.last + 1):
                literal = self._send[block.slot, chunk, window.route, step] = self._literal()
                coming.setdefault((dst, step), []).append(literal)
                owned = where(src, step - 1)
                if owned is not True:
                    self._clauses.push(z3.Implies(literal, owned))
        for rank, (earliest, latest) in enumerate(span):
            if rank == block.source or earliest > latest:
                continue
            for step in range(earliest, latest + 1):
                now, before = where(rank, step), where(rank, step - 1)
                clause = list(coming.get((rank, step), ()))
                if now is not True:
                    clause.append(z3.Not(now))
                if before is not False:
                    clause.append(before)
                self._clauses.push(z3.Or(clause))
        self._in_order(block, chunk, where)

    def _in_order(self, block: Block, chunk: int, where: Any) -> None:
        """Chunks come in the order of their numbers to the first rank that the source sends to."""
        nearest = [
            rank for rank in range(len(self.model.into)) if self.model.distances[block.source, rank] == 1
        ]
        after = [where(nearest[0], step) for step in range(1, self.instance.steps)] if nearest else []
        if chunk:
            for earlier, later in zip(self._previous, after, strict=True):
                if later is not earlier:
                    self._clauses.push(self._z3.Implies(later, earlier))
        self._previous = after

    def _groups(self) -> None:
        """What each group carries in each step."""
        instance, routes = self.instance, self.model.routes
        on_route: dict[tuple[int, int], list[Any]] = {}
        for (_, _, route, step), literal in self._send.items():
            on_route.setdefault((route, step), []).append(literal)
        for group, sources in self.model.groups(self.images):
            carried = [routes.chunks_in(group, rounds) for rounds in range(self._most_rounds + 1)]
            for step in range(1, instance.steps + 1):
                load: dict[int, list[Any]] = {}
                for element in sources:
                    for route in element:
                        for literal in on_route.get((route, step), ()):
                            load.setdefault(literal.get_id(), [literal, 0])[1] += 1
                self._limit(step, list(load.values()), carried)

    def _limit(self, step: int, load: list[list[Any]], carried: list[int]) -> None:
        """Weighted literals within what the rounds of the step carry."""
        z3 = self._z3
        total = sum(weight for _, weight in load)
        if total <= carried[1]:
            return
        terms = [(literal, weight) for literal, weight in load]
        room = min(total, carried[1])
        for i in range(2, self._most_rounds + 1):
            more = min(total, carried[i]) - min(total, carried[i - 1])
            if more:
                terms.append((z3.Not(self._longer[step, i]), more))
                room += more
        self._clauses.push(z3.PbLe(terms, room))


def _tree(model: Model, block: Block, sends: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Of the sends of a chunk (step, route), sorted, those that bring it where it is wanted, each rank once."""
    first: dict[int, tuple[int, int]] = {}
    for step, route in sends:
        dst = model.routes.dst[route]
        if dst != block.source:
            first.setdefault(dst, (step, route))
    kept: set[tuple[int, int]] = set()
    for target in block.targets:
        rank = target
        while rank != block.source and first[rank] not in kept:
            kept.add(first[rank])
            rank = model.routes.src[first[rank][1]]
    return sorted(kept)
