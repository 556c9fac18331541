"""The doctor of execution plans: every rule has a file that trips it and one that does not."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest

import coppice
from coppice.doctor import Diagnosis, Severity, diagnose, rules_for
from coppice.errors import CheckError, InputError
from coppice.export.mscclpp.limits import PRELOAD_DIRECTORY, PRELOAD_SLOTS
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
from support.mscclpp_samples import block as block_of
from support.mscclpp_samples import gpu as gpu_of
from support.mscclpp_samples import plan as plan_of

Change = Callable[[Plan], object]
PORT = {"channel_type": "port", "channel_ids": [0]}


def block(plan: Plan, rank: int = 0, number: int = 0) -> Plan:
    found: Plan = plan["gpus"][rank]["threadblocks"][number]
    return found


def same(plan: Plan) -> None:
    """The sample as it is."""


def top(key: str, value: object) -> Change:
    return lambda plan: plan.pop(key) if value is None else plan.update({key: value})


def in_gpu(key: str, value: object, rank: int = 0) -> Change:
    return lambda plan: (
        plan["gpus"][rank].pop(key) if value is None else plan["gpus"][rank].update({key: value})
    )


def in_block(key: str, value: object, number: int = 0) -> Change:
    return lambda plan: block(plan, 0, number).update({key: value})


def in_op(place: int, key: str, value: object, number: int = 0) -> Change:
    def change(plan: Plan) -> None:
        op = block(plan, 0, number)["ops"][place]
        if value is None:
            del op[key]
        else:
            op[key] = value

    return change


def added(op: Plan) -> Change:
    return lambda plan: block(plan)["ops"].append(op)


def looped(place: int, **values: object) -> Change:
    return lambda plan: block(plan, 0, 0)["ops"][0]["ops"][place].update(values)


def wired(channels: int, kind: str = "memory") -> Change:
    """Rank 0 has so many channels to rank 1 and back, all of them used by its first thread block."""

    def change(plan: Plan) -> None:
        for gpu in plan["gpus"]:
            gpu["channels"] = [{"channel_type": kind, "connected_to": [1 - gpu["id"]] * channels}]
        block(plan)["channels"] = [{"channel_type": kind, "channel_ids": list(range(channels))}]

    return change


def referring(count: int) -> Change:
    def change(plan: Plan) -> None:
        plan["gpus"][0]["remote_buffers"] *= count
        block(plan)["remote_buffer_refs"][0]["remote_buffer_ids"] = list(range(count))

    return change


def both(*changes: Change) -> Change:
    def change(plan: Plan) -> None:
        for each in changes:
            each(plan)

    return change


def blocks(count: int) -> Change:
    return in_gpu(
        "threadblocks",
        [{"id": number, "channels": [], "remote_buffer_refs": [], "ops": [NOP]} for number in range(count)],
    )


def there_is(plan: Plan, rank: int) -> Plan:
    found: Plan = plan["gpus"][rank]["remote_buffers"][0]
    return found


LARGE = 4_294_967_264
Sample = tuple[str, Callable[[], Plan], Change, Change]
PAIR: list[Sample] = [
    ("J01", pair, top("name", None), same),
    ("J01", pair, in_gpu("remote_buffers", None), in_gpu("semaphores", None)),
    ("J01", pair, in_op(3, "name", None), top("reuse_resources", None)),
    ("J01", pair, top("gpus", []), same),
    ("J02", pair, top("inplace", 1), top("inplace", True)),
    ("J02", pair, in_gpu("scratch_chunks", "2"), in_gpu("scratch_chunks", 2)),
    ("J03", pair, in_gpu("id", 1), in_gpu("id", 0)),
    ("J04", pair, in_block("id", 1), in_block("id", 0)),
    ("J05", pair, top("protocol", "LL128"), top("protocol", "Simple")),
    ("J06", pair, top("collective", "all_gather"), top("collective", "allgather")),
    ("J07", pair, in_op(3, "src_buff", [{"index": 0, "size": 1}]), same),
    ("J07", pair, in_op(3, "src_buff", [here("x", 0)]), same),
    ("J07", switched, lambda plan: plan["gpus"][0]["channels"][1].pop("buffer_type"), same),
    ("C01", pair, in_op(0, "channel_ids", [1]), in_op(0, "channel_ids", [0])),
    ("C01", pair, in_block("channels", [{"channel_type": "memory", "channel_ids": [1]}]), same),
    ("C01", switched, in_op(3, "dst_buff", [{"switch_channel_id": 1, "index": 0, "size": 1}]), same),
    ("C02", pair, in_op(3, "dst_buff", [there(1, 0)]), same),
    (
        "C02",
        pair,
        lambda plan: plan["gpus"][0]["remote_buffers"][0].update(access_channel_types=["port"]),
        lambda plan: plan["gpus"][0]["remote_buffers"][0].update(access_channel_types=["port", "memory"]),
    ),
    ("C03", pair, lambda plan: plan["gpus"][0]["channels"][0].update(connected_to=[0]), same),
    ("C03", pair, lambda plan: plan["gpus"][0]["channels"][0].update(connected_to=[2]), same),
    ("C04", pair, lambda plan: plan["gpus"][0]["channels"][0].update(connected_to=[1, 1]), wired(2)),
    ("C05", shared, in_op(2, "num_threadblocks", 3), in_op(2, "num_threadblocks", 2)),
    ("C05", shared, added({"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}), same),
    ("C06", pair, added({"name": "sem_release", "semaphore_ids": [0]}), same),
    ("O01", pair, added({"name": "glre"}), added(NOP)),
    ("O02", pair, in_op(3, "dst_buff", None), same),
    ("O02", pair, in_op(0, "channel_type", "switch"), same),
    ("O02", across, in_op(3, "channel_ids", []), same),
    (
        "O03",
        pair,
        added(act("get", [there(0, 1)], [here("o", 0)], **MEMORY)),
        added(act("get", [there(0, 1)], [here("o", 1)], **MEMORY)),
    ),
    ("O04", across, added(tell("flush", 0, kind="port")), same),
    (
        "O05",
        pair,
        in_op(3, "src_buff", [here("o", 0), here("i", 0)]),
        both(in_op(3, "src_buff", [here("o", 0)] * 2), in_op(3, "dst_buff", [there(0, 0)] * 2)),
    ),
    ("O06", pair, in_op(3, "name", "pws"), same),
    (
        "O07",
        lambda: {**across(), "protocol": "LL", "use_double_scratch_buffer": True},
        in_op(3, "name", "ppkt"),
        in_op(3, "name", "rppkt"),
    ),
    ("O08", pair, in_op(3, "dst_buff", [there(0, 0)] * 2), same),
    ("O09", pair, in_op(3, "dst_buff", [there(0, 0, 2)]), same),
    (
        "O09",
        shared,
        in_op(3, "src_buff", [here("i", 0), there(0, 0, 2)]),
        in_op(3, "src_buff", [here("i", 0), there(0, 0)]),
    ),
    (
        "O10",
        pipelined,
        looped(1, name="pipeline", iter_context={"unit_size": 16, "num_chunks": 1}, ops=[NOP]),
        same,
    ),
    ("O11", pipelined, looped(2, src_buff=[here("i", 0, 2)], dst_buff=[here("s", 0, 2)]), same),
    ("O11", pipelined, looped(2, tbg_info={"tb_id": 0, "tbg_size": 2}), same),
    ("O11", lambda: {**pipelined(), "protocol": "LL"}, looped(2, name="cpkt"), same),
    ("O12", switched, in_op(3, "reduce_op", "max"), in_op(3, "reduce_op", "sum")),
    ("O13", packets, top("protocol", "Simple"), same),
    ("O14", packets, top("use_double_scratch_buffer", False), same),
    (
        "O15",
        shared,
        in_op(3, "tbg_info", {"tb_id": 2, "tbg_size": 2}),
        in_op(3, "tbg_info", {"tb_id": 1, "tbg_size": 2}),
    ),
    ("O16", switched, same, lambda plan: [block(plan, rank)["ops"].pop(3) for rank in range(2)]),
    ("L01", pair, in_block("ops", [NOP] * 65), in_block("ops", [NOP] * 64)),
    (
        "L01",
        pipelined,
        lambda plan: block(plan)["ops"][0].update(ops=[NOP] * 64),
        lambda plan: block(plan)["ops"][0].update(ops=[NOP] * 63),
    ),
    ("L02", pair, wired(17), wired(16)),
    ("L02", across, wired(17, "port"), wired(16, "port")),
    ("L03", pair, referring(17), referring(16)),
    (
        "L04",
        pair,
        both(wired(9), added(tell("signal", *range(9)))),
        both(wired(8), added(tell("signal", *range(8)))),
    ),
    (
        "L05",
        pair,
        added(act("re", [here("o", 0)] * 11, [here("o", 0)])),
        added(act("re", [here("o", 0)] * 10, [here("o", 0)])),
    ),
    ("L06", shared, in_op(2, "barrier_id", 16), in_op(2, "barrier_id", 15)),
    (
        "L07",
        lambda: {**pipelined()},
        both(in_gpu("semaphores", [{"init_value": 0}] * 17), looped(0, semaphore_ids=list(range(17)))),
        both(in_gpu("semaphores", [{"init_value": 0}] * 17), looped(0, semaphore_ids=list(range(1, 17)))),
    ),
    ("L08", pair, top("num_threads_per_block", 1056), top("num_threads_per_block", 512)),
    ("L08", pair, top("num_threads_per_block", 100), top("num_threads_per_block", 96)),
    ("L09", pair, blocks(105), blocks(104)),
    ("L10", pair, blocks(0), blocks(1)),
    ("Z01", pair, in_gpu("input_chunks", 0), same),
    ("Z02", pair, in_gpu("output_chunks", 3), same),
    ("Z02", shared, in_gpu("input_chunks", 3), same),
    ("Z03", pair, in_op(3, "src_buff", [here("o", 1, 2)]), in_op(3, "src_buff", [here("o", 0, 2)])),
    (
        "Z04",
        pair,
        both(top("min_message_size", 64), top("max_message_size", 32)),
        top("max_message_size", 64),
    ),
    ("Z05", pair, top("max_message_size", None), top("max_message_size", LARGE)),
    ("Z05", pair, top("max_message_size", LARGE + 1), same),
    ("Z05", packets, top("max_message_size", LARGE), top("max_message_size", 2_147_483_616)),
    (
        "Z06",
        pair,
        both(
            top("reuse_resources", True),
            *(in_gpu("scratch_chunks", 2, rank) for rank in range(2)),
            added(act("copy", [here("o", 0)], [here("s", 0)])),
        ),
        both(
            top("reuse_resources", True),
            top("max_message_size", 2**26),
            *(in_gpu("scratch_chunks", 2, rank) for rank in range(2)),
            added(act("copy", [here("o", 0)], [here("s", 0)])),
        ),
    ),
    ("Z06", pipelined, in_gpu("scratch_chunks", 3), same),
    ("Z07", pair, top("buffer_alignment", 8), top("buffer_alignment", 32)),
    ("Z08", pair, top("reuse_resources", True), same),
    (
        "Z08",
        pair,
        top("reuse_resources", True),
        both(
            top("reuse_resources", True),
            *(lambda plan, rank=rank: there_is(plan, rank).update(type="s") for rank in range(2)),
        ),
    ),
]


def examined(make: Callable[[], Plan], change: Change, **options: object) -> Diagnosis:
    plan = copy.deepcopy(make())
    change(plan)
    return diagnose(text(plan), "mscclpp", file="plan.json", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "make", "bad", "good"), PAIR, ids=[f"{rule}-{k}" for k, (rule, *_) in enumerate(PAIR)]
)
def test_rules(rule: str, make: Callable[[], Plan], bad: Change, good: Change) -> None:
    found = [finding for finding in examined(make, bad).findings if finding.rule == rule]
    assert found
    severity = {each.id: each.severity for each in rules_for("mscclpp")}[rule]
    assert {finding.severity for finding in found} == {severity}
    assert all(finding.path.startswith("$") and finding.line >= 1 and finding.fix for finding in found)
    assert rule not in {finding.rule for finding in examined(make, good).findings}


FIRST, SECOND, FOUR, SMALL = PRELOAD_SLOTS


def preloaded(slot: str = FIRST, **more: object) -> Plan:
    """An all-reduce that the preloaded library has nothing to say against."""
    first = PRELOAD_SLOTS[slot]
    nothing = block_of(0, [NOP])
    gpus = [gpu_of(rank, [nothing], (1, 1, 0)) for rank in range(first.ranks)]
    sizes = {"min_message_size": 1024, "max_message_size": 1024, "reuse_resources": True}
    return {**plan_of("allreduce", gpus), **sizes, "name": f"mine-{slot}", **more}


def near(kind: str, peer: int) -> Plan:
    """A plan in which GPU 0 has a channel to another."""
    found = preloaded()
    found["gpus"][0]["channels"] = [
        {"channel_type": "switch", "buffer_type": "i", "rank_groups": [{"size": 1, "ranks": [0, peer]}]}
        if kind == "switch"
        else {"channel_type": kind, "connected_to": [peer]}
    ]
    return found


# Rule, names and plans of files that break it, judged by the first, and of files that do not.
Files = dict[str, Plan]
FINE: Files = {FIRST: preloaded(), SECOND: preloaded(SECOND, min_message_size=2048, max_message_size=2048)}
PRELOADED: list[tuple[str, Files, Files]] = [
    ("P01", {"mine.json": preloaded()}, FINE),
    ("P02", {FOUR: preloaded()}, {FOUR: preloaded(FOUR)}),
    ("P02", {SMALL: preloaded(FOUR)}, {SMALL: preloaded(SMALL)}),
    ("P03", {FIRST: preloaded(collective="alltoall")}, {FIRST: preloaded(collective="allgather")}),
    ("P04", {**FINE, SMALL: preloaded(SMALL, inplace=False)}, FINE),
    ("P05", {FIRST: preloaded(collective="reducescatter")}, FINE),
    ("P05", {FIRST: preloaded(collective="reducescatter", inplace=False)}, FINE),
    ("P06", {**FINE, FOUR: preloaded(FOUR, name=FINE[FIRST]["name"])}, FINE),
    ("P06", {FIRST: preloaded(name="default_allreduce_packet")}, FINE),
    ("P07", {**FINE, SECOND: preloaded(SECOND)}, {**FINE, FOUR: preloaded(FOUR)}),
    ("P08", {FIRST: preloaded(min_message_size=0)}, FINE),
    ("P08", {FIRST: preloaded(max_message_size=2048)}, FINE),
    ("P09", {FIRST: near("memory", 8)}, {FIRST: near("memory", 7)}),
    ("P09", {FIRST: near("switch", 8)}, {FIRST: near("port", 8)}),
    ("P10", {FIRST: preloaded(reuse_resources=False)}, FINE),
]


@pytest.mark.parametrize(
    ("rule", "bad", "good"), PRELOADED, ids=[f"{rule}-{k}" for k, (rule, *_) in enumerate(PRELOADED)]
)
def test_rules_of_the_preloaded_library(tmp_path: Path, rule: str, bad: Files, good: Files) -> None:
    for place, (files, broken) in enumerate(((bad, True), (good, False))):
        folder = tmp_path / str(place) / PRELOAD_DIRECTORY
        folder.mkdir(parents=True)
        for name, content in files.items():
            (folder / name).write_bytes(text(content))
        judged = diagnose(folder / next(iter(files)), "mscclpp")
        assert (rule in {finding.rule for finding in judged.findings}) == broken
        told = {finding.rule for finding in judged.findings if finding.rule.startswith("P")}
        assert told == ({rule} if broken else set()) or rule in ("P02", "P05", "P09")
        assert all(finding.fix and finding.path.startswith("$") for finding in judged.findings)


def test_the_library_that_is_not_preloaded_has_no_such_rules(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(text(preloaded(min_message_size=0, reuse_resources=False)))
    assert not [found for found in diagnose(file, "mscclpp").findings if found.rule.startswith("P")]


def test_packets_of_scratch_memory_that_plans_share_may_go_by_ports() -> None:
    packed = {**across(), "protocol": "LL", "use_double_scratch_buffer": True, "reuse_resources": True}
    found = {}
    for letter in "so":
        change = both(in_op(3, "name", "ppkt"), in_op(3, "src_buff", [here(letter, 0)]))
        judged = examined(lambda: packed, change).findings
        found[letter] = {finding.severity for finding in judged if finding.rule == "O07"}
    assert found == {"s": {Severity.WARNING}, "o": {Severity.ERROR}}


def test_a_file_beside_it_that_is_no_plan_is_left_out(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(text(preloaded()))
    for broken in (b"{", b"[]"):
        (tmp_path / SECOND).write_bytes(broken)
        assert not diagnose(tmp_path / FIRST, "mscclpp").findings


def test_a_preloaded_plan_throws_where_a_size_is_no_multiple(tmp_path: Path) -> None:
    (tmp_path / FIRST).write_bytes(text(preloaded(max_message_size=2048)))
    sizes = dict(diagnose(tmp_path / FIRST, "mscclpp", sizes=(1024, 1032)).sizes)
    assert sizes == {
        1024: None,
        1032: "it is no positive multiple of 16 bytes (1 chunks of 16 bytes), and the call throws",
    }


def test_exported_plans_say_where_the_library_reads_them(tmp_path: Path) -> None:
    made = coppice.plan(coppice.load("dgx-a100", boxes=2), "all_reduce", trees=1)
    written = coppice.export(made, "mscclpp-json", tmp_path / FIRST, size="1M:1G")
    assert any(f"default/{FIRST}" in note for note in written.notes)
    judged = diagnose(tmp_path / FIRST, "mscclpp", ranks=16, sizes="1M:1G")
    assert judged.ok
    assert {finding.rule for finding in judged.findings} == {"P08", "P10"}
    other = coppice.plan(coppice.load("dgx-a100", boxes=1), "all_reduce")
    assert not any("default/" in note for note in coppice.export(other, "mscclpp-json").notes)


def test_every_rule_is_tested() -> None:
    ids = [rule.id for rule in rules_for("mscclpp")]
    assert ids == sorted(set(ids))
    assert {rule for rule, *_ in PAIR} | {rule for rule, *_ in PRELOADED} | {"Z09"} == set(ids)


def test_ranks_of_the_communicator_are_an_error_without_sizes_too() -> None:
    text = json.dumps(pair())
    found = diagnose(text, "mscclpp", ranks=8)
    assert [each.text for each in found.findings if each.rule == "Z09"] == [
        "the plan is for 2 ranks, the communicator has 8"
    ]
    assert not found.loads
    assert not [each for each in diagnose(text, "mscclpp", ranks=2).findings if each.rule == "Z09"]


@pytest.mark.parametrize("make", SAMPLES)
def test_samples_load(make: Callable[[], Plan]) -> None:
    diagnosis = examined(make, same)
    assert diagnosis.loads
    assert {finding.rule for finding in diagnosis.findings} <= {"O16", "Z05"}


def test_places_are_told() -> None:
    diagnosis = examined(pair, in_op(3, "src_buff", [here("o", 2)]))
    (finding,) = diagnosis.findings
    assert (finding.rule, finding.path) == ("Z03", "$.gpus[0].threadblocks[0].ops[3].src_buff[0]")
    plan = pair()
    in_op(3, "src_buff", [here("o", 2)])(plan)
    assert text(plan).decode().splitlines()[finding.line - 1].strip() == "{"
    with pytest.raises(
        CheckError, match=r"cannot use plan\.json:\d+ \$\.gpus\[0\]\.threadblocks\[0\]\.ops\[3\]"
    ):
        diagnosis.require_ok()


def test_sizes() -> None:
    sizes = (0, 16, 32, 48, 64, 1024, 2048)
    change = both(top("min_message_size", 64), top("max_message_size", 1024))
    reasons = dict(examined(pair, change, ranks=2, sizes=sizes).sizes)
    assert reasons[64] is reasons[1024] is None
    assert reasons[32] == "min_message_size is 64"
    assert reasons[2048] == "max_message_size is 1024"
    reasons = dict(examined(pair, top("max_message_size", None), sizes=(0, 16, 32, 48, 2**33)).sizes)
    assert reasons[32] is None
    assert reasons[48] == reasons[16] == reasons[0]
    assert reasons[48] == "it is no positive multiple of 32 bytes (2 chunks of 16 bytes)"
    assert reasons[2**33] == f"offsets above {LARGE} bytes do not fit into 32 bits"
    (reason,) = dict(examined(pair, same, ranks=8, sizes=(32,)).sizes).values()
    assert reason == "the plan is for 2 ranks, not 8"
    other = examined(pair, same, ranks=8, sizes=(32,))
    assert not other.loads
    with pytest.raises(CheckError, match="the plan is for 2 ranks, the communicator has 8"):
        other.require_ok()
    unused = examined(pair, change, ranks=2, sizes=(32,))
    assert unused.loads
    assert not unused.ok
    with pytest.raises(
        CheckError, match=r"would not use plan\.json at 1 of 1 sizes: at 32 bytes min_message_size is 64"
    ):
        unused.require_ok()
    with pytest.raises(InputError, match="expected sizes of 0 bytes or more"):
        examined(pair, same, sizes=(-1,))


def test_many_findings_of_a_rule_are_counted() -> None:
    diagnosis = examined(pair, in_block("ops", [{"name": "flush"}] * 30))
    assert diagnosis.hidden == {"O04": 10}


@pytest.mark.parametrize(
    "data", [b"[]", b"{}", b"null", b'{"gpus": 3}', b'{"gpus": [null, {"threadblocks": [4]}]}']
)
def test_strange_files_are_judged(data: bytes) -> None:
    assert not diagnose(data, "mscclpp").loads


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(pair()))
    assert diagnose(file, "mscclpp", ranks=2, sizes=(1024,)).ok
    with pytest.raises(InputError, match="is not JSON"):
        diagnose(b"<algo/>", "mscclpp")


def test_severities_come_first() -> None:
    diagnosis = examined(packets, both(top("use_double_scratch_buffer", False), in_block("id", 1)))
    assert [finding.severity for finding in diagnosis.findings] == sorted(
        (finding.severity for finding in diagnosis.findings), key=list(Severity).index
    )
