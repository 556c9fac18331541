"""MVAPICH2: the table without an architecture, at boundaries worked out by hand; limits are inclusive."""

from __future__ import annotations

import pytest

from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.planners.selection import select
from coppice.topology.presets import preset

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
    with pytest.raises(InputError, match=r"did you mean mvapich2\?"):
        select("mvapich", Collective.ALL_REDUCE, 1, ranks=2)
    with pytest.raises(InputError, match="choose one of open-mpi, mpich, mvapich2, nccl"):
        select("gloo", Collective.ALL_REDUCE, 1, ranks=2)
