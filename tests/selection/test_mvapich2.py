"""MVAPICH2: the table without an architecture, at boundaries worked out by hand; limits are inclusive."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.selection import select
from coppice.selection.rules import parse_rules
from coppice.selection.tables import library
from coppice.topology.presets import preset

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
