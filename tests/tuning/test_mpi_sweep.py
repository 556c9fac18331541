"""Sweeps of the MPI libraries beside the environment: choices take effect, results are right, sweeps go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coppice.cli.tune import app
from coppice.collectives import Collective
from coppice.doctor import JobFacts, diagnose
from coppice.errors import CheckError, InputError
from coppice.selection.tables import FUNCTIONS, SEGMENTED
from coppice.tuning.records import decode_runs, read_runs
from coppice.tuning.sweep import COLLECTIVES, sweep_mpi
from coppice.tuning.worker import Spec
from run.engines.mpi.launching import HOME, QUICK_LIBRARIES, environment, reason_to_skip, run_mpi

HERE = Path(__file__).parent
EXPECTED = {
    "open-mpi": {"all_reduce": "rabenseifner", "broadcast": "binomial", "all_to_all": "pairwise"},
    "mpich": {"all_reduce": "recursive_doubling", "broadcast": "binomial", "all_to_all": "pairwise"},
}


@pytest.fixture(params=["open-mpi", "mpich"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library that is there, with the variables by which it is found."""
    name: str = request.param
    reason = reason_to_skip(name)
    if reason:
        pytest.skip(reason)
    for key, value in environment(name).items():
        monkeypatch.setenv(key, value)
    return name


def launcher(library: str) -> str:
    return str(HOME / library / "bin" / "mpiexec")


def spec(library: str, output: Path, **fields: object) -> Spec:
    given = {"collectives": [Collective.ALL_REDUCE], "sizes": [4096], "rounds": 2, **fields}
    return Spec(library=library, output=str(output), **given)  # type: ignore[arg-type]


def test_every_algorithm_is_measured_and_right(library: str, tmp_path: Path) -> None:
    output = tmp_path / "runs.jsonl"
    sweep_mpi(
        spec(library, output, collectives=list(COLLECTIVES), sizes=[4096], segments=[1024]),
        ranks=3,
        launcher=launcher(library),
        timeout_s=100,
    )
    runs = read_runs([output])
    assert {run.collective for run in runs} == set(COLLECTIVES)
    assert all((run.library, run.nodes, run.ranks) == (library, 1, 3) for run in runs)
    assert all(run.refusal or (len(run.time_us) == 2 and run.paired and run.wrong == 0) for run in runs)
    for collective, algorithm in EXPECTED[library].items():
        names = {run.choice.algorithm for run in runs if run.collective == collective and not run.refusal}
        assert algorithm in names
        assert len(names) >= 4
    if library == "open-mpi":
        for collective, function in FUNCTIONS.items():
            in_segments = {
                run.choice.algorithm
                for run in runs
                if run.collective == collective and run.choice.segment_bytes
            }
            assert in_segments == set(SEGMENTED.get(function, ()))
    # Blocks are equal: of 4096 bytes, 3 ranks share 4092.
    assert {run.size_bytes for run in runs if run.collective is Collective.ALL_GATHER} == {4092}


def test_choices_take_effect(library: str) -> None:
    """The order of additions differs between algorithms, and with it the last bits; the default comes back."""
    names = {
        "open-mpi": ["default", "basic_linear", "recursive_doubling", "ring", "basic_linear"],
        "mpich": ["default", "recursive_doubling", "tree", "ring", "recursive_doubling"],
    }[library]
    done = run_mpi(library, 5, [str(HERE / "bits_worker.py"), library, "-", *names], timeout_s=60)
    assert done.returncode == 0, done.stderr
    default, first, second, third, first_again, default_again = json.loads(done.stdout)
    assert len({first, second, third}) == 3
    assert (first_again, default_again) == (first, default)


