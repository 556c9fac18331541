"""Every output is printed here by a command with small inputs, and so held to its schema; or it says where else."""

from __future__ import annotations

import json
from collections.abc import Callable
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cli.conftest import Run
from cli.test_times_name_models import WORKLOAD
from cli.test_train_jobs import EVENTS
from coppice.outputs.formats import OUTPUTS, document, format_of
from coppice.run.bench.measuring import BenchRow
from coppice.run.lab import namespaces
from coppice.run.lab.blueprint import draw
from coppice.run.lab.namespaces import Lab, LinkCheck
from coppice.run.probe.network import LinkFinding, Probed
from coppice.run.probe.probe import Experiment, RateMeasurement
from coppice.topology.presets import preset
from coppice.tuning.records import encode_run
from support.outputs import require_valid
from support.pages import coppice, working_in
from support.paths import ROOT
from support.tuning_made_runs import made_runs

EXAMPLES = ROOT / "examples"
LAYERS = f"{EXAMPLES}/iteration/three-layers.json"
MODEL = "gpt-7.5b --topology dgx-a100"
STAR = "star --set gpus=4"

RUNS = {
    "topology-list": ("topology list", "topology list dgx-a100"),
    "topology": ("topology show dgx-a100 --boxes 2", "topology show dragonfly"),
    "topology-written": (
        "topology import star -o out.json",
        "topology compose 2xdgx-a100 -o out.json",
        "topology subset star --ranks 0,1 -o out.json",
        "topology degrade star --remove rank3 -o out.json",
    ),
    "bound": (
        *(f"bound dgx-h100 -c {name}" for name in ("all_reduce", "all_to_all", "broadcast", "barrier")),
        "bound mi250 -c all_gather --trees 4",
        "bound mi250 -c all_gather --size 1K,1M",
        "bound dgx-a100 -c all_to_all --size 0,1G --model alpha-beta",
    ),
    "bound-groups": (
        "bound dgx-a100 --boxes 2 --groups tp=8,dp=2 --priority tp",
        "bound dgx-a100 --boxes 2 --groups tp=8,pp=2 --job gpt-7.5b --global-batch 32",
    ),
    "plan-groups": (
        "plan dgx-a100 --groups tp=4,dp=2 --priority dp",
        "plan dgx-a100 --groups tp=2,dp=2 --order topology",
        "plan dgx-a100 --boxes 2 --groups tp=8,pp=2 --job gpt-7.5b --global-batch 32",
    ),
    "plan": (
        f"plan {STAR} -c all_gather",
        f"plan {STAR} -c all_reduce --deterministic",
        f"plan {STAR} -c all_reduce --deterministic --size 1K",
        f"plan {STAR} -c all_reduce --sizes 1K,1M",
        f"plan {STAR} -c broadcast --algorithm binary",
        "plan mi250 -c all_gather --trees 2",
        "plan dgx-h100 -c all_reduce --in-network",
        f"plan {STAR} -c all_to_all",
        f"plan {STAR} -c all_to_all --demands demands.csv",
    ),
    "plan-set": (f"plan {STAR} -c all_reduce --sizes 1K,1M -o plans/",),
    "plan-repair": ("plan slower.json --repair plan.json",),
    "diagnose-design": (
        "diagnose design dgx-a100",
        "diagnose design ring --set gpus=4",
        "diagnose simulate ring --set gpus=4 --node rank0=50%",
    ),
    "diagnose-results": ("diagnose probes.json",),
    "diagnose-logs": (
        "diagnose logs nccl.log bench.txt --collective all_reduce",
        "diagnose logs bench.txt --collective all_reduce --topology dgx-a100",
    ),
    "logs-compare": ("logs compare bench.txt bench.txt --collective all_reduce",),
    "degrade": (
        f"degrade {STAR} -c all_gather --remove rank3",
        f"degrade {STAR} --slow rank1=50% --size 1K",
        f"degrade {STAR} -c all_to_all --node rank1=50%",
        "degrade dgx-a100 --node rank3=50% --job gpt-7.5b --parallel tp=8 --global-batch 8",
    ),
    "synthesize": (
        "synthesize ring --set gpus=4 -c all_gather --method tacos",
        "synthesize ring --set gpus=4 -c all_gather --method sccl -p steps=2",
        "synthesize ring --set gpus=4 -c all_gather --method sccl -p pareto=true",
        "synthesize ring --set gpus=4 -c all_gather --method te-ccl",
        "synthesize ring --set gpus=4 -c broadcast --method blink",
        "synthesize dgx-a100 --boxes 2 -c all_gather --method syccl",
    ),
    "synthesize-none": ("synthesize ring --set gpus=6 -c all_gather --method sccl -p steps=1",),
    "synthesize-groups": ("synthesize dgx-a100 --boxes 2 -c all_reduce --method tacos -p groups=8:1",),
    "placement": (f"placement {STAR} --hierarchy node=2,gpu=2 --axes dp=2,tp=2 --reduce dp,tp",),
    "algorithms": ("algorithms", "algorithms ring"),
    "compile": (
        f"compile {EXAMPLES}/language/all_reduce_ring.py",
        f"compile {EXAMPLES}/language/all_gather_ring.py --target msccl --program ring.xml -o ring.json",
    ),
    "verify": ("verify plan.json", "verify rings.json"),
    "verify-program": ("verify given.xml", "verify given.mscclpp.json"),
    "verify-set": ("verify plans",),
    "verify-bounds": ("verify bounds.json",),
    "verify-put-signal": ("verify given.psp.json",),
    "explain": ("explain plan.json", "explain rings.json"),
    "simulate": (
        "simulate plan.json --size 1M",
        "simulate rings.json --size 1M --seeds 3 --model alpha-beta",
        "simulate dgx-a100 --algorithm library --size 1M",
    ),
    "simulate-sizes": (
        "simulate plan.json --size 1K:1M:32",
        "simulate dgx-a100 --algorithm library --size 1K:1M:32",
    ),
    "simulate-collisions": ("simulate rings.json --hashed-routes 20 --percentiles",),
    "simulate-jobs": ("simulate --together jobs.json",),
    "compare": (
        f"compare {STAR} -c all_gather --sizes 1K,1M --algorithm forest,ring,bruck -j 1",
        "compare dgx-h100 -c all_reduce --sizes 64M --algorithm forest,nvls-tree -j 1",
        "compare fat-tree -c all_reduce --sizes 1M --algorithm ring --in-network switchml@spine*,nvls -j 1",
    ),
    "advise": (
        "advise dgx-a100 --boxes 2 --sizes 1K,64M",
        "advise dgx-a100 --sizes 1M --job gpt-7.5b --parallel tp=8 --global-batch 8",
        f"advise {STAR} -c all_reduce -s 1K --library open-mpi -j 1",
    ),
    "claims": ("claims MPICH",),
    "compare-several": ("compare dgx-a100 --sizes 1M --rates nominal,measured --algorithm ring -j 1",),
    "compare-gain": ("compare dgx-a100 --boxes 1,2 --gain --sizes 1M -c all_gather -j 1",),
    "model-list": ("model list",),
    "model": ("model show nccl-2.30", "model show alpha-beta"),
    "model-fit": ("model fit bench.jsonl ring --set gpus=4 -c all_gather --model mpi-tcp",),
    "select": (
        "select dgx-a100 --boxes 2 -l nccl -c all_reduce --size 1M --why",
        "select -l open-mpi -c all_reduce --ranks 48 --size 1M",
        "select -l mpich -c all_reduce --ranks 48 --size 1M --why",
    ),
    "select-several": ("select -l open-mpi -c all_reduce --ranks 48 --size 1K:1M:32",),
    "report": ("report plan.json -o plan.html",),
    "export": (
        "export plan.json --to msccl-xml --target msccl -o algo.xml",
        "tune export table.csv --to ompi-rules -o rules.conf",
    ),
    "import": ("import given.xml -o back.json", "import given.xml"),
    "doctor": ("doctor given.xml --target msccl --sizes 1K,1M",),
    "doctor-tuning": ("doctor rules.conf --target ompi-rules --option shapes=2x16",),
    "tune-fit": (f"tune fit {EXAMPLES}/tuning-runs.jsonl --topology {EXAMPLES}/tuning-lab.json",),
    "tune-report": (f"tune report {EXAMPLES}/tuning-runs.jsonl -o tuning.html",),
    "tune-check": ("tune check few.csv few.jsonl",),
    "tune-plugin-settings": ("tune plugin settings NCCL_ALGO=Ring -o site.conf",),
    "schema": ("schema",),
    "logs": ("logs nccl.log", "logs bench.txt --collective all_reduce"),
    "train-estimate": (
        f"train estimate {MODEL} --boxes 2 --parallel tp=8,pp=2 --global-batch 16",
        f"train estimate {EXAMPLES}/iteration/resnet-50.toml --what-if nic=x2 --what-if drain=1",
        f"train estimate {MODEL} --parallel tp=8 --global-batch 8 --collectives nccl",
        f"train estimate {EXAMPLES}/iteration/mixture.toml --routing zipf:1 --placement popular",
    ),
    "train-estimate-plan": (f"train estimate {EXAMPLES}/iteration/mixture.toml --policy lina",),
    "train-profile": ("train import trace.json", "train import trace.json --what-if communication=0.5"),
    "train-traces": ("train import traces --topology dgx-a100",),
    "train-search": (f"train search {MODEL} --num-ranks 16 --global-batch 32",),
    "train-pipeline": (f"train pipeline {MODEL} --parallel pp=4,tp=2 --global-batch 8 -o order.csv",),
    "train-torch-profile": (
        f"train torch-profile {MODEL} --parallel dp=4,tp=2 --global-batch 8 -o times.json",
    ),
    "train-report": (f"train report {MODEL} --parallel tp=8 --global-batch 4 -o page.html",),
    "train-policy": (f"train policy {LAYERS}", f"train policy {LAYERS} --policy dear"),
    "train-compare": (f"train compare {LAYERS} --policy ddp,pace,gpipe -j 1",),
    "train-tune": (f"train tune {LAYERS} --policy bytescheduler",),
    "train-advise": (f"train advise {LAYERS} -j 1",),
    "train-job": tuple(
        f"train job {EXAMPLES}/iteration/{name}.toml"
        for name in ("gpt-175b", "gpt-18b", "mixture", "resnet-50", "two-generations")
    ),
    "train-models": ("train models",),
    "design": (
        "design --ranks 4 --degree 2 --size 1M --tries 10 --jobs 1",
        "design --ranks 6 --degree 2 --tries 10 --jobs 1",
    ),
    "design-several": ("design --ranks 4:6 --degree 2 --tries 10 --jobs 1",),
    "design-show": ("design show torus(2,2)", "design show torus(3,2) --collective all_reduce"),
    "design-schedule": ("design schedule torus --set dims=2x2 --collective all_gather",),
    "design-cabling": ("design cabling torus(2,2) -o cables.csv",),
    "design-compare": (f"design compare workload.toml --prices {EXAMPLES}/network-prices.toml",),
    "switch-model": ("switch model --loss 0.001", "switch model switchml --slots 32 --split ring"),
    "switch-model-sweep": ("switch model --sweep workers", "switch model switchml,atp --sweep loss"),
    "switch-model-cluster": ("switch model sharp@*,nvls --topology fat-tree --split forest",),
    "switch-place": ("switch place fat-tree --budget 1 --job-ranks 0-7 --job-ranks 8-15",),
    "switch-check": ("switch check --elements 2",),
    "switch-export": ("switch export --to p4 --workers 4 --slots 16 --values 256 -o rack",),
}
"""Outputs, and commands that print them."""

