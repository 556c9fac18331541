"""From measurements of puts to the file that the torch backend reads: what is measured, fitted, exported, refused."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coppice.cli.tune import app
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.run.engines.put_signal.engine import PutSignalEngine
from coppice.run.engines.put_signal.opening import DEVICE_VARIABLE
from coppice.run.planned import AlgorithmRule, AlgorithmRules, decode_rules, encode_rules, read_rules
from coppice.topology.presets import preset
from coppice.tuning.exports import export_table
from coppice.tuning.fit import fit_runs
from coppice.tuning.put_signal_sweep import sweep_put_signal
from coppice.tuning.records import read_runs
from coppice.tuning.table import RuleTable
from support.emulated_groups import on_emulated_device
from support.rank_processes import rank_codes
from support.tuning_made_runs import made_runs

SIZES = [1 << power for power in (10, 12, 14, 16, 18, 20)]
WORKER = Path(__file__).parents[1] / "support" / "emulated_ranks.py"


def test_rules_between_and_beyond_the_measured_sizes(tmp_path: Path) -> None:
    """Ranges meet at the geometric mean and end half a step beyond; a loss keeps the library's own."""
    runs = made_runs(
        {
            "forest": dict(zip(SIZES, (0.5, 0.5, 0.9, 1.5, 2.0, 2.0), strict=True)),
            "ring": dict(zip(SIZES, (0.5, 1.6, 1.6, 1.1, 0.9, 0.9), strict=True)),
        },
        library="put-signal",
    )
    table = RuleTable.of(fit_runs(runs))
    made = export_table(table, "put-signal-rules")
    assert made.notes[-1] == "undo: unset COPPICE_TUNING"
    path = tmp_path / "rules.json"
    path.write_text(made.text)
    rules = read_rules(path)
    nodes, ranks = runs[0].nodes, runs[0].ranks

    def chosen(size: int, collective: Collective = runs[0].collective, **other: int) -> str | None:
        return rules.choice(collective, **{"nodes": nodes, "ranks": ranks, "size_bytes": size, **other})

    assert [chosen(size) for size in SIZES] == [None, "ring", "ring", "forest", "forest", "forest"]
    edges = [1 << 11, (1 << 11) + 1, 1 << 15, (1 << 15) + 1, 1 << 21, (1 << 21) + 1]
    assert [chosen(size) for size in edges] == [None, "ring", "ring", "forest", "forest", None]
    assert chosen(1 << 14, nodes=nodes + 1) is chosen(1 << 14, ranks=2 * ranks) is None
    assert chosen(1 << 14, Collective.GATHER) is None


def test_a_file_that_is_edited_wrongly_is_refused() -> None:
    rule = AlgorithmRule(
        collective=Collective.BROADCAST, nodes=1, ranks=2, first_bytes=1, last_bytes=9, algorithm="ring"
    )
    right = AlgorithmRules(rules=(rule,))
    assert decode_rules(encode_rules(right).encode(), file="f") == right
    for text, words in (
        ("{", "f holds no rules for puts and signals"),
        (encode_rules(right).replace("broadcast", "brodcast"), "f holds no rules"),
        (
            encode_rules(right).replace('"version": 1', '"version": 2'),
            "expected coppice-put-signal-rules of version 1",
        ),
        (
            encode_rules(right).replace('"last_bytes": 9', '"last_bytes": 0'),
            "expected sizes from a first to a last",
        ),
        (encode_rules(AlgorithmRules(rules=(rule, rule))), "expected ranges that do not overlap in f"),
    ):
        with pytest.raises(InputError, match=words):
            decode_rules(text.encode(), file="f")


