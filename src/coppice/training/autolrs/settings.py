"""What a search is told: checked once, at the edge, and written into its log and its checkpoints."""

from __future__ import annotations

import enum
from math import isfinite

import msgspec

from coppice.errors import InputError

FEWEST_TRIAL_STEPS = 5
"""Steps of a trial below which there is no curve to forecast from."""


class Method(enum.StrEnum):
    """How losses are forecast and rates proposed."""

    ROBUST = "robust"
    """A direct robust exponential fit, and expected improvement."""

    PUBLISHED = "published"
    """As the published code: a spline first, and rates that fill the range whatever was found."""

    ANNEALED = "annealed"
    """One stage, whose rate falls linearly to zero; a trial is the same in small, and is judged by where it ends.

    A constant rate is judged too early: within a tenth of a stage the low rate looks best that a training ends with.
    Linear decay: Defazio et al. 2023, "Optimal linear decay learning rate schedules and further refinements"
    (arXiv 2310.07831).
    """


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of a search; all counts are optimizer steps."""

    lr_range: tuple[float, float] = (1e-4, 1.0)  # Smallest and largest learning rate
    tau: int = 1000  # Steps of the first stage; an annealed one has all steps to `kept_steps`
    # Steps of the longest stage; each stage is twice as long as the one before until then
    tau_max: int = 8000
    candidates: int = 10  # Learning rates tried before each stage
    trial_share: int = 10  # A trial takes `tau / trial_share` steps
    warmup_steps: int = 0  # Steps of a linear rise to `warmup_lr` before the first search
    warmup_lr: float = 0.1  # Learning rate at the end of the warm-up
    # Length of the training that is kept (warm-up and stages, without trials); None has no end
    kept_steps: int | None = None
    # A validation function is there: trials of the stages after the first of length `tau_max` are judged by
    # it
    validation: bool = False
    validations: int = 16  # Validations in such a trial
    # A loss that exceeds the first one by more than `divergence - 1` times its absolute value diverges
    divergence: float = 3.0
    method: Method = Method.ROBUST  # How losses are forecast and rates proposed
    seed: int = 0  # Seed of the proposals

    def __post_init__(self) -> None:
        low, high = self.lr_range
        if not (isfinite(low) and isfinite(high) and 0 < low < high):
            raise InputError(
                f"expected lr_range (low, high) with 0 < low < high, found ({low}, {high}): give positive rates."
            )
        for name, least in (
            ("candidates", 1),
            ("trial_share", 1),
            ("warmup_steps", 0),
            ("validations", 4),
            ("seed", 0),
        ):
            if getattr(self, name) < least:
                raise InputError(f"expected {name} >= {least}, found {getattr(self, name)}: raise it.")
        if self.trial_steps(self.tau) < FEWEST_TRIAL_STEPS:
            raise InputError(
                f"expected tau / trial_share >= {FEWEST_TRIAL_STEPS} steps per trial, found "
                f"{self.tau} / {self.trial_share}: raise tau."
            )
        if self.tau_max < self.tau:
            raise InputError(f"expected tau_max >= tau, found {self.tau_max} < {self.tau}: raise tau_max.")
        if not (isfinite(self.warmup_lr) and self.warmup_lr > 0):
            raise InputError(
                f"expected warmup_lr > 0, found {self.warmup_lr}: give the rate that the warm-up ends with."
            )
        if self.kept_steps is not None and self.kept_steps < 1:
            raise InputError(
                f"expected kept_steps >= 1 or None, found {self.kept_steps}: give the length of the training."
            )
        if self.method is Method.ANNEALED and self.kept_steps is None:
            raise InputError(
                "expected kept_steps with method 'annealed', found None: give the length that the rate falls over."
            )
        if not self.divergence > 1:
            raise InputError(f"expected divergence > 1, found {self.divergence}: 3 is usual.")

    def trial_steps(self, tau: int) -> int:
        """Steps of one trial before a stage of ``tau`` steps.

        >>> Settings().trial_steps(1000)
        100
        """
        return tau // self.trial_share

    def next_tau(self, tau: int) -> int:
        """Steps of the stage after one of ``tau`` steps.

        >>> Settings().next_tau(4000), Settings().next_tau(8000)
        (8000, 8000)
        """
        return min(2 * tau, self.tau_max)
