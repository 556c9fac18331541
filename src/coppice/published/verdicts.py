"""Judge a measured figure by the published one."""

from __future__ import annotations

from typing import Literal

from coppice.published.records import Claim

__all__ = ["VERDICTS", "Verdict", "verdict_on"]

Verdict = Literal["reached", "beaten", "direction", "not askable", "contradicted"]

VERDICTS: dict[Verdict, str] = {
    "reached": "as published, within the tolerance of the claim",
    "beaten": "better than published by more than the tolerance",
    "direction": "a gain as claimed, but a smaller one than published",
    "not askable": "cannot be measured here",
    "contradicted": "no gain, or another figure than the published one",
}
"""Verdicts and what they mean."""


def verdict_on(claim: Claim, measured: float | None) -> Verdict:
    """Verdict on a claim, given what was measured.

    Gains count from the neutral figure: of 1.6 times as fast, 1.3 times is half. Of a range all is as published.

    Examples:
        >>> claim = Claim(system="A", claim="b", source="c", published=1.6, sense="more", neutral=1, hardware="x")
        >>> [verdict_on(claim, measured) for measured in (1.9, 1.5, 1.1, 0.9, None)]
        ['beaten', 'reached', 'direction', 'contradicted', 'not askable']
        >>> some = Claim(system="A", claim="b", source="c", published=10, most=27, sense="more", hardware="x")
        >>> verdict_on(some, 20.0)
        'reached'
    """
    if measured is None:
        return "not askable"
    if claim.published is None:
        return "reached" if measured == 1 else "contradicted"
    allowed = claim.tolerance * abs(claim.published - claim.neutral)
    if claim.sense == "equal":
        return "reached" if abs(measured - claim.published) <= allowed else "contradicted"
    sign = 1 if claim.sense == "more" else -1
    ahead = sign * (measured - claim.published)
    if sign * (measured - (claim.published if claim.most is None else claim.most)) > allowed:
        return "beaten"
    if ahead >= -allowed:
        return "reached"
    # The figure that gains nothing: neutral for gains; of a cost, no bound is known but the published one.
    gained = sign * (measured - claim.neutral) > 0
    return "direction" if gained and (claim.sense == "more" or claim.neutral > 0) else "contradicted"
