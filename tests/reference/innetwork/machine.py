"""What the readable references of all aggregation machines share: the job, and a node that counts and sends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Sent = list[tuple[list[int], bytes]]


@dataclass
class Job:
    """As the native job."""

    id: int
    workers: int
    slots: int
    values: int
    window: int
    element: str = "int32"
    timeout: int = 10_000_000
    give_up_timeout: int = 30_000_000_000
    settings: Mapping[str, float] = field(default_factory=dict)

    @property
    def floats(self) -> bool:
        return self.element == "float32"

    def number(self, name: str, otherwise: int = 0) -> int:
        return int(self.settings.get(name, otherwise))


class Machine:
    """Counts, and what is sent while it is driven; without a clock, if it does not say otherwise."""

    def __init__(self) -> None:
        self.counters: Counter[str] = Counter()
        self.out: Sent = []

    def send(self, to: Sequence[int], packet: Any) -> None:
        if to:
            self.out.append((list(to), packet.pack()))

    def taken(self) -> Sent:
        sent, self.out = self.out, []
        return sent

    def deadline(self) -> int | None:
        return None

    def wake(self, now: int) -> Sent:  # noqa: ARG002
        return []
