"""Published gains beside simulated ones, in their settings, and with one difference taken away at a time.

Usage: python benchmarks/policies_headlines.py [--page], which writes the section of `policies_simulated.md`.
The settings are those of `coppice claims`: `src/coppice/published/settings/settings.toml`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from coppice.published.records import Claim, claims
from coppice.published.settings.gains import setting_gain, shown
from coppice.published.verdicts import verdict_on
from tables import Table

__all__ = ["headline_table"]

_PAGE = Path(__file__).with_name("policies_simulated.md")


def _explains(claim: Claim, value: float, without: Mapping[str, float]) -> list[str]:
    """Differences without which a gain is as published, or on the other side of it."""
    assert claim.published is not None
    above = value > claim.published
    return [
        name
        for name, other in without.items()
        if verdict_on(claim, other) == "reached" or (other > claim.published) != above
    ]


def headline_table() -> Table:
    """All that a setting is known of."""
    table = Table(
        title="Headlines",
        header=("system", "setting", "published", "simulated", "verdict", "without one difference"),
    )
    explained, reached = 0, 0
    for claim in claims():
        if claim.setting is None:
            continue
        found = setting_gain(claim.setting)
        verdict: str = verdict_on(claim, found.value)
        reached += verdict == "reached"
        if verdict != "reached" and (names := _explains(claim, found.value, found.without)):
            explained += 1
            verdict += f", explained by {' / '.join(names)}"
        assert claim.published is not None
        published = shown(found.setting, claim.published)
        if claim.most is not None:
            published += f" to {shown(found.setting, claim.most)}"
        if claim.evidence == "reported":
            published += " (reported)"
        table.rows.append(
            (
                f"{claim.system} ({found.setting.source})",
                found.setting.setting,
                published,
                f"{shown(found.setting, found.value)}{f' ({found.where})' if found.where else ''}",
                verdict,
                found.why,
            )
        )
    table.notes.append(
        f"`python benchmarks/policies_headlines.py`, or `coppice claims SYSTEM` for one of them. {reached} of "
        f"{len(table.rows)} are within 25% of the published gain, or in its range; {explained} of the others are "
        "explained: with one difference taken away the gain is as published, or on the other side of it. What is "
        "assumed of each setting stands in `src/coppice/published/settings/settings.toml`, and where constants come "
        "from; none was chosen to make a figure. Gains are the largest over the models and rates of a setting: more "
        "iterations in the same time, `x` times as fast, of Poseidon and GradientFlow the speed-up over one GPU, of "
        "DDP the share of time that is saved. Reported: from reports about the publication, not checked against it."
    )
    return table


if __name__ == "__main__":
    made = headline_table()
    sys.stdout.write(made.text())
    if "--page" in sys.argv[1:]:
        before, _, rest = _PAGE.read_text().partition("### Headlines\n")
        _PAGE.write_text(f"{before}{made.markdown()}\n## {rest.partition(chr(10) + '## ')[2]}")
