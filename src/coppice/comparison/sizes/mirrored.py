"""Schedules turned round: what gathers backwards in time is what scatters, and what reduces is what copies.

The mirror of a schedule goes over the same links the other way round, from its end to its beginning. Both have the same
least time, and in a model in which a message holds its links for its bytes both take as long, if each message goes when
its image does. Ranks send what they have as soon as they have it, though, and that suits the two differently: a copy
has all it needs when its sender has received it, a sum waits for the last of its terms, and what could be sent early
stands in the way of what is urgent. So a schedule of either kind is judged by its mirror as well, and is carried out in
the order and at the times of that (:meth:`coppice.comparison.sizes.ordered.OrderSearch.fastest`).
"""

from __future__ import annotations

from coppice.bounds.network import TRANSPOSED
from coppice.collectives import Collective
from coppice.planners.ordering import turned_round, without_steps
from coppice.schedule.forest import Forest
from coppice.schedule.lower import lower
from coppice.schedule.schedule import Schedule, routed

MIRRORED = (*TRANSPOSED, Collective.BROADCAST, Collective.ALL_GATHER, Collective.GATHER)
"""Collectives that are others turned round."""


def mirror_of(body: Schedule | Forest) -> Schedule | None:
    """The rows of a schedule turned round, for times only; None where they wait for more than what they send.

    Examples:
        >>> from coppice.planners.planning import plan
        >>> from coppice.simulation.simulator import simulate
        >>> made = plan("dgx-1v", "reduce").plan.body
        >>> copied = mirror_of(made)
        >>> copied.num_transfers == made.num_edges, simulate(copied, "1G").time_us < simulate(made, "1G").time_us
        (True, True)
    """
    if isinstance(body, Forest):
        return None if body.branches_at_switches else turned_round(lower(body))
    return None if len(body.after) else turned_round(without_steps(routed(body)))
