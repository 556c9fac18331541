"""Systems whose links lose nothing by assumption, or leave loss to a transport below them."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.innetwork.models.case import AggregationCase

__all__ = ["refuse_loss"]


def refuse_loss(case: AggregationCase, title: str, relied: str) -> None:
    """Refuse a case with loss.

    Args:
        case: The case.
        title: The system.
        relied: What it relies on.

    Raises:
        InputError: If packets are lost.

    Examples:
        >>> from fractions import Fraction
        >>> refuse_loss(AggregationCase(workers=2, gb_per_s=Fraction(1), loss=0.1), "NVLS", "the links")
        Traceback (most recent call last):
        ...
        coppice.errors.InputError: expected links without loss, found `loss=0.1`: NVLS relies on the links for that.
    """
    if case.loss:
        msg = f"expected links without loss, found `loss={case.loss:g}`: {title} relies on {relied} for that."
        raise InputError(msg)
