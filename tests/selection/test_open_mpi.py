"""MPI libraries: tables against their published text, defaults as plain code, boundaries by hand, and the traps."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection import select
from coppice.selection.selection import OTHERWISE, TableRule, parse_rules
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


RANKS = (2, 3, 4, 5, 7, 8, 9, 12, 16, 31, 32, 33, 64, 100, 1024, 4097)
EDGES = (
    1,
    8,
    9,
    256,
    257,
    2048,
    2049,
    12288,
    12289,
    32768,
    32769,
    81919,
    81920,
    524287,
    524288,
    524289,
    2**25,
)


def power(ranks: int) -> bool:
    return ranks & (ranks - 1) == 0


def expected(
    collective: Collective, ranks: int, size: int, block: int, elements: int, *, commutes: bool, builtin: bool
) -> str:
    below = 1 << (ranks.bit_length() - 1)
    if collective is Collective.BROADCAST:
        if ranks < 8 or size <= 12288:
            return "binomial"
        if power(ranks) and size <= 524288:
            return "scatter_recursive_doubling_allgather"
        return "scatter_ring_allgather"
    if collective is Collective.ALL_REDUCE:
        short = size <= 8 or not builtin or elements < below
        return "recursive_doubling" if short else "reduce_scatter_allgather"
    if collective is Collective.REDUCE:
        return "binomial" if size <= 2048 or not builtin or elements < below else "reduce_scatter_gather"
    if collective is Collective.ALL_GATHER:
        if power(ranks):
            return "recursive_doubling" if size < 524288 else "ring"
        return "brucks" if size < 81920 else "ring"
    if collective is Collective.REDUCE_SCATTER:
        if commutes:
            return "recursive_halving" if size < 524288 else "pairwise"
        return "noncommutative" if power(ranks) else "recursive_doubling"
    if collective is Collective.ALL_TO_ALL:
        if ranks >= 8 and block <= 256:
            return "brucks"
        return "scattered" if block <= 32768 else "pairwise"
    return "k_dissemination" if collective is Collective.BARRIER else "binomial"


@pytest.mark.parametrize("collective", list(Collective))
@pytest.mark.parametrize(("commutes", "builtin"), [(True, True), (False, False), (True, False)])
def test_defaults_on_a_grid(collective: Collective, commutes: bool, builtin: bool) -> None:
    for ranks in RANKS:
        for edge in EDGES:
            for size in (edge, edge * ranks):
                picked = select("mpich", collective, size, ranks=ranks, commutative=commutes, builtin=builtin)
                block = size // collective.shards(ranks)
                assert picked.algorithm == expected(
                    collective, ranks, size, block, size // 4, commutes=commutes, builtin=builtin
                ), (ranks, size)


def test_elements_count() -> None:
    assert select("mpich", Collective.ALL_REDUCE, 2**20, ranks=17, element_bytes=2**16).ours == "rabenseifner"
    assert (
        select("mpich", Collective.ALL_REDUCE, 2**20, ranks=32, element_bytes=2**16).ours
        == "recursive-doubling"
    )


def test_folding_is_that_of_mpich() -> None:
    assert dict(select("mpich", Collective.ALL_REDUCE, 2**20, ranks=17).parameters) == {"folding": "mpich"}


@pytest.mark.parametrize(
    ("collective", "size", "algorithm"),
    [
        (Collective.ALL_REDUCE, 2**20, "composition_alpha"),
        (Collective.BROADCAST, 12287, "composition_alpha"),
        (Collective.BROADCAST, 12288, "composition_beta"),
        (Collective.BROADCAST, 524288, "scatter_recursive_doubling_allgather"),
        (Collective.BROADCAST, 524289, "scatter_ring_allgather"),
        (Collective.REDUCE, 2048, "composition_beta"),
        (Collective.REDUCE, 2049, "composition_alpha"),
        (Collective.BARRIER, 0, "composition_alpha"),
        (Collective.ALL_GATHER, 2**20, "ring"),
    ],
)
def test_compositions_over_boxes(collective: Collective, size: int, algorithm: str) -> None:
    picked = select("mpich", collective, size, topology=preset("dgx-h100", boxes=4))
    assert picked.algorithm == algorithm
    if algorithm.startswith("composition"):
        assert (picked.ours, dict(picked.parameters)) == ("hierarchical", {"group": 8})
        assert {part.selection.ranks for part in picked.parts} == {4, 8}
    flat = select("mpich", collective, size, topology=preset("dgx-h100", boxes=4), variant="mpir")
    assert flat.algorithm == select("mpich", collective, size, ranks=32).algorithm


def test_one_rank_in_each_box_is_flat() -> None:
    assert select("mpich", Collective.ALL_REDUCE, 2**20, ranks=6, ranks_per_box=1).ours == "rabenseifner"


def test_an_empty_message_has_no_schedule() -> None:
    picked = select("mpich", Collective.ALL_REDUCE, 0, ranks=6)
    assert (picked.algorithm, picked.ours, picked.reason) == ("smp", None, "an empty message")


# Every row: function and most ranks, then the largest size of each algorithm; + is in two levels.
TEXT = """\
allreduce 8: 1024 pt2pt_rd+, pt2pt_rs
allreduce 16: 1024 pt2pt_rd+, pt2pt_rs
allreduce 32: 2048 pt2pt_rd+, pt2pt_rs
allreduce 64: 2048 pt2pt_rd+, pt2pt_rs
allreduce 128: 2048 pt2pt_rd+, pt2pt_rs
allreduce 256: 4096 pt2pt_rd+, pt2pt_rs
allreduce 512: 4096 pt2pt_rd+, pt2pt_rs
bcast 8: binomial+
bcast 16: 8192 binomial+, pipelined+
bcast 32: 8192 knomial+, 524288 pipelined+, scatter_ring_allgather_shm+
bcast 64: 2048 knomial+, 8192 binomial+, 262144 pipelined+, scatter_ring_allgather
bcast 128: 8192 knomial+, 131072 pipelined+, 262144 scatter_ring_allgather_shm+, scatter_ring_allgather
bcast 256: 2048 knomial+, 8192 binomial+, 131072 pipelined+, 524288 scatter_ring_allgather_shm+, scatter_ring_allgather
bcast 512: 8192 knomial+, 262144 pipelined+, scatter_ring_allgather_shm+
allgather 8: 1024 RD, Ring
allgather 16: 1024 RD_Allgather_Comm, Ring
allgather 32: 1024 RD_Allgather_Comm, Ring
allgather 64: 1024 RD_Allgather_Comm, Ring
allgather 128: 1024 RD_Allgather_Comm, Ring
allgather 256: 1024 RD_Allgather_Comm, Ring
allgather 512: 1024 RD_Allgather_Comm, Ring
reduce 8: 524288 inter_knomial+, 1048576 binomial, redscat_gather
reduce 16: 1048576 inter_knomial+, redscat_gather
reduce 32: 8192 inter_knomial+, 131072 binomial+, 1048576 redscat_gather+, redscat_gather
reduce 64: 4096 inter_knomial+, 16384 inter_knomial, 131072 binomial+, 1048576 redscat_gather+, redscat_gather
reduce 128: 4096 inter_knomial+, 16384 inter_knomial, 1048576 binomial+, redscat_gather
reduce 256: 4096 inter_knomial+, 16384 inter_knomial, 1048576 binomial+, redscat_gather
reduce 512: 4096 inter_knomial+, 16384 inter_knomial, 1048576 binomial+, redscat_gather
reduce_scatter 8: 256 Basic, 16384 Rec_Halving, 65536 Pair_Wise, ring_2lvl
reduce_scatter 16: 64 Basic, 65536 Rec_Halving, ring_2lvl
reduce_scatter 32: 64 Basic, 131072 Rec_Halving, ring_2lvl
reduce_scatter 64: 1024 Basic, 262144 Rec_Halving, ring_2lvl
reduce_scatter 128: 128 Basic, 65536 Rec_Halving, ring_2lvl
reduce_scatter 256: 128 Basic, 65536 Rec_Halving, ring_2lvl
reduce_scatter 512: 256 Basic, 65536 Rec_Halving, ring_2lvl
alltoall 8: Scatter_dest
alltoall 16: 2048 bruck, Scatter_dest
alltoall 32: 2048 bruck, Scatter_dest
alltoall 64: 2048 bruck, 8192 Scatter_dest, pairwise
alltoall 128: 1024 bruck, 4096 Scatter_dest, pairwise
alltoall 256: 2048 bruck, pairwise
alltoall 512: 1024 bruck, pairwise
gather 16: Direct
gather 24: 512 two_level_Direct, Direct
gather 32: 1024 two_level_Direct, Direct
gather 128: 2048 two_level_Direct, 65536 Direct, Direct_Blk
gather 256: 512 two_level_Direct, 65536 Direct, Direct_Blk
gather 512: 32 intra, 8196 two_level_Direct, 65536 Direct, Direct_Blk
gather 1024: 32 intra, two_level_Direct
scatter 8: 256 Binomial, Direct
scatter 16: 512 Binomial, Direct
scatter 32: 2048 two_level_Direct, Direct
scatter 64: 2048 two_level_Direct, 65536 Direct, Direct_Blk
scatter 128: 64 Binomial, 4096 two_level_Direct, 65536 Direct, Direct_Blk
scatter 256: 64 Binomial, 4096 two_level_Direct, 65536 Direct, Direct_Blk
scatter 512: 32 Binomial, 4096 two_level_Direct, 32768 Direct, two_level_Direct
"""


def rows() -> Iterator[str]:
    """The rows of the data file in the form of TEXT; the last one of a table has no most ranks."""
    for function, entry in library("mvapich2").functions.items():
        for rule in parse_rules(entry.tables["generic"], function):
            inner = rule.outcome if isinstance(rule.outcome, tuple) else ()
            cells = [f"{each.condition.removeprefix('m <= ')} {each.outcome}" for each in inner] or [
                str(rule.outcome)
            ]
            line = f"{function} {rule.condition.removeprefix('P <= ')}: {', '.join(cells)}"
            yield line.replace("_two_level,", "+,").removesuffix("_two_level") + "+" * line.endswith(
                "_two_level"
            )


def test_every_row() -> None:
    expected: dict[str, list[tuple[str, str]]] = {}
    for line in TEXT.splitlines():
        function, _, rest = line.partition(" ")
        most, _, cells = rest.partition(": ")
        head, comma, tail = cells.rpartition(", ")
        expected.setdefault(function, []).append(
            (most, f"{head}{comma}{'otherwise ' if comma else ''}{tail}")
        )
    lines = []
    for function, found in expected.items():
        for most, cells in found:
            shown = "otherwise" if (most, cells) == found[-1] else most
            lines.append(f"{function} {shown}: {cells}")
    assert [row for row in rows() if not row.startswith("barrier")] == lines


# (collective, ranks, size that the table compares, what it decides); one rank in each box.
PICKS = [
    (Collective.ALL_REDUCE, 8, 1024, "pt2pt_rd"),
    (Collective.ALL_REDUCE, 8, 1025, "pt2pt_rs"),
    (Collective.ALL_REDUCE, 17, 2048, "pt2pt_rd"),
    (Collective.ALL_REDUCE, 129, 4096, "pt2pt_rd"),
    (Collective.ALL_REDUCE, 600, 4097, "pt2pt_rs"),
    (Collective.BROADCAST, 8, 2**30, "binomial"),
    (Collective.BROADCAST, 9, 8192, "binomial"),
    (Collective.BROADCAST, 9, 8193, "pipelined"),
    (Collective.BROADCAST, 64, 2048, "knomial"),
    (Collective.BROADCAST, 64, 262145, "scatter_ring_allgather"),
    (Collective.BROADCAST, 512, 262145, "scatter_ring_allgather_shm"),
    (Collective.REDUCE, 8, 524289, "binomial"),
    (Collective.REDUCE, 8, 2**20 + 1, "redscat_gather"),
    (Collective.REDUCE, 32, 8193, "binomial"),
    (Collective.REDUCE, 64, 131073, "redscat_gather"),
    (Collective.REDUCE, 65, 131073, "binomial"),
    (Collective.ALL_GATHER, 8, 1024, "RD"),
    (Collective.ALL_GATHER, 16, 1024, "RD_Allgather_Comm"),
    (Collective.ALL_GATHER, 16, 1025, "Ring"),
    (Collective.REDUCE_SCATTER, 8, 256, "Basic"),
    (Collective.REDUCE_SCATTER, 8, 16385, "Pair_Wise"),
    (Collective.REDUCE_SCATTER, 8, 65537, "ring"),
    (Collective.REDUCE_SCATTER, 64, 1025, "Rec_Halving"),
    (Collective.ALL_TO_ALL, 8, 1, "Scatter_dest"),
    (Collective.ALL_TO_ALL, 16, 2048, "bruck"),
    (Collective.ALL_TO_ALL, 128, 4097, "pairwise"),
    (Collective.ALL_TO_ALL, 512, 1025, "pairwise"),
    (Collective.GATHER, 16, 2**20, "Direct"),
    (Collective.GATHER, 100, 65537, "Direct_Blk"),
    (Collective.GATHER, 512, 32, "intra"),
    (Collective.SCATTER, 8, 256, "Binomial"),
    (Collective.SCATTER, 8, 257, "Direct"),
    (Collective.SCATTER, 128, 64, "Binomial"),
    (Collective.BARRIER, 12, 0, "pairwise"),
]


@pytest.mark.parametrize(("collective", "ranks", "compared", "algorithm"), PICKS)
def test_picks(collective: Collective, ranks: int, compared: int, algorithm: str) -> None:
    blocks = collective.sharded and collective is not Collective.REDUCE_SCATTER
    size = compared * ranks if blocks else compared
    assert select("mvapich2", collective, size, ranks=ranks).runs_as == algorithm


def test_boxes_are_taken_apart_where_nothing_is_known_and_it_says_so() -> None:
    picked = select("mvapich2", Collective.ALL_REDUCE, 64, ranks=24)
    assert picked.ours == "recursive-doubling"
    assert any("a box of its own" in words for words in picked.assumptions)
    assert any("approximate" in words for words in picked.notes)


def test_two_levels_over_boxes() -> None:
    cluster = preset("dgx-a100", boxes=2)
    small = select("mvapich2", Collective.ALL_REDUCE, 1024, topology=cluster)
    assert (small.ours, dict(small.parameters), small.assumptions) == ("hierarchical", {"group": 8}, ())
    assert select("mvapich2", Collective.ALL_REDUCE, 1025, topology=cluster).ours == "rabenseifner"
    assert (
        select("mvapich2", Collective.ALL_REDUCE, 1024, topology=cluster, commutative=False).ours
        == "recursive-doubling"
    )
    one_box = select("mvapich2", Collective.ALL_REDUCE, 1024, topology=preset("dgx-a100"))
    assert one_box.ours is None
    assert "share" in str(one_box.reason)


def test_segments_of_the_pipeline() -> None:
    assert dict(select("mvapich2", Collective.BROADCAST, 81921, ranks=16).parameters) == {"segments": 11}


def test_recursive_doubling_off_powers_of_two_has_no_schedule() -> None:
    picked = select("mvapich2", Collective.ALL_GATHER, 1200, ranks=12)
    assert picked.ours is None
    assert "powers of two" in str(picked.reason)


def test_other_names() -> None:
    with pytest.raises(InputError, match=r"did you mean 'mvapich2'"):
        select("mvapich", Collective.ALL_REDUCE, 1, ranks=2)
    with pytest.raises(InputError, match="use one of open-mpi, mpich, mvapich2, nccl"):
        select("gloo", Collective.ALL_REDUCE, 1, ranks=2)
