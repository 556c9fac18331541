"""What stands ready for GPUs, run on one or more: put/signal programs, the NCCL engine, generated kernels.

Usage: python benchmarks/gpu.py [--ranks N] [--write]

Every line of the table is a command of its own, with its result or its last words, so that one that fails hides no
other. With --write the page benchmarks/gpu.md is written, with the device named, and what puts, waits and kernels cost
(`coppice probe --costs`) goes to benchmarks/gpu_costs.json, which `read_put_signal_costs` gives to the simulation.
Without a GPU it prints "no GPU".

There are as many ranks as GPUs, and at least two: ranks that share a GPU need a library that allows it
(NCCL_MULTI_RANK_GPU_ENABLE, which is set here).
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_suffix(".md")
COSTS = Path(__file__).with_name("gpu_costs.json")
LIMIT_S = 300
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter")
HEAD = (
    "| what | collective | size, MiB | algorithm | time, us | algbw, GB/s | wrong | else |",
    "|---|---|---|---|---|---|---|---|",
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A command whose rows of ``coppice bench --json``, or whose last words, become lines.

    Attributes:
        what: What it tries.
        command: Its words.
        variables: Of its environment.
    """

    what: str
    command: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)

    def lines(self) -> Iterator[str]:
        """The lines of the table."""
        environment = {**os.environ, **self.variables}
        try:
            done = subprocess.run(
                self.command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
            )
        except subprocess.TimeoutExpired:
            yield f"| {self.what} | | | | | | | no answer in {LIMIT_S} s |"
            return
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for row in rows:
            if "collective" not in row:  # costs
                costs = ", ".join(f"{name} {value:.3g}" for name, value in row.items())
                yield f"| {self.what} | | | | | | | {cell(costs)} |"
                continue
            head = (
                f"| {self.what} | {row['collective']} | {row['size_bytes'] / 2**20:g} | {row['algorithm']} |"
            )
            if row["refusal"]:
                yield f"{head} | | | {cell(row['refusal'])} |"
            else:
                yield f"{head} {row['time_us']:.1f} | {row['algbw_gb_per_s']:.2f} | {row['wrong']} | |"
        if done.returncode or not rows:
            words = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
            told = [line for line in words if "rror" in line] or words
            yield f"| {self.what} | | | | | | | status {done.returncode}: {cell(told[-1])} |"


def cell(text: str) -> str:
    """Text that fits into a cell of a table."""
    return " ".join(text.replace("|", "/").split())[:300]


def device() -> str:
    """The GPUs in words; empty where there is none."""
    try:
        import torch
    except ImportError:
        return ""
    if not torch.cuda.is_available():
        return ""
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    torch_nccl: Any = torch.cuda.nccl
    library = ".".join(map(str, torch_nccl.version()))
    return (
        f"{len(names)} x {names[0]}, torch {torch.__version__}, CUDA {torch.version.cuda}, its NCCL {library}"
    )


