"""The job that all parties of a simulated or searched aggregation agree on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coppice.errors import InputError
from coppice.innetwork.systems import SwitchProtocol
from coppice.native import _switch

ELEMENTS = ("int32", "float32")
MOST_NS = 2**62


def groups_of(workers: int, tree: Sequence[int] | None) -> list[int]:
    """Workers below each switch."""
    groups = [workers] if tree is None else list(tree)
    if workers < 1 or min(groups, default=0) < 1 or sum(groups) != workers:
        raise InputError(
            f"expected 1 worker or more, and `tree` to say how many are below each switch, found {workers} workers "
            f"and groups of {groups}: make the groups add up."
        )
    return groups


def job_of(
    protocol: SwitchProtocol,
    *,
    workers: int,
    slots: int,
    window: int | None,
    values: int | None,
    element: str,
    timeout_ns: int,
    patience_ns: int,
    settings: Mapping[str, float] | None,
) -> _switch.AggregationJob:
    """The job as the native machines take it; they check it."""
    if element not in ELEMENTS:
        raise InputError(f"expected `element` to be one of {', '.join(ELEMENTS)}, found {element!r}.")
    if not 0 < timeout_ns <= MOST_NS or not 0 < patience_ns <= MOST_NS:
        raise InputError(
            "expected `timeout_ms` and `patience_ms` above 0, found one that is not: give times in milliseconds."
        )
    for name, number in (("workers", workers), ("slots", slots), ("window", window), ("values", values)):
        if number is not None and not 1 <= number < 2**31:
            raise InputError(f"expected `{name}` from 1 on, found {number}.")
    return _switch.AggregationJob(
        id=1,
        workers=workers,
        slots=slots,
        values=protocol.values if values is None else values,
        window=slots if window is None else window,
        element=getattr(_switch.Element, element),
        timeout_ns=timeout_ns,
        patience_ns=patience_ns,
        settings=dict(settings or {}),
    )
