"""One-sided programs with one fault each: it is named, with its rank, thread block and operation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.export.mscclpp.document import parse_document
from coppice.export.mscclpp.reader import program_of
from coppice.program.dialects.puts.program import OneSidedProgram
from coppice.program.dialects.puts.to_schedule import one_sided_to_schedule
from coppice.program.dialects.puts.verify import OneSidedReport, verify_one_sided
from coppice.schedule.verification.transfers import verify_schedule
from coppice.topology.presets import preset
from support.mscclpp_samples import (
    MEMORY,
    NOP,
    SAMPLES,
    Plan,
    across,
    act,
    here,
    packets,
    pair,
    pipelined,
    shared,
    switched,
    tell,
    text,
    there,
)


def program(plan: Plan) -> OneSidedProgram:
    return program_of(parse_document(text(plan), file="p.json")).program


def judged(plan: Plan) -> OneSidedReport:
    return verify_one_sided(program(plan))


def ops(plan: Plan, rank: int = 0, number: int = 0) -> list[Plan]:
    found: list[Plan] = plan["gpus"][rank]["threadblocks"][number]["ops"]
    return found


def failures(make: Callable[[], Plan], change: Callable[[Plan], object]) -> str:
    plan = make()
    change(plan)
    report = judged(plan)
    assert not report.ok
    with pytest.raises(CheckError, match="the program does not verify"):
        report.require_ok()
    return " | ".join(report.failures)


@pytest.mark.parametrize("make", SAMPLES)
def test_samples_are_right(make: Callable[[], Plan]) -> None:
    report = judged(make())
    assert report.ok, report.failures
    assert not report.warnings
    assert report.checked["words"] > 0


@pytest.mark.parametrize("make", SAMPLES)
def test_samples_are_schedules(make: Callable[[], Plan]) -> None:
    schedule = one_sided_to_schedule(program(make()), preset("star", gpus=2))
    assert verify_schedule(schedule).ok
    with pytest.raises(InputError, match="expected a topology of 2 ranks, as the program has, found 3"):
        one_sided_to_schedule(program(make()), preset("star", gpus=3))


def drop(place: int, rank: int = 0, number: int = 0) -> Callable[[Plan], object]:
    return lambda plan: ops(plan, rank, number).pop(place)


def put(place: int, op: Plan, rank: int = 0, number: int = 0) -> Callable[[Plan], object]:
    return lambda plan: ops(plan, rank, number).insert(place, op)


def change(place: int, rank: int = 0, number: int = 0, **values: object) -> Callable[[Plan], object]:
    return lambda plan: ops(plan, rank, number)[place].update(values)


def index(place: int, key: str, value: int, rank: int = 0) -> Callable[[Plan], object]:
    return lambda plan: ops(plan, rank)[place][key][0].update(index=value)


FAULTS: dict[str, tuple[Callable[[], Plan], Callable[[Plan], object], str]] = {
    "no signal": (
        pair,
        drop(5),
        (
            "it deadlocks: rank 1, thread block 0, operation 6 (wait) waits for one more signal on a memory channel "
            "from rank 0 to 1 than there is: 1 come, 2 are waited for"
        ),
    ),
    "no wait": (
        pair,
        drop(6),
        (
            "rank 1, thread block 0, operation 3 (put) writes chunk 1 of the output of rank "
            "0, and nothing tells that rank, "
            "before it ends, that this is done"
        ),
    ),
    "a signal too many": (
        pair,
        put(7, tell("signal", 0)),
        "a memory channel from rank 0 to 1 counts 3 up and 2 down: the next run would begin with what is left",
    ),
    "waiting first": (
        pair,
        lambda plan: [ops(plan, rank).insert(0, ops(plan, rank).pop(1)) for rank in range(2)],
        (
            "rank 0, thread block 0, operation 0 (rlxwait) waits for a signal on a memory "
            "channel from rank 1 to 0, before "
            "which rank 1, thread block 0, operation 0 (rlxwait) is ahead; that waits for"
        ),
    ),
    "no join before the signal": (
        pair,
        drop(4),
        "rank 0, thread block 0, operation 3 (put) writes chunk 0 of the output of rank 1, and nothing tells",
    ),
    "no join after the wait": (
        shared,
        drop(2),
        "barrier 0 of rank 0 is used by 1 thread blocks and waits for 2",
    ),
    "input read before it is there": (
        shared,
        lambda plan: [ops(plan, rank, number).pop(0) for rank in range(2) for number in range(2)]
        and [ops(plan, rank, number).pop(0) for rank in range(2) for number in range(2)],
        "(rre) reads chunk 0 of the input of rank 1 before that rank is known to have begun",
    ),
    "read while the owner has gone": (
        shared,
        lambda plan: [ops(plan, rank, 0).pop(5) and ops(plan, rank, 0).pop(5) for rank in range(2)],
        "and nothing tells that rank, before it ends, that this is done",
    ),
    "wrong chunk": (pair, index(3, "dst_buff", 1), "both use chunk 1 of the output of rank 1, one of them writes it"),
    "nothing there": (
        pair,
        lambda plan: plan["gpus"][0].update(scratch_chunks=1) or change(3, src_buff=[here("s", 0)])(plan),
        (
            "rank 0, thread block 0, operation 3 (put) reads chunk 0 of the scratch of rank "
            "0, which nothing was written to"
        ),
    ),
    "beyond the end": (
        pair,
        index(3, "src_buff", 2),
        "rank 0, thread block 0, operation 3 (put) uses chunks 2 to 2 of the output of rank 0, which has 2",
    ),
    "added twice": (
        switched,
        lambda plan: put(5, act("re", [here("i", 0), here("i", 0)], [here("i", 0)]))(plan) or put(6, NOP)(plan),
        "rank 0, thread block 0, operation 5 (re) adds the contribution of rank 0 to chunk 0 a second time",
    ),
    "different chunks added": (
        switched,
        lambda plan: put(3, act("re", [here("i", 0), here("i", 1)], [here("i", 0)]))(plan) or put(4, NOP)(plan),
        "rank 0, thread block 0, operation 3 (re) adds chunk 1 to chunk 0: expected the same",
    ),
    "not added": (
        switched,
        drop(3),
        "chunk 0 of the output of rank 0 ends with chunk 0 without the contribution of rank 1 (1 missing)",
    ),
    "never written": (
        across,
        drop(4),
        "chunk 0 of the output of rank 0 is never written: expected chunk 0 of rank 0",
    ),
    "half of the work": (
        shared,
        change(3, tbg_info={"tb_id": 1, "tbg_size": 2}),
        "both use chunk 0 of the output of rank 0",
    ),
    "packets that never come": (
        packets,
        drop(0),
        "waits for packets that nothing writes",
    ),
    "packets as data": (
        packets,
        lambda plan: put(2, NOP)(plan) or put(3, act("copy", [here("s", 1)], [here("i", 0)]))(plan),
        "rank 0, thread block 0, operation 3 (copy) reads as data what was written as packets",
    ),
    "packets without room": (
        packets,
        lambda plan: plan.update(protocol="Simple"),
        "operation 0 (ppkt) uses packets with protocol Simple",
    ),
    "a put that may be under way at the end": (
        across,
        change(3, name="pws"),
        "rank 0, thread block 0, operation 3 (pws) reads chunk 1 of the input of rank 0, and nothing tells that rank",
    ),
    "a put over memory does not signal": (
        pair,
        lambda plan: change(3, name="pws", channel_ids=[0])(plan),
        "(pws) does not do what it says: over memory channels the executor puts, but does not signal",
    ),
    "get swaps": (
        pair,
        put(3, act("get", [there(0, 1)], [here("o", 0)], **MEMORY)),
        "(get) does not do what it says: the executor swaps the places of source and target",
    ),
    "several buffers": (
        pair,
        change(3, src_buff=[here("o", 0), here("i", 0)], dst_buff=[there(0, 0), there(0, 0)]),
        "reads several buffers at once",
    ),
    "overlap": (
        pair,
        change(3, src_buff=[here("o", 0), here("o", 0)], dst_buff=[there(0, 0), there(0, 0)]),
        "operation 3 (put) writes the same memory twice",
    ),
    "shifted": (
        lambda: {**pair(), "collective": "allreduce"} | {"gpus": [
            {**gpu, "input_chunks": 2} for gpu in pair()["gpus"]
        ]},
        change(3, name="copy", src_buff=[here("o", 0, 1)], dst_buff=[here("o", 1, 1)]),
        "without the contribution",
    ),
    "a loop over too little": (
        pipelined,
        lambda plan: ops(plan)[0]["iter_context"].update(num_chunks=2),
        "handles 1 chunks in a loop over 2",
    ),
    "a loop over more than there is": (
        pipelined,
        lambda plan: ops(plan)[0]["iter_context"].update(num_chunks=10**9),
        "walks through 1000000000 chunks, of which no buffer has as many",
    ),
    "a semaphore that is not given back": (
        pipelined,
        lambda plan: ops(plan, 0, 2)[0]["ops"].pop(),
        "semaphore 2 of rank 0 counts 0 up and",
    ),
    "no credit": (
        lambda: pipelined(credit=0),
        lambda _: None,
        (
            "waits for a release of semaphore 2 of rank 0, before which rank 0, thread block 2, operation 0.0 "
            "(sem_acquire) of round 0 is ahead"
        ),
    ),
    "a semaphore that is not there": (
        pipelined,
        lambda plan: ops(plan, 0, 2)[0]["ops"][0].update(semaphore_ids=[3]),
        "uses semaphore 3 of the 3 that rank 0 has",
    ),
    "a channel with one end": (
        pair,
        lambda plan: plan["gpus"][1]["channels"].clear() or plan["gpus"][1]["threadblocks"][0].update(
            channels=[], ops=[NOP]
        ),
        "uses a channel to rank 1, which has no channel back",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    make, spoil, told = FAULTS[name]
    assert told in failures(make, spoil)


def test_two_that_take_from_one_semaphore() -> None:
    """Both get one if two are given at once; if the second is given only after the first got on, order decides."""

    def three(given: list[Plan], late: list[Plan]) -> Plan:
        made = pair()
        for gpu in made["gpus"]:
            gpu["semaphores"] = [{"init_value": 0}, {"init_value": 0}]
            take = {"name": "sem_acquire", "semaphore_ids": [0]}
            for number, more in ((1, late), (2, [])):
                gpu["threadblocks"].append(
                    {"id": number, "channels": [], "remote_buffer_refs": [], "ops": [take, *more]}
                )
            gpu["threadblocks"][0]["ops"] += given
        return made

    give = {"name": "sem_release", "semaphore_ids": [0]}
    assert judged(three([give, give], [])).ok
    # Thread block 1 passes on what it took; thread block 2 would keep it.
    once = judged(three([give], [NOP, give]))
    assert any("in an order in which others take first" in failure for failure in once.failures)


def test_posts_of_several_thread_blocks() -> None:
    """Two thread blocks of rank 0 put and signal on one channel; rank 1 knows both only after both signals."""

    def made(waits: int) -> Plan:
        first = [NOP, act("put", [here("i", 0)], [there(0, 0)], **MEMORY), NOP, tell("signal", 0)]
        second = [NOP, act("put", [here("i", 1)], [there(0, 1)], **MEMORY), NOP, tell("signal", 0)]
        hello = [tell("wait", 0), NOP]
        base = shared()
        base.update(collective="allreduce", inplace=True)
        wires = {"channels": [{"channel_type": "memory", "channel_ids": [0]}]}
        remote = [{"access_channel_type": "memory", "remote_buffer_ids": [0]}]
        last = [tell("signal", 0), *[tell("wait", 0)] * waits, NOP]
        last += [act("re", [here("i", k), here("s", k)], [here("i", k)]) for k in range(2)]
        last += [NOP, act("put", [here("i", 0, 2)], [there(0, 0, 2)], **MEMORY), NOP, tell("signal", 0)]
        last += [tell("wait", 0)] * (2 - waits)
        for gpu in base["gpus"]:
            gpu.update(input_chunks=2, output_chunks=2, scratch_chunks=2)
        base["gpus"][0]["threadblocks"] = [
            {
                "id": 0,
                **wires,
                "remote_buffer_refs": remote,
                "ops": [*hello, *barrier(), *first, *barrier(1), tell("wait", 0)],
            },
            {"id": 1, **wires, "remote_buffer_refs": remote, "ops": [*barrier(), *second, *barrier(1)]},
        ]
        base["gpus"][0]["remote_buffers"] = [{"rank": 1, "type": "s", "access_channel_types": ["memory"]}]
        base["gpus"][1]["threadblocks"] = [{"id": 0, **wires, "remote_buffer_refs": remote, "ops": last}]
        return base

    def barrier(number: int = 0) -> list[Plan]:
        return [{"name": "barrier", "barrier_id": number, "num_threadblocks": 2}]

    assert judged(made(2)).ok, judged(made(2)).failures
    report = judged(made(1))
    assert not report.ok
    assert any("nothing puts them in order" in failure for failure in report.failures)


def test_warnings() -> None:
    early = pair()
    for rank in range(2):
        del ops(early, rank)[:3]
    report = judged(early)
    assert report.ok
    (warning,) = report.warnings
    assert (
        "rank 1, thread block 0, operation 0 (put) writes chunk 1 of the output of rank 0 before that rank"
        in warning
    )
    relaxed = pair()
    for rank in range(2):
        ops(relaxed, rank)[5:] = [tell("rlxsignal", 0), tell("rlxwait", 0)]
    (warning,) = judged(relaxed).warnings
    assert "by relaxed signals or packets alone: they do not make data visible" in warning
    flushed = pair()
    ops(flushed).append({"name": "flush", "channel_ids": [0], "channel_type": "port"})
    assert judged(flushed).warnings == ("1 operations (flush) do nothing in the current executor.",)
    long = pipelined(unit=4096)
    assert "messages that do not fit into its scratch memory were not tried." in judged(long).warnings


def test_limited_messages_do_not_go_round() -> None:
    """65 pieces on their way are too many for scratch memory, unless messages are small."""
    assert not judged(pipelined(credit=65)).ok
    assert judged({**pipelined(credit=65), "max_message_size": 2**20}).ok


def test_scalars() -> None:
    right = program(pair())
    assert (
        "expected one of all_gather"
        in verify_one_sided(replace(right, collective=Collective.REDUCE)).failures[0]
    )
    assert "blocks of whole chunks" in verify_one_sided(replace(right, num_chunks=3)).failures[0]


def test_parts_beyond_reason() -> None:
    plan = shared()
    for gpu in plan["gpus"]:
        gpu["threadblocks"][0]["ops"][3]["tbg_info"] = {"tb_id": 0, "tbg_size": 997}
    with pytest.raises(InputError, match="found a need for 1994 parts"):
        judged(plan)
    pieces = pipelined()
    for block in pieces["gpus"][0]["threadblocks"]:
        block["ops"][0]["iter_context"]["unit_size"] = 16
    with pytest.raises(InputError, match="loops by pieces of similar sizes"):
        judged(pieces)
