"""Rings for RCCL on one box: the text of ``NCCL_RINGS``, by which stock RCCL runs its rings in given orders.

RCCL keeps a ring if it names every GPU of the communicator on the host once, by device index, and drops it without a
word otherwise. It gives every ring the same rate, and uses the rings in its ring and in its tree graph.
"""

from __future__ import annotations

from fractions import Fraction

from coppice.export.exported import Exported
from coppice.fitting.rccl_rings import rccl_rings
from coppice.schedule.plan import Plan

__all__ = ["export_rccl_rings"]


def export_rccl_rings(plan: Plan, *, rings: int | None = None) -> Exported:
    """Rings for what a plan performs on one box as a line that sets ``NCCL_RINGS``.

    Args:
        plan: A plan for one box, of any collective that rings perform.
        rings: Number of rings; None takes the number up to 64 that loses least.

    Raises:
        InputError: If RCCL cannot run rings for the plan.
    """
    made = rccl_rings(plan, rings=rings)
    shards = plan.problem.shards
    rate, best, own = (shards / time for time in (made.inv_rate, made.best_inv_rate, plan.inv_rate))
    notes = [
        f"{len(made.orders)} rings of equal shares, {len(set(made.orders))} different ones",
        f"algbw {float(rate):.6g} GB/s by links, {_loss(rate, own, 'the plan')}",
        _loss(rate, best, "rings of any shares"),
    ]
    if made.detours:
        notes.append(
            f"{made.detours} hops join GPUs without a link of their own: RCCL may go another way there"
        )
    notes += [
        "for communicators of all GPUs of the box, rank r on device r; smaller ones drop the rings and search theirs",
        f"let RCCL use all channels: NCCL_MIN_NCHANNELS={len(made.orders)} or a multiple",
        "RCCL_TREES has to be unset; on several hosts every second one runs the rings backwards",
    ]
    return Exported(text=f'NCCL_RINGS="{made.text}"\n', notes=tuple(notes), suffix=".env")


def _loss(rate: Fraction, other: Fraction, name: str) -> str:
    loss = 1 - rate / other
    words = (
        f"{100 * float(loss):.3g}% less than" if loss > 0 else "as fast as" if loss == 0 else "faster than"
    )
    return f"{words} {name} ({float(other):.6g} GB/s)"
