"""How far estimates are from measured steps: the range in which 80% of runs are expected, and corrections by steps.

The range. Conformal prediction (Vovk et al., 2005; Lei et al., JASA 2018): the 10% and 90% quantiles of measured over
estimated seconds among some runs hold for a new run of the same kind. Each run is estimated with constants that were
fitted without its group (the jackknife+ of Barber et al., Annals of Statistics 2021; `benchmarks/exam.py --left-out`),
so that no run tells what is expected of itself. Kinds are a framework on a kind of GPU; those with few runs take the
quantiles of the framework, or of all runs. A card whose power is capped adds the range of its clock.

Corrections. Runs of the same model teach most about those most like them. The logarithm of measured over estimated
seconds of a run has parts: one of the software and the cluster, which is near none where a framework is run as its
profile says, and large where it is not; one that runs of a model share, and more of it where their degrees are the
same; one of its own. All are taken as normal, the first as one of two, so that a measured step that is where
estimates usually are moves another layout little, and one that is far away moves all of them (Kriging, Matheron 1963,
of a mixture). Shares are those of published runs that were left out of the fit (`benchmarks/exam.py --left-out`).
"""

from __future__ import annotations

import json
import math
import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coppice.errors import InputError
from coppice.files import decode_utf8
from coppice.iteration.job.file import with_values
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.job.tables import JobRecord
from coppice.iteration.layout import Layout
from coppice.iteration.machine import CONSTANTS, Cluster
from coppice.iteration.traces.kinds import read_trace_bytes
from coppice.iteration.transformer import Transformer
from coppice.iteration.workload.nets import LayeredModel
from coppice.text import plural

TENTH = 1.2816
"""Distance from the middle, in standard deviations, beyond which a tenth of a normal distribution lies."""
APART = 0.09
"""Distance between the errors of two runs of a model that 80% of pairs of published ones stay below, in logarithms."""
FEWEST = 8
"""Runs that a kind needs for quantiles of its own."""
QUANTILES: dict[tuple[str, str], tuple[int, float, float]] = {
    ("", ""): (585, 0.93, 1.09),
    ("deepspeed", ""): (56, 0.92, 1.08),
    ("deepspeed", "A100-80G"): (56, 0.92, 1.08),
    ("foundry", ""): (113, 0.94, 1.07),
    ("foundry", "A100-80G"): (70, 0.94, 1.16),
    ("foundry", "H100"): (43, 0.96, 1.05),
    ("fsdp", ""): (20, 0.83, 1.13),
    ("fsdp", "H100"): (15, 0.83, 1.13),
    ("internevo", ""): (20, 0.96, 1.08),
    ("internevo", "A100-80G"): (20, 0.96, 1.08),
    ("megatron", ""): (92, 0.85, 1.12),
    ("megatron", "B200"): (39, 0.85, 1.15),
    ("megatron", "H100"): (53, 0.86, 1.11),
    ("megatron-2021", ""): (60, 0.96, 1.08),
    ("megatron-2021", "A100-80G"): (60, 0.96, 1.08),
    ("nanotron", ""): (15, 0.94, 1.10),
    ("nanotron", "H100"): (15, 0.94, 1.10),
    ("scaling", ""): (75, 0.96, 1.08),
    ("scaling", "A100-80G"): (75, 0.96, 1.08),
    ("scaling-unfused", ""): (130, 0.93, 1.06),
    ("scaling-unfused", "A100-80G"): (130, 0.93, 1.06),
}
"""Number of runs, and the 10% and 90% quantiles of measured over estimated seconds, by framework and kind of GPU;
empty: of all."""


