"""Policies and compositions of them on jobs: GPT-3 175B on 1,024 GPUs, a mixture of experts on 128."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from types import FrameType
from typing import Any

from coppice.errors import InputError
from coppice.iteration.job.composed import ComposedStep, compose, composition_of
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.policies.catalogue import POLICIES
from tables import Table, number

__all__ = ["EXPERTS", "GPT", "Composed", "composed", "job_tables", "job_with"]

PATIENCE = 60
"""Processor seconds that a simulation may take."""
SLOW = ("lina", "syndicate", "centauri")
"""Plans of the whole step, which are searched for."""
COMPOSED = (
    "ddp+breadth-first",
    "dear+breadth-first",
    "dear+zero-bubble",
    "dear+modulo",
    "fold3d+decomposition",
    "dear+modulo+decomposition",
)
"""Compositions for pipelines."""

GPT = """
[model]
name = "gpt-175b"
[cluster]
topology = "dgx-a100"
boxes = 128
[layout]
tp = 8
pp = 16
dp = 8
micro_batch = 1
global_batch = 512
recompute = "selective"
"""
EXPERTS = """
[model]
name = "switch-large-128"
[cluster]
topology = "dgx-a100"
boxes = 16
[layout]
dp = 128
ep = 128
micro_batch = 8
global_batch = 1024
"""
RATES = (10, 25, 100, 200)
"""Gb/s of a GPU; a DGX A100 has 200."""

SLICES: Mapping[str, Mapping[str, Any]] = {"p3": {"slice_elements": 4_000_000}}
"""Slices of 50,000 elements would be 876,052 messages an iteration for GPT-3."""


@dataclass(frozen=True, kw_only=True)
class Composed:
    """A composition on a job: its step, or why there is none; processor seconds that the simulation took."""

    name: str
    step: ComposedStep | None
    why: str
    spent: float

    @property
    def seconds(self) -> float | None:
        """Time of an iteration."""
        return self.step.seconds if self.step else None


def job_with(text: str, gb_per_s: float | None = None) -> TrainingJob:
    """The job of a file, with NICs that give every GPU so much."""
    job = job_of(parse_job_record(text, where="the job"))
    if gb_per_s is None:
        return job
    kinds = tuple(
        replace(
            kind,
            cluster=replace(kind.cluster, nic_bytes_per_second=gb_per_s / 8 * 1e9 * kind.cluster.device.box),
        )
        for kind in job.machines.kinds
    )
    return replace(job, machines=replace(job.machines, kinds=kinds))


@contextmanager
def _patience() -> Iterator[None]:
    """Raises TimeoutError when time is up."""

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def composed(job: TrainingJob, name: str, settings: Mapping[str, Any] | None = None) -> Composed:
    """A composition on a job."""
    began = time.process_time()
    step, why = None, ""
    try:
        with _patience():
            step = compose(job, composition_of(name, settings or SLICES.get(name)))
    except InputError as error:
        why = str(error)
    except TimeoutError:
        why = f"no result in {PATIENCE} s of processor time"
    return Composed(name=name, step=step, why=why, spent=time.process_time() - began)


@cache
def on(text: str, gb_per_s: float, name: str) -> Composed:
    """A composition on the job of a file, simulated once."""
    return composed(job_with(text, gb_per_s), name)


def _table(title: str, text: str) -> Table:
    """Times of all policies on all networks, relative to the baseline; seconds that simulating took."""
    table = Table(
        title=title,
        header=(
            "policy",
            *(f"{rate} Gb/s" for rate in RATES),
            "bound",
            "exposed",
            "simulated in",
            "refused",
        ),
    )
    bases = [on(text, rate, "none").seconds or 1.0 for rate in RATES]
    names = ["none", *POLICIES, *(COMPOSED if job_with(text).layout.pipeline > 1 else ())]
    for name in names:
        last = on(text, RATES[-1], name)
        cells = []
        for rate, base in zip(RATES, bases, strict=True):
            searched = name in SLOW and rate != RATES[-1] and text == GPT
            seconds = None if searched else on(text, rate, name).seconds
            absolute = f"{number(seconds, unit='s')}" if name == "none" else f"{(seconds or 0.0) / base:.3f}"
            cells.append("-" if seconds is None else absolute)
        if last.step is None:
            table.rows.append((name, *cells, "-", "-", number(last.spent, unit="s"), _short(last.why)))
            continue
        exposed = last.step.exposed_seconds
        table.rows.append(
            (
                name,
                *cells,
                f"{last.step.lower_bound_seconds / bases[-1]:.3f}",
                "-" if exposed != exposed else f"{exposed / last.step.seconds:.0%}",
                number(last.spent, unit="s"),
                "",
            )
        )
    return table


def _short(why: str) -> str:
    """What a refusal says first."""
    return why.split(": ")[0].replace("|", "/")


def job_tables() -> list[Table]:
    """Both jobs."""
    gpt = _table("GPT-3 175B on 1,024 A100 (tp 8, pp 16, dp 8, batch 512, micro-batches of 1)", GPT)
    gpt.notes.append(
        "Times over those of 1F1B in which nothing overlaps (`none`, in seconds), by Gb/s of a GPU between boxes. "
        "Bound, exposed communication on the critical path and processor seconds of a simulation are those at "
        f"{RATES[-1]} Gb/s; plans of the whole step are searched for there only, for {PATIENCE} s at most. "
        "Policies have their defaults, p3 slices of 4 million elements; compositions of policies follow. In 1F1B "
        "gradients are complete with the last micro-batch, so that policies of gradients gain little by themselves."
    )
    experts = _table(
        "switch-large-128 on 128 A100 (an expert each, dp 128, 8 sequences a GPU)",
        EXPERTS,
    )
    experts.notes.append(
        "In the baseline nothing overlaps, all-to-alls included; lina, syndicate and centauri plan the whole "
        "step. A "
        "policy of pipelines needs one, and those inside layers tensor parallelism."
    )
    return [gpt, experts]
