"""Lowering to puts and signals: every algorithm, every option, and what it costs."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.program.dialects.put_signal.fuzzer import fuzz
from coppice.program.dialects.put_signal.lower import MOST_STAGING, lower_put_signal
from coppice.program.dialects.put_signal.order import is_graph_safe
from coppice.program.dialects.put_signal.program import PutSignalAct, PutSignalCall, PutSignalProgram
from coppice.program.dialects.put_signal.verify import verify_put_signal
from coppice.topology.presets import preset
from support.put_signal_cases import COLLECTIVES, catalogue, classic, forest

BOXES = (("boxes", 2),)


def options(number: int) -> dict[str, object]:
    """One of many ways to lower."""
    return {
        "pieces": (None, 1, 2, 3)[number % 4],
        "communicators": (1, 2, 1, 3, 1)[number % 5],
        "signals": (1, 1, 2)[number % 3],
        "graphs": number % 7 != 0,
        "staging": (Fraction(0), Fraction(1, 4), Fraction(1, 16))[number // 2 % 3],
    }


def test_algorithms_verify_and_run_with_every_option() -> None:
    seen = set()
    for number, (name, body) in enumerate(catalogue(preset("star", gpus=4))):
        if number % 2:
            continue
        chosen = options(number // 2)
        program = lower_put_signal(body, **chosen)  # type: ignore[arg-type]
        report = verify_put_signal(program)
        assert report.ok, (name, chosen, report.failures)
        assert report.graph_safe or not chosen["graphs"], (name, chosen)
        fuzz(program, in_place=program.in_place and number % 4 == 0, schedules=22, seed=number)
        seen.add(name.split()[-1])
    assert seen >= {str(each) for each in COLLECTIVES}


@pytest.mark.parametrize("collective", [Collective.ALL_GATHER, Collective.ALL_REDUCE, Collective.REDUCE])
def test_forests_of_two_boxes_need_little_staging(collective: Collective) -> None:
    program = lower_put_signal(forest("dgx-a100", collective, BOXES))
    verify_put_signal(program).require_ok()
    assert Fraction(int(program.staging.max()), program.num_chunks) <= MOST_STAGING
    assert program.num_communicators == 1
    puts = program.act == PutSignalAct.PUT
    into_staging = puts & (program.target_buffer == 2)
    if collective in (Collective.ALL_GATHER, Collective.BROADCAST):
        assert not into_staging.any()  # everything lands where it belongs
    assert int((program.act == PutSignalAct.SIGNAL).sum()) <= int(puts.sum()) // 4


def test_more_staging_costs_fewer_signals() -> None:
    body = classic("ring", Collective.REDUCE_SCATTER, preset("star", gpus=16))
    few, many = (lower_put_signal(body, staging=Fraction(*share)) for share in ((1, 16), (1, 2)))
    signals = [int((program.act == PutSignalAct.SIGNAL).sum()) for program in (few, many)]
    assert signals[0] > signals[1]
    assert few.staging.max() < many.staging.max()


def test_lanes_have_communicators_and_memory_of_their_own() -> None:
    program = lower_put_signal(forest("dgx-a100", Collective.ALL_REDUCE), communicators=3)
    verify_put_signal(program).require_ok()
    assert program.num_communicators == 3
    remote = program.call_kind != PutSignalCall.LOCAL
    assert np.array_equal(program.communicator[remote], program.stream[remote])


def test_without_graphs_a_step_is_one_group() -> None:
    body = forest("dgx-a100", Collective.ALL_GATHER, BOXES)
    eager, captured = (lower_put_signal(body, graphs=graphs) for graphs in (False, True))
    assert eager.num_calls < captured.num_calls / 2
    assert is_graph_safe(captured)
    assert not is_graph_safe(eager)
    assert is_graph_safe(lower_put_signal(body, graphs=True, signals=8))


def calls_between(program: PutSignalProgram, rank: int) -> list[int]:
    return program.call_kind[program.call_rank == rank].tolist()


def test_one_rank_only_copies() -> None:
    body = classic("ring", Collective.ALL_GATHER, preset("star", gpus=1))
    program = lower_put_signal(body)
    verify_put_signal(program).require_ok()
    assert calls_between(program, 0) == [PutSignalCall.LOCAL]


@pytest.mark.parametrize("wrong", [{"pieces": 0}, {"communicators": 0}, {"signals": 2000}])
def test_options_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"expected `\w+` from 1 to 1024, found"):
        lower_put_signal(forest("ring", Collective.ALL_GATHER, (("gpus", 3),)), **wrong)  # type: ignore[arg-type]


def test_a_barrier_is_refused() -> None:
    with pytest.raises(InputError, match="found a barrier"):
        lower_put_signal(classic("k-dissemination", Collective.BARRIER, preset("star", gpus=4)))


def test_sums_that_need_no_relay_are_cut_for_the_sake_of_staging() -> None:
    program = lower_put_signal(forest("dgx-a100", Collective.REDUCE_SCATTER))
    verify_put_signal(program).require_ok()
    assert Fraction(int(program.staging.max()), program.num_chunks) <= MOST_STAGING
