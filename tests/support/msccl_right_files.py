"""Small MSCCL XML files that are right, for every type of step, buffer, collective and attribute."""

from __future__ import annotations

import re

from support.msccl_notation import Block, File, file_text, pair


def ring(step: str, ranks: int = 3) -> list[list[Block]]:
    """The same thread block at every rank of a ring; ``{n}`` in it is the rank less n."""
    return [
        [
            (
                (rank + 1) % ranks,
                (rank - 1) % ranks,
                0,
                re.sub(r"\{(\d)\}", lambda back: str((rank - int(back[1])) % ranks), step),  # noqa: B023
            )
        ]
        for rank in range(ranks)
    ]


RIGHT = {
    "s r cnt": File(
        file_text(
            "allgather",
            4,
            pair([(1, 1, 0, "s o0 x2; r o2 x2")], [(0, 0, 0, "s o2 x2; r o0 x2")]),
            slots=(2, 4, 0),
            most=2**20,  # both send first: longer messages are cut, and fill the FIFOs
        )
    ),
    "rcs rrs rrcs": File(
        file_text(
            "allreduce", 3, ring("s i{0}; rrs i{1}; rrcs i{2}>i{2}; rcs i{0}; r i{1}"), slots=(3, 3, 0)
        ),
        depth=2,
    ),
    "rrc": File(
        file_text(
            "reduce_scatter",
            2,
            pair([(1, 1, 0, "s i1; rrc i0>i0")], [(0, 0, 0, "s i0; rrc i1>i1")]),
            slots=(2, 1, 0),
        )
    ),
    "rrc out of place": File(
        file_text(
            "reducescatter",
            2,
            pair([(1, 1, 0, "s i1; rrc i0>o0")], [(0, 0, 0, "s i0; rrc i1>o0")]),
            slots=(2, 1, 0),
            inplace=0,
            outofplace=1,
        )
    ),
    "rrs": File(
        file_text(
            "reduce",
            1,
            [[(1, -1, 0, "s i0")], [(2, 0, 0, "rrs i0")], [(-1, 1, 0, "rrc i0>o0")]],
            slots=(1, 1, 0),
            root=2,
        )
    ),
    "cpy re nop scratch, in place and not": File(
        file_text(
            "allreduce",
            2,
            pair(
                [(1, 1, 0, "s i0 x2; r s0 x2"), (-1, -1, 0, "nop @0.0; cpy i0>o0 x2 @0.1; re s0>o0 x2")],
                [(0, 0, 0, "s i0 x2; r s0 x2"), (-1, -1, 0, "nop @0.0; cpy i0>o0 x2 @0.1; re s0>o0 x2")],
            ),
            slots=(2, 2, 2),
            outofplace=1,
            most=2**20,
        )
    ),
    "runs of re": File(
        file_text(
            "allreduce",
            1,
            [
                [
                    (a, a, 0, "s i0; r s0"),
                    (b, b, 0, "s i0; r s1"),
                    (-1, -1, 0, "nop @0.1; re s0>i0 @1.1; re s1>i0"),
                ]
                for a, b in ((1, 2), (0, 2), (0, 1))
            ],
            slots=(1, 1, 2),
        )
    ),
    "several channels": File(
        file_text(
            "allgather",
            4,
            pair(
                [(1, 1, 0, "s o0; r o2"), (1, 1, 1, "s o1; r o3")],
                [(0, 0, 0, "s o2; r o0"), (0, 0, 1, "s o3; r o1")],
            ),
            slots=(2, 4, 0),
        )
    ),
    "broadcast": File(
        file_text(
            "broadcast",
            1,
            [[(1, -1, 0, "s i0")], [(2, 0, 0, "rcs o0")], [(-1, 1, 0, "r o0")]],
            slots=(1, 1, 0),
            root=0,
        )
    ),
    "alltoall": File(
        file_text(
            "alltoall",
            2,
            pair([(1, 1, 0, "s i1; cpy i0>o0; r o1")], [(0, 0, 0, "s i0; cpy i1>o1; r o0")]),
            slots=(2, 2, 0),
            inplace=0,
            outofplace=1,
        )
    ),
    "gather": File(
        file_text(
            "gather",
            1,  # chunks of one share
            pair([(-1, 1, 0, "cpy i0>o0; r o1")], [(0, -1, 0, "s i0")]),
            slots=(1, 2, 0),
            inplace=0,
            outofplace=1,
            root=0,
        )
    ),
    "scatter": File(
        file_text(
            "scatter",
            1,  # chunks of one share
            pair([(1, -1, 0, "cpy i0>o0; s i1")], [(-1, 0, 0, "r o0")]),
            slots=(2, 1, 0),
            inplace=0,
            outofplace=1,
            root=0,
        )
    ),
    "LL": File(
        file_text(
            "allgather",
            2,
            pair([(1, 1, 0, "s o0; r o1")], [(0, 0, 0, "s o1; r o0")]),
            slots=(0, 2, 0),
            proto="LL",
        )
    ),
    "two messages wait": File(
        file_text(
            "allgather",
            4,
            pair([(1, 1, 0, "s o0; s o1; r o2; r o3")], [(0, 0, 0, "s o2; s o3; r o0; r o1")]),
            slots=(2, 4, 0),
            proto="LL128",
        ),
        depth=2,
    ),
    "the input is overwritten": File(
        file_text(
            "allreduce",
            1,
            pair(
                [(1, 1, 0, "s i0; r s0; nop @1.0"), (-1, -1, 0, "re s0>i0 @0.1; cpy i0>o0")],
                [(0, 0, 0, "s i0; r s0; nop @1.0"), (-1, -1, 0, "re s0>i0 @0.1; cpy i0>o0")],
            ).copy(),
            slots=(1, 1, 1),
            inplace=0,
            outofplace=1,
        ),
        warning="overwrites the input of its caller",
    ),
}
