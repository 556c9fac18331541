"""Sweeps through nccl-tests, played by a program that prints what they print."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coppice.cli.tune import app
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.tuning.fit import fit_runs
from coppice.tuning.nccl_sweep import NcclSpec, choices_of, sweep_nccl
from coppice.tuning.records import LibraryChoice, read_runs


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NcclSpec:
    """A sweep of two sizes by the fake program."""
    fake = Path(__file__).parent / "fake_perf.py"
    for name in ("all_reduce_perf", "broadcast_perf"):
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\n{fake.read_text()}")
        program.chmod(0o755)
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    return NcclSpec(
        library="nccl",
        collectives=(Collective.ALL_REDUCE,),
        first_bytes=1024,
        last_bytes=65536,
        factor=64,
        rounds=2,
        output=tmp_path / "runs.jsonl",
        programs=tmp_path,
    )


def asked(spec: NcclSpec) -> list[str]:
    return (spec.programs / "log").read_text().splitlines()


def test_every_choice_beside_the_default(spec: NcclSpec) -> None:
    sweep_nccl(spec)
    runs = read_runs([spec.output])
    choices = choices_of(spec, Collective.ALL_REDUCE)
    assert {run.choice for run in runs} == set(choices)
    assert LibraryChoice("tree", "ll128") not in choices  # forced by a variable, it may corrupt data
    assert all((run.library, run.version, run.nodes, run.ranks) == ("nccl", "2.27.7", 2, 4) for run in runs)
    assert {run.size_bytes for run in runs} == {1024, 65536}
    refused = {run.choice.algorithm for run in runs if run.refusal}
    assert refused == {"collnet_direct"}
    assert "invalid usage" in next(run.refusal for run in runs if run.refusal)
    assert all(len(run.time_us) == len(run.default_us) == 2 for run in runs if not run.refusal)
    assert asked(spec)[:2] == ["all_reduce_perf None None - -", "all_reduce_perf Tree LL - -"]
    # What the library refuses is not asked for again.
    assert sum("CollNetDirect" in line for line in asked(spec)) == 1


def test_the_table_as_the_switch(spec: NcclSpec) -> None:
    sweep_nccl(replace(spec, rounds=1, plugin="/lib/plugin.so"))
    assert {"all_reduce_perf tree ll - /lib/plugin.so", "all_reduce_perf ring ll128 - /lib/plugin.so"} <= set(
        asked(spec)
    )
    rccl = replace(
        spec, library="rccl", plugin="builtin", rounds=1, output=spec.output.with_name("r"), channels=(8,)
    )
    sweep_nccl(rccl)
    assert {str(run.choice) for run in read_runs([rccl.output])} >= {"ring ll128", "tree simple 8 channels"}
    assert "/lib/plugin.so" not in asked(spec)[-1]


def test_channels_by_variables(spec: NcclSpec) -> None:
    sweep_nccl(replace(spec, rounds=1, channels=(4,)))
    assert "all_reduce_perf Ring Simple 4 -" in asked(spec)


def test_fitted(spec: NcclSpec) -> None:
    sweep_nccl(replace(spec, rounds=11))
    found = fit_runs(read_runs([spec.output]))
    assert [rule.choice for rule in found.rules] == [LibraryChoice("tree", "ll"), None]
    (sizes,) = found.sizes.values()
    assert "nvls" not in {
        candidate.choice.algorithm for candidate in sizes[0].candidates
    }  # its results are wrong


def test_a_sweep_goes_on(spec: NcclSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_STOP", "5")
    with pytest.raises(CheckError, match="default of all_reduce did not run: exit code 1 killed"):
        sweep_nccl(replace(spec, rounds=11))
    kept = [run for run in read_runs([spec.output]) if not run.refusal]
    assert len({run.choice for run in kept}) == 4
    with spec.output.open("ab") as file:
        file.write(b'{"cut')
    monkeypatch.delenv("FAKE_STOP")
    (spec.programs / "log").unlink()
    sweep_nccl(replace(spec, rounds=1))
    again = {tuple(line.split()[1:3]) for line in asked(spec)}
    assert ("Tree", "LL") not in again  # measured before it was stopped
    assert ("NVLS", "Simple") in again  # failed when it was stopped
    assert sum(not run.refusal for run in read_runs([spec.output])) == 2 * (
        len(choices_of(spec, kept[0].collective)) - 1
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"collectives": (Collective.ALL_TO_ALL,)}, "found all_to_all"),
        ({"programs": Path("/none")}, "`tests=DIR`"),
        ({"channels": (200,)}, "channels of 1 to 127"),
        ({"rounds": 0}, "a round at least"),
        ({"launcher": "/no/launcher -np 4"}, "cannot start /no/launcher"),
    ],
)
def test_what_cannot_be_asked_for(spec: NcclSpec, change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        sweep_nccl(replace(spec, **change))  # type: ignore[arg-type]
    assert not spec.output.exists()


def test_command(spec: NcclSpec) -> None:
    words = ["sweep", "-l", "nccl", "-b", "1K", "-e", "64K", "-f", "64", "-n", "1", "-o", str(spec.output)]
    found = CliRunner().invoke(app, [*words, "--tests", str(spec.programs), "--launcher", "env A=b"])
    assert found.exit_code == 0, found.output
    assert "all_reduce by tree ll, round 1: 2 sizes" in found.output
    assert "undo: unset NCCL_TUNER_PLUGIN" in found.output
    found = CliRunner().invoke(app, words)
    assert "--tests DIR" in str(found.exception)


def test_several_runs_in_one_output_are_no_times(spec: NcclSpec) -> None:
    """As where a launcher starts programs that were built without MPI: each prints a table of its own."""
    twice = replace(spec, launcher="""sh -c '"$@"; "$@"' twice""")
    with pytest.raises(CheckError, match=r"the default of all_reduce did not run: .* has a size twice"):
        sweep_nccl(twice)
