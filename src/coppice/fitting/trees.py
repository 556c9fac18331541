"""Choose the number of trees per root for a runtime program: within its limits, with sizes divisible by the chunks.

A message takes a file only if its elements are a multiple of the number of chunks, and a runtime has limits. Where the
plan at hand passes either, its problem is planned again with other numbers of trees per root, and the fastest of
those plans that fits and whose chunks divide the sizes is taken. What that loses is counted, not estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

from coppice.bounds.optimum import bound_of
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.planners.choice import FOREST
from coppice.planners.forest.planner import plan_forest
from coppice.program.dialects.thread_blocks.cutting import SMALLEST, Buffers
from coppice.program.dialects.thread_blocks.program import Program
from coppice.program.dialects.thread_blocks.verify import verify_program
from coppice.schedule.forest import Forest
from coppice.schedule.loads import forest_loads
from coppice.schedule.plan import Plan
from coppice.schedule.schedule import Schedule
from coppice.schedule.shape import shape
from coppice.schedule.verification.verify import verify_plan

ELEMENT_BYTES = 4
"""Bytes of an element by which sizes are judged: float32, as nccl-tests takes by default."""

Lowering = Callable[[Schedule | Forest], Program]
"""Makes the program of a plan for a runtime; a CheckError says by how much it passes which limit."""

_MOST_TRIED = 32
"""Numbers of trees that are planned, the largest of those that divide the sizes."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FittedPlan:
    """A plan that fits a runtime, and how it differs from the original."""

    plan: Plan  # What the program carries out
    program: Program  # The program, verified
    trees: int | None = None  # Trees per root, where the problem was planned again; otherwise None
    reason: str = ""  # Why it was planned again: what the given plan passes. Empty where it was not.
    given_fits: bool = True  # The given plan fits too, although its chunks do not divide all sizes
    # Share of the optimal rate that the plan does not reach (0: optimal), where its bound is known
    loss: Fraction | None = None
    left_out: tuple[int, ...] = ()  # Sizes, of those asked for, at which messages do not take the file


def fit_trees(
    plan: Plan,
    lowering: Lowering,  # Makes the program of a plan for the runtime
    *,
    # The runtime, for the verification; by default it has to be right in all of them
    buffers: Buffers = SMALLEST,
    instances: int = 1,  # Parts that the program cuts every chunk into
    sizes: Sequence[int] = (),  # Sizes M in bytes that should take the file
    trees: int | None = None,  # Plan again with so many trees per root, and with no other number
    keep: bool = False,  # Take the plan as it is or not at all
) -> FittedPlan:
    """Lower a plan to a runtime program, with fewer trees where it does not fit or its chunks divide no size."""
    if trees is not None:
        if not _has_trees(plan):
            raise InputError(
                f"expected a plan of the forest planner with `trees`, found one by {plan.planner}: leave it out."
            )
        plan = _with_trees(plan, trees)
    try:
        program = _verified(lowering(plan.body), buffers)
    except CheckError as error:
        if not _has_trees(plan):
            raise
        if trees is not None or keep:
            raise CheckError(_with_nearest(str(error), plan, lowering)) from None
        return _best(plan, lowering, sizes, instances, buffers, failure=error)
    left_out = tuple(size for size in sizes if not takes(program, size))
    own = FittedPlan(plan=plan, program=program, trees=trees, loss=_loss(plan), left_out=left_out)
    if not left_out or trees is not None or keep or not _has_trees(plan):
        return own
    better = _best(plan, lowering, sizes, instances, buffers, own=own)
    return better if len(better.left_out) < len(left_out) else own


def _verified(program: Program, buffers: Buffers) -> Program:
    verify_program(program, buffers=buffers).require_ok()
    return program


def takes(program: Program, size: int) -> bool:
    """Whether ``size`` bytes divide into the program's chunks.

    Where every rank has a block, elements that do not make whole blocks do not count: no call has them.

    Args:
        size: M in bytes.
    """
    return _divides(program.num_chunks, program.collective, program.num_ranks, size)


def _divides(chunks: int, collective: Collective, ranks: int, size: int) -> bool:
    elements = size // ELEMENT_BYTES
    if collective.sharded:
        elements -= elements % ranks
    return elements > 0 and elements % chunks == 0


def _has_trees(plan: Plan) -> bool:
    """Whether the plan can be made again with another number of trees."""
    return plan.planner == FOREST and plan.forest is not None and not plan.parameters.get("in_network")


