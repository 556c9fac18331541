"""Fits the constants of kernels, networks and frameworks to measured iterations, all at once.

Errors are differences of logarithms; those beyond the usual one count linearly (soft L1). A constant stays near where
it starts, which is what source code and data sheets say, as far as rows do not tell: its distance in logarithms over
its width counts as an error does. Sources with many rows count less for each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coppice.iteration.devices import CALIBRATIONS, Calibration
from coppice.iteration.frameworks import FRAMEWORKS, Framework
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.job import TrainingJob
from coppice.iteration.workload import times, transformers
from exam_published import Run

USUAL_ERROR = 0.04
WIDTH = 0.3
WIDTHS = {"matrix_share": 0.1, "memory_share": 0.15, "far_share": 0.2, "near_share": 0.25, "stall_share": 0.7}
WIDTHS |= {"norm_passes": 0.5, "activation_passes": 0.4, "accumulated_bytes": 0.4, "host_seconds": 0.6}
WIDTHS |= {"gradient_share": 0.8, "gradient_bytes": 0.05, "near_seconds": 0.4, "far_seconds": 0.3}
MOST = {
    "near_share": 0.95,
    "far_share": 0.95,
    "memory_share": 0.95,
    "matrix_share": 0.95,
    "gradient_share": 1.0,
    "TILE_POWER": 1.0,
}
FITTED_CALIBRATION = (
    "matrix_share",
    "half_depth",
    "narrow_share",
    "unfused_share",
    "memory_share",
    "near_seconds",
    "near_share",
    "far_share",
)
FITTED_FRAMEWORK = (
    "norm_passes",
    "activation_passes",
    "loss_passes",
    "accumulated_bytes",
    "gradient_share",
    "host_seconds",
)
FITTED_MODULES = {
    times: (
        *("TILE_POWER", "MISALIGNED", "MISALIGNED_HEAD", "HALF_SEQ", "HALF_WIDTH", "BACKWARD_SHARE"),
        "CAST_PASSES",
    ),
    transformers: ("ROUTED_PASSES",),
}

UNFITTED = ("fsdp-eager",)
"""Frameworks with too few runs: their passes are those of others whose kernels are alike, and of their source code."""
IMPORTANCE = {"vtrain_multi": 6, "selene": 4, "megatron_sc21": 3, "nanotron_h100": 4}
"""Sources that tell every setting of their runs: how many times as much as those of others they count."""

Constants = dict[str, float]
Vector = NDArray[np.float64]


USUAL = {
    "A100-80G.matrix_share": 0.85,
    "A100-80G.half_depth": 166.0,
    "A100-80G.attention.flash-1": 0.3,
    "A100-80G.attention.flash-2": 0.7,
    "A100-80G.attention.triton": 0.5,
    "A100-80G.attention.cudnn": 0.7,
    "A100-80G.near_share": 0.7,
    "A100-80G.far_share": 0.85,
    "H100.matrix_share": 0.7,
    "H100.half_depth": 470.0,
    "H100.attention.flash-1": 0.2,
    "H100.attention.flash-2": 0.35,
    "H100.attention.triton": 0.3,
    "H100.attention.cudnn": 0.6,
    "H100.unfused_share": 0.5,
    "H100.far_share": 0.7,
    "B200.matrix_share": 0.78,
    "B200.half_depth": 800.0,
    "B200.attention.flash-1": 0.15,
    "B200.attention.flash-2": 0.3,
    "B200.attention.triton": 0.2,
    "B200.attention.cudnn": 0.4,
    "B200.unfused_share": 0.5,
    "B200.far_share": 0.6,
    "megatron-2021.norm_passes": 5.0,
    "deepspeed.norm_passes": 18.0,
    "scaling.norm_passes": 16.0,
    "scaling.gradient_share": 0.1,
    "scaling-unfused.norm_passes": 22.0,
    "scaling-unfused.gradient_share": 0.1,
    "module.TILE_POWER": 1.0,
    "module.MISALIGNED": 0.7,
    "module.MISALIGNED_HEAD": 0.5,
    "module.HALF_SEQ": 276.0,
    "module.HALF_WIDTH": 14.0,
    "module.BACKWARD_SHARE": 0.6,
    "module.ROUTED_PASSES": 8.0,
    "module.CAST_PASSES": 3.0,
    "module.softmax_passes": 6.0,
    "module.eager_passes": 11.0,
}
"""Constants by what data sheets, source code and publications of kernels say, near which the fitted ones stay; those
of no row are the defaults of :class:`Calibration` and :class:`Framework`."""


def usual() -> Constants:
    """What every constant is near, by its name."""
    calibration, framework = Calibration(), Framework(name="")
    found = dict(started())
    for name in found:
        what = name.split(".")[-1]
        default = getattr(calibration, what, None) or getattr(framework, what, None)
        found[name] = USUAL.get(name, default or (0.5 if what == "gradient_share" else found[name]))
    return found


def started() -> Constants:
    """Every constant that is fitted as it is in the source, by a name that says where it is."""
    found: Constants = {}
    for gpu, calibration in CALIBRATIONS.items():
        if gpu == "V100":
            continue
        found |= {f"{gpu}.{name}": getattr(calibration, name) for name in FITTED_CALIBRATION}
        found |= {f"{gpu}.attention.{name}": share for name, share in calibration.attention_share.items()}
    found["all.stall_share"] = CALIBRATIONS["A100-80G"].stall_share
    for framework in FRAMEWORKS.values():
        if framework.name not in UNFITTED:
            found |= {
                f"{framework.name}.{name}": getattr(framework, name) or 0.5 for name in FITTED_FRAMEWORK
            }
    for module, names in FITTED_MODULES.items():
        found |= {f"module.{name}": getattr(module, name) for name in names}
    found |= {f"module.{name}_passes": passes for name, passes in times.SCORE_PASSES.items()}
    return found


def calibration_of(gpu: str, constants: Mapping[str, float]) -> Calibration:
    """The constants of a GPU."""
    prefix = f"{gpu}.attention."
    return replace(
        CALIBRATIONS[gpu],
        attention_share={name[len(prefix) :]: v for name, v in constants.items() if name.startswith(prefix)},
        stall_share=constants["all.stall_share"],
        **{name: constants[f"{gpu}.{name}"] for name in FITTED_CALIBRATION},
    )


def framework_with(framework: Framework, constants: Mapping[str, float]) -> Framework:
    """A framework with fitted constants."""
    if framework.name in UNFITTED:
        return framework
    values: dict[str, Any] = {name: constants[f"{framework.name}.{name}"] for name in FITTED_FRAMEWORK}
    return replace(framework, **values)


def set_modules(constants: Mapping[str, float]) -> None:
    """Set the constants that are the same for all GPUs and frameworks."""
    for module, names in FITTED_MODULES.items():
        for name in names:
            setattr(module, name, constants[f"module.{name}"])
    for name in times.SCORE_PASSES:
        times.SCORE_PASSES[name] = constants[f"module.{name}_passes"]


def gpu_of(job: TrainingJob) -> str:
    """Whose constants a job takes."""
    from coppice.iteration.machine import CONSTANTS

    name = job.cluster.device.name
    return CONSTANTS.get(name, name)


def affects(name: str, job: TrainingJob) -> bool:
    """Whether a constant may change the time of a job."""
    owner, _, what = name.partition(".")
    framework = job.cluster.framework
    if owner in FRAMEWORKS:
        return owner == framework.name
    if owner in CALIBRATIONS:
        if owner != gpu_of(job):
            return False
        if what.startswith("attention."):
            return job.layout.fused_attention and what == f"attention.{framework.attention}"
        return what != "unfused_share" or not job.layout.fused_attention
    if what in ("softmax_passes", "eager_passes"):
        return not job.layout.fused_attention and what.startswith(framework.softmax)
    if what == "ROUTED_PASSES":
        return bool(getattr(job.model, "experts", 0))
    if what == "CAST_PASSES":
        return job.cluster.precision > 1
    return True


def seconds_with(job: TrainingJob, constants: Mapping[str, float]) -> float:
    """The time of a job with other constants; those of modules are set already."""
    gpu = gpu_of(job)
    kinds = tuple(
        replace(
            each,
            cluster=replace(
                each.cluster,
                calibration=calibration_of(gpu, constants),
                framework=framework_with(each.cluster.framework, constants),
            ),
        )
        for each in job.machines.kinds
    )
    return simulated_job(replace(job, machines=replace(job.machines, kinds=kinds))).seconds


class Problem:
    """Runs, and the constants that their times depend on, as logarithms."""

    def __init__(self, runs: Sequence[Run], start: Constants) -> None:
        near, counts = usual(), Counter(run.row["source"] for run in runs)
        self.runs, self.start = runs, start
        self.names = [
            name for name in start if any(affects(name, job) for run in runs for job in run.fitting)
        ]
        self.begin = np.log([start[name] for name in self.names])
        self.middle = np.log([near[name] for name in self.names])
        self.widths = np.asarray([WIDTHS.get(name.split(".")[-1], WIDTH) for name in self.names])
        self.most = np.log([MOST.get(name.split(".")[-1], math.inf) for name in self.names])
        sources = [run.row["source"] for run in runs]
        self.weights = np.asarray([2 * counts[each] ** -0.4 * IMPORTANCE.get(each, 1) for each in sources])
        self.measured = np.asarray([run.measured for run in runs])

    def constants(self, logs: Vector) -> Constants:
        """The constants, those of modules set."""
        values = np.exp(np.minimum(logs, self.most)).tolist()
        found = self.start | dict(zip(self.names, values, strict=True))
        set_modules(found)
        return found

    def times(self, logs: Vector) -> tuple[Vector, list[TrainingJob]]:
        """Seconds of each run, and which of its variants takes them."""
        constants, found, chosen = self.constants(logs), [], []
        for run in self.runs:
            took, number = min((seconds_with(job, constants), n) for n, job in enumerate(run.fitting))
            found.append(took)
            chosen.append(run.fitting[number])
        return np.asarray(found), chosen

    def cost(self, seconds: Vector, logs: Vector) -> float:
        """What is made least."""
        errors = np.log(seconds / self.measured) / USUAL_ERROR
        away = ((logs - self.middle) / self.widths) ** 2
        return float((self.weights * 2 * (np.sqrt(1 + errors**2) - 1)).sum() + away.sum())

    def slopes(self, logs: Vector, seconds: Vector, jobs: Sequence[TrainingJob]) -> Vector:
        """By how much the logarithm of each time grows with that of each constant."""
        found, step = np.zeros((len(self.runs), len(self.names))), 0.02
        moved = [self.constants(logs + step * unit) for unit in np.eye(len(self.names))]
        for row, job in enumerate(jobs):  # one by one, as the order of its pipeline is made once
            for column, name in enumerate(self.names):
                if affects(name, job):
                    set_modules(moved[column])
                    found[row, column] = math.log(seconds_with(job, moved[column]) / seconds[row]) / step
        return found

    def model(
        self, logs: Vector, slopes: Vector, errors: Vector, kept: NDArray[np.bool_]
    ) -> tuple[Vector, Vector]:
        """Curvature and slope of the cost of the runs that are kept, where errors beyond the usual one are linear."""
        pull = kept * self.weights / np.sqrt(1 + (errors / USUAL_ERROR) ** 2) / USUAL_ERROR**2
        curved = slopes.T @ (pull[:, None] * slopes) + np.diag(self.widths**-2.0)
        return curved, slopes.T @ (pull * errors) + (logs - self.middle) / self.widths**2


def fit(
    runs: Sequence[Run],
    *,
    rounds: int = 6,
    begin: Constants | None = None,  # Where to begin; None: at what the source has
    report: Callable[[str], None] = print,
) -> tuple[Constants, list[float]]:
    """Constants with which the runs are met best, and the seconds of each with them (Levenberg-Marquardt)."""
    problem = Problem(runs, begin or started())
    logs = problem.begin
    seconds, jobs = problem.times(logs)
    least, damping = problem.cost(seconds, logs), 1e-2
    report(f"start {least:.1f} {summary(runs, seconds)}")
    every = np.ones(len(runs), dtype=np.bool_)
    for number in range(rounds):
        slopes = problem.slopes(logs, seconds, jobs)
        curved, downhill = problem.model(logs, slopes, np.log(seconds / problem.measured), every)
        gained = 0.0
        for _ in range(6):
            move = -np.linalg.solve(curved + damping * np.diag(np.diag(curved)), downhill)
            tried = np.minimum(logs + np.clip(move, -0.5, 0.5), problem.most)
            took, chosen = problem.times(tried)
            now = problem.cost(took, tried)
            if now < least:
                gained, least, logs, seconds, jobs = 1 - now / least, now, tried, took, chosen
                damping = max(damping / 5, 1e-4)
                break
            damping *= 6
        report(f"round {number} {least:.1f} {summary(runs, seconds)}")
        if gained < 2e-3:
            break
    return problem.constants(logs), seconds.tolist()


def left_out(runs: Sequence[Run], constants: Constants | None = None) -> list[float]:
    """Logarithms of predicted over measured seconds of each run, with constants fitted without its group.

    Times are taken as powers of the constants, near those that are fitted to all runs: a Newton step leads from there
    to the constants without a group.
    """
    problem = Problem(runs, constants or started())
    logs = problem.begin
    seconds, jobs = problem.times(logs)
    slopes, errors = problem.slopes(logs, seconds, jobs), np.log(seconds / problem.measured)
    groups = np.asarray([f"{run.row['source']} {run.row['group']}" for run in runs])
    found = np.zeros(len(runs))
    for group in sorted(set(groups)):
        kept = groups != group
        curved, downhill = problem.model(logs, slopes, errors, kept)
        move = -np.linalg.solve(curved, downhill)
        found[~kept] = errors[~kept] + slopes[~kept] @ np.clip(move, -0.5, 0.5)
    return found.tolist()


def summary(runs: Sequence[Run], seconds: Iterable[float]) -> str:
    """The mean error and bias of runs."""
    errors = [took / run.measured - 1 for run, took in zip(runs, seconds, strict=True) if run.measured]
    return f"mean error {100 * np.mean(np.abs(errors)):.2f}%, bias {100 * np.mean(errors):.2f}%"
