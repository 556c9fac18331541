"""Published training runs, one JSON object a line: their jobs, the framework of each, and what is predicted.

A row has its job as text, its measured seconds (or `OOM`), its source, and features. Rows of a run whose micro-batch or
chunks are not published are its legal variants: the fastest of those that fit is its prediction.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from coppice.errors import InputError
from coppice.iteration.accuracy import Anchor, RunSetting, correction, estimate_range
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import parse_job_record, with_values
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.memory import memory_of

Row = dict[str, Any]
LATENT = {"head_width": 192, "value_width": 128, "rope_width": 64, "kv_rank": 512, "query_rank": 1536}

FRAMEWORKS = (
    # Source begins with, and features contain; framework, and kernel of attention (None: the framework's).
    ("Aleph Alpha A100 (flash 2 + RMS)", "", "scaling", None),
    ("Aleph Alpha A100 (fa2)", "", "scaling-unfused", "flash-2"),
    ("Aleph Alpha A100 (fa1)", "", "scaling-unfused", "flash-1"),
    ("Aleph Alpha A100 (fused)", "", "scaling-unfused", "softmax"),
    ("Aleph Alpha A100 (torch)", "", "scaling-unfused", "eager"),
    ("llm-foundry", "", "foundry", None),
    ("InternEvo", "", "internevo", None),
    ("", "deepspeed", "deepspeed", None),
    ("", "fsdp", "fsdp", None),
    ("", "", "megatron", None),
)
"""What ran a row, by its source: the first that suits."""
STATED: tuple[tuple[str, str, Row], ...] = (
    # Source begins with, and note contains; what the job has then.
    ("", "500 W", {"cluster": {"device": "H100-96G"}}),
    ("torchtitan", "eager", {"run": {"framework": "fsdp-eager"}}),
    ("", "selective checkpointing per op", {"layout": {"recompute": "operators"}}),
    # All blocks, or none, are what the two rows of such a run have.
    ("", "every other (or so) block recomputed", {"layout": {"recompute": "full", "recompute_every": 2}}),
    ("", "windows of half of the layers", {"model": {"window": 128, "full_every": 2}}),
    ("", "MLA as 128 heads", {"model": {"kv_heads": 0, **LATENT}}),
    # Recipes send tokens with DeepEP or HybridEP, of NeMo's DeepSeek-V3 on H100.
    ("Megatron-Bridge MoE", "", {"layout": {"ep_comm": "deduplicated"}}),
    ("dgxc-benchmarking DeepSeek-V3", "", {"layout": {"ep_comm": "deduplicated"}}),
)
"""What rows state about a run and their job does not have, as the first jobs could not: settings of gpt-oss, of
DeepSeek-V3, and of how a program is run."""
OF_A_BOX = ("states shared out within a box", "ZeRO within a box")
"""Notes of rows whose replicas shard in a box alone."""
VARIANTS = "best that fits"
"""Words in the note of a row that is one variant of a run."""


@dataclass(frozen=True, eq=False)
class Run:
    """A measured run: its rows, of which all but one are variants."""

    rows: Sequence[Row]
    jobs: Sequence[TrainingJob | None]  # The job of each row; None: refused
    refused: str = ""  # Why the last one was

    @property
    def row(self) -> Row:
        """The first row."""
        return self.rows[0]

    @property
    def measured(self) -> float | None:
        """Seconds; None: it ran out of memory."""
        return None if self.row["measured_s"] == "OOM" else float(self.row["measured_s"])

    @cached_property
    def fitting(self) -> Sequence[TrainingJob]:
        """Jobs that fit the memory; all if none does, or there is one."""
        jobs = [each for each in self.jobs if each is not None]
        return [each for each in jobs if len(jobs) > 1 and fits(each)] or jobs

    @cached_property
    def best(self) -> tuple[float, TrainingJob | None]:
        """Seconds of the fastest variant, and which it is; 0: refused."""
        took = [(simulated_job(job).seconds, number) for number, job in enumerate(self.fitting)]
        seconds, number = min(took, default=(0.0, -1))
        return seconds, self.fitting[number] if took else None

    def predicted(self) -> float:
        """Seconds of the fastest variant; 0: refused."""
        return self.best[0]


def fits(job: TrainingJob) -> bool:
    """Whether a job is said to fit the memory of its GPUs."""
    return memory_of(job.model, job.layout, job.cluster.framework).total <= job.cluster.device.memory_bytes


def framework_of(row: Row) -> tuple[str, str | None]:
    """The framework of a row, and its kernel of attention."""
    return next(
        (framework, attention)
        for source, feature, framework, attention in FRAMEWORKS
        if row["source"].startswith(source) and feature in row["features"]
    )


def read_rows(path: Path) -> list[Row]:
    """The rows of a file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def runs_of(rows: Iterable[Row], folder: Path) -> Iterator[Run]:
    """The runs of rows; topologies are looked for in a folder."""
    variants: dict[str, list[Row]] = {}
    for row in rows:
        key = f"group {row['group']}" if VARIANTS in row["note"] else row["id"]
        variants.setdefault(key, []).append(row)
    for each in variants.values():
        jobs: list[TrainingJob | None] = []
        why = ""
        for row in each:
            try:
                jobs.append(_job(row, folder))
            except InputError as error:
                why = str(error)
                jobs.append(None)
        yield Run(rows=each, jobs=jobs, refused=why if not any(jobs) else "")


