"""Commands on a terminal of 80 columns print no longer line, and say which columns they left out for it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from cli.conftest import Run
from cli.test_times_name_models import EXAMPLES, WORKLOAD, commands
from coppice.cli import app
from coppice.cli.terminal import broken
from coppice.text import columns
from support.pages import coppice, working_in

COLUMNS = 80
RUNS = f"{EXAMPLES}/tuning-runs.jsonl"
LONG = "x" * 30

PRINTING = {
    "topology list": ("topology list", "topology list dgx-h100"),
    "topology show": ("topology show dgx-a100 --boxes 2",),
    "topology import": ("topology import star -o out.json",),
    "topology compose": ("topology compose 2xdgx-a100 -o out.json",),
    "topology subset": ("topology subset star --ranks 0,1 -o out.json",),
    "topology degrade": ("topology degrade star --remove rank3 -o out.json",),
    "bound": ("bound dgx-a100 --boxes 2 --collective all_reduce",),
    "plan": ("plan dgx-a100 --boxes 2 -c all_gather -o other.json", "plan ring --set gpus=4 --sizes 1K,1M"),
    "algorithms": ("algorithms", "algorithms -c barrier", "algorithms 2d-torus"),
    "claims": ("claims T3", "claims MPICH"),
    "advise": ("advise dgx-a100 --boxes 2 --sizes 1K,64M",),
    "degrade": ("degrade dgx-a100 --boxes 2 --slow box0/nic3=50% -c all_gather",),
    "diagnose design": ("diagnose design dgx-a100 --boxes 2",),
    "diagnose simulate": ("diagnose simulate star --node rank0=100% -o rates.json",),
    "diagnose results": ("diagnose probes.json",),
    "schema": ("schema",),
    "verify": ("verify plan.json",),
    "explain": ("explain plan.json", "explain plan.json --tree 0"),
    "simulate": ("simulate plan.json", "simulate plan.json --size 1K:1M:32", "simulate --jobs jobs.json"),
    "compare": (
        "compare dgx-a100 --boxes 2 -c broadcast --sizes 1K,1M --algorithm forest,binomial,chain --all",
        "compare dgx-a100 --sizes 1M --rates nominal,measured --algorithm forest,ring",
        "compare dgx-a100 --gain --sizes 1M -c all_gather",
        "compare fat-tree --sizes 1M --algorithm forest,ring --in-network switchml@spine*,sharp@*,nvls",
    ),
    "model list": ("model list",),
    "model show": ("model show nccl-2.30",),
    "select": (
        "select dgx-a100 --boxes 2 -l nccl -c all_reduce --size 1M --why",
        "select -l mpich -c all_reduce --ranks 48 --size 1M --why",
        "select -l open-mpi -c all_reduce --ranks 48 --size 1K:1M:32",
    ),
    "export": (
        "export plan.json --to msccl-xml --target msccl -o algo.xml",
        "export star --to ompi-rules --option sizes=1K --option jobs=1 -o rules.conf",
    ),
    "import": ("import given.xml -o out.json",),
    "doctor": ("doctor given.xml --target msccl",),
    "report": ("report plan.json -o plan.html",),
    "design": (
        "design --ranks 4 --degree 2 --size 1M --alpha-us 10 --node-gb-per-s 12.5 --tries 10 --jobs 1",
    ),
    "design show": ("design show torus(2,2)",),
    "design schedule": ("design schedule torus --set dims=2x2 --collective all_gather",),
    "design cabling": ("design cabling torus(2,2)",),
    "design compare": (f"design compare workload.toml --prices {EXAMPLES}/network-prices.toml",),
    "train estimate": (
        f"train estimate {EXAMPLES}/iteration/resnet-50.toml --what-if nic=x2 --what-if drain=1",
        "train estimate gpt-7.5b --topology dgx-a100 --boxes 2 --parallel tp=8,pp=2 --global-batch 16 --order 1f1b",
    ),
    "train report": (
        "train report gpt-7.5b --topology dgx-a100 --parallel tp=8 --global-batch 4 -o page.html",
    ),
    "train pipeline": (
        "train pipeline gpt-7.5b --topology dgx-a100 --parallel pp=4,tp=2 --global-batch 8 --order 1f1b -o order.csv",
    ),
    "train torch-profile": (
        "train torch-profile gpt-7.5b --topology dgx-a100 --parallel dp=4,tp=2 --global-batch 8 -o estimates.json",
    ),
    "train job": (f"train job {EXAMPLES}/iteration/mixture.toml",),
    "train models": ("train models",),
    "train search": ("train search gpt-7.5b --topology dgx-a100 --num-ranks 16 --global-batch 32",),
    "train compare": (f"train compare {EXAMPLES}/iteration/three-layers.json --policy ddp,pace,gpipe",),
    "train tune": (f"train tune {EXAMPLES}/iteration/three-layers.json --policy bytescheduler",),
    "train advise": (f"train advise {EXAMPLES}/iteration/three-layers.json",),
    "train policy": (f"train policy {EXAMPLES}/iteration/three-layers.json",),
    "placement": ("placement star --set gpus=4 --hierarchy node=2,gpu=2 --axes dp=2,tp=2 --reduce dp,tp",),
    "switch place": (
        "switch place fat-tree --budget 4",
        "switch place fat-tree --budget 1 --job-ranks 0-7 --job-ranks 8-15",
    ),
    "compile": (f"compile {EXAMPLES}/language/all_reduce_ring.py",),
    "synthesize": ("synthesize ring --set gpus=4 -c all_gather --method tacos",),
    "switch model": (
        "switch model --loss 0.001",
        "switch model --sweep workers",
        "switch model switchml --slots 32 --split ring",
        "switch model sharp@*,nvls --topology fat-tree --split forest",
    ),
    "tune fit": (f"tune fit {RUNS} --topology {EXAMPLES}/tuning-lab.json -o table.csv",),
    "tune export": ("tune export given.csv --to ompi-rules -o rules.conf",),
    "tune plugin settings": ("tune plugin settings NCCL_ALGO=Ring -o site.conf",),
    "switch check": ("switch check --elements 2", "switch check --losses 1 --most-states 50"),
    "switch export": ("switch export --to p4 --workers 32 --slots 8192 --values 256 -o rack",),
    "tune report": (f"tune report {RUNS} -o tuning.html",),
}
"""Commands with small inputs."""

WITHOUT = {
    "model fit": "reads what a benchmark measured",
    "bench": "is started by a launcher",
    "probe": "is started by a launcher",
    "diagnose run": "is started by a launcher",
    "logs read": "prints a table as `tune fit` does",
    "logs compare": "prints a table as `tune fit` does",
    "diagnose logs": "prints a table as `tune fit` does",
    "switch serve": "serves until it is stopped",
    "lab up": "needs namespaces",
    "lab check": "needs namespaces",
    "lab run": "needs namespaces",
    "lab bytes": "needs namespaces",
    "lab status": "needs namespaces",
    "lab down": "needs namespaces",
    "train lr-compare": "trains; tests/training/test_lr_comparing.py prints it",
    "train lr-report": "reads what a training wrote",
    "train measure": "measures the machine",
    "train capture": "runs a script of PyTorch",
    "train import": "reads what a profiler wrote",
    "tune sweep": "measures a library",
    "switch xdp": "needs root and runs until it is stopped",
    "tune check": "measures a library",
    "tune from-logs": "prints as `tune fit` does",
    "tune plugin build": "needs a compiler",
}
"""Commands that are not run here, and why."""


def test_all_commands_are_here() -> None:
    assert set(commands(get_command(app))) == PRINTING.keys() | WITHOUT.keys()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that the commands read."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "workload.toml").write_text(WORKLOAD)
    jobs = '{"name": "first", "plan": "plan.json", "size": "1M"}, {"name": "second", "plan": "plan.json", "size": "2M"}'
    (folder / "jobs.json").write_text(f'{{"format": "coppice-jobs", "version": 1, "jobs": [{jobs}]}}')
    with working_in(folder):
        for words in (
            "plan dgx-a100 --boxes 2 --collective all_gather -o plan.json",
            "export plan.json --to msccl-xml --target msccl --size all -o given.xml",
            f"tune fit {RUNS} -o given.csv",
            "diagnose simulate star --node rank0=100% -o probes.json",
        ):
            done = coppice(*words.split())
            assert done.exit_code == 0, done.output
    return folder


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch, run: Run) -> Run:
    """Runs commands whose output goes to a terminal of 80 columns."""
    wrapper = type(_stdout_of(run, monkeypatch))
    monkeypatch.setattr(wrapper, "isatty", lambda _: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return run


def _stdout_of(run: Run, monkeypatch: pytest.MonkeyPatch) -> object:
    """The stream that a command prints to in a test."""
    found = []
    with monkeypatch.context() as patch:
        patch.setattr("coppice.cli.output.terminal_width", lambda _=None: found.append(sys.stdout))
        run("model", "list")
    return found[0]


def plain(text: str) -> list[str]:
    """Lines without colours and without what moves the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "\n").splitlines()


