"""Online tuning of settings: rank 0 decides, and all ranks switch before the same backward pass.

A trial is a window of iterations that is not measured, in which what was under way under the settings before it runs
out, and windows that are. All ranks count the iterations; rank 0 has the clock, proposes, and tells the others. The
change comes when all sums of the iteration before are used and none of the next is sent, so the training is the plain
one whatever is tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import torch

from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.data_parallel.online import MeasuredTrial, OnlineTuner
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.training.torch.core.agree import broadcast_from_first
from coppice.training.torch.core.measure import DeviceClock
from coppice.training.torch.core.streams import Streams

TUNER_KEY = "tuning_trials"
"""Where an optimizer's state has the trials."""

_WINDOWS = 3  # measured in a trial, after one that is not

_Told = tuple[Mapping[str, Any], bool, list[MeasuredTrial]]
"""Settings, whether trials follow, and those that were made."""


class TrainingTuner:
    """Trials of a policy's settings, on every rank.

    Args:
        streams: The ranks, and where they talk.
        device: Where they compute.
        mode: How settings are found: `simulation`, `training` by measured windows, True both, False neither.
        trials: Trials in the training; None: as many as the policy says.
        window: Iterations of a window.
    """

    def __init__(
        self, streams: Streams, device: torch.device, *, mode: bool | str, trials: int | None, window: int
    ) -> None:
        self.trials: list[MeasuredTrial] = []  # What was measured
        self.active = False  # There are trials to come
        self._mode, self._most, self._window = mode, trials, window
        self._streams, self._device = streams, device
        self._clock = DeviceClock(device)
        self._tuner: OnlineTuner | None = None
        self._iteration = 0
        self._ticks: list[float] = []

    def begin(self, policy: DataParallelPolicy, workload: LayerWorkload) -> DataParallelPolicy:
        """Policy with initial settings from rank 0; collective over the ranks."""
        if not self._mode:
            return policy

        def settings() -> _Told:
            if self._mode == "simulation":
                return policy.tune(workload), False, []
            self._tuner = OnlineTuner(
                policy,
                workload,
                simulated=self._mode is True,
                trials=self._most,
                known=self.trials,
            )
            return self._proposed(self._tuner)

        return self._told(policy, settings)

    def iteration(self, policy: DataParallelPolicy) -> DataParallelPolicy:
        """Start an iteration; return the policy with its current settings."""
        if not self.active:
            return policy
        count, window = self._iteration, self._window
        self._iteration += 1
        if count % window == 0 and self._first:
            self._ticks.append(self._clock.now())
        if count < window * (1 + _WINDOWS):
            return policy
        self._iteration, ticks = 1, self._ticks  # this one is the first of the next trial
        self._ticks = ticks[-1:]

        def settings() -> _Told:
            assert self._tuner is not None
            self._tuner.conclude([(end - start) / window for start, end in itertools.pairwise(ticks[1:])])
            return self._proposed(self._tuner)

        return self._told(policy, settings)

    def state(self) -> dict[str, Any]:
        """Additional optimizer state of the tuner."""
        if not self.trials:
            return {}
        return {
            TUNER_KEY: [
                {"settings": msgspec.to_builtins(each.settings), "windows": list(each.windows)}
                for each in self.trials
            ]
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore finished trials, so that they are not repeated."""
        if self._tuner is None and not self.active:
            self.trials = [
                MeasuredTrial(settings=each["settings"], windows=tuple(each["windows"]))
                for each in state.get(TUNER_KEY, [])
            ]

    @property
    def _first(self) -> bool:
        return self._streams.rank == 0

    @staticmethod
    def _proposed(tuner: OnlineTuner) -> _Told:
        return tuner.settings, not tuner.done, tuner.trials

    def _told(self, policy: DataParallelPolicy, settings: Callable[[], _Told]) -> DataParallelPolicy:
        """Rank 0's value on every rank."""
        found, self.active, self.trials = broadcast_from_first(
            settings,
            first=self._streams.ranks[0],
            group=self._streams.group("network"),
            device=self._object_device,
        )
        return type(policy).of(**found)

    @property
    def _object_device(self) -> torch.device | None:
        """Device for NCCL's object broadcasts; None: the group's default."""
        return self._device if self._device.type == "cuda" else None