ELSEWHERE = {
    "probe-costs": "tests/run/probe/test_put_signal_costs.py",
    "switch-listening": "tests/innetwork/test_serving.py",
    "switch-xdp": "tests/innetwork/test_xdp_network.py",
    "train-measure": "tests/cli/test_train_jobs.py",
    "train-capture": "tests/training/test_capture.py",
    "train-module": "tests/cli/test_train_jobs.py",
    "train-lr-compare": "tests/training/test_lr_comparing.py",
    "train-lr-report": "tests/training/test_lr_report.py",
}
"""Outputs whose commands need more than a line, and the tests that run them."""

LOG = """\
host:1:1 [0] NCCL INFO NCCL version 2.27.7+cuda12.9
host:1:1 [0] NCCL INFO NCCL_ALGO set by environment to Ring.
host:1:1 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..7}
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files that the commands read."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "workload.toml").write_text(WORKLOAD)
    (folder / "demands.csv").write_text("0,1,5,1\n1,0,5,1\n1,1,0,1\n1,1,5,0\n")
    jobs = [{"name": name, "plan": "plan.json", "size": "1M"} for name in ("first", "second")]
    (folder / "jobs.json").write_text(json.dumps({"format": "coppice-jobs", "version": 1, "jobs": jobs}))
    (folder / "nccl.log").write_text(LOG)
    (folder / "trace.json").write_text(json.dumps({"traceEvents": EVENTS}))
    runs = made_runs({"ring": {1 << power: 1.5 for power in (10, 12, 14)}}, library="mpich")
    (folder / "few.jsonl").write_bytes(b"".join(map(encode_run, runs)))
    lines = [json.dumps(document("bench", bench_row(2**k).record())) for k in range(10, 16)]
    (folder / "bench.jsonl").write_text("\n".join(lines))
    (folder / "bench.txt").write_text(
        "# nThread 1 nGpus 4 minBytes 1024 maxBytes 2048 step: 2(factor) warmup iters: 5 iters: 20\n"
        "#       size         count      type   redop    root     time   algbw   busbw #wrong"
        "     time   algbw   busbw #wrong\n"
        "        1024           256     float     sum      -1    10.00    0.10    0.18      0"
        "    11.00    0.09    0.17      0\n"
    )
    with working_in(folder):
        for words in (
            f"plan {STAR} -c all_gather -o plan.json",
            f"plan {STAR} -c all_gather --algorithm ring -o rings.json",
            f"bound {STAR} -c all_reduce --size 1K:1G:64 -o bounds.json",
            f"topology degrade {STAR} --node rank0=50% -o slower.json",
            "export plan.json --to msccl-xml --target msccl --size all -o given.xml",
            "export plan.json --to mscclpp-json -o given.mscclpp.json",
            "export plan.json --to put-signal -o given.psp.json",
            f"tune fit {EXAMPLES}/tuning-runs.jsonl -o table.csv",
            "tune export table.csv --to ompi-rules -o rules.conf",
            "tune fit few.jsonl -o few.csv",
            "plan dgx-a100 -c all_gather -o box.json",
            f"diagnose simulate {STAR} --node rank0=100% -o probes.json",
            "export box.json --to chakra --size 8M -o traces",
        ):
            done = coppice(*words.split())
            assert done.exit_code == 0, f"{words}: {done.output}"
    return folder


def bench_row(size_bytes: int) -> BenchRow:
    return BenchRow(
        collective="all_gather",
        algorithm="ring",
        ranks=4,
        size_bytes=size_bytes,
        count=size_bytes // 4,
        dtype="float32",
        op="none",
        root=-1,
        in_place=False,
        pieces=1,
        time_us=10 + size_bytes / 1000,
        algbw_gb_per_s=1.0,
        busbw_gb_per_s=0.75,
    )


def test_all_outputs_are_here() -> None:
    assert set(OUTPUTS) == RUNS.keys() | ELSEWHERE.keys() | BUILT.keys()
    for output, path in ELSEWHERE.items():
        assert "--json" in (ROOT / path).read_text(), output


@pytest.mark.parametrize(
    ("output", "words"), [(output, words) for output, several in RUNS.items() for words in several]
)
def test_outputs_accord_with_their_schemas(output: str, words: str, run: Run, made: Path) -> None:
    with working_in(made):
        done = run(*words.split(), "--json")
    if output != "synthesize-none":
        assert done.code == 0, done.err
    assert done.json["format"] == format_of(output)
    assert done.json["version"] == OUTPUTS[output].version
    require_valid(done.json)


def probed() -> dict[str, Any]:
    topology = preset("star", gpus=2)
    finding = LinkFinding(
        link=0, src="gpu0", dst="switch", expected_gb_per_s=1.0, measured_gb_per_s=0.5, tested=True
    )
    measured = RateMeasurement(experiment=Experiment(kind="pair", flows=((0, 1),)), gb_per_s=0.5)
    return Probed(measurements=[measured], groups=[[0], [1]], topology=topology, findings=[finding]).record()


def of_a_lab(*words: str) -> Callable[[Run, pytest.MonkeyPatch, Path], str]:
    """What a command prints about a lab that stands, without the rights to build one."""

    def printed(run: Run, monkeypatch: pytest.MonkeyPatch, _: Path) -> str:
        standing = Lab("lab", draw(preset("star", gpus=2), Fraction(1, 1000)))
        monkeypatch.setattr(namespaces, "find", lambda _: standing)
        monkeypatch.setattr(
            namespaces,
            "check_links",
            lambda _, **__: [LinkCheck(src=0, dst=1, bits_per_s=1000, measured_bits_per_s=999.0)],
        )
        monkeypatch.setattr(namespaces, "link_bytes", lambda _: {(0, 1): 42})
        monkeypatch.setattr(namespaces, "remove", lambda _: 3)
        done = run("lab", *words, "--json")
        assert done.code == 0, done.err
        return done.out

    return printed


def of_a_switch(do: Callable[[Any, Any], object]) -> Callable[[Run, pytest.MonkeyPatch, Path], str]:
    """What a switch prints while it serves."""

    def printed(_: Run, monkeypatch: pytest.MonkeyPatch, __: Path) -> str:
        from coppice.innetwork.serving.udp import SwitchServer

        lines: list[str] = []
        written = SimpleNamespace(write=lines.append, flush=lambda: None)
        serve = import_module("coppice.cli.switch.serve")  # the package has the function of this name
        with SwitchServer() as switch, monkeypatch.context() as patch:
            patch.setattr("sys.stdout", written)
            do(serve, switch)
        return "".join(lines)

    return printed


def swept(run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setattr("coppice.tuning.sweep.sweep_mpi", lambda *_, **__: None)
    words = ("tune", "sweep", "-l", "open-mpi", "--num-ranks", "2", "-o", folder / "runs.jsonl", "--json")
    done = run(*words)
    assert done.code == 0, done.err
    return done.out


def built(run: Run, monkeypatch: pytest.MonkeyPatch, folder: Path) -> str:
    monkeypatch.setattr("coppice.tuning.building.build_plugin", lambda *_, **__: folder / "plugin.so")
    done = run("tune", "plugin", "build", "--json")
    assert done.code == 0, done.err
    return done.out


BUILT: dict[str, Callable[[Run, pytest.MonkeyPatch, Path], str]] = {
    "bench": lambda *_: json.dumps(document("bench", bench_row(1024).record())),
    "probe": lambda *_: json.dumps(document("probe", probed())),
    "lab": of_a_lab("status"),
    "lab-check": of_a_lab("check"),
    "lab-bytes": of_a_lab("bytes"),
    "lab-down": of_a_lab("down"),
    "tune-sweep": swept,
    "tune-plugin": built,
    "switch-event": of_a_switch(
        lambda serve, _: serve._events(SimpleNamespace(events=lambda: ["job 1 begins"]), as_json=True)
    ),
    "switch-counters": of_a_switch(lambda serve, switch: serve._counters(switch, as_json=True)),
}
"""Outputs of commands that need a launcher, rights or a library: printed about things that are made here."""


@pytest.mark.parametrize("output", BUILT)
def test_what_needs_more_than_this_process(
    output: str, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = json.loads(BUILT[output](run, monkeypatch, tmp_path))
    assert found["format"] == format_of(output)
    require_valid(found)
