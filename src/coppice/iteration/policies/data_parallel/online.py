"""Tune settings during training: hold each for some iterations, and measure them.

What ByteScheduler (SOSP'19, section 5) and DeAR (ICDCS'23, section 4) do, for any policy with choices: a trial is a
few windows of iterations, and Bayesian optimization proposes the next one. Windows tell how much times vary by
themselves, so that the search does not follow noise, and the best of the end is one that its neighbours confirm.

Simulation may come first. Then the search begins with the settings that it finds best, and looks at what is measured
over what was simulated: where simulation is right up to a factor, few trials are left to do.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import log, pi
from typing import Any

import msgspec

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.data_parallel.tuning import ImprovementSearch, places_of, policy_seconds

_SPREAD = 0.05  # of times, or of times over those simulated, that are worth a look
_SIMULATED_TRIALS = 10
_ONE_WINDOW = 1e-4  # variance of the logarithm where nothing tells it


@dataclass(frozen=True, kw_only=True)
class MeasuredTrial:
    """Settings with the iteration times measured under them."""

    settings: Mapping[str, Any]  # The settings
    windows: tuple[float, ...]  # Mean seconds of an iteration in each window

    @property
    def seconds(self) -> float:
        """Median over windows, robust against an evaluation or a checkpoint in one of them."""
        return statistics.median(self.windows)


class OnlineTuner:
    """Propose settings, and learn from the iteration times measured with them.

    Args:
        policy: The policy, with the settings to compare with.
        workload: What was recorded.
        simulated: Simulations come first.
        trials: Trials in all; None: those of the policy, or 10 where simulations come first.
        known: Trials of an earlier run, which are not made again.

    Attributes:
        settings: Those to hold next; at the end the best.
        done: Nothing is left to try.

    Examples:
        >>> from coppice.iteration.policies.data_parallel.priority import Priority
        >>> ten = LayerWorkload(
        ...     forward=(1,) * 10, backward=(2,) * 10, bytes=(3,) * 10, bytes_per_second=1, message_seconds=0.05
        ... )
        >>> tuner = OnlineTuner(Priority.of(), ten, simulated=False, trials=7)
        >>> while not tuner.done:
        ...     seconds = policy_seconds(Priority.of(), ten, tuner.settings)
        ...     tuner.conclude([seconds, 1.01 * seconds])
        >>> tuner.settings, len(tuner.trials)
        ({'partition_bytes': 1.5}, 7)
    """

    def __init__(
        self,
        policy: DataParallelPolicy,
        workload: LayerWorkload,
        *,
        simulated: bool,
        trials: int | None = None,
        known: Iterable[MeasuredTrial] = (),
    ) -> None:
        self._choices = _distinct(policy, workload)
        self.trials: list[MeasuredTrial] = []  # What was measured
        initial, most = policy.tuning_trials
        first, expected = [0], None
        if simulated and len(self._choices) > 1:
            expected = [log(policy_seconds(policy, workload, choice) or 1.0) for choice in self._choices]
            first = [min(range(len(expected)), key=expected.__getitem__), 0]
            initial, most = len(set(first)), _SIMULATED_TRIALS
        most = trials or most
        self._search = ImprovementSearch(
            places_of(self._choices),
            initial=min(initial, most),
            trials=most,
            first=first,
            expected=expected,
            least_spread=_SPREAD,
        )
        for trial in known:
            if trial.settings in self._choices:
                self._take(self._choices.index(dict(trial.settings)), trial)
        self._next: int | None = None
        self._propose()

    def conclude(self, windows: Sequence[float]) -> None:
        """Record iteration times measured with the current settings.

        Args:
            windows: Mean seconds of an iteration in each.
        """
        if self._next is not None:
            self._take(self._next, MeasuredTrial(settings=self.settings, windows=tuple(windows)))
            self._propose()

    def _take(self, number: int, trial: MeasuredTrial) -> None:
        self.trials.append(trial)
        self._search.record(number, log(trial.seconds))
        variances = [
            statistics.variance(map(log, each.windows)) if len(each.windows) > 1 else _ONE_WINDOW
            for each in self.trials
        ]
        count = min(len(each.windows) for each in self.trials)
        self._search.noise = statistics.median(variances) * pi / 2 / count  # of a median of normal values

    def _propose(self) -> None:
        self._next = self._search.propose() if len(self._choices) > 1 else None
        self.done = self._next is None
        chosen = self._next
        if chosen is None:
            chosen = self._search.best() if self.trials else 0
        self.settings = self._choices[chosen]


def _distinct(policy: DataParallelPolicy, workload: LayerWorkload) -> list[dict[str, Any]]:
    """Current settings and choices of a policy, without those that produce equal messages."""
    own = msgspec.structs.asdict(policy.settings)
    found: dict[Any, dict[str, Any]] = {}
    for choice in ({}, *policy.choices(workload)):
        settings = {**own, **choice}
        found.setdefault(tuple(type(policy).of(**settings).messages(workload)), settings)
    return list(found.values())
