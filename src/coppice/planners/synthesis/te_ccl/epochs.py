"""TE-CCL (Liu and others, SIGCOMM'24): a collective as a multi-commodity flow in epochs.

Whole chunks that ranks copy are a mixed-integer program, or a chain of smaller ones (A*); fractions that nobody copies
are a linear program. Switches are hyper-edges: none of them copies. How many epochs there are is searched from above,
beginning with a schedule that needs no solver, and from below, beginning with Coppice's exact bound, which the method
itself does not know: where the two meet, no schedule has fewer epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.synthesis.method import Request, Status, Synthesis, SynthesisMethod
from coppice.planners.synthesis.mip.timed import COLLECTIVES, combined, require_equal_sizes
from coppice.planners.synthesis.te_ccl.search import EpochOptions, EpochSchedule, EpochSearch
from coppice.schedule.plan import Parameter
from coppice.text import parse_size, size_text, suggestion, time_text

_CHOICES = {"epoch": ("fastest", "slowest"), "solver": ("auto", "milp", "rounds", "lp", "greedy")}


def _run(request: Request) -> Synthesis:
    options: EpochOptions = request.options
    problem = request.problem
    require_equal_sizes(problem, METHOD.name)
    _check(options, problem.collective)
    chunk_bytes = parse_size(options.chunk_size, option="`chunk_size`")
    both = problem.collective is Collective.ALL_REDUCE
    search = EpochSearch(request=request, options=options, chunk_bytes=max(1, chunk_bytes), ways=1 + both)
    schedule, answers = combined(
        problem, options.chunks, search, lambda answer: (answer.pieces, answer.sends or [])
    )
    if len(answers) == 1 and both:
        answers *= 2
    parameters: dict[str, Parameter] = {
        "chunks": options.chunks,
        "chunk_bytes": chunk_bytes,
        "epoch": options.epoch,
        "epoch_multiplier": options.epoch_multiplier,
    }
    if any(answer.sends is None for answer in answers):
        none = all(answer.none for answer in answers if answer.sends is None)
        return Synthesis(
            status=Status.UNSAT if none else Status.UNKNOWN,
            parameters=parameters,
            interrupted=search.interrupted,
            details={"least_epochs": max(answer.least for answer in answers)},
            words=(("epochs", f"{max(answer.least for answer in answers)} or more"),),
        )
    epochs, least = sum(each.epochs for each in answers), sum(each.least for each in answers)
    return Synthesis(
        status=Status.SAT,
        body=schedule,
        parameters={**parameters, "epochs": epochs},
        interrupted=search.interrupted,
        **_account(_blocks(problem), options, answers, epochs, least, chunk_bytes),
    )


def _blocks(problem: Problem) -> int:
    """Blocks in M: an all-reduce is carried out as one of each rank."""
    return problem.topology.num_ranks if problem.collective is Collective.ALL_REDUCE else int(problem.shards)


def _account(
    blocks: int,
    options: EpochOptions,
    answers: Sequence[EpochSchedule],
    epochs: int,
    least: int,
    chunk_bytes: int,
) -> dict[str, Any]:
    """What there is to say about a schedule."""
    clock = answers[0].clock
    seconds = sum(answer.epochs * answer.clock.epoch for answer in answers)
    rate = float(blocks * options.chunks / seconds) if seconds else None
    gap = 1 - least / epochs if epochs else 0.0
    found_by = ", ".join(dict.fromkeys(answer.found_by for answer in answers))
    proved = "no schedule has fewer" if least >= epochs else f"{least} or more are needed"
    details = {
        "epochs": epochs,
        "least_epochs": least,
        "solver_gap": gap,
        "epoch_us": clock.epoch_us,
        "found_by": found_by,
        "finish_algbw_gb_per_s": rate,
    }
    words = [
        (
            "epochs",
            f"{epochs} of {time_text(clock.epoch_us)} for chunks of {size_text(chunk_bytes)}: {proved}",
        ),
        ("found by", found_by),
    ]
    if rate is not None:
        words.append(("carried out once", f"algbw {rate:.6g} GB/s from the first epoch to the last"))
    return {"details": details, "words": tuple(words)}


def _check(options: EpochOptions, collective: Collective) -> None:
    """Refuse options without meaning."""
    for name in ("chunks", "epoch_multiplier", "round_epochs", "tries", "nodes", "epochs"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise InputError(f"expected `{name}` to be 1 or more, found {value}.")
    for name, known in _CHOICES.items():
        value = getattr(options, name)
        if value not in known:
            raise InputError(
                f"expected `{name}` to be {', '.join(known)}, found {value!r}: {suggestion(value, known)}"
            )
    if options.solver == "lp" and collective is not Collective.ALL_TO_ALL:
        raise InputError(
            f"fractions that nobody copies serve all_to_all, found {collective}: leave out `solver='lp'`."
        )
    if options.solver == "lp" and options.chunks > 1:
        raise InputError("a linear program cuts blocks by itself, found `chunks` beside it: leave one out.")


METHOD = SynthesisMethod(
    name="te-ccl",
    about="flows in epochs by linear and mixed-integer programs: TE-CCL (SIGCOMM'24)",
    collectives=COLLECTIVES,
    options=EpochOptions,
    run=_run,
)
"""TE-CCL."""
