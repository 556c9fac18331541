"""MPICH: its defaults, written down again as plain code, on a grid; and compositions over boxes."""

from __future__ import annotations

import pytest

from coppice.collectives import Collective
from coppice.selection import select
from coppice.topology.presets import preset

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
