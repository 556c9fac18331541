"""Tune a policy's settings for a job or a workload, and find how far each may move.

The policy's own tuner proposes settings; each of them is then tried at halves and doubles, the others held, and the
best are kept. A setting is flat where many values take no more than 1% longer than the best.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import msgspec

from coppice.errors import InputError
from coppice.iteration.job.composed import Composition, compose, composition_of_job, named_policies
from coppice.iteration.job.job import TrainingJob
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.catalogue import POLICIES
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.policy import ConfiguredPolicy, Policy
from coppice.iteration.policies.step_plans import stage_workload
from coppice.iteration.predicted import predict

MOST_TRIALS = 60
"""Settings that are tried in all, beside those that the policy's own tuner tries."""
FLAT = 1.01
_FACTORS = (0.5, 2.0, 0.25, 4.0, 0.125, 8.0)
_CHOSEN = (
    "chunks",
    "most_pieces",
    "budget",
    "token_pieces",
    "k",
    "ahead",
    "slice_elements",
    "small_elements",
)
"""Counts that are a matter of choice; so are all bytes. Other options say what is there."""


_OF_JOB = ("stages", "micro_batches", "transfer_seconds", "ranks")
"""Options that a job says."""


@dataclass(frozen=True, kw_only=True)
class FlatRange:
    """Range of a setting in which the time stays nearly optimal, the others fixed."""

    least: float  # The least value tried that takes no more than 1% longer
    most: float  # The largest one
    worst_seconds: float  # The longest iteration of those tried


@dataclass(frozen=True, kw_only=True)
class TunedPolicy:
    """Best settings of a policy."""

    policy: str  # Name of the policy
    settings: Mapping[str, Any]  # The best
    seconds: float  # Time of an iteration with them
    default_seconds: float  # With the defaults; infinite: they do not suit, for the reason given
    default_reason: str  # Why not; empty: they do
    flat: Mapping[str, FlatRange]  # For each setting that was tried, what is nearly as good
    trials: int  # Settings that were simulated

    def record(self) -> dict[str, Any]:
        """The figures as JSON values."""
        suits = self.default_seconds < inf
        saved = 1 - self.seconds / self.default_seconds if suits and self.default_seconds else None
        return {
            "policy": self.policy,
            "settings": dict(self.settings),
            "iteration_seconds": self.seconds,
            "default_seconds": self.default_seconds if suits else None,
            "default_reason": self.default_reason or None,
            "saved_share": saved,
            "gain": saved,
            "within_1_percent": {
                name: {"least": each.least, "most": each.most, "worst_seconds": each.worst_seconds}
                for name, each in self.flat.items()
            },
            "trials": self.trials,
        }


def tune_on_layers(workload: LayerWorkload, name: str) -> TunedPolicy:
    """Tune a policy on a workload of layers.

    Examples:
        >>> ten = LayerWorkload(
        ...     forward=(1,) * 10, backward=(2,) * 10, bytes=(3,) * 10, bytes_per_second=1, message_seconds=0.05
        ... )
        >>> found = tune_on_layers(ten, "priority")
        >>> found.seconds < found.default_seconds
        True
    """
    policy = _policy(name)
    if not isinstance(policy, Policy):
        raise InputError(
            f"expected a policy of gradients or of pipelines on a workload of layers, found {name}: tune it on a job."
        )

    def seconds(settings: Mapping[str, Any]) -> float:
        return predict(workload, name, settings).iteration_seconds

    return _tuned(policy, [lambda: policy.tune(workload)], seconds)


def tune_on_job(job: TrainingJob, name: str) -> TunedPolicy:
    """Tune a policy on a job; a policy's own tuner takes the stage with the most gradients.

    Args:
        job: The job, whose own policies it stays under.

    Raises:
        InputError: If one of these decides the same, or the policy does not suit the job.
    """
    own = composition_of_job(job) if job.run.policy is not None else Composition()
    policy = _policy(name, ranks=job.layout.tensor)
    starts: list[Callable[[], Mapping[str, Any]]] = []
    if isinstance(policy, DataParallelPolicy):
        starts.append(lambda: policy.tune(_largest_stage(job, own)))

    def seconds(settings: Mapping[str, Any]) -> float:
        changed = type(policy)(msgspec.structs.replace(policy.settings, **settings))
        return compose(job, Composition(policies=(*own.policies, changed))).seconds

    found = _tuned(policy, starts, seconds)
    kept = {name: value for name, value in found.settings.items() if name not in _OF_JOB}
    return replace(found, settings=kept)


