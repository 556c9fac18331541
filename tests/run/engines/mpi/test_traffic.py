"""What Open MPI sends for each of its algorithms is what our schedule of the same algorithm sends, byte for byte.

The library counts bytes and messages between all pairs of ranks itself. One start serves many calls.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from coppice.errors import InputError
from coppice.run.lab.blueprint import draw
from coppice.run.lab.launch import launch_mpi
from coppice.run.lab.namespaces import build, remove
from coppice.selection import tables_of
from run.engines.mpi.launching import HOME, environment, reason_to_skip, run_mpi
from run.engines.mpi.networks import NAME, mesh, reason_to_skip_network
from support.benchmark_scripts import BENCHMARKS, load_benchmark

table = load_benchmark("mpi_traffic")
ELEMENT_BYTES, FUNCTIONS, Call = table.ELEMENT_BYTES, table.FUNCTIONS, table.Call
Traffic, schedule_of, traffic_of = table.Traffic, table.schedule_of, table.traffic_of

WORKER = str(Path(__file__).with_name("traffic_worker.py"))
BESIDE = {"PYTHONPATH": str(BENCHMARKS)}

reason = reason_to_skip("open-mpi")
needs_open_mpi = pytest.mark.skipif(reason is not None, reason=str(reason))


def calls_among(ranks: int, *, blocks: tuple[int, ...]) -> list[Call]:
    """Every algorithm with every root of interest, at M of ``ranks`` times so many elements, and with segments."""
    found = []
    for function, (collective, algorithms) in FUNCTIONS.items():
        for number, forced in algorithms.items():
            if function == "allgatherv" or (forced.name == "two-proc") != (ranks == 2):
                continue
            for root in sorted({0, 1, ranks - 1}) if collective.rooted else (0,):
                plain = Call(function=function, number=number, root=root)
                sizes = (0,) if function == "barrier" else blocks
                found += [dataclasses.replace(plain, elements=ranks * block) for block in sizes]
                if forced.segmented is not None:
                    segment = blocks[0] * ELEMENT_BYTES // 4
                    found.append(
                        dataclasses.replace(plain, elements=ranks * blocks[0], segment_bytes=segment)
                    )
    return found


def monitored(calls: list[Call], ranks: int, directory: Path, *options: str) -> list[Traffic]:
    """What Open MPI counts in each call."""
    given, found = directory / "calls.json", directory / "found.json"
    given.write_text(json.dumps([dataclasses.asdict(call) for call in calls]))
    done = run_mpi(
        "open-mpi",
        ranks,
        [WORKER, str(given), str(found)],
        options=(*table.MONITORED, *options),
        variables=BESIDE,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return [
        Traffic(size_bytes=np.array(size_bytes), messages=np.array(messages))
        for size_bytes, messages in json.loads(found.read_text())
    ]


def check_equal(calls: list[Call], theirs: list[Traffic], ranks: int) -> None:
    """Same bytes everywhere, and the same messages but for what is noted."""
    wrong = []
    for call, their in zip(calls, theirs, strict=True):
        ours = traffic_of(schedule_of(call, ranks), call.elements, ELEMENT_BYTES)
        to_itself = np.diag(their.size_bytes)
        if (to_itself > 0).any():
            assert (call.function, call.number) == ("alltoallv", 2)
        if not np.array_equal(ours.size_bytes, their.size_bytes - np.diag(to_itself)):
            wrong.append((call, "bytes", ours.size_bytes.tolist(), their.size_bytes.tolist()))
        noted = FUNCTIONS[call.function][1][call.number].note
        if noted is None and not np.array_equal(ours.messages, their.messages):
            wrong.append((call, "messages", ours.messages.tolist(), their.messages.tolist()))
        if noted is not None:
            assert (their.messages >= ours.messages).all()
            assert their.messages.sum() > ours.messages.sum() or ranks < 4, (
                call,
                "the note is no longer true",
            )
    assert not wrong, "\n".join(map(str, wrong))


@needs_open_mpi
@pytest.mark.parametrize(
    "ranks", [3, *(pytest.param(ranks, marks=pytest.mark.slow) for ranks in (2, 4, 5, 6, 7, 8))]
)
def test_every_algorithm_sends_what_our_schedule_sends(ranks: int, tmp_path: Path) -> None:
    calls = calls_among(ranks, blocks=(16, 24 * 1024))
    check_equal(calls, monitored(calls, ranks, tmp_path), ranks)


@needs_open_mpi
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 5])
@pytest.mark.parametrize("number", [1, 2, 3, 4, 6])
def test_allgatherv(ranks: int, number: int, tmp_path: Path) -> None:
    """The launcher alone chooses its algorithm, so that each takes a start."""
    calls = [Call(function="allgatherv", number=number, elements=ranks * block) for block in (16, 24 * 1024)]
    option = ("--mca", "coll_tuned_allgatherv_algorithm", str(number))
    check_equal(calls, monitored(calls, ranks, tmp_path, *option), ranks)


@needs_open_mpi
def test_uneven_blocks_differ_by_a_few_elements(tmp_path: Path) -> None:
    """Whole buffers are equal; blocks of a buffer that does not divide are cut a little differently."""
    ranks = 5
    calls = [
        Call(function=function, number=number, elements=1003)
        for function in ("allreduce", "bcast", "reduce")
        for number in FUNCTIONS[function][1]
    ]
    cut = {
        "ring",
        "segmented-ring",
        "rabenseifner",
        "split-binary",
        "scatter-allgather",
        "scatter-ring-allgather",
    }
    for call, their in zip(calls, monitored(calls, ranks, tmp_path), strict=True):
        ours = traffic_of(schedule_of(call, ranks), call.elements, ELEMENT_BYTES)
        assert np.array_equal(ours.messages, their.messages), call
        apart = np.abs(ours.size_bytes - their.size_bytes)
        blocks = ranks if FUNCTIONS[call.function][1][call.number].name in cut else 0
        assert (apart <= blocks * their.messages * ELEMENT_BYTES).all(), (call, apart)
        assert ours.size_bytes.sum() == their.size_bytes.sum() or blocks


@needs_open_mpi
def test_without_counters_the_launcher_is_told_how(tmp_path: Path) -> None:
    (tmp_path / "calls.json").write_text("[]")
    command = [WORKER, str(tmp_path / "calls.json"), str(tmp_path / "found.json")]
    done = run_mpi("open-mpi", 1, command, variables=BESIDE)
    assert done.returncode != 0
    assert "mpirun --mca pml_monitoring_enable 1" in done.stderr


def test_names_are_those_of_the_decision_tables() -> None:
    """The table of a library's choices and the one of its traffic name the same algorithms."""
    tables = tables_of("open-mpi")
    for function, (collective, algorithms) in FUNCTIONS.items():
        entry = tables.functions[function]
        assert entry.performs is collective
        named = {each.id: each.ours for each in entry.algorithms.values() if each.id is not None}
        for number, forced in algorithms.items():
            assert named[number] == forced.name, (function, number)


