"""Every algorithm of the catalogue at every number of ranks: what it does, what it says, what it costs."""

from __future__ import annotations

from fractions import Fraction
from functools import cache

import numpy as np
import pytest

from coppice.bounds.optimum import bound
from coppice.bounds.problem import Problem
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.algorithms.algorithm import Algorithm
from coppice.planners.algorithms.catalogue import _FAMILIES, _family, algorithms, case_of, find, make
from coppice.planners.algorithms.parts.moves import Moves
from coppice.schedule.schedule import Schedule
from coppice.schedule.verification.transfers import verify_schedule
from coppice.simulation.models import Model
from coppice.topology.presets import preset
from support.alpha_beta import simulate

RANKS = [
    pytest.param((*range(1, 10), 12, 16), id="to-16"),
    pytest.param((2, 10, 11, *range(13, 16), 17, 24, 32, 64), id="to-64", marks=pytest.mark.slow),
]
# Shares of M are whole bytes for most cases, and wrong by one byte in 10^8 for the others.
SIZE = 12_252_240 * 2**16
REDUCE_GB_PER_S = 4
# Latency alone, both of the same order, and, of many ranks, bandwidth (nearly) alone.
SETTINGS = ((0, 2), (SIZE, SIZE // 20_000), (SIZE, 0))

EVERY = [pytest.param(entry, id=f"{name}-{collective}") for (name, collective), entry in algorithms().items()]


def problem_of(entry: Algorithm, ranks: int, root: int = 0) -> Problem:
    return on_a_star(entry.collective, ranks, root if entry.collective.rooted else None)


@cache
def on_a_star(collective: Collective, ranks: int, root: int | None) -> Problem:
    return Problem(topology=preset("star", gpus=ranks), collective=collective, root=root)


@cache
def least_inv_rate(collective: Collective, ranks: int, root: int | None) -> Fraction:
    return bound(on_a_star(collective, ranks, root)).inv_rate


def roots_of(entry: Algorithm, ranks: int) -> tuple[int, ...]:
    if not entry.collective.rooted:
        return (0,)
    return tuple(sorted({0, ranks // 3, ranks - 1}))


def variants(entry: Algorithm) -> list[dict[str, int | str]]:
    """The defaults, and one other value of every parameter that is a number."""
    found: list[dict[str, int | str]] = [{}]
    for name, parameter in entry.parameters.items():
        if isinstance(parameter.default, int):
            found.append({name: parameter.default + 1})
        else:
            found += [{name: choice} for choice in parameter.choices if choice != parameter.default]
    return found


def choices(entry: Algorithm, ranks: int) -> list[tuple[int, dict[str, int | str]]]:
    """Roots and parameters: each root with the defaults, the last with each variant; of many ranks, all pairs."""
    roots, (defaults, *others) = roots_of(entry, ranks), variants(entry)
    if ranks > 16:
        return [(root, given) for root in roots for given in (defaults, *others)]
    return [*((root, defaults) for root in roots), *((roots[-1], given) for given in others)]


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize("many", RANKS)
def test_verified_everywhere(entry: Algorithm, many: tuple[int, ...]) -> None:
    accepted = 0
    for ranks in many:
        for root, given in choices(entry, ranks):
            problem = problem_of(entry, ranks, root)
            case = case_of(entry, problem, given)
            refused = entry.refusal(case)
            if refused is not None:
                assert refused.rstrip().endswith("."), refused
                with pytest.raises(InputError):
                    make(entry, case)
                continue
            body = make(entry, case)
            accepted += 1
            if not isinstance(body, Schedule):
                continue
            report = verify_schedule(body)
            assert report.ok, (ranks, root, given, report.failures)
            assert (body.step >= 0).all()
            assert report.redundant == 0 or entry.name in REDUNDANT, (ranks, report.redundant)
            if entry.collective is not Collective.BARRIER:
                assert report.inv_rate is not None
                assert report.inv_rate >= least_inv_rate(entry.collective, ranks, problem.root)
    assert accepted or entry.topological


# What receives bytes that it holds already, and why.
REDUNDANT: dict[str, str] = {
    "scatter-allgather": "the all-gather is run by all, also by the root and the inner ranks of the scatter",
    "scatter-ring-allgather": "likewise",
    "linear": "the whole buffer comes back from the root, the receiver's own block included",
    "gather-broadcast": "likewise",
    "recexch-doubling": "folded ranks get the whole buffer back, their own blocks included",
    "recexch-halving": "likewise",
}


# What costs no sum of messages at some numbers of ranks, and why.
UNSTATED = {
    "recursive-multiplying": "leaders with different numbers of buffers to add wait for each other",
    "swing": "the last of an odd number of ranks sends many messages in a step",
    "trivance": "folded leaders of whole buffers wait for each other",
}


@pytest.mark.parametrize("entry", [param for param in EVERY if param.values[0].cost is not None])
@pytest.mark.parametrize("many", RANKS)
@pytest.mark.spread(3)
def test_cost_is_what_the_simulation_takes(entry: Algorithm, many: tuple[int, ...]) -> None:
    assert entry.cost is not None
    stated = 0
    for ranks in many:
        for root, given in choices(entry, ranks):
            case = case_of(entry, problem_of(entry, ranks, root), given)
            if entry.refusal(case) is not None:
                continue
            body = make(entry, case)
            assert isinstance(body, Schedule)
            where = (ranks, root, given)
            try:
                cost = entry.cost(case)
            except InputError:
                if entry.name not in UNSTATED:
                    raise
                continue
            stated += 1
            assert cost.steps == len(np.unique(body.step)), where
            settings = 1 if entry.collective is Collective.BARRIER else 2 if ranks <= 16 else 3
            for size, alpha_us in SETTINGS[:settings]:
                wanted = cost.time_us(
                    size,
                    alpha_us=Fraction(alpha_us),
                    gb_per_s=Fraction(1),
                    reduce_gb_per_s=Fraction(REDUCE_GB_PER_S),
                )
                model = Model(
                    overhead_us=alpha_us,
                    send_engines=1,
                    receive_engines=1,
                    reduce_gb_per_s=REDUCE_GB_PER_S,
                )
                took = simulate(body, size, model=model).time_us
                assert took == pytest.approx(float(wanted), rel=1e-7, abs=1e-9), (*where, size, alpha_us)
            assert cost.sent == _most_sent(body), where
    assert stated


def _most_sent(schedule: Schedule) -> Fraction:
    """Most bytes that a rank sends, as a share of M, counted from the rows."""
    weight = int(schedule.slot_weight.sum())
    if schedule.collective is Collective.ALL_TO_ALL:  # M is what one rank has to send
        weight //= schedule.topology.num_ranks
    if not weight or not schedule.num_transfers:
        return Fraction(0)
    parts = np.bincount(
        schedule.chunk_slot, weights=schedule.chunk_share, minlength=len(schedule.slot_weight)
    )
    share = [
        Fraction(int(schedule.slot_weight[slot]) * int(part), int(parts[slot]) * weight)
        for slot, part in zip(schedule.chunk_slot.tolist(), schedule.chunk_share.tolist(), strict=True)
    ]
    sent = [Fraction(0)] * schedule.topology.num_ranks
    rows, counts = np.unique(np.stack([schedule.src, schedule.chunk]), axis=1, return_counts=True)
    for src, chunk, count in zip(*rows.tolist(), counts.tolist(), strict=True):
        sent[src] += count * share[chunk]
    return max(sent)


@pytest.mark.parametrize("entry", EVERY)
def test_any_order_of_ranks(entry: Algorithm) -> None:
    """Positions are not ranks: with ranks shuffled over the positions the schedule still verifies."""
    ranks = 8
    order = (3, 7, 0, 5, 1, 6, 2, 4)
    case = case_of(entry, problem_of(entry, ranks, root=5), order=order)
    if entry.refusal(case) is not None or not isinstance(body := make(entry, case), Schedule):
        return
    report = verify_schedule(body)
    assert report.ok, report.failures
    assert not body.ordered
    if entry.collective.rooted:
        assert body.root == 5


@pytest.mark.parametrize("entry", EVERY)
def test_entries_explain_themselves(entry: Algorithm) -> None:
    assert entry.name == entry.name.lower()
    assert " " not in entry.name
    assert "_" not in entry.name
    assert entry.summary
    assert not entry.summary.endswith(".")
    assert entry.source
    for parameter in entry.parameters.values():
        assert parameter.summary


def test_a_wrong_cost_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ring that passes a block on one time too few does not verify, and its cost no longer fits."""
    entry = algorithms()["ring", Collective.ALL_GATHER]
    case = case_of(entry, problem_of(entry, 5))
    kept = Moves.add

    def lossy(self: Moves, step: int, *rest: object) -> None:
        if step != 3:
            kept(self, step, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Moves, "add", lossy)
    body = make(entry, case)
    assert isinstance(body, Schedule)
    assert not verify_schedule(body).ok
    assert entry.cost is not None
    assert _most_sent(body) < entry.cost(case).sent


def test_the_table_names_what_its_modules_hold() -> None:
    for place, words in _FAMILIES.items():
        assert list(dict.fromkeys(entry.name for entry in _family(place))) == words.split()
    assert all(find(*key) is entry for key, entry in algorithms().items())