@dataclass(frozen=True, kw_only=True)
class EstimateRange:
    """Range in which 80% of runs like a job are expected."""

    low: float  # Measured over estimated seconds of which 10% are expected below
    high: float  # And of which 90% are
    runs: int  # Published runs that it rests on
    like: str  # What they have in common with the job

    def of(self, seconds: float) -> tuple[float, float]:
        """The range of an estimate."""
        return self.low * seconds, self.high * seconds

    @property
    def spread(self) -> float:
        """Usual distance of measured from estimated times, in logarithms."""
        return math.log(self.high / self.low) / (2 * TENTH)

    def capped(self, shares: tuple[float, float, float]) -> EstimateRange:
        """The range where the clock of a capped GPU is not known: distances of both kinds are independent.

        Args:
            shares: Share of its clock that it keeps: the least, as taken, and the most.
        """
        least, taken, most = shares
        if least == most:
            return self
        low = math.hypot(math.log(self.low), math.log(taken / most))
        high = math.hypot(math.log(self.high), math.log(taken / least))
        return EstimateRange(
            low=math.exp(-low),
            high=math.exp(high),
            runs=self.runs,
            like=f"{self.like}, with cards of any clock",
        )

    def corrected(self, factor: float, spread: float, anchors: int) -> EstimateRange:
        """The range with measured steps of the same job.

        Args:
            factor: By which they move estimates.
            spread: Usual distance of measured from corrected times, in logarithms.
            anchors: Number of steps.
        """
        wide = math.exp(TENTH * spread)
        return EstimateRange(
            low=factor / wide,
            high=factor * wide,
            runs=self.runs,
            like=f"{self.like}, and {plural(anchors, 'measured step')}",
        )


def estimate_range(cluster: Cluster) -> EstimateRange:
    """The range of estimates on a cluster.

    Examples:
        >>> from coppice.iteration.machine import box_of
        >>> found = estimate_range(box_of("H100"))
        >>> found.low < 1 < found.high, found.like
        (True, 'megatron on H100')
    """
    gpu = CONSTANTS.get(cluster.device.name, cluster.device.name)
    framework = cluster.framework.name
    kinds = (
        ((framework, gpu), f"{framework} on {gpu}"),
        ((framework, ""), framework),
        (("", ""), "any kind"),
    )
    for kind, like in kinds:
        runs, low, high = QUANTILES.get(kind, (0, 1.0, 1.0))
        if runs >= FEWEST or kind == ("", ""):
            found = EstimateRange(low=low, high=high, runs=runs, like=like)
            return found.capped(cluster.clock_shares)
    raise AssertionError  # by the last kind


FAR_CHANCE, FAR_WIDTH = 0.03, 0.3
"""How likely a software is not as its profile says, and the usual distance of its times then, in logarithms."""
MODEL_SHARE, ALIKE_SHARE = 0.17, 0.6
"""Shares of the variance of an estimate that two runs of a model have in common, and two whose degrees are alike."""
LIKE = ("tensor", "pipeline", "micro_batch", "recompute")
"""Degrees and settings that make two layouts alike."""
SAME_SHARE = 0.97
"""Share that two runs of one layout have in common."""
_MEASURED = "measured_seconds"


@dataclass(frozen=True, kw_only=True)
class RunSetting:
    """What a run is of, as far as its estimate has errors in common with others."""

    model: Transformer | LayeredModel  # What is trained
    device: str  # The kind of GPU
    layout: Layout  # How it lies on the GPUs


@dataclass(frozen=True, kw_only=True)
class Anchor:
    """A measured step of a job."""

    setting: RunSetting  # What was run
    measured: float  # Seconds
    estimated: float  # Seconds, by the same model that estimates the others

    @property
    def distance(self) -> float:
        """Logarithm of measured over estimated seconds."""
        return math.log(self.measured / self.estimated)


@dataclass(frozen=True, kw_only=True)
class Correction:
    """Factor on the estimate of a layout that follows from anchors."""

    factor: float  # Of the estimate
    spread: float  # Usual distance of measured from corrected times, in logarithms