@pytest.mark.parametrize("library", QUICK_LIBRARIES, indirect=True)
def test_a_sweep_goes_on(library: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "runs.jsonl"
    sweep_mpi(spec(library, output, rounds=1), ranks=2, launcher=launcher(library), timeout_s=60)
    first = output.read_bytes()
    output.write_bytes(first + b'{"library":"cut o')
    capfd.readouterr()
    sweep_mpi(
        spec(library, output, rounds=1, sizes=[4096, 8192]), ranks=2, launcher=launcher(library), timeout_s=60
    )
    assert output.read_bytes().startswith(first)
    runs, whole = decode_runs(output.read_bytes(), file="runs")
    assert whole == output.stat().st_size
    assert {run.size_bytes for run in runs} == {4096, 8192}
    said = capfd.readouterr().out
    assert "8192 bytes" in said
    assert "4096 bytes" not in said


def test_another_library_is_refused(library: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Open MPI where MPICH was asked for; the other way round its launcher knows no option of ours."""
    if library == "mpich":
        with pytest.raises(CheckError, match="exit with"):
            sweep_mpi(spec("open-mpi", tmp_path / "r"), ranks=2, launcher=launcher(library), timeout_s=60)
        return
    options = ["--allow-run-as-root", "--oversubscribe"]
    with pytest.raises(CheckError, match="exit with 0"):
        sweep_mpi(
            spec("mpich", tmp_path / "r"), ranks=2, launcher=launcher(library), options=options, timeout_s=60
        )
    assert "expected mpich under mpi4py, found open-mpi" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--library", "openmpi", "-o", "r"], "expected --library open-mpi, mpich"),
        (["--library", "mpich"], "give `-o runs.jsonl`"),
        (["--library", "mpich", "-o", "r", "-c", "all_red"], "found 'all_red'"),
        (["--library", "mpich", "-o", "r", "-c", "barrier", "--num-ranks", "2"], "found barrier"),
        (["--library", "mpich", "-o", "r", "-b", "2K", "-e", "1K"], "at least -b"),
        (["--library", "mpich", "-o", "r"], "`ranks` of 2 or more"),
        (
            ["--library", "mpich", "-o", "r", "--num-ranks", "2", "--launcher", "/no/mpiexec"],
            "cannot start /no/mpiexec",
        ),
        (["--library", "mpich", "-o", "none/r", "--num-ranks", "2"], "expected a directory"),
    ],
)
def test_what_cannot_be_asked_for(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = CliRunner().invoke(app, ["sweep", *words])
    assert isinstance(found.exception, InputError)
    assert message in str(found.exception)
    assert not list(tmp_path.iterdir())


def test_fit_command(tmp_path: Path) -> None:
    from coppice.tuning.records import encode_run
    from support.tuning_made_runs import made_runs

    runs = made_runs({"ring": {1024: 0.5, 65536: 2.0}, "rabenseifner": {1024: 1.0, 65536: 1.5}})
    (tmp_path / "runs.jsonl").write_bytes(b"".join(map(encode_run, runs)))
    words = ["fit", str(tmp_path / "runs.jsonl"), "--topology", "star", "--set", "gpus=4"]
    shown = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "table.csv")])
    assert shown.exit_code == 0, shown.output
    assert "another choice than the default at 1 of 2 sizes" in shown.output
    assert "undo: unset OMPI_MCA_coll_tuned_use_dynamic_rules" in shown.output
    record = json.loads(CliRunner().invoke(app, [*words, "--json"]).output)
    assert [rule["choice"] for rule in record["rules"]] == [None, "ring"]
    assert record["rules"][1]["bound_share"] > 0


def workers(output: Path) -> list[str]:
    """Processes whose command line names the output."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(output) in command and "coppice.tuning.worker" in command:
                found.append(entry.name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("library", ["open-mpi", "mpich"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_rank_stays(library: str, how: signal.Signals, tmp_path: Path) -> None:
    reason = reason_to_skip(library)
    if reason:
        pytest.skip(reason)
    output = tmp_path / "runs.jsonl"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "coppice", "tune", "sweep", "--library", library, "--num-ranks", "2"),
            *("-b", "1K", "-e", "256M", "-f", "2", "-n", "5", "-o", str(output)),
            *("--launcher", str(HOME / library / "bin" / "mpiexec")),
        ],
        env={**os.environ, **environment(library)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 300
        while not output.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert output.exists()
        assert workers(output)
        process.send_signal(how)
        code = process.wait(300)
    finally:
        process.kill()
    assert code == (130 if how == signal.SIGINT else -signal.SIGKILL)
    deadline = time.monotonic() + 120
    while workers(output) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not workers(output)
    assert decode_runs(output.read_bytes(), file="runs")[0]


WORKER = str(Path(__file__).parent / "sentinel_worker.py")

# a rule that names algorithm 99 shows by an error that it is used: there is no such algorithm
FILES = [
    ("1\n2\n1\n2\n1\n0 99 0 0\n", "O03", "the rule"),
    ("1\n2\n1\n6\n1\n0 99 0 0\n", "O06", "the rule"),
    ("1\n2\n2\n8\n1\n0 0 0 0\n2\n1\n0 99 0 0\n", "O05", "own choice"),
    ("1\n2\n1\n2\n1\n0 99 0\n", "O01", "own choice"),
    ("1\n2\n1\n2\n1\n4 99 0 0\n", "O02", "own choice"),
    ("1\n2\n1\n2\n3\n0 0 0 0\n9 0 0 0\n4 99 0 0\n", "O04", "own choice"),
    ("1\n2\n2\n0\n1\n0 0 0 0\n010\n1\n0 99 0 0\n", "O12", "own choice"),
]


def test_rules_files_of_open_mpi(tmp_path: Path) -> None:
    """Every file is read by a run with 2 ranks; the doctor names the rule that explains it."""
    reason = reason_to_skip("open-mpi")
    if reason:
        pytest.skip(reason)
    path = tmp_path / "rules.conf"
    for text, rule, expected in FILES:
        path.write_text(text)
        variables = {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(path),
        }
        done = run_mpi("open-mpi", 2, [WORKER], timeout_s=60, variables=variables)
        assert done.stdout.strip() == expected, (text, done.stderr)
        found = diagnose(text.encode(), "ompi-rules", file="f", options=JobFacts(shapes=((1, 2),)))
        assert rule in {each.rule for each in found.findings}


@pytest.mark.parametrize(
    ("variable", "rule", "starts"),
    [
        ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring", "", True),
        ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=Ring", "M03", False),
        ("MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE=False", "M03", False),
        ("MPICH_ALLREDUCE_INTRA_ALGORITHM=rings", "M03", False),
        ("MPIR_CVAR_ALLREDUCE_ALGORITHM=rings", "M02", True),
    ],
)
def test_variables_of_mpich(variable: str, rule: str, starts: bool) -> None:
    reason = reason_to_skip("mpich")
    if reason:
        pytest.skip(reason)
    name, _, value = variable.partition("=")
    done = run_mpi("mpich", 2, [WORKER], timeout_s=60, variables={name: value})
    assert (done.returncode == 0) is starts, done.stderr
    found = diagnose(variable.encode(), "mpich-env", file="f", options=JobFacts(shapes=((1, 2),)))
    assert {each.rule for each in found.findings if each.severity.value == "error"} == ({rule} - {""})