def _with_trees(plan: Plan, trees: int) -> Plan:
    """The plan with another number of trees per root."""
    problem, found = plan.problem, bound_of(plan.problem)
    forest = plan_forest(problem, trees=trees, optimum=found)
    return replace(
        plan,
        forest=forest,
        bound=plan.bound or found,
        inv_rate=forest_loads(forest, problem.weights).inv_rate,
        parameters={**plan.parameters, "trees": trees, "tolerance": None},
    )


def _loss(plan: Plan) -> Fraction | None:
    if plan.bound is None or not plan.inv_rate:
        return None
    return 1 - plan.bound.inv_rate / plan.inv_rate


def _best(
    plan: Plan,
    lowering: Lowering,
    sizes: Sequence[int],
    instances: int,
    buffers: Buffers,
    *,
    own: FittedPlan | None = None,
    failure: CheckError | None = None,
) -> FittedPlan:
    """The fastest plan with another number of trees that fits, and that divides the sizes where any number does."""
    numbers = _numbers(plan, instances, sizes)
    tried = sorted((_with_trees(plan, trees) for trees in numbers), key=_by_rate)
    for each in tried:
        with suppress(CheckError):
            program = _verified(lowering(each.body), buffers)
            verify_plan(each).require_ok()
            return FittedPlan(
                plan=each,
                program=program,
                trees=_trees(each),
                reason=_reason(own, failure),
                given_fits=own is not None,
                loss=_loss(each),
                left_out=tuple(size for size in sizes if not takes(program, size)),
            )
    if own is not None:
        return own
    raise CheckError(_with_nearest(str(failure), plan, lowering))


def _numbers(plan: Plan, instances: int, sizes: Sequence[int]) -> list[int]:
    """Numbers of trees per root whose chunks divide the sizes; all small ones where none does."""
    problem = plan.problem
    ranks, collective = problem.topology.num_ranks, problem.collective
    blocks = 1 if collective.rooted else ranks
    most = 2 * (_trees_at_most(plan))
    wanted = [size for size in sizes if _divides(blocks * instances, collective, ranks, size)]
    numbers = [
        trees
        for trees in range(1, most + 1)
        if all(_divides(blocks * instances * trees, collective, ranks, size) for size in wanted)
    ]
    return numbers if len(numbers) <= _MOST_TRIED else [1, *numbers[1 - _MOST_TRIED :]]


def _trees_at_most(plan: Plan) -> int:
    """Trees at a root of the plan, or the most at any."""
    forest = plan.body
    found = shape(forest).trees_per_root  # type: ignore[arg-type]
    return found or 1


def _trees(plan: Plan) -> int:
    value = plan.parameters["trees"]
    return value if isinstance(value, int) else 0


def _by_rate(plan: Plan) -> tuple[Fraction, int]:
    return plan.inv_rate, _trees(plan)


def _reason(own: FittedPlan | None, failure: CheckError | None) -> str:
    if own is None:
        limit, bracket, _ = str(failure).partition("): ")  # without its advice, which is being taken
        return limit + bracket[:1]
    return f"{own.program.num_chunks:,} chunks do not divide all of the sizes"


def _with_nearest(sentence: str, plan: Plan, lowering: Lowering) -> str:
    """The sentence, with the nearest number of trees that fits."""
    nearest = _nearest(plan, lowering)
    sentence = sentence.rstrip(".")
    if nearest is None:
        return f"{sentence}; no other number of trees per root that was tried fits."
    return f"{sentence}; the nearest number of trees per root that fits is {nearest} (`trees={nearest}`)."


def _nearest(plan: Plan, lowering: Lowering) -> int | None:
    """The number of trees nearest to the plan's that fits, fewer or more; None where none is found.

    Numbers 1, 2, 4 and so on away from the plan's are tried, and from the first that fits on half-way back: it fits,
    and the one before it does not.
    """
    own = _trees_at_most(plan)

    def fits(trees: int) -> bool:
        try:
            lowering(_with_trees(plan, trees).body)
        except CheckError:
            return False
        return True

    away = 1
    while away < 2 * own:
        for side in (-1, 1):
            trees = max(own + side * away, 1)
            if trees == own or trees > 2 * own or not fits(trees):
                continue
            good, bad = trees, own + side * (away // 2)
            while abs(good - bad) > 1:
                middle = (good + bad) // 2
                good, bad = (middle, bad) if fits(middle) else (good, middle)
            return good
        away *= 2
    return None
