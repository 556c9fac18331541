"""What NCCL picks on a cluster as it is, and what it would pick after changes, by NCCL's own cost model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from coppice.advice.changes import Change
from coppice.advice.environment import allowed, as_seen, model_settings
from coppice.advice.rows import AdviceRow, settled
from coppice.collectives import Collective
from coppice.fitting.nccl_tuner import COLLECTIVES
from coppice.selection.nccl.costs import CostCell, NcclCommunicator, cells, constants
from coppice.selection.nccl.selecting import at_least_bound, inputs_of
from coppice.selection.selection import SelectionRequest, box_sizes
from coppice.topology.model import Topology

TUNED = tuple(COLLECTIVES)
"""Collectives for which NCCL has a cost model."""


@dataclass(frozen=True, kw_only=True)
class NcclState:
    """A cluster and the variables of a job, as NCCL decides on them."""

    topology: Topology
    environment: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)  # Inputs of the cost model that are given

    def after(self, changes: Iterable[Change]) -> NcclState:
        """The state after some changes."""
        topology, environment = self.topology, dict(self.environment)
        for change in changes:
            topology = topology if change.mend is None else change.mend(topology)
            for name, value in change.sets.items():
                if value is None:
                    environment.pop(name, None)
                else:
                    environment[name] = value
        return replace(self, topology=topology, environment=environment)

    def communicator(self) -> tuple[NcclCommunicator, tuple[str, ...]]:
        """Inputs of the cost model, and what was assumed."""
        seen = as_seen(self.topology, self.environment)
        boxes = box_sizes(seen)
        request = SelectionRequest(
            collective=Collective.ALL_REDUCE,
            ranks=seen.num_ranks,
            size_bytes=0,
            ranks_per_box=None if boxes is None else max(boxes),
            even=boxes is None or len(set(boxes)) == 1,
            boxes=1 if boxes is None else len(boxes),
        )
        found = inputs_of(request, seen, {**model_settings(self.environment), **self.settings})
        return found.communicator, found.assumptions

    def picks(self, collective: Collective, sizes: Iterable[int]) -> dict[int, list[CostCell]]:
        """What NCCL may pick at each size, its pick first."""
        comm, _ = self.communicator()
        found: dict[int, list[CostCell]] = {}
        for size in sizes:
            timed = at_least_bound(cells(comm, collective, size), self.topology, collective, size)
            timed = allowed(timed, collective, self.environment)
            found[size] = sorted(
                (each for each in timed if each.time_us is not None), key=lambda each: each.model_us
            )
        return found


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
    model = f"NCCL {constants().version} cost model"
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
                        model=model if pick.promised_us is None else f"{model}, capped by the bound",
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