def _job(row: Row, folder: Path) -> TrainingJob:
    record = parse_job_record(row["job"], where=row["id"])
    framework, attention = framework_of(row)
    record = with_values(record, {"run": {"framework": framework, "attention": attention}})
    for source, words, values in STATED:
        if row["source"].startswith(source) and words in row["note"]:
            record = with_values(record, values)
    if any(words in row["note"] for words in OF_A_BOX):
        record = with_values(record, {"layout": {"shard_ranks": 8 // (record.layout.tp or 1)}})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return job_of(record, folder=folder)


def errors_of(found: Sequence[float]) -> dict[str, float]:
    """Figures of relative errors (predicted over measured, minus one), in percent."""
    sizes = [abs(each) for each in found]
    if not sizes:
        return {"rows": 0}
    return {
        "rows": len(found),
        "mape_percent": 100 * statistics.mean(sizes),
        "median_percent": 100 * statistics.median(sizes),
        "max_percent": 100 * max(sizes),
        "bias_percent": 100 * statistics.mean(found),
        "within_10_percent": 100 * sum(each <= 0.1 for each in sizes) / len(sizes),
        "within_20_percent": 100 * sum(each <= 0.2 for each in sizes) / len(sizes),
        "within_25_percent": 100 * sum(each <= 0.25 for each in sizes) / len(sizes),
    }


def figures_of(runs: Sequence[Run]) -> dict[str, Any]:
    """What is asked of published runs: errors of the exact rows, by source, of memory, and of groups of layouts."""
    timed = [(run, run.predicted()) for run in runs if run.measured]
    wrong = {run.row["id"]: took / run.measured - 1 for run, took in timed if run.measured}
    exact = [wrong[run.row["id"]] for run, _ in timed if run.row["exact"]]
    sources: dict[str, list[float]] = {}
    for run, _ in timed:
        sources.setdefault(run.row["source"], []).append(wrong[run.row["id"]])
    return {
        "exact": errors_of(exact),
        "all": errors_of(list(wrong.values())),
        "refused": sum(bool(run.refused) for run, _ in timed),
        "sources": {name: errors_of(found) for name, found in sorted(sources.items())},
        "anchored": errors_of(list(_anchored(timed))),
        "memory": _memory(runs),
        "groups": _groups(timed, runs),
    }


def _anchored(timed: Sequence[tuple[Run, float]]) -> Iterator[float]:
    """Errors where the first run of each group is measured, and corrects the others."""
    groups: dict[str, list[tuple[Run, float, TrainingJob]]] = {}
    for run, took in timed:
        job = run.best[1]
        if run.row["exact"] and job is not None:
            groups.setdefault(run.row["group"], []).append((run, took, job))
    for (first, estimated, job), *others in groups.values():
        anchor = Anchor(setting=_setting(job), measured=first.measured or 1.0, estimated=estimated)
        for run, took, other in others:
            factor = correction(_setting(other), [anchor], estimate_range(other.cluster).spread).factor
            yield factor * took / (run.measured or 1.0) - 1


def _setting(job: TrainingJob) -> RunSetting:
    return RunSetting(model=job.model, device=job.cluster.device.name, layout=job.layout)


def _memory(runs: Sequence[Run]) -> dict[str, int]:
    """Runs that ran out of memory, those that did not, and of either how many are said to fit."""
    found = {"out_of_memory": 0, "out_of_memory_said_to_fit": 0, "ran": 0, "ran_said_not_to_fit": 0}
    for run in runs:
        fitting = any(job is not None and fits(job) for job in run.jobs)
        if run.measured is None:
            found["out_of_memory"] += 1
            found["out_of_memory_said_to_fit"] += fitting
        else:
            found["ran"] += 1
            found["ran_said_not_to_fit"] += not fitting
    return found


def _groups(timed: Sequence[tuple[Run, float]], runs: Sequence[Run]) -> dict[str, Any]:
    """Groups with several layouts of one model: regret of the one that is picked, and how well they are ordered.

    The layout that is picked is the fastest of those that are said to fit; if it ran out of memory, that counts apart.
    """
    took = {run.row["id"]: seconds for run, seconds in timed}
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.row["group"], []).append(run)
    regrets, orders, failed, asked = [], [], 0, 0
    for group in groups.values():
        ran = [run for run in group if run.measured]
        if len(group) < 2 or len(ran) < 2:
            continue
        asked += 1
        fitting = [run for run in group if run.jobs[0] is not None and fits(run.jobs[0])] or group
        picked = min(fitting, key=lambda run: took.get(run.row["id"]) or run.predicted() or math.inf)
        if picked.measured is None:
            failed += 1
            picked = min(ran, key=lambda run: took[run.row["id"]] or math.inf)
        regrets.append((picked.measured or 0.0) / min(run.measured or 0.0 for run in ran) - 1)
        orders.append(_order([(took[run.row["id"]], run.measured or 0.0) for run in ran]))
    if not asked:
        return {"groups": 0}
    return {
        "groups": asked,
        "mean_regret_percent": 100 * statistics.mean(regrets),
        "median_regret_percent": 100 * statistics.median(regrets),
        "picked_out_of_memory": failed,
        "mean_rank_correlation": statistics.mean(orders),
    }


def _order(pairs: Sequence[tuple[float, float]]) -> float:
    """Kendall's rank correlation of predicted and measured times."""
    signs = [
        math.copysign(1.0, (a - c) * (b - d)) if (a - c) * (b - d) else 0.0
        for (a, b), (c, d) in itertools.combinations(pairs, 2)
    ]
    return statistics.mean(signs)
