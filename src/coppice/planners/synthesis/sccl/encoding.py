"""SMT encoding of an instance, solved by Z3.

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

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from coppice.display import Brief
from coppice.errors import InputError, MissingExtraError
from coppice.planners.synthesis.sccl.model import Commodity, SendWindow, StepModel, SymmetryImages
from coppice.planners.synthesis.synthesizing import Status

_INTERRUPT_TIMEOUT_S = 10.0
"""For Z3 to notice that it shall end; leaving Python with Z3 at work may crash."""

MOST_LITERALS = 4_000_000


@dataclass(frozen=True, order=True)
class StepInstance:
    """Steps, total rounds, and chunks per block of weight 1."""

    steps: int
    rounds: int
    chunks: int

    def __str__(self) -> str:
        """As SCCL writes it."""
        return f"(S={self.steps}, R={self.rounds}, C={self.chunks})"


@dataclass(frozen=True, order=True)
class ChunkSend:
    """A chunk on a route in a step, numbered from 1."""

    step: int
    slot: int
    chunk: int
    route: int


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class SendSolution(Brief):
    """Solver's answer for an instance."""

    status: Status  # Whether there is a schedule
    # Its sends, each chunk to each rank once and no further than it is wanted, sorted
    sends: tuple[ChunkSend, ...] = ()
    rounds: tuple[int, ...] = ()  # Rounds of each step


def require_z3() -> Any:
    """Import z3, or raise MissingExtraError."""
    try:
        import z3
    except ImportError:
        package = "z3-solver"
        raise MissingExtraError.of(package, extra="smt") from None
    return z3


