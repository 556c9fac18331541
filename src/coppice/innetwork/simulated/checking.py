"""Search through everything a network may do to a protocol: every order, loss, copy and time-out within budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from coppice.arguments import checked
from coppice.errors import CheckError, InputError
from coppice.innetwork.simulated.all_reduce import groups_of, job_of
from coppice.innetwork.systems import find_protocol
from coppice.native import _switch


@dataclass(frozen=True, kw_only=True)
class ProtocolSearch:
    """What was searched, and what was found."""

    protocol: str  # Its name
    fault: str  # What went wrong, in one sentence; empty where nothing does
    trace: tuple[str, ...]  # Events that lead there, the fewest, a line for each
    states: int  # Different states that were reached
    events: int  # Events tried in them
    depth: int  # Events from the first packets to the furthest state
    whole: bool  # Whether no state within the budgets was left out

    @property
    def ok(self) -> bool:
        """Whether nothing went wrong in what was searched."""
        return not self.fault

    def require_ok(self) -> None:
        """Raises CheckError with the events where something went wrong."""
        if self.fault:
            raise CheckError(
                f"expected every worker of {self.protocol} to have the sum at the end, found that "
                f"{self.fault}, after these {len(self.trace)} events:\n" + "\n".join(self.numbered())
            )

    def record(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {"ok": self.ok, **asdict(self)}

    def numbered(self) -> list[str]:
        """The trace as lines to print."""
        width = len(str(len(self.trace)))
        return [f"  {number:{width}}  {line}" for number, line in enumerate(self.trace, 1)]


@checked
def search_interleavings(
    *,
    protocol: str = "switchml",  # Which one, see `coppice.innetwork.systems`
    workers: int = 2,
    slots: int = 1,  # Aggregators of the job in each switch
    window: int | None = None,  # Packets that a worker may have under way; as many as slots unless given
    values: int = 1,
    elements: int | Sequence[int] = 3,  # Of the tensor, or of each of several that follow each other
    # Workers below each switch, where a root joins several; one switch unless given
    tree: Sequence[int] | None = None,
    losses: int = 1,
    duplicates: int = 1,  # Packets that may arrive a second time, at any later moment
    early_timeouts: int = 1,  # Time-outs while a packet is still under way; others cost nothing
    reordering: bool = True,  # Whether a packet may overtake another of the same link
    settings: Mapping[str, float] | None = None,  # What only the protocol knows, by name
    most_events: int = 1_000_000,  # Depth beyond which the search does not go
    most_states: int = 1_000_000,
) -> ProtocolSearch:
    """Drives the machines of a protocol through every interleaving of arrivals, losses, copies and time-outs.

    Each packet under way may arrive next, be lost, or arrive and stay under way as a copy; nodes may be woken early.
    In every state that is reached a worker that is done has the exact sum, and if nothing fails from then on everyone
    ends and the switches are empty. The machines are those that sockets drive. States are told apart by hashes of 128
    bits.

    Examples:
        >>> found = search_interleavings(elements=2)
        >>> found.ok, found.whole, found.states > 1000
        (True, True, True)

        The published switch goes by the order of packets alone, so a late copy is taken for a new packet:

        >>> found = search_interleavings(losses=0, early_timeouts=0, settings={"published_rule": 1})
        >>> print(found.fault)
        worker 0 has a wrong sum: element 2 of tensor 0 is 72298, expected 129367 = 48140 + 81227
        >>> print(found.numbered()[1])
           2  worker 1 -> switch: slot 0 set 0 packet 0 value 24158, and a copy stays under way
    """
    tensors = [elements] if isinstance(elements, int) else list(elements)
    budgets = {
        "losses": losses,
        "duplicates": duplicates,
        "early_timeouts": early_timeouts,
        "elements": min(tensors, default=-1),
        "most_events": most_events,
        "most_states": most_states,
    }
    for name, budget in budgets.items():
        if not 0 <= budget < 2**31:
            raise InputError(f"expected `{name}` from 0 on, found {budget}.")
    if budgets["most_states"] > 2**28:
        raise InputError(f"expected `most_states` up to 2^28, found {most_states}: they are kept in memory.")
    record = find_protocol(protocol)
    job = job_of(
        record,
        workers=workers,
        slots=slots,
        window=window,
        values=values,
        element="int32",
        timeout_ns=10_000_000,
        patience_ns=2**62,
        settings={"doubled_after": 0, **(settings or {})},
    )
    try:
        found = _switch.aggregation_exploration(
            protocol=protocol,
            job=job,
            groups=groups_of(workers, tree),
            tensors=tensors,
            reordering=reordering,
            losses=losses,
            duplicates=duplicates,
            early_timeouts=early_timeouts,
            most_events=most_events,
            most_states=most_states,
        )
    except ValueError as error:
        raise InputError(f"{error}.") from None
    return ProtocolSearch(protocol=protocol, **{**found, "trace": tuple(found["trace"])})
