"""What NCCL picks on a cluster as it is, and what it would pick after changes, by NCCL's own cost model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from coppice.advice.changes import Change
from coppice.advice.channels import limited, most_channels
from coppice.advice.environment import allowed, as_seen, model_settings
from coppice.advice.fabric import FabricLoads, fabric_loads, has_fabric
from coppice.advice.rows import AdviceRow, settled
from coppice.collectives import Collective
from coppice.fitting.nccl_tuner import COLLECTIVES
from coppice.selection.nccl.costs import CostCell, NcclCommunicator, cells
from coppice.selection.nccl.releases import constants
from coppice.selection.nccl.selecting import Inputs, at_least_bound, inputs_of
from coppice.selection.selection import SelectionRequest, box_sizes
from coppice.topology.model import Topology
from coppice.topology.operations import subset

TUNED = tuple(COLLECTIVES)
"""Collectives for which NCCL has a cost model."""


@dataclass(frozen=True, kw_only=True)
class NcclState:
    """A cluster and the variables of a job, as NCCL decides on them."""

    topology: Topology
    environment: Mapping[str, str] = field(default_factory=dict)
    seen: Topology | None = None  # What NCCL sees of it; None: what it is
    settings: Mapping[str, str] = field(default_factory=dict)  # Inputs of the cost model that are given
    release: str = ""  # One of :func:`coppice.selection.nccl.releases.known_releases`; empty: the newest

    def after(self, changes: Iterable[Change]) -> NcclState:
        """The state after some changes."""
        topology, seen, environment = self.topology, self.seen, dict(self.environment)
        for change in changes:
            seen = seen if change.sees is None else change.sees
            if change.mend is not None:
                topology = change.mend(topology)
                seen = None if seen is None else change.mend(seen)
            for name, value in change.sets.items():
                if value is None:
                    environment.pop(name, None)
                else:
                    environment[name] = value
        return replace(self, topology=topology, seen=seen, environment=environment)

    def of(self, ranks: Sequence[int]) -> NcclState:
        """The state of a communicator of some of the ranks."""
        seen = None if self.seen is None else subset(self.seen, ranks)
        return replace(self, topology=subset(self.topology, ranks), seen=seen)

    def communicator(self) -> tuple[NcclCommunicator, tuple[str, ...]]:
        """Inputs of the cost model, and what was assumed."""
        found = self.inputs
        return found.communicator, found.assumptions

    @cached_property
    def inputs(self) -> Inputs:
        """Inputs of the cost model by what NCCL sees."""
        return self._inputs(self.topology if self.seen is None else self.seen)

    def _inputs(self, topology: Topology) -> Inputs:
        seen = as_seen(topology, self.environment)
        boxes = box_sizes(seen)
        request = SelectionRequest(
            collective=Collective.ALL_REDUCE,
            ranks=seen.num_ranks,
            size_bytes=0,
            ranks_per_box=None if boxes is None else max(boxes),
            even=boxes is None or len(set(boxes)) == 1,
            boxes=1 if boxes is None else len(boxes),
        )
        given = {**model_settings(self.environment), **self.settings}
        return inputs_of(request, seen, given, release=self.release)

    @cached_property
    def fabric(self) -> FabricLoads | None:
        """What rings and trees load beyond NICs; None where nothing is there."""
        if not has_fabric(self.topology):
            return None
        return fabric_loads(self.topology, self.inputs.found.connections)

    @cached_property
    def true(self) -> NcclCommunicator:
        """The communicator as the cost model would have it if NCCL saw the cluster as it is."""
        return self.inputs.communicator if self.seen is None else self._inputs(self.topology).communicator

    def picks(self, collective: Collective, sizes: Iterable[int]) -> dict[int, list[CostCell]]:
        """What NCCL may pick at each size, its pick first; it picks by what it sees, and times are those of what is."""
        return {
            size: sorted(
                (each for each in self._cells(collective, size) if each.time_us is not None),
                key=lambda each: each.model_us,
            )
            for size in sizes
        }

    def _cells(self, collective: Collective, size: int) -> tuple[CostCell, ...]:
        timed = at_least_bound(cells(self.true, collective, size), self.topology, collective, size)
        most = most_channels(self.environment)
        if self.seen is not None:
            believed = self.inputs.communicator
            timed = tuple(
                replace(each, promised_us=thought.time_us) if thought.time_us is not None else thought
                for each, thought in zip(timed, cells(believed, collective, size), strict=True)
            )
            most = min(believed.channels, most or believed.channels)
        if most is not None:
            timed = tuple(limited(self.topology, self.true, collective, each, size, most) for each in timed)
        if self.fabric is not None:
            timed = tuple(_through(each, self.fabric, collective, size, self.true.ranks) for each in timed)
        return allowed(timed, collective, self.environment)


def _through(
    cell: CostCell, loads: FabricLoads, collective: Collective, size_bytes: int, ranks: int
) -> CostCell:
    """The cell with the time that links between switches need, where that is more."""
    least = loads.least_us(cell.algorithm, collective, size_bytes, ranks)
    if cell.time_us is None or least <= cell.time_us:
        return cell
    words = f"what it sends between switches takes {least:.6g} us on the busiest link"
    return replace(cell, time_us=least, promised_us=cell.model_us, terms=(*cell.terms, words))


def nccl_rows(
    state: NcclState,
    collectives: Sequence[Collective],
    sizes: Sequence[int],
    changes: Sequence[Change] = (),
    *,
    group: str = "all",
) -> list[AdviceRow]:
    """Rows of the picks today and after the change, or all changes together, that saves most.

    Args:
        changes: Changes that can be made, each on the state as it is.
        group: Whose collectives they are.
    """
    comm, _ = state.communicator()
    later = [(change.name, state.after([change])) for change in changes]
    if len(changes) > 1:
        later.append(("all changes", state.after(changes)))
    model = f"NCCL {constants(state.release).version} cost model"
    found = []
    for collective in collectives:
        if collective not in TUNED:
            found += [_direct(state, collective, size, comm, group) for size in sizes]
            continue
        today = state.picks(collective, sizes)
        tomorrow = [(name, each.picks(collective, sizes)) for name, each in later]
        for size in sizes:
            pick, *others = today[size]
            name, best = "", pick
            for other, picks in tomorrow:
                after = picks[size][0]
                if (after.time_us or 0.0) < (best.time_us or 0.0) * (1 - 1e-9):
                    name, best = other, after
            found.append(
                settled(
                    AdviceRow(
                        group=group,
                        collective=collective,
                        nodes=comm.nodes,
                        ranks=comm.ranks,
                        size_bytes=size,
                        picked=_name(pick),
                        best=_name(best),
                        picked_us=pick.time_us,
                        best_us=best.time_us,
                        model=", ".join([model, *limits_of(state, pick)]),
                        why=_why(name),
                        change=name,
                        rival=_name(others[0]) if others else "",
                        rival_us=others[0].time_us if others else None,
                        latency_us=pick.latency_us,
                    )
                )
            )
    return found


def _name(cell: CostCell) -> str:
    return f"{cell.algorithm}/{cell.protocol}"


def limits_of(state: NcclState, pick: CostCell) -> Iterator[str]:
    """What else than NCCL's own model a time is by."""
    if most_channels(state.environment) is not None:
        yield "channels by the protocol"
    if state.seen is not None:
        yield "on the cluster as it is"
    if state.fabric is not None and pick.promised_us is not None:
        yield "links between switches"
    elif pick.promised_us is not None and state.seen is None and most_channels(state.environment) is None:
        yield "capped by the bound"


def _why(change: str) -> str:
    """The reason of a row, in words that neighbouring sizes share."""
    if change:
        return f"what NCCL reckons with after it ({change})"
    return "NCCL picks the least of all times that it reckons with"


def _direct(
    state: NcclState, collective: Collective, size: int, comm: NcclCommunicator, group: str
) -> AdviceRow:
    """A collective that NCCL sends directly."""
    name = "point-to-point"
    return AdviceRow(
        group=group,
        collective=collective,
        nodes=comm.nodes,
        ranks=state.topology.num_ranks,
        size_bytes=size,
        picked=name,
        best=name,
        picked_us=None,
        best_us=None,
        model="none",
        why="NCCL sends every block directly: there is nothing to choose",
    )
