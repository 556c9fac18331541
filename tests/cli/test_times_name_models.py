"""No command prints a simulated time without the model behind it, and exports take the same models as all others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.conftest import Run
from coppice.cli import app
from coppice.simulation import named_models
from support.pages import coppice, working_in
from support.paths import ROOT

EXAMPLES = ROOT / "examples"

SIMULATING = {
    "bound": ("bound star --set gpus=4 --size 1K,1M",),
    "plan": ("plan star --set gpus=4", "plan ring --set gpus=4 --sizes 1K,1M"),
    "degrade": ("degrade ring --set gpus=4 --remove rank3 --size 1K,1M",),
    "simulate": ("simulate plan.json", "simulate plan.json --size 1K,1M", "simulate --jobs jobs.json"),
    "compare": (
        "compare star --set gpus=4 --sizes 1K,1M --algorithm forest,ring",
        "compare star --set gpus=4 --sizes 1K,1M --algorithm forest,ring --all",
        "compare dgx-a100 --gain --sizes 1M -c all_gather",
        "compare fat-tree --sizes 1M --algorithm ring --in-network sharp@*",
    ),
    "export": (
        "export plan.json --to msccl-xml --target rccl -o a.xml",
        "export plan.json --to msccl-xml --target msccl -o b.xml",
        "export star --set gpus=4 --to ompi-rules --option sizes=1K,64K --option jobs=1 -o rules.conf",
    ),
    "report": ("report plan.json -o plan.html",),
    "design show": ("design show torus(2,2)",),
    "placement": ("placement star --set gpus=4 --hierarchy node=2,gpu=2 --axes dp=2,tp=2 --reduce dp,tp",),
    "design compare": (f"design compare workload.toml --prices {EXAMPLES}/network-prices.toml",),
}
"""Commands that simulate."""

OTHERS = {
    "schema": "what outputs hold",
    "algorithms": "counts of steps",
    "advise": "each row of times names its model: the library's own, the simulator's, or measurements",
    "claims": "each claim names its command, whose output names its model",
    "verify": "counts",
    "explain": "loads of links",
    "model list": "models themselves",
    "model show": "a model itself",
    "model fit": "a model beside the times that were measured",
    "select": "the library's own prediction, under the library's name",
    "import": "counts",
    "doctor": "limits of a runtime",
    "bench": "measured times",
    "probe": "measured times",
    "logs read": "measured times",
    "logs compare": "measured times",
    "diagnose logs": "names its models below the table",
    "switch serve": "counters of packets",
    "design": "steps x alpha + T_B x M / bandwidth, as the printed line says",
    "design schedule": "steps",
    "design cabling": "cables",
    "topology list": "no times",
    "topology show": "no times",
    "topology import": "no times",
    "topology compose": "no times",
    "topology subset": "no times",
    "topology degrade": "no times",
    "diagnose design": "no times",
    "diagnose simulate": "rates of flows",
    "diagnose run": "measured rates",
    "diagnose results": "measured rates",
    "lab up": "no times",
    "lab check": "measured rates",
    "lab run": "what the program prints",
    "lab bytes": "counts",
    "lab status": "no times",
    "lab down": "no times",
    "train lr-compare": "no times",
    "train lr-report": "no times",
    "train estimate": "constants fitted to iterations, as docs/iteration.md says, under the device's name",
    "train search": "the same",
    "train job": "no times",
    "train models": "no times",
    "train measure": "measured rates",
    "train report": "names the model behind each number on its page",
    "train compare": "as `train estimate` and `train policy`",
    "train tune": "the same",
    "train advise": "the same",
    "train policy": "times that the workload gives",
    "train pipeline": "as `train estimate`, and names what its collectives cost by",
    "train torch-profile": "counts; names what its times are by",
    "train import": "measured times, and their replay",
    "train capture": "the job as `train estimate`, and operations one by one; each line says which",
    "switch place": "bytes over the rate of the busiest link",
    "synthesize": "rates",
    "compile": "rates",
    "switch model": "closed forms, which each line names; on a topology the model of messages as well",
    "tune sweep": "measured times",
    "tune fit": "measured times beside exact limits",
    "tune export": "measured times",
    "tune check": "measured times",
    "tune from-logs": "measured times",
    "tune report": "measured times",
    "tune plugin build": "no times",
    "tune plugin settings": "no times",
    "switch export": "no times",
    "switch xdp": "counts",
    "switch check": "no times",
}
"""Commands that simulate nothing, and what they print instead."""

TIME = re.compile(r"\d (?:us|ms)\b|\(us\)|\bus\b|GB/s\)")
"""A time, or a column of them."""

WORKLOAD = """
ranks = 4
ranks_per_host = 2
host_gb_per_s = 450
ports = 2
gb_per_s = 50
latency_us = 0.5
[[collectives]]
collective = "all_gather"
size_bytes = 1024
group_size = 4
"""


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command that does something."""
    inner = getattr(command, "commands", {})
    if words and (not inner or getattr(command, "invoke_without_command", False)):
        yield " ".join(words)
    for name in inner:
        yield from commands(command.get_command(None, name), (*words, name))


