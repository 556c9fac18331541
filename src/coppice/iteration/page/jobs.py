"""Page of a simulated job: breakdown, critical path, bounds, and sources of numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coppice.iteration.page.page import IterationReport
from coppice.iteration.step.simulated import SimulatedStep
from coppice.text import seconds_text

PART_NAMES = {
    "compute": "layers",
    "head": "head and loss",
    "tensor": "tensor-parallel collectives",
    "experts": "exchanges of experts",
    "context": "exchanges of context parallelism",
    "sends": "sends between stages",
    "bubble": "bubble",
    "gradients": "gradient all-reduces",
    "optimizer": "optimizer",
}
"""Parts of an iteration in words."""

_TIMES = "the simulated step: each device runs its passes in order, and messages share links max-min fairly"
_MEMORY = "states of Adam as in ZeRO (SC 2020), activations as in Korthikanti et al. (MLSys 2023)"


def report_of_step(
    title: str,
    found: SimulatedStep,
    *,
    memory: Mapping[str, float],  # What a GPU keeps, in bytes by part
    memory_bytes: float,
    device: str,
    facts: Sequence[tuple[str, str]] = (),  # Further names and values for the head of the page
    command: str = "",  # The command that prints the same numbers
    measured: bool = False,  # Times of passes come from measurements of the GPU, not from its data sheet
) -> IterationReport:
    """Content of the page of a simulated step."""
    bounds = found.bounds
    limits = {"longest chain of passes": bounds.path}
    if bounds.stream:
        limits[f"all that {bounds.stream} does"] = bounds.stream_seconds
    if bounds.link:
        limits[f"all that {bounds.link} carries"] = bounds.link_seconds
    beyond = found.seconds / bounds.seconds - 1 if bounds.seconds else 0.0
    head = [
        ("Iteration", f"{seconds_text(found.seconds)}, {found.mfu:.1%} of the peak (MFU)"),
        (
            "Best order",
            f"no order takes less than {seconds_text(bounds.seconds)}: this one takes {beyond:.2%} more",
        ),
        ("Order", f"{found.order}, overlap: {found.overlap}"),
        ("GPU", f"{device}, {sum(memory.values()) / 1e9:.3g} of {memory_bytes / 1e9:.3g} GB"),
        *facts,
    ]
    passes = f"peaks of the data sheet of {device}, and shares of them fitted as benchmarks/exam.md says"
    if measured:
        passes = f"what was measured on {device}"
    json_command = f"{command} --json" if command else ""
    return IterationReport(
        title=title,
        facts=head,
        seconds=found.seconds,
        parts={PART_NAMES.get(part, part): value for part, value in found.parts.items()},
        exposed=dict(sorted(found.exposed.items(), key=lambda item: -item[1])),
        bounds=limits,
        memory=memory,
        memory_bytes=memory_bytes,
        times=found.times,
        begin=max(0.0, found.times.seconds - found.seconds),
        sources=[
            ("iteration, parts", _TIMES, json_command),
            ("exposed communication", "the critical path of the simulated step, task by task", json_command),
            (
                "lower bounds",
                "path, busiest stream and busiest link of the same tasks in any order",
                json_command,
            ),
            ("memory", _MEMORY, json_command),
            ("times of passes", passes, ""),
        ],
    )
