"""The description of a protocol that switches and workers can run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SwitchProtocol:
    """Description of a protocol; its state machines are native, under the same ``name``."""

    name: str  # As users write it
    title: str  # What it is, in half a line
    source: str  # Paper or program that it follows
    key: str  # What tells a switch which sum a packet belongs to
    numbers: str  # How values are added up
    reliability: str  # What happens to packets that are lost, doubled or late
    result_path: str  # How sums reach the workers
    sizing: str  # What its throughput comes from
    values: int  # Values in a packet where nothing else is asked for
    most_workers: int | None = None  # Below one switch; None where nothing limits them