def test_all_commands_are_here() -> None:
    assert set(commands(typer.main.get_command(app))) == SIMULATING.keys() | OTHERS.keys()
    assert not SIMULATING.keys() & OTHERS.keys()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that the commands read."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "workload.toml").write_text(WORKLOAD)
    (folder / "jobs.json").write_text(
        '{"format": "coppice-jobs", "version": 1, "jobs": [{"name": "a", "plan": "plan.json", "size": "1M"}]}'
    )
    with working_in(folder):
        done = coppice("plan", "star", "--set", "gpus=4", "-c", "all_gather", "-o", "plan.json")
        assert done.exit_code == 0, done.output
    return folder


@pytest.mark.parametrize("words", [words for several in SIMULATING.values() for words in several])
def test_times_name_their_model(words: str, run: Run, made: Path) -> None:
    with working_in(made):
        done = run(*words.split())
        page = (made / "plan.html").read_text() if words.startswith("report") else ""
    assert done.code == 0, done.err
    shown = re.sub(r"^  took .*$", "", f"{done.out}{done.err}{page}", flags=re.MULTILINE)
    assert TIME.search(shown)
    assert [name for name in named_models() if name in shown], shown


def test_exports_are_simulated_with_the_model_that_is_asked_for(run: Run, made: Path, tmp_path: Path) -> None:
    msccl = ("export", made / "plan.json", "--to", "msccl-xml", "--target", "rccl")
    notes = {}
    for name in (None, "nccl-2.30", "alpha-beta"):
        done = run(*msccl, *(() if name is None else ("--model", name)), "-o", tmp_path / "a.xml")
        assert done.code == 0, done.err
        (notes[name],) = [line for line in done.err.splitlines() if "by simulation" in line]
        assert f"model {name or 'nccl-2.30'}" in notes[name]
    assert notes[None] == notes["nccl-2.30"] != notes["alpha-beta"]
    assert "nccl-ring with" not in notes["alpha-beta"], "that model has no protocols"
    rules = (
        *("export", "star", "--set", "gpus=4", "--to", "ompi-rules", "--option", "sizes=1K", "--option"),
        "jobs=1",
    )
    assert "# model alpha-beta: 1 us per message" in run(*rules).out
    assert "# model mpi-tcp: 20 us per message" in run(*rules, "--model", "mpi-tcp").out
    for picture, end in (("html", "html"), ("trace", "json")):
        path = tmp_path / f"plan.{end}"
        words = ("export", made / "plan.json", "--to", picture, "-o", path)
        assert run(*words).code == 0
        usual = path.read_bytes()
        assert run(*words, "--model", "mpi-tcp").code == 0
        assert path.read_bytes() != usual


def test_models_that_mean_nothing_for_an_export_are_refused(run: Run, made: Path, tmp_path: Path) -> None:
    plan = made / "plan.json"
    msccl = ("export", plan, "--to", "msccl-xml", "--target", "rccl", "-o", tmp_path / "a.xml")
    for words, told in (
        ((*msccl, "--model", "nccl"), "expected a model of nccl-2.30, "),
        (
            (*msccl, "--model", "alpha-beta", "--size", "1M"),
            "found `--size` beside it: leave one of them out",
        ),
        (
            ("export", plan, "--to", "chakra", "--model", "alpha-beta", "-o", tmp_path / "t"),
            "--model does not go with",
        ),
        (
            ("export", "star", "--to", "nccl-tuner", "--model", "alpha-beta"),
            "--model does not go with --to nccl-tuner",
        ),
    ):
        refused = run(*words)
        assert refused.code == 2
        assert told in refused.err
    assert list(tmp_path.iterdir()) == []