def trials(ranks: int, folder: Path) -> Iterator[Trial]:
    """All that is tried."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "-m", "coppice"]
    sharing = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "COPPICE_CACHE": str(folder / "plans")}
    sizes = ["-b", "1M", "-e", "64M", "-f", "8", "-n", "10", "--json"]
    for name in ("nccl", "symmetric", "emulated"):
        for collective in COLLECTIVES:
            yield Trial(
                what=f"put/signal engine, {name}",
                command=[
                    *launch,
                    "bench",
                    collective,
                    *sizes,
                    "--engine",
                    "put-signal",
                    "-a",
                    "forest,ring,native",
                ],
                variables={**sharing, "COPPICE_PUT_SIGNAL": name},
            )
    for name in ("symmetric", "nccl"):  # the last that works is what stays
        yield Trial(
            what=f"costs of calls, {name}",
            command=[
                *launch,
                "probe",
                "--engine",
                "put-signal",
                "--costs",
                str(folder / COSTS.name),
                "--json",
            ],
            variables={**sharing, "COPPICE_PUT_SIGNAL": name},
        )
    worker = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        str(ranks),
        __file__,
        "--rank",
    ]
    yield Trial(what="NCCL engine of coppice.run", command=worker, variables=sharing)
    plan, kernel = folder / "plan.json", folder / "plan.cu"
    coppice = [sys.executable, "-m", "coppice"]
    made = [*coppice, "plan", "dgx-a100", "--collective", "all_reduce", "-o", str(plan)]
    subprocess.run(made, capture_output=True, timeout=LIMIT_S, check=False)
    if subprocess.run([*coppice, "export", str(plan), "--to", "cuda", "-o", str(kernel)], capture_output=True,
                      timeout=LIMIT_S, check=False).returncode == 0:  # fmt: skip
        compiler = shutil.which("nvcc") or "nvcc"
        yield Trial(
            what="generated kernel, compiled",
            command=["sh", "-c", f"{compiler} -std=c++17 -cubin -o {kernel}.cubin {kernel} && echo compiled"],
        )


def engine_rank() -> None:
    """One rank of the NCCL engine: sums of tensors on GPUs, compared with what they must be."""
    import torch

    from coppice.bounds.problem import Problem
    from coppice.collectives import Collective
    from coppice.planners.planning import plan
    from coppice.program.dialects.rank.lower import lower_for_run
    from coppice.run.engines.datatype import DataType, ReduceOp
    from coppice.run.engines.torch.engine import TorchEngine
    from coppice.topology.presets import preset

    dist: Any = torch.distributed
    cuda: Any = torch.cuda
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    met = TorchEngine.from_environment(timeout_s=60)
    rank, ranks = met.rank, met.ranks
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    engine = TorchEngine(dist.PrefixStore("gpu-benchmark", store), rank, ranks, device="cuda")
    body = plan(Problem(topology=preset("star", gpus=ranks), collective=Collective.ALL_REDUCE)).plan.body
    for mebibytes in (1, 8, 64):
        count = mebibytes << 18
        program = lower_for_run(body, count, in_place=True)[rank]
        times = []
        wrong = 0
        for _ in range(10):
            values = torch.full((count,), float(rank + 1), device="cuda")
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            met.exchange(b"")
            begin.record()
            engine.run(program, None, values, dtype=DataType.FLOAT32, op=ReduceOp.SUM, timeout_s=60)
            end.record()
            torch.cuda.synchronize()
            times.append(1e3 * begin.elapsed_time(end))
            wrong += int((values != ranks * (ranks + 1) / 2).sum())
        if rank == 0:
            us = sorted(times)[len(times) // 2]
            row = {
                "collective": "all_reduce",
                "size_bytes": 4 * count,
                "algorithm": "forest",
                "time_us": us,
                "algbw_gb_per_s": 4 * count / us / 1e3,
                "wrong": wrong,
                "refusal": "",
            }
            print(json.dumps(row), flush=True)
    engine.close()
    met.close()


def main() -> None:
    """Print the table, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.rank:
        engine_rank()
        return
    name = device()
    if not name:
        print("no GPU")
        return
    ranks = chosen.ranks or max(2, int(name.split(" x ")[0]))
    lines = list(HEAD)
    with tempfile.TemporaryDirectory() as folder:
        for trial in trials(ranks, Path(folder)):
            for line in trial.lines():
                lines.append(line)
                sys.stderr.write(f"{line}\n")
        if chosen.write and (Path(folder) / COSTS.name).exists():
            shutil.copyfile(Path(folder) / COSTS.name, COSTS)
    table = "\n".join(lines) + "\n"
    head = f"# On GPUs\n\n`python benchmarks/gpu.py --write` wrote this page: {ranks} ranks on {name}.\n\n"
    if chosen.write:
        PAGE.write_text(head + table)
    else:
        sys.stdout.write(head + table)


if __name__ == "__main__":
    main()