def correction(setting: RunSetting, anchors: Sequence[Anchor], spread: float) -> Correction:
    """Correct the estimate of a run by anchors.

    Args:
        spread: Usual distance of measured from estimated times where software is as its profile says, in logarithms.

    Examples:
        The layout that was measured takes what was measured; another one moves less, unless the distance is large:

        >>> from coppice.iteration.models import model_named
        >>> measured, other = (
        ...     RunSetting(model=model_named("gpt-7.5b"), device="H100", layout=Layout(tensor=each)) for each in (8, 2)
        ... )
        >>> near = [Anchor(setting=measured, measured=1.1, estimated=1.0)]
        >>> far = [Anchor(setting=measured, measured=2.0, estimated=1.0)]
        >>> [round(correction(each, near, 0.07).factor, 2) for each in (measured, other)]
        [1.1, 1.02]
        >>> [round(correction(each, far, 0.07).factor, 1) for each in (measured, other)]
        [2.0, 1.9]
    """
    settings = [each.setting for each in anchors]
    found = np.asarray([each.distance for each in anchors])
    own = spread**2
    alike = np.asarray([[_likeness(a, b) for b in settings] for a in settings])
    towards = np.asarray([_likeness(setting, each) for each in settings])
    chances, means, variances = [], [], []
    for chance, width in ((1 - FAR_CHANCE, 0.0), (FAR_CHANCE, FAR_WIDTH)):
        between = own * alike + width**2
        between[np.diag_indices_from(between)] = own + width**2
        weights = np.linalg.solve(between, own * towards + width**2)
        likely = -0.5 * (found @ np.linalg.solve(between, found) + np.linalg.slogdet(between)[1])
        chances.append(math.log(chance) + likely)
        means.append(float(weights @ found))
        variances.append(float(own + width**2 - weights @ (own * towards + width**2)))
    of = np.exp(np.asarray(chances) - max(chances))
    of /= of.sum()
    mean = float(of @ means)
    return Correction(
        factor=math.exp(mean),
        spread=math.sqrt(float(of @ (np.asarray(variances) + np.square(means))) - mean**2),
    )


def _likeness(one: RunSetting, other: RunSetting) -> float:
    """Share of the variance of estimates that two runs have in common."""
    if one == other:
        return SAME_SHARE
    if (one.model, one.device) != (other.model, other.device):
        return 0.0
    alike = all(getattr(one.layout, name) == getattr(other.layout, name) for name in LIKE)
    return ALIKE_SHARE if alike else MODEL_SHARE


def read_anchor(
    path: Path | str,
    record: JobRecord,
    simulate: Callable[[TrainingJob], float],
    *,
    folder: Path | None = None,
    loaded: Callable[..., Any] | None = None,
) -> Anchor:
    """Read a measured step: JSON or TOML with its seconds, and what it has otherwise than a job; or a trace.

    Args:
        path: A file with `measured_seconds` and tables of a job, whose keys replace those of the job; or the trace of
            the job's own step by the profiler of PyTorch.
        record: The job.
        simulate: Estimates the seconds of a job.
        folder: Where the job looks for its files.
        loaded: Loads a topology.

    Raises:
        InputError: If the file is neither, or the job that it tells of cannot be estimated.
    """
    where, content = str(path), read_trace_bytes(path, what="the measured step")
    if b'"traceEvents"' in content:
        made, measured = job_of(record, folder=folder, loaded=loaded), _step_seconds(path)
    else:
        data = _tables(content, where)
        measured = data.pop(_MEASURED, None)
        if isinstance(measured, bool) or not isinstance(measured, int | float) or not 0 < measured < math.inf:
            found = "none" if measured is None else repr(measured)
            raise InputError(f"`{_MEASURED}`: expected seconds of a step above 0, found {found} in {where}.")
        wrong = next((name for name, each in data.items() if not isinstance(each, dict)), None)
        if wrong is not None:
            raise InputError(
                f"`{wrong}`: expected {_MEASURED} and tables of a job (such as layout), found it in {where}."
            )
        made = job_of(with_values(record, data), folder=folder, loaded=loaded)
    setting = RunSetting(model=made.model, device=made.cluster.device.name, layout=made.layout)
    return Anchor(setting=setting, measured=float(measured), estimated=simulate(made))


def _step_seconds(path: Path | str) -> float:
    """Median of the steps of a trace."""
    from coppice.iteration.kineto import read_kineto

    steps = read_kineto(path).steps
    if not steps:
        raise InputError(
            f"expected steps in {path}, found no ProfilerStep: profile with a schedule and call step(), or write "
            f"{_MEASURED} in a JSON file."
        )
    return statistics.median(steps) / 1e6


def _tables(content: bytes, where: str) -> dict[str, Any]:
    """The tables of a JSON or TOML file."""
    text = decode_utf8(content, file=where)
    try:
        return dict(json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text))
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"expected JSON or TOML in {where}, found otherwise: {error}.") from None
