"""Pipeline order: the program of every device."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from coppice.errors import InputError


class Work(StrEnum):
    """Kind of a pass, with the letters of PyTorch's pipeline schedules."""

    FORWARD = "F"
    BACKWARD = "B"
    """Gradients of inputs and weights."""
    INPUT = "I"
    """Gradients of inputs alone."""
    WEIGHT = "W"
    """Gradients of weights alone, after those of inputs."""


class StagePass(NamedTuple):
    """Pass of a stage over a micro-batch."""

    stage: int
    work: Work
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.work.value}{self.micro_batch}"


@dataclass(frozen=True, kw_only=True)
class PipelineOrder:
    """Program of every device.

    Raises:
        InputError: Unless every stage has one device, and on it one forward pass and one backward pass (whole, or in
            two parts) over each micro-batch, in this order.
    """

    devices: tuple[tuple[StagePass, ...], ...]  # Passes of each device
    stages: int  # Number of stages
    micro_batches: int  # Number of micro-batches of an iteration
    # Pairs of passes, one behind the other in a program, that run at once: while one exchanges, the other
    # computes
    co_scheduled: frozenset[tuple[StagePass, StagePass]] = frozenset()

    def __post_init__(self) -> None:
        owner: dict[int, int] = {}
        for device, passes in enumerate(self.devices):
            before: set[StagePass] = set()
            for each in passes:
                if not (0 <= each.stage < self.stages and 0 <= each.micro_batch < self.micro_batches):
                    raise InputError(
                        f"expected stages below {self.stages} and micro-batches below {self.micro_batches}, found "
                        f"{each} on device {device}."
                    )
                if owner.setdefault(each.stage, device) != device:
                    raise InputError(
                        f"expected stage {each.stage} on one device, found it on {owner[each.stage]} and {device}."
                    )
                needed = NEEDS.get(each.work)
                if needed is not None and each._replace(work=needed) not in before:
                    raise InputError(
                        f"expected {each._replace(work=needed)} before {each} on device {device}, found none."
                    )
                if each in before:
                    raise InputError(f"expected {each} once on device {device}, found it again.")
                before.add(each)
        behind = (
            {pair for passes in self.devices for pair in itertools.pairwise(passes)}
            if self.co_scheduled
            else set()
        )
        for first, second in self.co_scheduled:
            if (first, second) not in behind:
                raise InputError(
                    f"expected {first} and {second} that run at once one behind the other, found them apart."
                )
        parts: Counter[tuple[int, int]] = Counter()
        for each in self.passes():
            parts[each.stage, each.micro_batch] += _PARTS[each.work]
        for stage in range(self.stages):
            for micro_batch in range(self.micro_batches):
                if parts[stage, micro_batch] != _PARTS[Work.BACKWARD]:
                    raise InputError(
                        f"expected one backward pass of stage {stage} over micro-batch {micro_batch}, whole (B) or in "
                        f"two parts (I, W), found {parts[stage, micro_batch]} of 2 parts."
                    )

    def passes(self) -> Sequence[StagePass]:
        """All passes, device by device."""
        return [each for passes in self.devices for each in passes]

    def device_of(self) -> dict[int, int]:
        """Device of each stage."""
        return {each.stage: device for device, passes in enumerate(self.devices) for each in passes}

    def peak_micro_batches(self) -> list[int]:
        """Peak number of micro-batches with live activations, by device.

        It holds them from a forward pass until the last part of the backward pass.
        """
        peaks = []
        for passes in self.devices:
            held = most = 0
            for each in passes:
                held += (each.work is Work.FORWARD) - (each.work in (Work.BACKWARD, Work.WEIGHT))
                most = max(most, held)
            peaks.append(most)
        return peaks


NEEDS = {Work.BACKWARD: Work.FORWARD, Work.INPUT: Work.FORWARD, Work.WEIGHT: Work.INPUT}
"""What a device must have done for the same stage and micro-batch before."""
_PARTS = {Work.FORWARD: 0, Work.BACKWARD: 2, Work.INPUT: 1, Work.WEIGHT: 1}
"""Parts of a backward pass that each does."""


def source_of(each: StagePass, stages: int) -> StagePass | None:
    """Pass of another stage that this one depends on."""
    if each.work is Work.FORWARD:
        return each._replace(stage=each.stage - 1) if each.stage else None
    if each.work is Work.WEIGHT or each.stage == stages - 1:
        return None
    return each._replace(stage=each.stage + 1)


def target_of(each: StagePass, stages: int) -> int | None:
    """Stage that depends on a pass."""
    if each.work is Work.FORWARD:
        return each.stage + 1 if each.stage < stages - 1 else None
    return each.stage - 1 if each.work is not Work.WEIGHT and each.stage else None
