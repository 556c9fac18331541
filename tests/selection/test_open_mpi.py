"""Open MPI: the tables against their published text, boundaries worked out by hand, and the traps."""

from __future__ import annotations

from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection import select
from coppice.selection.rules import OTHERWISE, TableRule, parse_rules
from coppice.selection.tables import library
from coppice.topology.presets import preset
from support.shared_data import SHARED

NOTE = SHARED / "systems" / "collectives.md"


def published() -> dict[tuple[str, str], str]:
    """Compact text of every table of the reference note, by function and table."""
    if not NOTE.is_file():
        return {}
    block = NOTE.read_text().partition("### 3.3")[2].split("```")[1]
    found = {}
    for line in block.strip().splitlines():
        name, _, text = line.partition(": ")
        function, apart, _ = name.partition(" (one rank per node)")
        found[function, "disjoint" if apart else "tuned"] = text.strip()
    return found


def compact(rules: tuple[TableRule, ...], ids: dict[str, int]) -> str:
    """Rules in the note's notation."""
    lines = []
    for rule in rules:
        condition = {OTHERWISE: "else", "not commutative": "noncommutative"}.get(
            rule.condition, rule.condition.replace(" ", "")
        )
        inner = ids[rule.outcome] if isinstance(rule.outcome, str) else f"[{compact(rule.outcome, ids)}]"
        lines.append(f"{condition}:{inner}")
    return "; ".join(lines)


@pytest.mark.skipif(not NOTE.is_file(), reason="the reference note is not there")
@pytest.mark.parametrize("table", published(), ids="-".join)
def test_tables_equal_the_published_text(table: tuple[str, str]) -> None:
    entry = library("open-mpi").functions[table[0]]
    ids = {name: each.id for name, each in entry.algorithms.items() if each.id is not None}
    # The note leaves out the brackets that its lines end with.
    assert compact(parse_rules(entry.tables[table[1]], table[0]), ids).rstrip("]") == published()[
        table
    ].rstrip("]")


@pytest.mark.skipif(not NOTE.is_file(), reason="the reference note is not there")
def test_all_published_tables_are_there() -> None:
    here = {
        (function, table)
        for function, entry in library("open-mpi").functions.items()
        for table in entry.tables
        if table in ("tuned", "disjoint")
    }
    assert set(published()) == here


# (function's collective, ranks, M, id): from the tables by hand, on both sides of a boundary.
BOUNDARIES = [
    (Collective.ALL_REDUCE, 2, 7, 4),
    (Collective.ALL_REDUCE, 2, 8, 3),
    (Collective.ALL_REDUCE, 3, 262143, 5),
    (Collective.ALL_REDUCE, 3, 262144, 6),
    (Collective.ALL_REDUCE, 4, 8191, 3),
    (Collective.ALL_REDUCE, 4, 8192, 6),
    (Collective.ALL_REDUCE, 64, 262143, 3),
    (Collective.ALL_REDUCE, 63, 262143, 6),
    (Collective.ALL_REDUCE, 128, 131071, 2),
    (Collective.ALL_REDUCE, 128, 131072, 3),
    (Collective.ALL_REDUCE, 4095, 2048, 5),
    (Collective.ALL_REDUCE, 2047, 2048, 3),
    (Collective.ALL_REDUCE, 10**6, 2**40, 6),
    (Collective.BROADCAST, 3, 31, 3),
    (Collective.BROADCAST, 4, 31, 5),
    (Collective.BROADCAST, 8, 32768, 1),
    (Collective.BROADCAST, 31, 2**20, 8),
    (Collective.BROADCAST, 64, 0, 7),
    (Collective.BROADCAST, 255, 1, 6),
    (Collective.BROADCAST, 256, 16384, 4),
    (Collective.REDUCE, 7, 65536, 5),
    (Collective.REDUCE, 4096, 31, 6),
    (Collective.REDUCE, 4096, 32, 5),
    (Collective.ALL_GATHER, 2, 10, 6),
    (Collective.ALL_GATHER, 31, 2**30, 3),
    (Collective.ALL_GATHER, 32, 32 * 1023, 3),
    (Collective.ALL_GATHER, 32, 32 * 1024, 5),
    (Collective.ALL_GATHER, 32, 32 * 65536, 4),
    (Collective.REDUCE_SCATTER, 32, 63, 1),
    (Collective.REDUCE_SCATTER, 32, 64, 2),
    (Collective.REDUCE_SCATTER, 32, 2048, 4),
    (Collective.ALL_TO_ALL, 2, 4, 5),
    (Collective.ALL_TO_ALL, 2, 2, 2),
    (Collective.ALL_TO_ALL, 16, 16 * 3, 4),
    (Collective.ALL_TO_ALL, 16, 16 * 4, 3),
    (Collective.GATHER, 4, 4 * 1023, 2),
    (Collective.GATHER, 4, 4 * 1024, 1),
    (Collective.GATHER, 255, 2**40, 2),
    (Collective.SCATTER, 64, 64 * 511, 2),
    (Collective.SCATTER, 64, 64 * 512, 3),
    (Collective.BARRIER, 3, 0, 3),
    (Collective.BARRIER, 7, 0, 1),
    (Collective.BARRIER, 4096, 0, 4),
]