def test_what_no_library_has_is_named() -> None:
    with pytest.raises(InputError, match="'scan'"):
        schedule_of(Call(function="scan", number=1), 4)
    with pytest.raises(InputError, match=r"1 \.\. 6 of allreduce, found 9"):
        schedule_of(Call(function="allreduce", number=9), 4)
    with pytest.raises(InputError, match="exactly 2 ranks"):
        traffic_of(schedule_of(Call(function="allgather", number=6), 3), 6)


def test_rows_of_a_step_are_one_message() -> None:
    call = Call(function="allgather", number=3, elements=8)
    traffic = traffic_of(schedule_of(call, 4), 8, ELEMENT_BYTES)
    assert traffic.size_bytes.tolist() == [[0, 8, 16, 0], [8, 0, 0, 16], [16, 0, 0, 8], [0, 16, 8, 0]]
    assert traffic.messages.tolist() == [[0, 1, 1, 0], [1, 0, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]]


traffic, mpich_table = load_benchmark("mpi_traffic"), load_benchmark("mpich_traffic")
MPICH, schedule_of_mpich = mpich_table.MPICH, mpich_table.schedule_of_mpich

WITHIN = 0.02

mpich_reason = reason_to_skip_network("mpich")
needs_lab = pytest.mark.skipif(mpich_reason is not None, reason=str(mpich_reason))


@needs_lab
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [4, 5, 8])
def test_every_algorithm_of_mpich_sends_what_our_schedule_sends(ranks: int, tmp_path: Path) -> None:
    elements = (1 << 20) // ranks * ranks
    calls = [
        (function, algorithm, elements, root)
        for function, (collective, algorithms) in MPICH.items()
        for algorithm, forced in algorithms.items()
        if not forced.powers_only or not ranks & (ranks - 1)
        for root in ((0, 1) if collective.rooted else (0,))
    ]
    given, found = tmp_path / "calls.json", tmp_path / "found.json"
    given.write_text(json.dumps(calls))
    worker = str(Path(__file__).with_name("mpich_traffic_worker.py"))
    lab = build(NAME, draw(mesh(ranks), Fraction(1)))
    try:
        launch_mpi(
            lab,
            "mpich",
            [sys.executable, worker, str(given), str(found)],
            launcher=str(HOME / "mpich" / "bin" / "mpiexec"),
            environment={
                **environment("mpich"),
                "MPIR_CVAR_DEVICE_COLLECTIVES": "none",
                "PYTHONPATH": str(BENCHMARKS),
            },
            timeout_s=240,
        )
    finally:
        remove(NAME)
    wrong = []
    for (function, algorithm, _, root), row in zip(calls, json.loads(found.read_text()), strict=True):
        theirs = np.array(row)
        ours = traffic.traffic_of(
            schedule_of_mpich(function, algorithm, ranks, root), elements, traffic.ELEMENT_BYTES
        ).size_bytes
        follows = MPICH[function][1][algorithm].follows(ranks)
        most = WITHIN * ours.max()
        # Where no message goes, TCP's answers do, about a hundredth of what they answer to, and connections are made.
        carries = theirs > most
        total, rest = theirs[carries].sum() / ours.sum(), theirs[~carries].sum() / ours.sum()
        if (np.abs(theirs - ours) > most).any() if follows else max(abs(total - 1), rest) > WITHIN:
            wrong.append((function, algorithm, root, ours.tolist(), theirs.tolist()))
    assert not wrong, "\n".join(map(str, wrong))


def test_names_of_mpich_are_those_of_its_tables() -> None:
    """What the library may pick by itself is here under the same name, as the same algorithm."""
    tables = tables_of("mpich")
    for function, (collective, algorithms) in MPICH.items():
        entry = tables.functions[function]
        assert entry.performs is collective
        for name, picked in entry.algorithms.items():
            if name in algorithms:
                assert algorithms[name].name == picked.ours, (function, name)


def test_what_mpich_has_not_is_named() -> None:
    with pytest.raises(InputError, match="'sparbit' of 'allgather': choose one of brucks, k_brucks"):
        schedule_of_mpich("allgather", "sparbit", 4)
    with pytest.raises(InputError, match="power of two of ranks, found 6"):
        schedule_of_mpich("allgather", "recursive_doubling", 6)
    assert mpich_table.algorithm_variable("bcast") == "MPIR_CVAR_BCAST_INTRA_ALGORITHM"
