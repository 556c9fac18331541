"""Each rule about runs has the smallest files that trip it, and like ones that do not; public logs get their causes."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import coppice
from coppice import CheckError, InputError
from coppice.collectives import Collective
from coppice.diagnosis.recorded.compare import ComparedRuns, compare_runs
from coppice.diagnosis.recorded.examining import RunDiagnosis, examine
from coppice.diagnosis.recorded.message_rules import KNOWN_MESSAGES
from coppice.diagnosis.recorded.records import RUN_RULES, read_records
from coppice.doctor.framework import Severity
from coppice.logs.flight_recorder import unpickled
from support.paths import ROOT

CASES = ROOT.parent / "shared" / "cases"

Files = Mapping[str, Any]


def entry(
    number: int, operation: str = "all_reduce", *, state: str = "completed", **others: Any
) -> dict[str, Any]:
    return {
        "frames": [
            {"name": "all_reduce", "filename": "/opt/site-packages/torch/distributed/c10d.py", "line": 1},
            {"name": "step", "filename": "train.py", "line": 40 + number},
        ],
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": f"nccl:{operation}",
        "input_sizes": [[8]],
        "input_dtypes": ["Float"],
        "state": state,
        "is_p2p": False,
        **others,
    }


def dump(*entries: dict[str, Any], ranks: int = 2) -> bytes:
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(ranks)))}}
    return pickle.dumps({"version": "2.10", "pg_config": groups, "entries": list(entries)})


def table(
    times: Sequence[tuple[int, float]],
    *,
    ranks: int = 8,
    nodes: int = 1,
    wrong: int = 0,
    log: str = "",
    collective: str = "all_reduce",
) -> str:
    """Rows as nccl-tests prints them."""
    lines = [*log.splitlines(), f"# Collective test starting: {collective}_perf", "# Using devices"]
    each = ranks // nodes
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {100 + rank} on n{rank // each} device {rank % each} [0x0f] H100"
        for rank in range(ranks)
    ]
    lines.append(
        "#       size         count      type   redop    root" + 2 * "     time   algbw   busbw #wrong"
    )
    factor = float(Collective.named(collective).busbw_factor(ranks))
    for size, time in times:
        rate = size / time / 1000
        half = f"{time:12.3f} {rate:12.6f} {rate * factor:12.6f} {wrong:6d}"
        lines.append(f"{size:12d} {size // 4:12d}     float     sum      -1 {half} {half}")
    return "\n".join(lines) + "\n"


def inspected(
    times: Sequence[Sequence[float]], *, clock: str = "kernel_gpu", collective: str = "AllReduce"
) -> dict[str, str]:
    """A file of the inspector for each rank."""
    return {
        f"rank{rank}.log": "\n".join(
            json.dumps(
                {
                    "header": {"id": "0xa", "rank": rank, "n_ranks": len(times), "nnodes": 1},
                    "coll_perf": {
                        "coll": collective,
                        "coll_sn": number,
                        "coll_msg_size_bytes": 1 << 20,
                        "coll_exec_time_us": time,
                        "coll_timing_source": clock,
                    },
                }
            )
            for number, time in enumerate(own)
        )
        for rank, own in enumerate(times)
    }


def ras(counts: Sequence[int], *, missing: Sequence[int] = (), **status: Any) -> str:
    healthy = {"init_state": 0, "async_error": 0, "abort_flag": False}
    ranks = [
        {
            "rank": rank,
            "host": f"n{rank}",
            "pid": 100 + rank,
            "status": {**healthy, **(status if rank == 0 else {})},
            "collective_counts": {"AllReduce": count, "AllGather": 3},
        }
        for rank, count in enumerate(counts)
    ]
    gone = [
        {"rank": rank, "host": f"n{rank}", "pid": 100 + rank, "considered_dead": True} for rank in missing
    ]
    found = {"hash": "0xc", "size": len(ranks) + len(gone), "ranks": ranks, "missing_ranks": gone}
    return "OK\n" + json.dumps({"nccl_version": "2.28.7", "communicators": [found]}, indent=1)


def profile(waited: Mapping[tuple[int, int], Mapping[str, float]], *, calls: int = 8) -> str:
    """Events of a ring of four ranks with two channels: what each (rank, channel) waits for, us."""
    events: list[dict[str, Any]] = []
    at = 0.0
    draw = random.Random(1)
    for number in range(calls):
        for rank in range(4):
            args = {
                "SeqNum": number,
                "CommHash": 7,
                "Rank": rank,
                "Count": 1 << 18,
                "Datatype": "ncclFloat32",
            }
            events.append(
                {
                    "name": "AllReduce",
                    "cat": "COLL",
                    "ph": "b",
                    "id": number,
                    "pid": rank,
                    "ts": at,
                    "args": args,
                }
            )
            for channel in range(2):
                op = {"name": "Send", "cat": "PROXY", "id": channel, "pid": rank}
                args = {"Channel": channel, "Peer": (rank + 1) % 4, "Steps": 1, "transSize": 1_000_000}
                events.append({**op, "ph": "b", "ts": at, "args": args})
                waits = {"SendGpuWait": 10.0, "SendWait": 50.0, **waited.get((rank, channel), {})}
                for name, us in waits.items():
                    step = {"name": name, "cat": "NET", "id": 0, "pid": rank}
                    events.append({**step, "ph": "b", "ts": at, "args": {"Step": 0}})
                    at += us * draw.uniform(0.95, 1.05)
                    events.append({**step, "ph": "e", "ts": at})
                events.append({**op, "ph": "e", "ts": at})
            events.append(
                {"name": "AllReduce", "cat": "COLL", "ph": "e", "id": number, "pid": rank, "ts": at}
            )
    return "[\n" + ",\n".join(json.dumps(each) for each in events) + ",\n{}]"


def per_iteration(times: Sequence[float]) -> str:
    median = sorted(times)[len(times) // 2]
    half = {"time": median, "alg_bw": 1048.576 / median, "bus_bw": 1048.576 * 1.75 / median, "nwrong": 0}
    row = {
        "size": 1 << 20,
        "count": 1 << 18,
        "type": "float",
        "redop": "sum",
        "root": -1,
        "out_of_place": half,
        "in_place": half,
        "out_of_place_per_iter": {
            "skipped_iterations": 0,
            "min_us": min(times),
            "max_us": max(times),
            "p99_us": max(times),
            "cv_pct": 1.0,
            "times_us": list(times),
        },
    }
    return json.dumps({"args": ["all_reduce_perf"], "config": {}, "results": [row]})


def nccl(*lines: str, host: str = "n1", process: int = 7) -> str:
    return "".join(f"{host}:{process}:9 [0] NCCL {line}\n" for line in lines)


SIZES = [1 << k for k in range(16, 30)]
GROWING = [(size, 20 + size / 2e5) for size in SIZES]
FIRST_HALF = [1.0 + 0.01 * (k % 3) for k in range(20)]
LATE = [[100.0 + (k + r) % 3 for k in range(20)] for r in range(4)]
SPREAD = [[100.0 - 10 * ((k + r) % 4 == 0) for k in range(20)] for r in range(4)]
LATE[2] = [70.0] * 20
FORCED = "NCCL_ALGO set by environment to Ring."
COMM = "INFO comm 0xd0 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0"

MESSAGES = {
    "E01": (
        "WARN NET/IB: Got completion from peer 10.0.0.5<40283> with status=12 opcode=0 len=0 vendor err 129 hca mlx5_2",
        "WARN NET/IB: Got completion from peer 10.0.0.5<40283> with status=5 opcode=0 len=0 vendor err 249 hca mlx5_2",
    ),
    "E02": (
        "WARN NET/IB : mlx5_2:1 Got async event : port error",
        "WARN NET/IB : mlx5_2:1 Got async event : port active",
    ),
    "E03": (
        "WARN socketPollConnect: Connect to 10.0.0.5<40283> returned 113(No route to host) errno 115",
        "INFO Connected to proxy localRank 0",
    ),
    "E04": (
        "WARN Net : Connection closed by remote peer n2<5000>",
        "INFO Connection opened by remote peer n2<5000>",
    ),
    "E05": (
        "WARN Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888)",
        "INFO created shared memory segment /dev/shm/nccl-abc (size 9637888)",
    ),
    "E06": (
        "WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
        "WARN Call to ibv_reg_mr failed with error Bad address",
    ),
    "E07": (
        "WARN Cuda failure 2 'out of memory'",
        "WARN Cuda failure 700 'an illegal memory access was encountered'",
    ),
    "E08": (
        "WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1000",
        "INFO ranks 0 and 1 on CUDA devices 1000 and 2000",
    ),
    "E09": (
        "WARN Mismatched NCCL version detected : rank 0 22703 rank 1 22805",
        "INFO NCCL version 2.27.3+cuda12.9",
    ),
    "E10": ("WARN Bootstrap : no socket interface found", "INFO Bootstrap: Using eth0:10.0.0.5<0>"),
    "E11": (
        "WARN Call to ibv_modify_qp failed with error Connection timed out errno 110",
        "INFO Call to ibv_modify_qp took 110 us",
    ),
    "E12": (
        "INFO NET/IB : No device found.",
        "INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.5<0>",
    ),
}

WATCHDOG = (
    "[rank0]:[E1130 12:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=25, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600010 milliseconds\n"
    "[rank1]:[E1130 12:00:00.1 ProcessGroupNCCL.cpp:700] [PG ID 0 PG GUID 0(default_pg) Rank 1] failure detected, last "
    "enqueued work: 24, last completed work: 24\n"
)

TRIPS: dict[str, tuple[Files, Files]] = {
    "S01": (
        {
            "trace_rank_0": dump(entry(1), entry(2, state="started")),
            "trace_rank_1": dump(entry(1)),
        },
        {
            "trace_rank_0": dump(entry(1), entry(2, state="started")),
            "trace_rank_1": dump(entry(1), entry(2, state="started")),
        },
    ),
    "S02": (
        {"trace_rank_0": dump(entry(1)), "trace_rank_1": dump(entry(1, input_sizes=[[9]]))},
        {
            "trace_rank_0": dump(entry(1, "all_to_all")),
            "trace_rank_1": dump(entry(1, "all_to_all", input_sizes=[[9]])),
        },
    ),
    "S03": ({"ras.json": ras([5, 4, 5])}, {"ras.json": ras([5, 5, 5])}),
    "S04": ({"ras.json": ras([5, 5], missing=[2])}, {"ras.json": ras([5, 5, 5])}),
    "S05": ({"ras.json": ras([5, 5], async_error=3)}, {"ras.json": ras([5, 5])}),
    "S06": ({"job.log": WATCHDOG}, {"job.log": WATCHDOG.replace("caught", "checked")}),
    "W01": (inspected(LATE), inspected(SPREAD)),
    "W02": (
        {"events.json": profile({(1, 0): {"SendWait": 90.0}, (1, 1): {"SendWait": 90.0}})},
        {"events.json": profile({})},
    ),
    "W03": (
        {"events.json": profile({(2, 0): {"SendGpuWait": 60.0}, (2, 1): {"SendGpuWait": 60.0}})},
        {"events.json": profile({})},
    ),
    "V01": (
        {
            "job.log": nccl(f"INFO {FORCED}")
            + nccl(COMM, "INFO NCCL_PROTO set by environment to LL.", host="n2")
        },
        {
            "job.log": nccl(f"INFO {FORCED}")
            + nccl(f"INFO {FORCED}", "INFO NCCL_DEBUG_FILE set by environment to x.", host="n2")
        },
    ),
    "V02": (
        {
            "own.log": table(GROWING, log=nccl("INFO NCCL_DEBUG set by environment to INFO.")),
            "forced.log": table([(size, 1.4 * us) for size, us in GROWING], log=nccl(f"INFO {FORCED}")),
        },
        {
            "own.log": table(GROWING, log=nccl("INFO NCCL_DEBUG set by environment to INFO.")),
            "forced.log": table(
                [(size, us * (0.98 if k % 2 else 1.02)) for k, (size, us) in enumerate(GROWING)],
                log=nccl(f"INFO {FORCED}"),
            ),
        },
    ),
    "A01": (
        {"table.txt": table([*GROWING[:-2], *((size, 5 * us) for size, us in GROWING[-2:])])},
        {"table.txt": table(GROWING)},
    ),
    "A02": (
        {"table.txt": table([(1 << 30, 30_000.0)]), "--topology": "dgx-h100"},
        {"table.txt": table([(1 << 30, 4_000.0)]), "--topology": "dgx-h100"},
    ),
    "A03": (
        {"table.txt": table([(1 << 30, 4_000.0)]), "--topology": "dgx-a100"},
        {"table.txt": table([(1 << 30, 9_000.0)]), "--topology": "dgx-a100"},
    ),
    "A04": (
        {
            f"nodes{nodes}.txt": table([(1 << 30, us)], ranks=8 * nodes, nodes=nodes, collective="all_gather")
            for nodes, us in ((2, 25_100.0), (3, 51_500.0), (4, 26_000.0))
        },
        {
            f"nodes{nodes}.txt": table([(1 << 30, us)], ranks=8 * nodes, nodes=nodes, collective="all_gather")
            for nodes, us in ((2, 25_100.0), (3, 25_700.0), (4, 26_000.0))
        },
    ),
    "A05": (
        {"runs.json": per_iteration([100.0 if k % 5 else 220.0 for k in range(20)])},
        {"runs.json": per_iteration([100.0 + k % 5 for k in range(20)])},
    ),
    "A06": (
        {"runs.json": per_iteration([100.0 + k for k in range(20)])},
        {"runs.json": per_iteration([100.0 + (7 * k) % 20 for k in range(20)])},
    ),
    "A07": ({"table.txt": table(GROWING, wrong=2)}, {"table.txt": table(GROWING)}),
    "A08": (inspected(LATE, clock="collective_cpu"), inspected(LATE, clock="kernel_gpu")),
    "M01": (
        {
            "table.txt": table(GROWING, ranks=1).replace(
                "# Using devices\n",
                "# Using devices\n#  Rank  0 Group  0 Pid 9 on m0 device 0 [0x0f] H100\n# Using devices\n",
            )
        },
        {"table.txt": table(GROWING)},
    ),
    **{
        rule: ({"job.log": nccl(trips)}, {"job.log": nccl(passes)})
        for rule, (trips, passes) in MESSAGES.items()
    },
}


def examined(folder: Path, files: Files) -> RunDiagnosis:
    paths = []
    network = None
    for name, content in files.items():
        if name == "--topology":
            network = coppice.load(content)
            continue
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        paths.append(path)
    return examine(read_records(paths, topology=network))


def test_all_rules_are_here() -> None:
    assert {rule.id for rule in RUN_RULES} == TRIPS.keys()
    assert {each.rule for each in KNOWN_MESSAGES} == MESSAGES.keys()


@pytest.mark.parametrize("rule", sorted(TRIPS))
def test_a_rule_is_tripped_by_its_files_and_not_by_like_ones(rule: str, tmp_path: Path) -> None:
    trips, passes = TRIPS[rule]
    assert rule in {each.rule for each in examined(tmp_path, trips).findings}
    for path in tmp_path.iterdir():
        path.unlink()
    found = examined(tmp_path, passes)
    assert rule not in {each.rule for each in found.findings}, [each.text for each in found.findings]


def texts(found: RunDiagnosis, rule: str) -> list[str]:
    return [each.text for each in found.findings if each.rule == rule]


class TestHangs:
    def test_the_rank_that_stopped_is_named_with_its_last_call(self, tmp_path: Path) -> None:
        found = examined(tmp_path, TRIPS["S01"][0])
        (text,) = texts(found, "S01")
        assert text == (
            "rank 1 stopped after collective 1 of default_pg, others called 2 and wait in all_reduce; its last call: "
            "train.py:41 in step"
        )
        with pytest.raises(CheckError, match="rank 1 stopped after collective 1"):
            found.require_ok()

    def test_a_rank_that_waits_itself_is_not_where_it_began(self, tmp_path: Path) -> None:
        """Rank 1 waits in a group with rank 2, which stopped; rank 0 waits for rank 1 in another group."""
        groups = {"a": {"desc": "a", "ranks": "[0, 1]"}, "b": {"desc": "b", "ranks": "[1, 2]"}}

        def of(name: str, number: int, state: str) -> dict[str, Any]:
            return entry(number, state=state, process_group=(name, name), pg_id=name)

        for rank, entries in enumerate(
            (
                [of("a", 1, "completed"), of("a", 2, "started")],
                [of("a", 1, "completed"), of("b", 1, "completed"), of("b", 2, "started")],
                [of("b", 1, "completed")],
            )
        ):
            value = {"pg_config": groups, "entries": entries}
            (tmp_path / f"trace_rank_{rank}").write_bytes(pickle.dumps(value))
        found = examine(read_records(sorted(tmp_path.iterdir())))
        first, second = found.stopped
        assert (first.rank, first.group, first.waits_in) == (2, "b", "")
        assert (second.rank, second.group, second.waits_in) == (1, "a", "b")
        severities = [each.severity for each in found.findings if each.rule == "S01"]
        assert severities == [Severity.ERROR, Severity.NOTE]

    def test_ranks_without_a_dump_and_kernels_that_were_not_launched(self, tmp_path: Path) -> None:
        alone = examined(tmp_path, {"trace_rank_0": dump(entry(1, state="started"))})
        assert "rank 1 of default_pg left no dump" in texts(alone, "S01")[0]
        both = {
            "trace_rank_0": dump(entry(1, state="started")),
            "trace_rank_1": dump(entry(1, state="scheduled")),
        }
        assert "its GPU has not come to it" in texts(examined(tmp_path, both), "S01")[0]

    def test_dumps_as_json_say_the_same(self, tmp_path: Path) -> None:
        files = {
            name: json.dumps(unpickled(data, file=name)).encode() for name, data in TRIPS["S01"][0].items()
        }
        assert texts(examined(tmp_path, files), "S01") == texts(examined(tmp_path, TRIPS["S01"][0]), "S01")

    def test_recorder_of_this_torch(self, tmp_path: Path) -> None:
        """Dumps of the flight recorder that is installed are read: a group of one rank."""
        distributed = pytest.importorskip("torch.distributed")
        dumped = getattr(pytest.importorskip("torch")._C._distributed_c10d, "_dump_fr_trace", None)
        if dumped is None or distributed.is_initialized():
            pytest.skip("this PyTorch does not dump its recorder")
        (tmp_path / "trace_rank_0").write_bytes(dumped())
        assert read_records([tmp_path / "trace_rank_0"]).recordings[0].rank == 0

    def test_the_missing_comma_of_ras(self, tmp_path: Path) -> None:
        text = ras([5, 5], missing=[2]).replace('"host": "n2",', '"host": "n2"')
        assert texts(examined(tmp_path, {"ras.json": text}), "S04") == [
            "rank 2 (process 102 on n2) of communicator 0xc is considered dead"
        ]

    def test_watchdogs_name_the_rank_that_did_not_call(self, tmp_path: Path) -> None:
        found = examined(tmp_path, TRIPS["S06"][0])
        assert texts(found, "S06") == [
            "rank 0 gave up collective 25 (allreduce) after its timeout; rank 1 had not called it"
        ]


class Trap:
    """What a hostile pickle would make."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("called",))


