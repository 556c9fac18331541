"""Small MSCCL XML files that are wrong, one for every fault that a verifier should find."""

from __future__ import annotations

from support.msccl_notation import File, file_text, pair


def gather_with(first: str, second: str = "s o1; r o0", **options: int) -> str:
    """An all-gather of two ranks with these steps."""
    return file_text(
        "allgather", 2, pair([(1, 1, 0, first)], [(0, 0, 0, second)]), slots=(1, 2, 0), **options
    )  # type: ignore[arg-type]


WRONG = {
    "deadlocks": File(
        gather_with("r o1; s o0", "r o0; s o1"),
        0,
        r"it deadlocks with connections of 2 messages: rank 0, thread block 0, step 0 \(recv\) waits for",
    ),
    "waits in a circle": File(
        file_text(
            "allgather",
            2,
            [[(1, -1, 0, "s o0 @1.0"), (-1, 1, 0, "r o1 @0.0")], [(0, 0, 0, "s o1; r o0")]],
            slots=(1, 2, 0),
        ),
        0,
        r"it deadlocks .* depends on rank 0, thread block 1, step 0",
    ),
    "three messages wait": File(
        file_text(
            "allgather",
            6,
            pair(
                [(1, 1, 0, "s o0; s o1; s o2; r o3; r o4; r o5")],
                [(0, 0, 0, "s o3; s o4; s o5; r o0; r o1; r o2")],
            ),
            slots=(3, 6, 0),
        ),
        3,
        "waits for room on its connection",
    ),
    "never received": File(
        gather_with("s o0; r o1; s o0"),
        0,
        r"rank 0, thread block 0, step 2 \(send\) sends a message that rank 1 never receives: 2 are sent .* 1 received",
    ),
    "never sent": File(
        gather_with("s o0; r o1; r o1"),
        0,
        r"rank 0, thread block 0, step 2 \(recv\) receives a message that rank 1 never sends: 1 are sent .* 2 received",
    ),
    "lengths differ": File(
        file_text(
            "allgather",
            4,
            pair([(1, 1, 0, "s o0 x2; r o2 x2")], [(0, 0, 0, "s o2; r o0 x2")]),
            slots=(2, 4, 0),
        ),
        0,
        r"step 0 \(send\) sends 1 chunks, which rank 0, thread block 0, step 1 \(recv\) takes for 2",
    ),
    "beyond the end": File(
        gather_with("s o0; r o2"), 0, r"step 1 \(recv\) writes slot 2 of the output, which has 2 there"
    ),
    "count beyond the end": File(
        file_text(
            "allgather",
            4,
            pair([(1, 1, 0, "s o0 x2; r o3 x2")], [(0, 0, 0, "s o2 x2; r o0 x2")]),
            slots=(2, 4, 0),
        ),
        0,
        r"writes slots 3 to 4 of the output, which has 4 there",
    ),
    "no peer": File(
        file_text(
            "allgather", 2, pair([(-1, 1, 0, "s o0; r o1")], [(0, 0, 0, "s o1; r o0")]), slots=(1, 2, 0)
        ),
        0,
        r"step 0 \(send\) has no peer to send: its thread block names none",
    ),
    "a peer that is not there": File(
        file_text(
            "allgather", 2, pair([(2, 1, 0, "s o0; r o1")], [(0, 0, 0, "s o1; r o0")]), slots=(1, 2, 0)
        ),
        0,
        "rank 0, thread block 0 sends to rank 2: expected another rank of the 2",
    ),
    "its own peer": File(
        file_text(
            "allgather", 2, pair([(0, 1, 0, "s o0; r o1")], [(0, 0, 0, "s o1; r o0")]), slots=(1, 2, 0)
        ),
        0,
        "rank 0, thread block 0 sends to rank 0: expected another rank",
    ),
    "two on one connection": File(
        file_text(
            "allgather",
            4,
            pair([(1, 1, 0, "s o0; r o2"), (1, 1, 0, "s o1; r o3")], [(0, 0, 0, "s o2; s o3; r o0; r o1")]),
            slots=(2, 4, 0),
        ),
        0,
        "rank 0, thread block 0 and thread block 1 both send to rank 1 on channel 0",
    ),
    "another channel": File(
        file_text(
            "allgather", 2, pair([(1, 1, 1, "s o0; r o1")], [(0, 0, 0, "s o1; r o0")]), slots=(1, 2, 0)
        ),
        0,
        "never",
    ),
    "nothing there yet": File(
        file_text(
            "allgather",
            2,
            pair([(1, 1, 0, "s o0; r o1")], [(0, 0, 0, "s o1; r o0")]),
            slots=(1, 2, 0),
            inplace=0,
            outofplace=1,
        ),
        0,
        r"rank 0, thread block 0, step 0 \(send\) reads slot 0 of the output, which nothing was written to",
    ),
    "its own copy forgotten": File(
        file_text(
            "allgather",
            2,
            pair([(1, 1, 0, "s i0; r o1")], [(0, 0, 0, "s i0; r o0")]),
            slots=(1, 2, 0),
            inplace=0,
            outofplace=1,
        ),
        0,
        "slot 0 of the output of rank 0 is never written: expected chunk 0",
    ),
    "another chunk": File(
        file_text(
            "allgather",
            4,
            pair([(1, 1, 0, "s o0; s o1; r o3; r o2")], [(0, 0, 0, "s o2; s o3; r o0; r o1")]),
            slots=(2, 4, 0),
        ),
        0,
        "slot 2 of the output of rank 0 ends with chunk 3: expected chunk 2",
    ),
    "added twice": File(
        file_text(
            "allreduce",
            1,
            pair([(1, 1, 0, "s i0; rrc i0>o0; re i0>o0")], [(0, 0, 0, "s i0; rrc i0>o0")]),
            slots=(1, 1, 0),
            inplace=0,
            outofplace=1,
        ),
        0,
        r"rank 0, thread block 0, step 2 \(reduce\) adds the contribution of rank 0 to chunk 0 a second time",
    ),
    "not added": File(
        file_text(
            "allreduce",
            1,
            pair([(1, 1, 0, "s i0; r o0")], [(0, 0, 0, "s i0; rrc i0>o0")]),
            slots=(1, 1, 0),
            inplace=0,
            outofplace=1,
        ),
        0,
        r"slot 0 of the output of rank 0 ends with chunk 0 without the contribution of rank 0 \(1 missing\)",
    ),
    "other chunks added": File(
        file_text(
            "reducescatter",
            2,
            pair([(1, 1, 0, "s i0; rrc i0>o0")], [(0, 0, 0, "s i0; rrc i1>o0")]),
            slots=(2, 1, 0),
            inplace=0,
            outofplace=1,
        ),
        0,
        "adds chunk 0 to chunk 1: expected the same",
    ),
    "race of a receive with a send": File(
        file_text(
            "allreduce",
            1,
            pair(
                [(1, -1, 0, "s i0"), (-1, 1, 0, "rrc i0>i0")],
                [(0, -1, 0, "s i0"), (-1, 0, 0, "rrc i0>i0 @0.0")],
            ),
            slots=(1, 1, 0),
        ),
        0,
        r"step 0 \(send\) and rank 0, thread block 1, step 0 \(recv_reduce_copy\) both use slot 0",
    ),
    "race of two sums": File(
        file_text(
            "reduce",
            1,
            [[(-1, 1, 0, "rrc i0>i0"), (-1, 2, 0, "rrc i0>i0")], [(0, -1, 0, "s i0")], [(0, -1, 0, "s i0")]],
            slots=(1, 1, 0),
            root=0,
        ),
        0,
        "nothing puts them in order: let one wait for the other",
    ),
    "race by shared memory": File(
        file_text(
            "allgather",
            2,
            pair(
                [(1, -1, 0, "s i0"), (-1, 1, 0, "r o1"), (-1, -1, 0, "cpy o1>i0 @1.0")],
                [(0, 0, 0, "s o1; r o0")],
            ),
            slots=(1, 2, 0),
        ),
        0,
        r"rank 0, thread block 0, step 0 \(send\) and rank 0, thread block 2, step 0 \(copy\) both use slot 0",
    ),
    "right in place only": File(
        file_text(
            "allreduce",
            1,
            pair([(1, 1, 0, "s i0; rrc i0>i0")], [(0, 0, 0, "s i0; rrc i0>i0")]),
            slots=(1, 1, 0),
            outofplace=1,
        ),
        0,
        "out of place: slot 0 of the output of rank 0 is never written",
    ),
    "a step waited for that is not there": File(
        gather_with("s o0; r o1").replace('depid="-1" deps="-1"', 'depid="3" deps="0"', 1),
        0,
        "waits for step 0 of thread block 3, which is not there",
    ),
}
