"""Every option that names a file to write: what is no regular file stays and is written to, links are followed.

As root, putting a file in the place of a device would destroy it: `-o /dev/null`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer

from cli.conftest import Run
from cli.test_times_name_models import WORKLOAD
from coppice.cli import app
from support.pages import coppice, working_in
from support.paths import ROOT
from support.places import Reader, is_null_device, null_device

EXAMPLES = ROOT / "examples"
COMPARE = "compare star --set gpus=4 --collective broadcast --sizes 1M --algorithm forest"
NETWORKS = f"design compare workload.toml --prices {EXAMPLES}/network-prices.toml"
RUNS = f"{EXAMPLES}/tuning-runs.jsonl"
FOUR = "design --ranks 4 --degree 2 --size 1M --tries 10 --jobs 1"

COMMANDS = {
    "topology import --output": "topology import star",
    "topology compose --output": "topology compose 2xdgx-a100",
    "topology subset --output": "topology subset star --ranks 0,1",
    "topology degrade --output": "topology degrade star --remove rank3",
    "schema --output": "schema bound",
    "bound --output": "bound star --set gpus=4 --collective all_gather --size 1K",
    "plan --output": "plan star --set gpus=4 --collective all_gather",
    "simulate --trace": "simulate plan.json --size 1M",
    "synthesize --output": "synthesize star --set gpus=4 --collective all_gather --method tacos",
    "compile --output": f"compile {EXAMPLES}/language/all_gather_ring.py",
    "compile --program": f"compile {EXAMPLES}/language/all_gather_ring.py --target msccl",
    "train report --output": "train report gpt-7.5b --topology dgx-a100 --parallel tp=8 --global-batch 4",
    "train report --trace": "train report gpt-7.5b --topology dgx-a100 --parallel tp=8 --global-batch 4 -o page.html",
    "train compare --plot": f"train compare {EXAMPLES}/iteration/three-layers.json --policy ddp,pace",
    "train estimate --trace": "train estimate gpt-7.5b --topology dgx-a100 --parallel tp=8 --global-batch 4",
    "train pipeline --output": (
        "train pipeline gpt-7.5b --topology dgx-a100 --parallel tp=2,pp=4 --global-batch 8"
    ),
    "train torch-profile --output": (
        "train torch-profile gpt-7.5b --topology dgx-a100 --parallel tp=2,dp=4 --global-batch 8"
    ),
    "compare --csv": COMPARE,
    "compare --plot": COMPARE,
    "compare --results": COMPARE,
    "select --output": "select --library open-mpi star --set gpus=4 --collective all_reduce --size 1M",
    "report --output": "report plan.json",
    "export --output": "export plan.json --to msccl-xml --target msccl",
    "import --output": "import algo.xml",
    "design --cabling": FOUR,
    "design --results": FOUR,
    "design show --output": "design show torus(2,2)",
    "design show --plan": "design show torus(2,2)",
    "design show --plot": "design show torus(2,2)",
    "design schedule --output": "design schedule torus --set dims=2x2 --collective all_gather",
    "design cabling --output": "design cabling torus(2,2)",
    "design compare --csv": NETWORKS,
    "design compare --plot": NETWORKS,
    "switch model --plot": "switch model switchml,ring --sweep slots",
    "tune fit --output": f"tune fit {RUNS} --topology {EXAMPLES}/tuning-lab.json",
    "tune report --output": f"tune report {RUNS}",
    "tune export --output": "tune export table.csv --to ompi-rules",
    "tune plugin settings --output": "tune plugin settings NCCL_ALGO=Ring",
}

WITHOUT = {
    "bench --output": "is started by a launcher",
    "probe --output": "is started by a launcher",
    "diagnose run --output": "is started by a launcher",
    "probe --costs": "is started by a launcher",
    "advise --write": "is a folder",
    "degrade --output": "writes the repaired plan as `plan --repair` does",
    "design --output": "is a folder",
    "diagnose design --output": "writes what `--json` prints; tests/docs/test_tutorials.py reads it back",
    "diagnose simulate --output": "writes what `--json` prints; tests/docs/test_tutorials.py reads it back",
    "switch export --output": "is a folder",
    "tune sweep --output": "measures a library",
    "model fit --output": "reads what a benchmark measured",
    "tune from-logs --output": "writes as `tune fit` does",
    "tune plugin build --output": "needs a compiler",
    "train lr-compare --results": "trains for minutes; tests/training/test_lr_comparing.py writes it",
    "train lr-report --output": "reads what a training wrote",
    "train measure --output": "needs a GPU",
    "train import --output": "traces a module of PyTorch; test_train_jobs.py writes it",
    "train capture --output": "runs a script of PyTorch; tests/training/test_capture.py writes it",
    "train capture --trace": "runs a script of PyTorch; tests/training/test_capture.py writes it",
    "train import --trace": "reads what a profiler wrote; written as that of `train estimate`",
}
"""Outputs that no command above writes, and why."""

INPUTS = {
    "--anchor",
    "--hosts",
    "--secret",
    "--weights",
    "--demands",
    "--together",
    "--log",
    "--prices",
    "--plugin",
    "--tests",
}
SUFFIXES = {
    "report --output": ".html",
    "train report --output": ".html",
    "compare --plot": ".png",
    "switch model --plot": ".svg",
    "train compare --plot": ".svg",
    "design compare --plot": ".pdf",
}
QUICK = ("plan --output", "compare --results", "compare --plot", "design cabling --output")


def outputs(command: Any, words: tuple[str, ...] = ()) -> Iterator[str]:
    """Commands with their options that name a file or a folder to write."""
    for each in command.params if words else ():
        flag = each.opts[-1]
        if each.param_type_name == "option" and each.metavar in ("FILE", "DIR") and flag not in INPUTS:
            yield " ".join((*words, flag))
    for name in getattr(command, "commands", {}):
        yield from outputs(command.get_command(None, name), (*words, name))


def test_all_outputs_are_here() -> None:
    assert set(outputs(typer.main.get_command(app))) == COMMANDS.keys() | WITHOUT.keys()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that the commands read."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "workload.toml").write_text(WORKLOAD)
    with working_in(folder):
        for words in (
            "plan star --set gpus=4 --collective all_gather -o plan.json",
            "export plan.json --to msccl-xml --target msccl -o algo.xml",
            f"{COMMANDS['tune fit --output']} -o table.csv",
        ):
            done = coppice(*words.split())
            assert done.exit_code == 0, done.output
    return folder


def written(run: Run, made: Path, output: str, path: Path) -> None:
    """Run a command in the folder with its inputs, so that it writes to a path."""
    if "--plot" in output and find_spec("matplotlib") is None:
        pytest.skip("matplotlib is not installed")
    with working_in(made):
        done = run(*COMMANDS[output].split(), output.split()[-1], path)
    assert done.code == 0, done.err


@pytest.mark.parametrize("output", COMMANDS)
@pytest.mark.spread(3)
def test_onto_a_device(output: str, run: Run, made: Path, tmp_path: Path) -> None:
    device = null_device(tmp_path / f"null{SUFFIXES.get(output, '')}")
    (tmp_path / f"link{device.suffix}").symlink_to(device)
    written(run, made, output, tmp_path / f"link{device.suffix}")
    assert is_null_device(device)
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted((f"link{device.suffix}", device.name))


@pytest.mark.parametrize("output", QUICK)
def test_onto_a_fifo_a_link_and_a_file(output: str, run: Run, made: Path, tmp_path: Path) -> None:
    """All get the same bytes."""
    suffix = SUFFIXES.get(output, "")
    file, link = tmp_path / f"file{suffix}", tmp_path / f"link{suffix}"
    link.symlink_to(file)
    written(run, made, output, link)
    content = file.read_bytes()
    assert content
    assert link.is_symlink()
    written(run, made, output, file)
    assert file.read_bytes() == content
    reader = Reader(tmp_path / f"fifo{suffix}")
    written(run, made, output, reader.path)
    assert reader.content() == content