def test_a_sweep_on_the_emulated_device_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"

    def sweep(algorithms: list[str], sizes: list[int], said: list[str]) -> None:
        def work(engine: PutSignalEngine) -> None:
            engine.native = lambda *_, **__: None  # type: ignore[method-assign]  (numpy has none)
            sweep_put_signal(
                engine,
                preset("ring", gpus=3),
                collectives=(Collective.ALL_REDUCE, Collective.ALL_GATHER),
                sizes=sizes,
                algorithms=algorithms,
                rounds=2,
                output=path,
                say=said.append,
                cache_dir=str(tmp_path / "plans"),
            )

        assert on_emulated_device(work) == [None] * 3

    said: list[str] = []
    sweep(["forest"], [1000], said)
    assert said == ["all_reduce of 1000 bytes: 1 choice", "all_gather of 996 bytes: 1 choice"]
    again: list[str] = []
    sweep(["forest", "ring", "double-binary-tree"], [1000, 5000], again)
    refusal = "; not double-binary-tree: algorithm double-binary-tree performs all_reduce, "
    assert [each.partition("broadcast")[0] for each in again] == [
        "all_reduce of 1000 bytes: 2 choices",
        "all_reduce of 5000 bytes: 3 choices",
        f"all_gather of 996 bytes: 1 choice{refusal}",
        f"all_gather of 4992 bytes: 2 choices{refusal}",
    ]
    runs = read_runs([path])
    assert len(runs) == 12
    for run in runs:
        assert (run.library, run.nodes, run.ranks, run.wrong) == ("put-signal", 1, 3, 0)
        assert run.refusal or (len(run.time_us) == len(run.default_us) == 2 and run.paired)
    refused = [run for run in runs if run.refusal]
    assert {(run.collective, run.choice.algorithm) for run in refused} == {
        (Collective.ALL_GATHER, "double-binary-tree")
    }
    never: list[str] = []
    sweep(["forest", "ring", "double-binary-tree"], [1000, 5000], never)
    assert never == []


def test_from_the_command_line_by_processes(tmp_path: Path) -> None:
    """torchrun's variables, the emulated device, and gloo as the library; then fit and export."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    logs = [tmp_path / f"log{rank}" for rank in range(2)]
    runs, rules = tmp_path / "runs.jsonl", tmp_path / "rules.json"
    words = [
        "tune",
        "sweep",
        "--library",
        "put-signal",
        "-s",
        "4K,64K",
        "-n",
        "12",
        "-a",
        "ring",
        "-o",
        str(runs),
    ]
    codes = rank_codes(
        WORKER,
        [(rank, 2, port, "cli", *words) for rank in range(2)],
        logs,
        variables={DEVICE_VARIABLE: "emulated", "COPPICE_CACHE": str(tmp_path / "plans")},
        timeout_s=120,
    )
    said = [log.read_text() for log in logs]
    assert codes == [0, 0], said
    assert "all_reduce of 65536 bytes: 1 choice" in said[0]
    assert "undo: unset COPPICE_TUNING" in said[0]
    assert said[1] == ""
    measured = read_runs([runs])
    assert [(run.size_bytes, len(run.time_us), run.wrong) for run in measured] == [
        (4096, 12, 0),
        (65536, 12, 0),
    ]
    # Whatever won here on a machine that is busy, the same figures with ring ten times as fast make a rule.
    lines = [json.loads(line) for line in runs.read_text().splitlines()]
    for line in lines:
        line["time_us"] = [time / 10 for time in line["default_us"]]
    runs.write_text("".join(json.dumps(line) + "\n" for line in lines))
    table = tmp_path / "table.csv"
    done = CliRunner().invoke(app, ["fit", str(runs), "-o", str(table)])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["export", str(table), "--to", "put-signal-rules", "-o", str(rules)])
    assert done.exit_code == 0, done.output
    assert f"use: COPPICE_TUNING={rules.absolute()} on every host" in done.stderr
    found = read_rules(rules)
    assert found.choice(Collective.ALL_REDUCE, nodes=1, ranks=2, size_bytes=20_000) == "ring"


@pytest.mark.parametrize(
    ("library", "words", "found"),
    [
        ("put-signal", ["--lab", "a"], "--lab, which is for open-mpi and mpich"),
        ("put-signal", ["--try", "gpus=2"], "--try gpus, which is for nccl and rccl"),
        ("mpich", ["--try", "segments=1K"], "--try segments, which is for open-mpi"),
        ("nccl", ["-a", "ring"], "--algorithm, which is for put-signal"),
    ],
)
def test_options_of_other_libraries_are_refused(library: str, words: list[str], found: str) -> None:
    done = CliRunner().invoke(app, ["sweep", "--library", library, *words, "-o", "runs.jsonl"])
    assert str(done.exception) == f"expected options for {library}, found {found}: leave it out."
