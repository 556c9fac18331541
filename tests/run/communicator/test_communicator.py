"""Communicators over threads: results, agreement, groups, and errors on every rank."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coppice
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.run.communicator.communicator import Communicator
from coppice.run.engines.datatype import from_bfloat16, to_bfloat16
from coppice.run.engines.numpy import NumpyEngine, run_ranks
from coppice.run.errors import Mismatch, PeerLost
from coppice.run.planned import choose_pieces, measure_overhead_us, piece_elements
from coppice.schedule.schedule import Schedule
from coppice.topology.model import Topology
from coppice.topology.operations import set_link_rate
from coppice.topology.presets import preset
from support.run_cases import star

RANKS = 4


@pytest.fixture
def together(tmp_path: Path) -> Callable[..., list[Any]]:
    """Runs ``work(group)`` on every rank of a communicator."""

    def run(work: Callable[[Communicator], Any], ranks: int = RANKS, **options: Any) -> list[Any]:
        def serve(engine: NumpyEngine) -> Any:
            with Communicator(engine, star(ranks), cache_dir=tmp_path, timeout_s=300, **options) as group:
                return work(group)

        return run_ranks(ranks, serve)

    return run


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("pieces", ["auto", 3])
def test_all_collectives(together: Callable[..., list[Any]], ranks: int, pieces: int | str) -> None:
    full = (
        np.arange(ranks * 6, dtype=np.float32).reshape(ranks, 6).repeat(ranks, axis=1)
    )  # row r is rank r's buffer
    count = full.shape[1]
    own = count // ranks
    root = ranks - 1

    def work(group: Communicator) -> None:
        rank = group.rank
        mine, block = full[rank], slice(rank * own, (rank + 1) * own)
        total = full.sum(axis=0)
        np.testing.assert_array_equal(group.all_reduce(mine.copy()), total)
        kept = mine.copy()
        np.testing.assert_array_equal(group.all_reduce(kept, np.empty_like(kept)), total)
        np.testing.assert_array_equal(kept, mine)
        np.testing.assert_array_equal(group.all_reduce(mine.copy(), op="max"), full.max(axis=0))
        np.testing.assert_allclose(group.all_reduce(mine.copy(), op="avg"), full.mean(axis=0), rtol=1e-6)
        np.testing.assert_array_equal(group.all_gather(mine), full.reshape(-1))
        whole = np.zeros(ranks * count, dtype=np.float32)
        whole[rank * count : (rank + 1) * count] = mine
        np.testing.assert_array_equal(group.all_gather(None, whole), full.reshape(-1))
        np.testing.assert_array_equal(group.reduce_scatter(mine), total[block])
        np.testing.assert_array_equal(group.reduce_scatter(mine.copy(), in_place=True), total[block])
        np.testing.assert_array_equal(group.broadcast(mine.copy(), root=root), full[root])
        reduced = group.reduce(mine.copy(), root=root)
        assert (reduced is None) == (rank != root)
        if reduced is not None:
            np.testing.assert_array_equal(reduced, total)
        gathered = group.gather(mine, root=root)
        assert (gathered is None) == (rank != root)
        if gathered is not None:
            np.testing.assert_array_equal(gathered, full.reshape(-1))
        given = full[root] if rank == root else None
        np.testing.assert_array_equal(
            group.scatter(given, np.empty(own, np.float32), root=root), full[root][block]
        )
        exchanged = full[:, block].reshape(-1)
        np.testing.assert_array_equal(group.all_to_all(mine), exchanged)
        buffer = mine.copy()
        assert group.all_to_all(buffer, buffer) is buffer
        np.testing.assert_array_equal(buffer, exchanged)
        group.barrier()

    assert together(work, ranks, pieces=pieces) == [None] * ranks


def test_bfloat16_and_empty_buffers(together: Callable[..., list[Any]]) -> None:
    def work(group: Communicator) -> list[float]:
        bits = to_bfloat16(np.array([1.5, group.rank], dtype=np.float32))
        group.all_reduce(np.zeros(0))
        return list(from_bfloat16(group.all_reduce(bits, dtype="bfloat16")))

    assert together(work) == [[6.0, 6.0]] * RANKS


def test_other_algorithms_compute_the_same(together: Callable[..., list[Any]]) -> None:
    def work(group: Communicator) -> list[int]:
        group.barrier()
        return list(group.all_reduce(np.arange(9) * (group.rank + 1)))

    for algorithm in ("ring", "rabenseifner"):
        assert together(work, algorithm=algorithm) == [list(np.arange(9) * 10)] * RANKS


def test_programs_are_made_once(together: Callable[..., list[Any]]) -> None:
    def work(group: Communicator) -> tuple[bool, int]:
        rounds: list[bytes] = []
        exchange = group.engine.exchange
        group.engine.exchange = lambda data: rounds.append(data) or exchange(data)  # type: ignore[method-assign, func-returns-value]
        first = group.prepare(Collective.ALL_REDUCE, 100)
        made = len(rounds)
        again = group.prepare(Collective.ALL_REDUCE, 100)
        return first is again and len(rounds) == made, made

    found = together(work, pieces=2)
    assert all(same for same, _ in found)
    assert all(made == 2 for _, made in found)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda group, odd: group.all_reduce(np.zeros(6 if odd else 5)),
            "count 5 as on rank 0, found 6 on rank 2",
        ),
        (
            lambda group, odd: group.all_reduce(np.zeros(5, np.float32 if odd else np.float64)),
            "dtype float64 as on rank 0, found float32 on rank 2",
        ),
        (
            lambda group, odd: group.all_reduce(np.zeros(5), op="max" if odd else "sum"),
            "op sum .* found max on rank 2",
        ),
        (
            lambda group, odd: group.broadcast(np.zeros(5), root=3 if odd else 1),
            "root 1 .* found 3 on rank 2",
        ),
        (
            lambda group, odd: group.reduce(np.zeros(5)) if odd else group.broadcast(np.zeros(5)),
            "expected broadcast as on rank 0, found reduce on rank 2",
        ),
        (
            lambda group, odd: group.all_reduce(np.zeros(5), None if odd else np.zeros(5)),
            "in_place False as on rank 0, found True on rank 2",
        ),
    ],
)
def test_different_calls_are_a_mismatch_on_every_rank(
    together: Callable[..., list[Any]], call: Callable[..., Any], words: str
) -> None:
    def work(group: Communicator) -> float:
        with pytest.raises(Mismatch, match=words):
            call(group, group.rank == 2)
        return float(group.all_reduce(np.ones(3))[0])  # the group goes on

    assert together(work) == [4.0] * RANKS


def test_a_repeated_call_beside_a_new_one(together: Callable[..., list[Any]]) -> None:
    """Found at once where every call is checked."""

    def work(group: Communicator) -> None:
        group.all_reduce(np.zeros(5))
        with pytest.raises(Mismatch, match="found 5 on rank 0"):
            group.all_reduce(np.zeros(6 if group.rank else 5))

    assert together(work, check_every_call=True) == [None] * RANKS


def test_different_set_ups_are_a_mismatch_on_every_rank(tmp_path: Path) -> None:
    def serve(odd: Callable[[int], dict[str, Any]]) -> list[Any]:
        def work(engine: NumpyEngine) -> Any:
            options: dict[str, Any] = {"topology": star(RANKS), **odd(engine.rank)}
            return Communicator(engine, options.pop("topology"), cache_dir=tmp_path, **options)

        return run_ranks(RANKS, work)

    for odd, words in (
        ({"topology": preset("ring", gpus=RANKS)}, "topology"),
        ({"algorithm": "ring"}, "algorithm auto as on rank 0, found ring on rank 1"),
        ({"pieces": 3}, "pieces auto as on rank 0, found 3 on rank 1"),
        ({"topology": star(3)}, "rank 1 cannot take part .* a topology of 4 ranks, found 3"),
        ({"pieces": 0}, "rank 1 cannot take part .* 1 piece or more, found 0"),
        ({"timeout_s": 0.0}, "rank 1 cannot take part .* timeout above 0 s"),
    ):
        found = serve(lambda rank, odd=odd: odd if rank == 1 else {})  # type: ignore[misc]
        assert all(isinstance(each, Mismatch) for each in found), found
        for each in found:
            with pytest.raises(Mismatch, match=words):
                raise each

    def work(engine: NumpyEngine) -> Any:
        if engine.rank == 1:
            exchange, ours = engine.exchange, f'"{coppice.__version__}"'.encode()
            engine.exchange = lambda data: exchange(data.replace(ours, b'"9.9"'))  # type: ignore[method-assign]
        return Communicator(engine, star(RANKS), cache_dir=tmp_path)

    for each in run_ranks(RANKS, work):
        with pytest.raises(Mismatch, match=r"version .* as on rank 0, found 9\.9 on rank 1"):
            raise each


def test_a_rank_that_raises_is_lost_to_the_others(together: Callable[..., list[Any]]) -> None:
    def work(group: Communicator) -> None:
        group.all_reduce(np.zeros(5))
        if group.rank == 3:
            raise ZeroDivisionError
        group.all_reduce(np.zeros(5))
        group.barrier()

    found = together(work)
    assert isinstance(found[3], ZeroDivisionError)
    assert all(isinstance(each, PeerLost) for each in found[:3])


def test_what_cannot_be_planned_is_refused_on_every_rank(together: Callable[..., list[Any]]) -> None:
    def work(group: Communicator) -> None:
        with pytest.raises(InputError, match="no-such"):
            group.all_reduce(np.zeros(5))

    assert together(work, algorithm="no-such-algorithm") == [None] * RANKS


def test_bad_arrays_are_refused(together: Callable[..., list[Any]]) -> None:
    def work(group: Communicator) -> None:
        for call, words in (
            (lambda: group.all_reduce(None), "expected an array"),
            (lambda: group.all_reduce([1.0, 2.0]), "other memory of elements, found list"),
            (lambda: group.all_gather(np.zeros(1), [0.0] * RANKS), "other memory of elements, found list"),
            (lambda: group.broadcast(2.5), "other memory of elements, found float"),
            (lambda: group.all_reduce(np.zeros(3, dtype=complex)), "found complex128"),
            (lambda: group.reduce_scatter(np.zeros(RANKS + 1)), "a multiple of 4"),
            (lambda: group.broadcast(np.zeros(3), root=RANKS), "root in 0 .. 3"),
            (lambda: group.all_reduce(np.zeros(3), op="bxor"), "integers or bool"),
        ):
            with pytest.raises(InputError, match=words):
                call()
        assert group.all_reduce(np.ones(1))[0] == RANKS

    assert together(work) == [None] * RANKS


def test_groups_of_ranks(together: Callable[..., list[Any]]) -> None:
    """Rows and columns of a 2 x 2 grid at once, as hybrid sharding has them; planned on their own topologies."""

    def work(group: Communicator) -> tuple[list[int], list[int], int]:
        row, column = divmod(group.rank, 2)
        rows = group.subset([2 * row, 2 * row + 1])
        columns = group.subset([2 + column, column])
        assert rows.topology.num_ranks == columns.ranks == 2
        assert columns.rank == 1 - row
        return (
            list(rows.all_gather(np.array([group.rank]))),
            list(columns.all_gather(np.array([group.rank]))),
            int(group.all_reduce(np.array([group.rank]))[0]),
        )

    assert together(work) == [
        ([0, 1], [2, 0], 6),
        ([0, 1], [3, 1], 6),
        ([2, 3], [2, 0], 6),
        ([2, 3], [3, 1], 6),
    ]


def test_groups_are_refused_where_they_make_no_sense(together: Callable[..., list[Any]]) -> None:
    def work(group: Communicator) -> None:
        with pytest.raises(InputError, match="with rank"):
            group.subset([rank for rank in range(RANKS) if rank != group.rank])

    assert together(work) == [None] * RANKS


def test_pieces_suit_the_cost_of_a_message() -> None:
    from coppice.bounds.problem import Problem
    from coppice.planners.planning import plan
    from coppice.program.dialects.rank.lower import schedule_of
    from coppice.simulation.models import Model
    from support.alpha_beta import simulate

    fast = preset("ring", gpus=8)

    def planned(topology: Topology, collective: Collective, root: int | None = None) -> Schedule:
        problem = Problem(topology=topology, collective=collective, root=root)
        return schedule_of(plan(problem, ring=False).plan.body)

    body = planned(fast, Collective.BROADCAST, 0)
    cheap, dear = choose_pieces(body, 1 << 26, 1.0), choose_pieces(body, 1 << 26, 1000.0)
    assert 1 <= dear < cheap
    assert choose_pieces(body, 0, 1.0) == 1
    slow = planned(
        set_link_rate(preset("ring", gpus=8, gb_per_s=Fraction(1, 50)), "gpu2", "gpu3", Fraction(1, 25)),
        Collective.ALL_GATHER,
    )
    for overhead_us in (1.0, 20.0, 40.0, 80.0):  # neither long pieces nor messages for nothing
        size = 1 << 24
        chosen = choose_pieces(slow, size, overhead_us)
        model = Model(overhead_us=overhead_us)
        times = {
            pieces: simulate(slow, size, model=model, pieces=pieces).time_us
            for pieces in {chosen, *(2**i for i in range(9))}
        }
        posted_us = int(np.bincount(np.concatenate([slow.src, slow.dst])).max()) * chosen * overhead_us
        assert times[chosen] <= 1.1 * min(times.values())
        assert posted_us <= 0.3 * times[chosen]
    assert piece_elements(body, 100, 1) is None
    assert piece_elements(body, 100, 5) == 10  # two trees share the hundred
    overheads = run_ranks(3, lambda engine: measure_overhead_us(engine, timeout_s=300))
    assert len(set(overheads)) == 1
    assert float(overheads[0]) > 0  # type: ignore[arg-type]
