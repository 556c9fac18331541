"""Verification of a schedule: slots, order, freedom from deadlock, routes, symbolic execution and exact loads.

What passes is right. A few schedules that would come out right are refused all the same, since nobody means them:
a transfer that sends what its sender does not have, that sends to itself, that adds to nothing or adds something twice,
or two that write one buffer in no certain order, even where nobody needs the result; and rows whose steps decrease.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from coppice.collectives import Collective
from coppice.errors import UnreachableError
from coppice.schedule.columns import schedule_defects
from coppice.schedule.exact_sums import grouped_sums
from coppice.schedule.loads import LinkLoads, schedule_loads
from coppice.schedule.schedule import Schedule, hops_of, routed
from coppice.schedule.verification.deadlock import find_deadlock, num_connections
from coppice.schedule.verification.execution import Execution
from coppice.schedule.verification.paths import check_ends, check_paths, overload
from coppice.schedule.verification.report import Findings, Report


def verify_schedule(
    schedule: Schedule,
    *,
    # Relative shard sizes of the ranks (all-gather and reduce-scatter), where they are not equal
    weights: tuple[int, ...] | None = None,
    # Relative block sizes of an all-to-all, where they are not equal
    demands: tuple[tuple[int, ...], ...] | None = None,
    # Time per shard that the planner claims; a busier link is then a failure
    claimed: Fraction | None = None,
    # Paths may lead through other ranks, which then pass data on without being told by a transfer
    relay_gpus: bool = False,
) -> Report:
    """Check that a schedule implements its collective, and count what it costs.

    Returns:
        The report; failures are collected, not raised. Its time is that of the busiest link over the whole
        schedule; steps are an order here, not barriers.

    Examples:
        >>> from coppice.topology.model import Link, Node, Topology
        >>> pair = Topology.of("pair", [Node(id="a"), Node(id="b")],
        ...                    [Link(src="a", dst="b", gb_per_s=Fraction(25))])
        >>> column = lambda *values: np.array(values, dtype=np.int64)
        >>> swap = Schedule(topology=pair, collective=Collective.ALL_GATHER, root=-1,
        ...                 slot_weight=column(1, 1), chunk_slot=column(0, 1), chunk_share=column(1, 1),
        ...                 src=column(0, 1), dst=column(1, 0), chunk=column(0, 1),
        ...                 op=column(0, 0), path=column(0, 1), step=column(0, 0),
        ...                 after_start=column(0, 0, 0), after=column(), path_start=column(0, 2, 4),
        ...                 path_nodes=column(0, 1, 1, 0))
        >>> report = verify_schedule(swap)
        >>> report.ok, report.inv_rate
        (True, Fraction(1, 25))
    """
    findings = Findings()
    for defect in schedule_defects(schedule):
        findings.add(f"the schedule is malformed: {defect}")
    ranks = schedule.topology.num_ranks
    if weights is not None and len(weights) != ranks:
        findings.add(f"expected one weight for each of the {ranks} ranks, found {len(weights)}.")
    if demands is not None and [len(row) for row in demands] != [ranks] * ranks:
        findings.add(f"expected a matrix of {ranks} x {ranks} demands, found {len(demands)} rows.")
    if findings.failures:
        return Report(ok=False, failures=tuple(findings.failures), claimed=claimed)
    _check_order(schedule, findings)
    circle = find_deadlock(schedule)
    if circle is not None:
        findings.add(circle)
    _check_slots(schedule, weights, demands, findings)
    execution = Execution(schedule)
    execution.run()
    execution.report(findings)
    default_routes = int((schedule.path < 0).sum())
    counted, relayed = False, 0
    aimless = (schedule.src == schedule.dst) & (schedule.path < 0)
    if not aimless.any():  # they have failed already, and have no route
        try:
            schedule = routed(schedule, relay_gpus=relay_gpus)
            counted, relayed = _check_routes(schedule, findings, relay_gpus=relay_gpus)
        except UnreachableError as error:
            findings.add(f"the default route of a transfer does not exist: {error}")
    topology = schedule.topology
    checked = {
        "transfers": schedule.num_transfers,
        "chunks": schedule.num_chunks,
        "buffers": execution.buffers,
        "paths": len(schedule.path_start) - 1,
        "default_routes": default_routes,
        "links": topology.num_links,
        "connections": num_connections(schedule),
    }
    if relay_gpus:
        checked["relayed_paths"] = relayed
    reached, worst, busiest = None, -1, None
    if counted:
        reached, worst, busiest = _figures(schedule_loads(schedule, weights, demands), claimed)
    if reached is not None and claimed is not None and reached > claimed:
        findings.add(overload(topology, worst, reached, claimed))
    ok = not findings.failures
    return Report(
        ok=ok,
        failures=tuple(findings.failures),
        inv_rate=reached,
        claimed=claimed,
        worst_link=worst,
        max_link_load=busiest,
        redundant=execution.redundant_share if counted else Fraction(0),
        ordered=ok and schedule.ordered,
        deadlock_free=circle is None,
        checked=checked,
    )


def _figures(loads: LinkLoads, claimed: Fraction | None) -> tuple[Fraction, int, Fraction]:
    """Time per shard, busiest link, and the share of its capacity that it uses in the claimed time."""
    if not loads.shard or loads.worst_link < 0:
        return Fraction(0), -1, Fraction(0)
    reached, worst = loads.inv_rate, loads.worst_link
    return reached, worst, loads.utilisation(worst, reached if claimed is None else claimed)


def _check_order(schedule: Schedule, findings: Findings) -> None:
    """Dependencies point backwards, and steps do not decrease: then no cycle of waiting is possible."""
    waiting = np.repeat(np.arange(schedule.num_transfers), np.diff(schedule.after_start))
    forward = np.flatnonzero(schedule.after >= waiting)
    findings.add_examples(
        [
            f"transfer {waiting[place]} waits for transfer {schedule.after[place]}, which comes no earlier."
            for place in forward[:5].tolist()
        ],
        len(forward),
        "dependencies",
    )
    step = schedule.step
    back = np.flatnonzero(np.diff(step) < 0)
    findings.add_examples(
        [
            f"transfer {row + 1} has step {step[row + 1]} after a row of step {step[row]}: "
            f"steps must not decrease."
            for row in back[:5].tolist()
        ],
        len(back),
        "steps",
    )
    if len(step) and int(step.min()) < 0 <= int(step.max()):
        findings.add(
            "some transfers have a step and others have none: give steps to all of them, or to none."
        )


def _check_routes(schedule: Schedule, findings: Findings, *, relay_gpus: bool) -> tuple[bool, int]:
    """Paths run along links, end where their transfers do: whether loads can be counted, and paths through ranks."""
    topology = schedule.topology
    hops = hops_of(topology, schedule.path_start, schedule.path_nodes)
    relayed = check_paths(schedule, hops, findings, relay_gpus=relay_gpus)
    src, dst = topology.rank_nodes[schedule.src], topology.rank_nodes[schedule.dst]
    check_ends(schedule, schedule.path, src, dst, findings, row_name="transfer")
    return not (hops.link < 0).any(), relayed


def _check_slots(
    schedule: Schedule,
    weights: tuple[int, ...] | None,
    demands: tuple[tuple[int, ...], ...] | None,
    findings: Findings,
) -> None:
    """Slots have the sizes that the problem gives them, and every slot that must move has chunks."""
    ranks = schedule.topology.num_ranks
    expected = _expected_weights(schedule, weights, demands)
    found = schedule.slot_weight.tolist()
    barrier = schedule.collective is Collective.BARRIER
    if barrier and found[0]:
        findings.add(f"slot 0 has weight {found[0]}, expected 0: a barrier moves no data.")
    elif expected is not None:
        counted = [slot for slot in range(len(found)) if not _needless(schedule, slot)]
        want, have = sum(expected[slot] for slot in counted), sum(found[slot] for slot in counted)
        if want and not have:
            findings.add("every slot has weight 0, so no rank receives anything.")
        wrong = [slot for slot in counted if found[slot] * want != expected[slot] * have]
        findings.add_examples(
            [
                f"slot {slot} has weight {found[slot]} of {have}, expected the share "
                f"{Fraction(expected[slot], want)}."
                for slot in wrong[:5]
            ],
            len(wrong),
            "slots",
        )
    elif ranks > 1 and not barrier and not any(found):
        findings.add("every slot has weight 0, so no rank receives anything.")
    shares = grouped_sums(schedule.chunk_slot, schedule.chunk_share, len(found))
    bare = [
        slot
        for slot, share in enumerate(shares)
        if (found[slot] or barrier) and not share and not _needless(schedule, slot)
    ]
    findings.add_examples(
        [f"slot {slot} has weight {found[slot]} but no chunks." for slot in bare[:5]], len(bare), "slots"
    )


def _needless(schedule: Schedule, slot: int) -> bool:
    """Nothing has to move for this slot: its data are where they belong from the start."""
    ranks = schedule.topology.num_ranks
    if ranks == 1:
        return True
    match schedule.collective:
        case Collective.ALL_TO_ALL:
            return slot // ranks == slot % ranks
        case Collective.GATHER | Collective.SCATTER:
            return slot == schedule.root
        case _:
            return False


def _expected_weights(
    schedule: Schedule, weights: tuple[int, ...] | None, demands: tuple[tuple[int, ...], ...] | None
) -> list[int] | None:
    """Relative slot weights, or None where the planner may choose them."""
    ranks = schedule.topology.num_ranks
    match schedule.collective:
        case Collective.ALL_GATHER | Collective.REDUCE_SCATTER:
            return list(weights or (1,) * ranks)
        case Collective.ALL_TO_ALL:
            return [size for row in demands for size in row] if demands else [1] * (ranks * ranks)
        case Collective.GATHER | Collective.SCATTER:
            return [1] * ranks
        case _:
            return None
