"""Estimate a job: simulated, corrected by measured steps, with the range in which such runs are expected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from coppice.errors import InputError
from coppice.iteration.accuracy import Anchor, EstimateRange, RunSetting, correction, estimate_range
from coppice.iteration.job.composed import ComposedStep, simulated_job
from coppice.iteration.job.job import TrainingJob
from coppice.iteration.transformer import Transformer
from coppice.options.names import CALIBRATED

if TYPE_CHECKING:
    from coppice.iteration.routing import RoutedStep


@dataclass(frozen=True, eq=False, kw_only=True)
class CorrectedEstimate(ComposedStep):
    """Simulated iteration whose ``seconds`` are corrected by measured steps, where there are some."""

    simulated_seconds: float  # An iteration by what is simulated alone, as in `step`
    expected: (
        EstimateRange | None
    )  # Shares of the simulated seconds between which such runs are; None: not known
    anchors: Sequence[Anchor]  # Measured steps
    # Steps under a routing: as asked for, which is this one, and what may be done about it
    routed: Sequence[RoutedStep] = ()

    @property
    def expected_seconds(self) -> tuple[float, float] | None:
        """The least and the most seconds between which 80% of such runs are expected; None: not known."""
        return None if self.expected is None else self.expected.of(self.simulated_seconds)


def estimated(job: TrainingJob, anchors: Sequence[Anchor] = ()) -> CorrectedEstimate:
    """Simulate an iteration of a job, and correct it by measured steps.

    Args:
        anchors: Measured steps.

    Raises:
        InputError: If a policy does not suit the job, or there are measured steps for a plan of the whole iteration.
    """
    made, machines = simulated_job(job), job.cluster
    if made.step is None and anchors:
        raise InputError(
            f"expected a simulated step for `anchor`, found a plan of {job.run.policy}: leave `anchor` out."
        )
    seconds, expected = made.seconds, None
    # Ranges are known of transformers by rings with fitted constants.
    priced = (job.run.collectives or CALIBRATED) == CALIBRATED and machines.table is None
    if made.step is not None and (anchors or (priced and isinstance(job.model, Transformer))):
        expected = estimate_range(machines)
    if anchors and expected is not None:
        setting = RunSetting(model=job.model, device=machines.device.name, layout=made.layout)
        corrected = correction(setting, anchors, expected.spread)
        expected = expected.corrected(corrected.factor, corrected.spread, len(anchors))
        seconds *= corrected.factor
    found = {each.name: getattr(made, each.name) for each in fields(made)}
    return CorrectedEstimate(
        **found | {"seconds": seconds},
        simulated_seconds=made.seconds,
        expected=expected,
        anchors=tuple(anchors),
    )


def transformer_of(job: TrainingJob) -> Transformer:
    """The model of a job with experts.

    Raises:
        InputError: If it is none.
    """
    if not isinstance(job.model, Transformer):
        raise InputError(f"expected a mixture of experts for `routing`, found {job.name}: leave routing out.")
    return job.model


def routed_steps(job: TrainingJob, routing: str | None, placement: str = "given") -> list[RoutedStep]:
    """The step under a routing, as given first, then with what may be done about it; none without a routing.

    Args:
        routing: As ``--routing`` of `coppice train estimate` takes it.
        placement: `given` or `popular`.

    Raises:
        InputError: If the job has no experts on several ranks, or the routing does not fit them.
    """
    if routing is None:
        if placement != "given":
            raise InputError(f"expected `routing` with `placement` {placement}, found none: give it.")
        return []
    model = transformer_of(job)
    from coppice.iteration.routing import RoutedStep, routed_variants, routing_samples

    samples = routing_samples(routing, model, job.layout)
    loads = routed_variants(samples, model, job.layout, job.cluster, placement=placement)
    return [
        RoutedStep(load=load, seconds=simulated_job(replace(job, model=load.model(model))).seconds)
        for load in loads
    ]