@pytest.mark.parametrize("words", [words for several in PRINTING.values() for words in several])
def test_no_line_is_longer_than_the_terminal(words: str, terminal: Run, made: Path) -> None:
    """But for words that are: files, URLs and commands that are to be copied."""
    with working_in(made):
        done = terminal(*words.split())
    assert done.code == 0, done.err
    long = [line for line in (*plain(done.out), *plain(done.err)) if len(line) > COLUMNS]
    assert [line for line in long if len(line.split()[-1]) < COLUMNS - 40] == []


def test_pipes_get_whole_lines(run: Run, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    with working_in(made):
        lines = run("compare", "dgx-a100", "--gain", "--sizes", "1M", "-c", "all_gather").out.splitlines()
    assert any(len(line) > COLUMNS for line in lines)
    assert not any("left out" in line for line in lines)
    assert "fastest of each" in "".join(lines)


def test_columns_that_are_left_out_are_told(terminal: Run, made: Path) -> None:
    words = PRINTING["design compare"][0].split()
    with working_in(made):
        lines = plain(terminal(*words).out)
    (told,) = [line for line in lines if line.startswith("left out: ")]
    assert told.startswith("left out: switches, cables")
    assert "a wider terminal shows" in " ".join(lines)
    (head,) = [line for line in lines if line.startswith("network ")]
    assert "switches" not in head
    assert "iteration us" in head


def test_columns_are_left_out_in_their_order_until_there_is_room() -> None:
    rows = [("name", "steps", "rate", "us"), ("ring", "14", "25", "12.5")]
    whole = columns(rows)
    assert columns(rows, max_width=len(whole[0])) == whole
    one = columns(rows, max_width=len(whole[0]) - 1, spare=[2, 1])
    assert one[:2] == ["name  steps  us", "ring  14     12.5"]
    assert one[2].startswith("left out: rate; ")
    assert columns(rows, max_width=3, spare=[2, 1])[2].startswith("left out: rate, steps; ")


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("short", ["short"]),
        (
            "  a field  " + "word " * 10,
            ["  a field  word word word word", "           word word word word", "           word word"],
        ),
        (
            f"  far to the right of {LONG}  tail of words",
            ["  far to the right of", f"    {LONG}", "    tail of words"],
        ),
        ("# comment " + "word " * 6, ["# comment word word word word", "#   word word"]),
        (LONG * 2, [LONG * 2]),
    ],
)
def test_lines_go_on_below_their_last_field(line: str, lines: list[str]) -> None:
    assert broken(line, 32) == lines
    assert broken(line, None) == [line]
