"""Systems whose links lose nothing by assumption, or leave loss to a transport below them."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.innetwork.models.case import AggregationCase


def refuse_loss(case: AggregationCase, title: str, relied: str) -> None:
    """Refuse a case with loss.

    Examples:
        >>> from fractions import Fraction
        >>> refuse_loss(AggregationCase(workers=2, gb_per_s=Fraction(1), loss=0.1), "NVLS", "the links")
        Traceback (most recent call last):
        ...
        coppice.errors.InputError: expected links without loss, found `loss=0.1`: NVLS relies on the links for that.
    """
    if case.loss:
        raise InputError(
            f"expected links without loss, found `loss={case.loss:g}`: {title} relies on {relied} for that."
        )
