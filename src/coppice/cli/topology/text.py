"""A topology summary and a preset in words and as JSON."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from coppice.text import rate_text
from coppice.topology.presets import Preset
from coppice.topology.summary import LinkGroup, Summary

__all__ = ["preset_fields", "summary_fields", "summary_json"]

_MAX_GROUPS = 12


def preset_fields(preset: Preset) -> list[tuple[str, str]]:
    """Description, source and parameters of a preset."""
    plain = [entry for entry in preset.parameters if entry.default]
    fabric = [entry.name for entry in preset.parameters if not entry.default]
    fields = [("what", preset.description), ("source", preset.source)]
    fields += [(f"--set {entry.name}=", f"{entry.description} [{entry.default}]") for entry in plain]
    if fabric:
        fields.append(("fabric fields", ", ".join(fabric)))
    return fields


def summary_fields(summary: Summary) -> list[tuple[str, str]]:
    """A summary as named lines."""
    kinds = ", ".join(f"{count} {_plural(kind, count)}" for kind, count in summary.nodes.items())
    relays = f" ({summary.relays} relays)" if summary.relays else ""
    fields = [("ranks", f"{summary.ranks}{relays}"), ("nodes", kinds)]
    if summary.hosts:
        hosts = ", ".join(
            f"{count} {_plural('host', count)} of {ranks} {_plural('rank', ranks)}"
            for ranks, count in summary.hosts.items()
        )
        fields.append(("hosts", hosts))
    fields.append(("links", f"{summary.links} directed"))
    fields += [("", _group_text(group)) for group in summary.groups[:_MAX_GROUPS]]
    if len(summary.groups) > _MAX_GROUPS:
        fields.append(("", f"and {len(summary.groups) - _MAX_GROUPS} more groups"))
    rows = [
        f"{_rates(into, out)} GB/s"
        + (f" at {count} {_plural('rank', count)}" if len(summary.gpus) > 1 else "")
        for (into, out), count in summary.gpus.items()
    ]
    if len(rows) > _MAX_GROUPS:
        rows = [*rows[:_MAX_GROUPS], f"and {len(rows) - _MAX_GROUPS} more"]
    fields += [("per GPU" if i == 0 else "", row) for i, row in enumerate(rows)]
    if summary.denominator > 1:
        fields.append(("rates", f"multiples of 1/{summary.denominator} GB/s"))
    for imbalance in summary.imbalances[:_MAX_GROUPS]:
        fields.append(("imbalance", f"{imbalance.node}: {_rates(imbalance.into, imbalance.out)} GB/s"))
    if len(summary.imbalances) > _MAX_GROUPS:
        fields.append(("imbalance", f"and {len(summary.imbalances) - _MAX_GROUPS} more"))
    if summary.source:
        fields.append(("source", summary.source))
    fields.append(("hash", summary.sha256[:16]))
    fields += [("warning", warning) for warning in summary.warnings]
    return fields


def summary_json(summary: Summary) -> dict[str, Any]:
    """A summary as JSON; rates are exact fractions as text."""
    return {
        "name": summary.name,
        "source": summary.source,
        "sha256": summary.sha256,
        "ranks": summary.ranks,
        "relays": summary.relays,
        "nodes": summary.nodes,
        "hosts": [{"ranks": ranks, "count": count} for ranks, count in summary.hosts.items()],
        "links": summary.links,
        "link_groups": [
            {
                "from": group.src,
                "to": group.dst,
                "gb_per_s": str(group.gb_per_s),
                "count": group.count,
                "duplex": group.duplex,
            }
            for group in summary.groups
        ],
        "gpus": [
            {"in_gb_per_s": str(into), "out_gb_per_s": str(out), "count": count}
            for (into, out), count in summary.gpus.items()
        ],
        "denominator": summary.denominator,
        "imbalances": [
            {"node": entry.node, "in_gb_per_s": str(entry.into), "out_gb_per_s": str(entry.out)}
            for entry in summary.imbalances
        ],
        "warnings": list(summary.warnings),
    }


def _group_text(group: LinkGroup) -> str:
    arrow = "<->" if group.duplex else "->"
    each = " each way" if group.duplex else ""
    return f"{group.count} x {group.src} {arrow} {group.dst}, {rate_text(group.gb_per_s)} GB/s{each}"


def _rates(into: Fraction, out: Fraction) -> str:
    return f"in {rate_text(into)}, out {rate_text(out)}"


def _plural(word: str, count: int) -> str:
    if count == 1:
        return word.upper() if word in ("gpu", "nic") else word
    return {"gpu": "GPUs", "nic": "NICs", "switch": "switches"}.get(word, f"{word}s")
