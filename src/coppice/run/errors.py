"""Errors while ranks run a collective.

    RunError            base: the collective did not complete; what it wrote is not a result
    ├── PeerLost        another rank died, raised or closed its end
    ├── TimedOut        another rank did not answer within the timeout
    └── Mismatch        ranks asked for different things: sizes, types, topologies, versions

All surviving ranks raise within the timeout. A message names the rank, the collective, and what was expected and
found.
"""

from __future__ import annotations

from coppice.errors import CoppiceError


class RunError(CoppiceError):
    """A collective failed on this rank."""


class PeerLost(RunError):  # noqa: N818  (the name says what happened)
    """Another rank died, raised an error, or closed its engine."""


class TimedOut(RunError):  # noqa: N818  (the name says what happened)
    """Another rank did not respond within the timeout."""


class Mismatch(RunError):  # noqa: N818  (the name says what happened)
    """Ranks called with different arguments."""