@pytest.mark.parametrize(("collective", "ranks", "size", "number"), BOUNDARIES)
def test_boundaries(collective: Collective, ranks: int, size: int, number: int) -> None:
    assert select("open-mpi", collective, size, ranks=ranks).id == number


@pytest.mark.parametrize(
    ("collective", "function", "ranks", "size", "number"),
    [
        (Collective.REDUCE_SCATTER, "reduce_scatter_block", 4, 4 * 7, 3),
        (Collective.REDUCE_SCATTER, "reduce_scatter_block", 4, 4 * 8, 2),
        (Collective.ALL_GATHER, "allgatherv", 2, 2 * 2047, 3),
        (Collective.ALL_GATHER, "allgatherv", 2, 2 * 2048, 5),
        (Collective.ALL_TO_ALL, "alltoallv", 64, 0, 2),
        (Collective.ALL_TO_ALL, "alltoallv", 63, 0, 1),
    ],
)
def test_other_functions(collective: Collective, function: str, ranks: int, size: int, number: int) -> None:
    assert select("open-mpi", collective, size, ranks=ranks, function=function).id == number


@pytest.mark.parametrize(
    ("ranks", "size", "number"),
    [
        (2, 1, 3),
        (3, 2**30, 7),
        (8, 262143, 7),
        (8, 262144, 6),
        (8, 2**20, 3),
        (64, 32767, 7),
        (64, 32768, 3),
        (65, 1, 3),
    ],
)
def test_one_rank_in_each_box(ranks: int, size: int, number: int) -> None:
    picked = select("open-mpi", Collective.ALL_REDUCE, size, ranks=ranks, ranks_per_box=1)
    assert (picked.id, picked.why[0].table) == (number, "allreduce, library")
    assert picked.id == select("open-mpi", Collective.ALL_REDUCE, size, ranks=ranks, variant="disjoint").id


@pytest.mark.parametrize(
    ("ranks", "size", "number"), [(3, 131071, 3), (3, 131072, 1), (12, 2**20, 2), (512, 2047, 2)]
)
def test_operations_that_do_not_commute(ranks: int, size: int, number: int) -> None:
    assert select("open-mpi", Collective.ALL_REDUCE, size, ranks=ranks, commutative=False).id == number


def test_never_an_algorithm_that_needs_commutation() -> None:
    for ranks in (2, 5, 11, 20, 40, 100, 200, 400, 1000, 3000, 5000):
        for power in range(31):
            for collective, needs in (
                (Collective.ALL_REDUCE, {4, 5, 6}),
                (Collective.REDUCE, {7}),
                (Collective.REDUCE_SCATTER, {2, 3}),
            ):
                for per_box in (None, 1):
                    picked = select(
                        "open-mpi",
                        collective,
                        2**power,
                        ranks=ranks,
                        ranks_per_box=per_box,
                        commutative=False,
                    )
                    assert picked.id not in needs


def test_segmented_ring_runs_as_ring_as_segments_have_no_size() -> None:
    picked = select("open-mpi", Collective.ALL_REDUCE, 131072, ranks=3)
    assert (picked.algorithm, picked.id, picked.runs_as, picked.ours) == ("segmented_ring", 5, "ring", "ring")


