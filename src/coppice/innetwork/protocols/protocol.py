"""What a protocol of aggregation in the network is known by."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SwitchProtocol"]


@dataclass(frozen=True, kw_only=True)
class SwitchProtocol:
    """A protocol in the words of its field; its machines are native, under the same ``name``.

    Attributes:
        name: As users write it.
        title: What it is, in half a line.
        source: Paper or program that it follows.
        key: What tells a switch which sum a packet belongs to.
        numbers: How values are added up.
        reliability: What happens to packets that are lost, doubled or late.
        result_path: How sums reach the workers.
        sizing: What its throughput comes from.
        values: Values in a packet where nothing else is asked for.
        most_workers: Below one switch; None where nothing limits them.
    """

    name: str
    title: str
    source: str
    key: str
    numbers: str
    reliability: str
    result_path: str
    sizing: str
    values: int
    most_workers: int | None = None