class StepFormula:
    """Formula of an instance, restricted to schedules invariant under the symmetries.

    Literals are numbers, negative ones negated. The formula is handed to Z3 as text (SMT-LIB), which it reads many
    times faster than Python makes terms one by one.

    Args:
        model: The problem.
        instance: Steps, rounds and chunks; no fewer steps than the distances ask for, no fewer rounds than steps.
        images: The symmetries.

    Raises:
        InputError: If it has more than four million literals.
        MissingExtraError: If Z3 is not installed.
    """

    def __init__(self, model: StepModel, instance: StepInstance, images: SymmetryImages) -> None:
        self.model, self.instance, self.images = model, instance, images
        self.num_literals = 0
        self._text: list[str] = []
        self._send: dict[tuple[int, int, int, int], int] = {}  # slot, chunk, route, step
        self._longer: dict[tuple[int, int], int] = {}  # step, rounds
        self._first_arrivals: list[int | bool] = []
        self._state()
        self._z3 = require_z3()
        declared = "".join(f"(declare-const b{i} Bool)\n" for i in range(1, self.num_literals + 1))
        self._formula = declared + "".join(self._text)
        self._text.clear()

    def attempt(
        self,
        *,
        seed: int = 0,
        conflicts: int = 2**32 - 1,  # Give up after so many, the same on every machine
        rounds: tuple[int, ...] | None = None,  # Rounds of each step; None leaves them open
        deadline: float | None = None,  # Of :func:`time.monotonic`
    ) -> SendSolution:
        """Search for a schedule with a random seed."""
        z3 = self._z3
        running: list[Any] = []

        def check() -> tuple[Status, set[int]]:
            """The answer, and what is true in a schedule; what Z3 made is gone at the end, in this thread."""
            context = z3.Context()
            running.append(context)
            try:
                solver = z3.SimpleSolver(ctx=context)
                solver.from_string(self._formula)
                if rounds is not None:
                    for (step, i), number in self._longer.items():
                        literal = z3.Bool(f"b{number}", ctx=context)
                        solver.add(literal if rounds[step - 1] >= i else z3.Not(literal))
                solver.set("ctrl_c", False)  # noqa: FBT003 (Z3's way to set a value); Python hears of it instead
                solver.set("random_seed", seed % 2**31)
                solver.set("max_conflicts", min(conflicts, 2**32 - 1))
                if deadline is not None:
                    solver.set("timeout", max(1, int(1000 * (deadline - time.monotonic()))))
                answer = solver.check()
                if answer == z3.unsat:
                    return Status.UNSAT, set()
                if answer != z3.sat:
                    return Status.UNKNOWN, set()
                found = solver.model()
                return Status.SAT, {int(each.name()[1:]) for each in found.decls() if z3.is_true(found[each])}
            finally:
                running.clear()

        def interrupt() -> None:
            for context in tuple(running):
                context.interrupt()

        status, true = _interruptible(check, interrupt)
        return self._solution(true) if status is Status.SAT else SendSolution(status=status)

    def _solution(self, true: set[int]) -> SendSolution:
        """What the solver found, with the images of what was left out."""
        rounds = [
            1 + sum(self._longer[step, i] in true for i in range(2, self._most_rounds + 1))
            for step in range(1, self.instance.steps + 1)
        ]
        sent: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for (slot, chunk, route, step), literal in self._send.items():
            if literal in true:
                sent.setdefault((slot, chunk), []).append((step, route))
        sends = []
        for block in self.model.representatives(self.images):
            for chunk in range(block.weight * self.instance.chunks):
                for step, route in _tree(self.model, block, sorted(sent[block.slot, chunk])):
                    for slots, routes in zip(self.images.slot, self.images.route, strict=True):
                        sends.append(ChunkSend(step, slots[block.slot], chunk, routes[route]))
        return SendSolution(status=Status.SAT, sends=tuple(sorted(sends)), rounds=tuple(rounds))

    @property
    def _most_rounds(self) -> int:
        """Rounds that a step can have at most."""
        return self.instance.rounds - self.instance.steps + 1

    def _literal(self) -> int:
        self.num_literals += 1
        if self.num_literals > MOST_LITERALS:
            raise InputError(
                f"expected an instance of at most {MOST_LITERALS} literals, found more for {self.instance}: "
                "use fewer steps or chunks, or another method."
            )
        return self.num_literals

    def _require(self, literals: Iterable[int]) -> None:
        """One of the literals holds."""
        self._text.append(f"(assert (or {' '.join(map(_term, literals))}))\n")

    def _require_at_most(self, most: int, terms: Iterable[tuple[int, int]]) -> None:
        """The weights of those literals (literal, weight) that hold sum up to so much at most."""
        literals, weights = zip(*terms, strict=True)
        constraint = f"((_ pble {most} {' '.join(map(str, weights))}) {' '.join(map(_term, literals))})"
        self._text.append(f"(assert {constraint})\n")

    def _state(self) -> None:
        """All clauses."""
        self._rounds()
        for block in self.model.representatives(self.images):
            windows = self.model.windows(block, self.instance.steps)
            for chunk in range(block.weight * self.instance.chunks):
                self._chunk(block, chunk, windows)
        self._groups()

    def _rounds(self) -> None:
        """A step with i rounds has i - 1, and there are R in all."""
        most = self._most_rounds
        for step in range(1, self.instance.steps + 1):
            for i in range(2, most + 1):
                self._longer[step, i] = self._literal()
                if i > 2:
                    self._require([-self._longer[step, i], self._longer[step, i - 1]])
        if self._longer:
            self._require_at_most(most - 1, [(literal, 1) for literal in self._longer.values()])

    def _chunk(self, block: Commodity, chunk: int, windows: list[SendWindow]) -> None:
        """Where a chunk is after each step, and how it comes there."""
        routes, steps = self.model.routes, self.instance.steps
        span = self.model.span(block, steps)
        has: dict[tuple[int, int], int] = {}

        def where(rank: int, step: int) -> int | bool:
            """Whether the chunk is on a rank after a step: certainly, certainly not, or a literal."""
            earliest, latest = span[rank]
            if rank == block.source or (rank in block.targets and step >= steps):
                return True
            if step < earliest or earliest > latest:
                return False
            at = rank, min(step, latest)
            if at not in has:
                has[at] = self._literal()
            return has[at]

        coming: dict[tuple[int, int], list[int]] = {}
        for window in windows:
            src, dst = routes.src[window.route], routes.dst[window.route]
            for step in range(window.first, window.last + 1):
                literal = self._send[block.slot, chunk, window.route, step] = self._literal()
                coming.setdefault((dst, step), []).append(literal)
                owned = where(src, step - 1)
                if owned is not True:
                    self._require([-literal, owned])
        for rank, (earliest, latest) in enumerate(span):
            if rank == block.source or earliest > latest:
                continue
            for step in range(earliest, latest + 1):
                now, before = where(rank, step), where(rank, step - 1)
                clause = list(coming.get((rank, step), ()))
                clause += [] if now is True else [-now]
                clause += [] if before is False else [before]
                self._require(clause)
        # Chunks are interchangeable: they come in the order of their numbers to a rank next to the source.
        near = int(np.argmax(self.model.distances[block.source] == 1))
        arrivals = [where(near, step) for step in range(1, steps)]
        if chunk:
            for earlier, later in zip(self._first_arrivals, arrivals, strict=True):
                if not isinstance(later, bool):
                    self._require([-later, earlier])
        self._first_arrivals = arrivals

    def _groups(self) -> None:
        """What each group carries in each step."""
        routes = self.model.routes
        on_route: dict[tuple[int, int], list[int]] = {}
        for (_, _, route, step), literal in self._send.items():
            on_route.setdefault((route, step), []).append(literal)
        for group, sources in self.model.groups(self.images):
            carried = [routes.chunks_in(group, rounds) for rounds in range(self._most_rounds + 1)]
            for step in range(1, self.instance.steps + 1):
                load: Counter[int] = Counter()
                for element in sources:
                    for route in element:
                        load.update(on_route.get((route, step), ()))
                self._limit(step, load, carried)

    def _limit(self, step: int, load: Counter[int], carried: list[int]) -> None:
        """The load of a step within what its rounds carry, ``carried[i]`` chunks in i of them."""
        total = load.total()
        if total <= carried[1]:
            return
        terms = list(load.items())
        room = carried[1]
        for i in range(2, self._most_rounds + 1):
            more = min(total, carried[i]) - min(total, carried[i - 1])
            if more:
                terms.append((-self._longer[step, i], more))
                room += more
        self._require_at_most(room, terms)


def _term(literal: int) -> str:
    return f"b{literal}" if literal > 0 else f"(not b{-literal})"


def _tree(model: StepModel, block: Commodity, sends: list[tuple[int, int]]) -> list[tuple[int, int]]:
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


def _interruptible(work: Callable[[], Any], interrupt: Callable[[], None]) -> Any:
    """What some work returns, done in a thread, as Python hears of Ctrl-C between steps of its own only.

    The work should free what it made: Python loses a Ctrl-C that comes while it frees an object of Z3.
    """
    answers: list[Any] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:  # noqa: BLE001 (raised again by the caller)
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=run, name="z3", daemon=True)
    thread.start()
    try:
        while not done.wait(0.1):  # an interrupted `join` would take the thread for finished
            pass
    except KeyboardInterrupt:
        deadline = time.monotonic() + _INTERRUPT_TIMEOUT_S
        while not done.is_set() and time.monotonic() < deadline:
            interrupt()  # again, as it is lost before Z3 has begun
            done.wait(0.1)
        raise
    thread.join()
    if failures:
        raise failures[0]
    return answers[0]
