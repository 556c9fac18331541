"""Programs on the fuzzer: data moved under adversarial schedules, results equal to NumPy's."""

from __future__ import annotations

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import CheckError
from coppice.program.dialects.put_signal.fuzzer import PutSignalContents, fuzz, native_runs
from coppice.program.dialects.put_signal.lower import lower_put_signal
from coppice.program.dialects.put_signal.verify import verify_put_signal
from reference.oracle import NAMES, oracle_topology
from support.put_signal_cases import COLLECTIVES, forest, wrong_program
from support.put_signal_runs import PLANNERS, SIZES, programs_of, run_in_every_way
from support.shared_data import needs_shared

QUICK = ("pcie_box4", "path5_hetero")


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_forest_is_right_under_every_kind_of_schedule(collective: Collective) -> None:
    run_in_every_way(lower_put_signal(forest("ring", collective, (("gpus", 5),)), pieces=3), 22)


def test_the_fuzzer_finds_a_receive_buffer_that_is_used_too_early() -> None:
    program = wrong_program()
    assert not verify_put_signal(program).ok
    with pytest.raises(
        CheckError,
        match=r"under the adversarial schedule of seed \d+, rank 1, call \d+, put 0 and rank 1, call \d+, "
        r"put 0 may come in "
        r"either order, and use the same slots: verify",
    ):
        fuzz(program, in_place=False, schedules=70)


def test_the_same_seed_runs_the_same_way() -> None:
    program = lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", 3),)))
    first, again = (fuzz(program, in_place=True, schedules=3, seed=5) for _ in range(2))
    assert first == again


@pytest.mark.parametrize("in_place", [False, True])
def test_a_run_of_the_largest_chunks_is_one_of_every_size(in_place: bool) -> None:
    """The same order of actions, and smaller chunks are the first words of larger ones."""
    program = lower_put_signal(forest("ring", Collective.ALL_REDUCE, (("gpus", 4),)), pieces=2)
    *smaller, largest = (native_runs(program, in_place=in_place, elements=size) for size in SIZES)
    for native in smaller:
        for seed in range(22):
            for found, expected in zip(native.trace(seed), largest.trace(seed), strict=True):
                np.testing.assert_array_equal(found, expected)
    *smaller, contents = (PutSignalContents(layout=program, elements=size) for size in SIZES)
    for each in smaller:
        for rank in range(program.num_ranks):
            for found, expected in (
                (each.filled(rank), contents.filled(rank)),
                (each.wanted(rank), contents.wanted(rank)),
            ):
                np.testing.assert_array_equal(found, expected[:, : each.elements])


@needs_shared
@pytest.mark.parametrize("name", [name for name in QUICK if name in NAMES])
def test_an_oracle_topology_under_some_schedules(name: str) -> None:
    topology = oracle_topology(name)
    for number, collective in enumerate(COLLECTIVES):
        for planner in PLANNERS:
            for place, (_, program) in enumerate(programs_of(topology, planner, collective)):
                if planner != "classic" or (place + number) % 9 == 0:
                    run_in_every_way(program, 11)


@needs_shared
@pytest.mark.slow
@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("planner", PLANNERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_oracle_topology_under_a_thousand_schedules(
    name: str, planner: str, collective: Collective
) -> None:
    """Every program, in place and out of place: a thousand schedules, each with chunks of every size."""
    programs = list(programs_of(oracle_topology(name), planner, collective))
    if not programs:
        pytest.skip(f"{planner} makes no {collective} for {name}")
    for case, program in programs:
        if planner != "synthesis":  # those programs are long
            verify_put_signal(program).require_ok()
        assert run_in_every_way(program, 1000).runs >= 1000, case