def test_few_elements_fall_back() -> None:
    small = select("open-mpi", Collective.ALL_REDUCE, 32, ranks=20)
    assert (small.algorithm, small.runs_as) == ("segmented_ring", "recursive_doubling")
    few = select("open-mpi", Collective.BROADCAST, 2**20, ranks=20, element_bytes=2**16)
    assert (few.algorithm, few.runs_as) == ("scatter_allgather", "basic_linear")
    enough = select("open-mpi", Collective.BROADCAST, 2**20, ranks=16, element_bytes=2**16)
    assert (enough.algorithm, enough.runs_as) == ("scatter_allgather", "scatter_allgather")


def test_recursive_doubling_of_an_all_gather_needs_a_power_of_two() -> None:
    assert select("open-mpi", Collective.ALL_GATHER, 800, ranks=8).ours == "recursive-doubling"
    assert select("open-mpi", Collective.ALL_GATHER, 700, ranks=7).ours == "bruck"
    odd = select("open-mpi", Collective.ALL_GATHER, 33 * 2**20, ranks=33)
    assert (odd.algorithm, odd.runs_as) == ("ring", "ring")
    odd = select("open-mpi", Collective.ALL_GATHER, 33 * 2048, ranks=33)
    assert (odd.algorithm, odd.runs_as) == ("neighbor", "ring")


def test_chain_of_a_broadcast_is_one_chain() -> None:
    picked = select("open-mpi", Collective.BROADCAST, 131072, ranks=3)
    assert (picked.ours, dict(picked.parameters)) == ("chain", {"fanout": 1, "segments": 1})


def test_window_of_linear_sync_is_everything() -> None:
    picked = select("open-mpi", Collective.ALL_TO_ALL, 5 * 100, ranks=5)
    assert (picked.ours, dict(picked.parameters)) == ("linear-sync", {"window": 4})


def test_several_boxes_take_han() -> None:
    picked = select("open-mpi", Collective.ALL_REDUCE, 5 * 2**19 + 1, topology=preset("dgx-a100", boxes=3))
    assert (picked.component, picked.algorithm, picked.id) == ("coll/han", "han", None)
    assert dict(picked.parameters) == {"group": 8, "segments": 6}
    inner = {part.role: part.selection for part in picked.parts}
    assert inner["reduce in each box"].ranks == 8
    # Segments of 512 KiB decide, not the whole message: P < 16 takes binomial from 8 KiB, and m >= 32 KiB linear.
    assert inner["reduce in each box"].algorithm == "binomial"
    assert inner["broadcast in each box"].algorithm == "basic_linear"
    flat = select(
        "open-mpi", Collective.ALL_REDUCE, 2**20, topology=preset("dgx-a100", boxes=3), commutative=False
    )
    assert flat.component == "coll/tuned, fixed decisions"
    assert select("open-mpi", Collective.REDUCE_SCATTER, 2**20, topology=preset("dgx-a100", boxes=3)).id == 3


def test_unequal_boxes_take_no_broadcast_in_two_levels() -> None:
    assert select("open-mpi", Collective.BROADCAST, 64, ranks=12, ranks_per_box=8).component != "coll/han"
    assert select("open-mpi", Collective.BROADCAST, 64, ranks=16, ranks_per_box=8).component == "coll/han"


@pytest.mark.parametrize("collective", list(Collective))
def test_one_rank(collective: Collective) -> None:
    picked = select("open-mpi", collective, 100, ranks=1)
    assert (picked.component, picked.ours, picked.reason) == ("coll/self", None, "one rank: nothing moves")


def test_blocks_are_rounded_down_and_said_so() -> None:
    picked = select("open-mpi", Collective.ALL_GATHER, 32 * 1024 - 1, ranks=32)
    assert picked.id == 3
    assert any("1023 bytes" in words for words in picked.assumptions)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="performs all_gather by allgather or allgatherv, found 'bcast'"):
        select("open-mpi", Collective.ALL_GATHER, 1, ranks=2, function="bcast")
    with pytest.raises(InputError, match="no table 'fast' for allgather, only: library, han, tuned"):
        select("open-mpi", Collective.ALL_GATHER, 1, ranks=2, variant="fast")


def test_blocks_follow_the_collectives_own_shares() -> None:
    for collective in (Collective.ALL_GATHER, Collective.ALL_TO_ALL, Collective.GATHER, Collective.SCATTER):
        picked = select("open-mpi", collective, 12 * 4096, ranks=12)
        tested = [step.values for step in picked.why if step.rule.startswith("m ")]
        assert not tested or tested[0].startswith("4096 ")
        assert Fraction(12 * 4096, collective.shards(12)) == 4096
