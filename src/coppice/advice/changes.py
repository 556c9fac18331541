"""Changes that can be made today: what to set or mend, what it makes of a cluster, and how it is taken back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from coppice.topology.model import Topology

if TYPE_CHECKING:
    from coppice.outputs.shapes.deploying import AdvisedChangeJson


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change, and the cluster as the library then sees it."""

    name: str  # Short name, by which rows refer to it
    what: str  # What to do, in one sentence
    undo: str  # How it is taken back
    mend: Callable[[Topology], Topology] | None = None  # Makes the cluster what it is then; None: as it is
    sees: Topology | None = None  # What the library sees of the cluster then; None: what it did before
    sets: Mapping[str, str | None] = field(default_factory=dict)  # Variables that it sets; None unsets one

    def record(self) -> AdvisedChangeJson:
        """The change as JSON values."""
        return {"name": self.name, "text": self.what, "undo": self.undo}