def _policy(name: str, *, ranks: int | None = None) -> ConfiguredPolicy:
    """A single policy with its defaults."""
    names = named_policies(name)
    if len(names) != 1:
        raise InputError(f"expected one policy to tune, found {name}: name one, such as bytescheduler.")
    own = POLICIES[names[0]]
    takes = ranks is not None and "ranks" in own.options.__struct_fields__
    return own.of(**({"ranks": max(2, ranks or 2)} if takes else {}))


def _largest_stage(job: TrainingJob, own: Composition) -> LayerWorkload:
    """The stage with the most gradients, as a workload for gradient policies."""
    step = compose(job, own).step
    if step is None:
        raise InputError(f"expected policies beside one of gradients, found {own.name}: leave it out.")
    made = step.given[0]
    most = max(range(len(made.stages)), key=lambda each: sum(block.parameters for block in made.stages[each]))
    return stage_workload(made, most)


class _Trials:
    """Iteration time by settings, each simulated once."""

    def __init__(self, seconds: Callable[[Mapping[str, Any]], float]) -> None:
        self._seconds = seconds
        self.tried: dict[tuple[tuple[str, Any], ...], float] = {}
        self.reason = ""

    def __call__(self, settings: Mapping[str, Any]) -> float:
        """Iteration time; infinite where the settings are invalid."""
        key = tuple(sorted(settings.items()))
        if key not in self.tried:
            try:
                self.tried[key] = self._seconds(settings)
            except InputError as error:
                self.reason = self.reason or str(error)
                self.tried[key] = inf
        return self.tried[key]


def _tuned(
    policy: ConfiguredPolicy,
    starts: list[Callable[[], Mapping[str, Any]]],
    seconds: Callable[[Mapping[str, Any]], float],
) -> TunedPolicy:
    """Best of the tuner's settings, the defaults, and neighbours of the best so far."""
    trials = _Trials(seconds)
    best = msgspec.structs.asdict(policy.settings)
    default, default_reason = trials(best), trials.reason
    for start in starts:
        try:
            proposed = {**best, **start()}
        except InputError:
            continue  # the defaults do not suit the tuner's own workload
        if trials(proposed) < trials(best):
            best = proposed
    flat: dict[str, FlatRange] = {}
    moved = True
    while moved and len(trials.tried) < MOST_TRIALS:
        moved = False
        for name in _numbers(best):
            at = best
            for value in _around(at[name]):
                changed = {**at, name: value}
                if trials(changed) < trials(best) * (1 - 1e-9):
                    best, moved = changed, True
    if trials(best) == inf:
        raise InputError(trials.reason)
    for name in _numbers(best):
        flat[name] = _flat(name, best, trials)
    return TunedPolicy(
        policy=policy.name,
        settings=best,
        seconds=trials(best),
        default_seconds=default,
        default_reason=default_reason,
        flat=flat,
        trials=len(trials.tried),
    )


def _numbers(settings: Mapping[str, Any]) -> list[str]:
    """Settings that are positive numbers and free to choose."""
    return [
        name
        for name, value in settings.items()
        if (name.endswith("_bytes") or name in _CHOSEN)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and value > 0
    ]


def _around(value: float) -> list[float]:
    """Neighbours of a value: multiples, and for whole numbers the next ones."""
    next_ones = [value - 1, value + 1] if isinstance(value, int) else []
    every = [*next_ones, *(_scaled(value, factor) for factor in _FACTORS)]
    return [each for each in dict.fromkeys(every) if each > 0 and each != value]


def _scaled(value: float, factor: float) -> float:
    """Multiple of a setting, rounded if it is whole."""
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


def _flat(name: str, best: Mapping[str, Any], trials: _Trials) -> FlatRange:
    """Range around the best value within which the time stays nearly optimal."""
    least = most = best[name]
    worst = trials(best)
    for factor in (0.5, 2.0):
        value = best[name]
        for _ in range(6):
            value, before = _scaled(value, factor), value
            taken = trials({**best, name: value})
            if value == before or taken > trials(best) * FLAT:
                worst = max(worst, taken) if taken < inf else worst
                break
            least, most = min(least, value), max(most, value)
    return FlatRange(least=least, most=most, worst_seconds=worst)