class TestPickles:
    @pytest.mark.parametrize(
        "value", [Trap(), {"entries": [Trap()]}, Path("x"), {1, 2}.__class__.__mro__[0], 1j, Severity.ERROR]
    )
    def test_nothing_but_plain_containers_is_made(
        self, value: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "trace_rank_0"
        for protocol in (2, 3, 4, 5):
            path.write_bytes(pickle.dumps(value, protocol=protocol))
            with pytest.raises(InputError, match="expected a pickle of plain containers"):
                read_records([path])
        assert capsys.readouterr().out == ""

    def test_torn_pickles_are_refused_in_a_sentence(self) -> None:
        data = TRIPS["S01"][0]["trace_rank_0"]
        draw = random.Random(3)
        for _ in range(300):
            broken = bytearray(data[: draw.randrange(4, len(data))] + b".")
            broken[draw.randrange(2, len(broken))] = draw.randrange(256)
            with suppress(InputError):
                unpickled(bytes(broken), file="x")


class TestRates:
    def test_waiting_is_told_by_kernels_alone(self, tmp_path: Path) -> None:
        found = examined(tmp_path, inspected(LATE))
        assert [(each.rank, each.last, each.calls) for each in found.late if each.sure] == [(2, 20, 20)]
        assert "rank 2 came last into 20 of 20 collectives" in texts(found, "W01")[0]
        assert examined(tmp_path, inspected(LATE, clock="collective_cpu")).late == ()

    def test_equal_ranks_are_seldom_blamed(self, tmp_path: Path) -> None:
        draw = random.Random(5)
        for trial in range(40):
            times = [[draw.gauss(100, 5) for _ in range(12)] for _ in range(4)]
            assert not [each for each in examined(tmp_path, inspected(times)).late if each.sure], trial

    def test_models_are_named(self, tmp_path: Path) -> None:
        found = examined(tmp_path, TRIPS["A02"][0])
        (rate,) = found.rates
        assert rate.least_model == "bound of dgx-h100 with switches that copy and add"
        assert rate.library_model.startswith("NCCL 2.")
        assert rate.share_of_optimum == pytest.approx(0.0795, abs=1e-3)

    def test_groups_on_a_part_of_the_network(self, tmp_path: Path) -> None:
        files = {"table.txt": table([(1 << 30, 9_000.0)], ranks=4), "--topology": "dgx-a100"}
        (rate,) = examined(tmp_path, files).rates
        whole = coppice.bound(coppice.load("dgx-a100"), "all_reduce")
        assert rate.least_us is not None
        assert rate.least_us < (1 << 30) / float(whole.algbw_gb_per_s) / 1000

    def test_the_profiler_tells_times(self, tmp_path: Path) -> None:
        (rate,) = examined(tmp_path, TRIPS["W02"][1]).rates
        assert (rate.collective, rate.ranks, rate.size_bytes, rate.calls) == (
            Collective.ALL_REDUCE,
            4,
            1 << 20,
            8,
        )

    def test_spikes_have_their_period(self, tmp_path: Path) -> None:
        assert (
            "4 of 20 iterations take 2.2 times the median of 100 us, every 5 iterations"
            in texts(examined(tmp_path, TRIPS["A05"][0]), "A05")[0]
        )


def compared(folder: Path, old: Sequence[str], new: Sequence[str]) -> ComparedRuns:
    sides = []
    for name, contents in (("old", old), ("new", new)):
        paths = []
        for place, content in enumerate(contents):
            paths.append(folder / f"{name}{place}.txt")
            paths[-1].write_text(content)
        sides.append(read_records(paths))
    return compare_runs(*sides)


def noisy(
    draw: random.Random, *, share: float = 0.02, slower: float = 1.0, some: Sequence[int] = SIZES
) -> str:
    whole = draw.gauss(1, 0.004)
    times = [
        (size, us * whole * draw.gauss(1, share) * (slower if size in some else 1.0)) for size, us in GROWING
    ]
    return table(times)


class TestComparison:
    def test_equal_runs_are_equal(self, tmp_path: Path) -> None:
        draw = random.Random(7)
        alarms = sum(bool(compared(tmp_path, [noisy(draw)], [noisy(draw)]).regressions) for _ in range(60))
        assert alarms <= 2

    @pytest.mark.parametrize(("share", "slower"), [(0.01, 1.3), (0.03, 2.2)])
    def test_one_slower_size_is_found(self, share: float, slower: float, tmp_path: Path) -> None:
        draw = random.Random(8)
        for _ in range(10):
            old, new = noisy(draw, share=share), noisy(draw, share=share, slower=slower, some=SIZES[5:6])
            found = compared(tmp_path, [old], [new])
            assert {each.size_bytes for each in found.regressions} == {SIZES[5]}

    def test_all_sizes_a_little_slower(self, tmp_path: Path) -> None:
        draw = random.Random(9)
        hits = sum(
            bool(compared(tmp_path, [noisy(draw)], [noisy(draw, slower=1.08)]).regressions) for _ in range(20)
        )
        assert hits >= 18

    def test_repeated_runs_tell_the_noise(self, tmp_path: Path) -> None:
        draw = random.Random(10)
        old, new = ([noisy(draw, share=0.03, slower=slower) for _ in range(4)] for slower in (1.0, 1.0))
        found = compared(tmp_path, old, new)
        assert found.noise_from == "repeated runs"
        assert found.noise == pytest.approx(0.03, abs=0.01)
        assert not found.regressions

    def test_it_says_what_changed(self, tmp_path: Path) -> None:
        log = nccl("INFO NCCL version 2.27.7+cuda12.9", COMM)
        old = table(GROWING, log=log)
        new = table(
            [(size, 1.5 * us) for size, us in GROWING],
            log=log.replace("2.27.7", "2.28.3") + nccl(f"INFO {FORCED}"),
        )
        found = compared(tmp_path, [old], [new])
        assert found.changes == ("version 2.27.7 -> 2.28.3", "NCCL_ALGO not set -> Ring")
        with pytest.raises(CheckError, match=r"at 1\.5 times its old time .*2\.27\.7 -> 2\.28\.3"):
            found.require_ok()

    def test_wrong_values_are_no_upgrade(self, tmp_path: Path) -> None:
        with pytest.raises(CheckError, match="wrong ones more than before"):
            compared(tmp_path, [table(GROWING)], [table(GROWING, wrong=1)]).require_ok()

    def test_nothing_in_common(self, tmp_path: Path) -> None:
        with pytest.raises(InputError, match="none in common"):
            compared(tmp_path, [table(GROWING[:2])], [table(GROWING[2:])])


@pytest.mark.skipif(not CASES.is_dir(), reason="the cases beside the checkout are absent")
class TestPublicLogs:
    """Logs that people posted, with causes that are known."""

    def read(self, *names: str) -> RunDiagnosis:
        return examine(read_records([CASES / name for name in names], collective=Collective.ALL_REDUCE))

    def test_rates_collapse_at_64_mb(self) -> None:
        found = self.read("01-rows-torn-by-tuning-log/all_reduce_3x8_h100.log")
        assert texts(found, "A01") == [
            "all_reduce of 24 ranks on 3 nodes: from 64M on 2.748 GB/s, at 32M still 15.03"
        ]

    @pytest.mark.parametrize("name", ["all_reduce_2x1_v100", "all_reduce_2x8_h800", "all_reduce_mixed_rows"])
    def test_several_runs_in_one_file(self, name: str) -> None:
        found = self.read(f"02-two-runs-in-one-file/{name}.txt")
        assert "build nccl-tests with MPI=1" in texts(found, "M01")[0]
