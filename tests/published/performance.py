"""What networks allow, beside what people measured."""

from __future__ import annotations

from published.check import Check

CHECKS: list[Check] = [
    Check(
        "18-busbw-above-the-nic",
        "two boxes: algbw 25, busbw 43.75",
        "coppice bound two_nodes.json -c all_reduce --json",
        lambda answer: answer.json["algbw_gb_per_s"] == 25 and answer.json["busbw_gb_per_s"] == 43.75,
    ),
]
