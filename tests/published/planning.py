"""Plans and their proofs: bounds of all-to-all at any scale, what certificates say, what synthesis proves."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from published.check import Answer, Check


def _optimum(inv_rate: str) -> Any:
    """A verified plan that takes exactly the least time, which is this."""

    def judge(answer: Answer) -> bool:
        found = answer.json
        return (
            answer.status == 0
            and found["inv_rate"] == found["planned_inv_rate"] == inv_rate
            and found["optimal"]
            and found["verified"]
        )

    return judge


def _packing_is_below_its_bound(answer: Answer) -> bool:
    return all(
        Fraction(each["gb_per_s"]) <= Fraction(each["most_gb_per_s"]) for each in answer.json["packings"]
    )


CHECKS: list[Check] = [
    Check(
        "planning/01",
        "one demand takes both ways round the ring",
        "coppice plan ring --set gpus=8 -c all_to_all --weights demands.json --json",
        _optimum("500000000"),
    ),
    Check(
        "planning/01",
        "demands in bytes, eight powers of ten apart: two boxes",
        "coppice plan dgx-a100 --boxes 2 -c all_to_all --weights a100.json --json",
        _optimum("285171531/50"),
    ),
    Check(
        "planning/01",
        "demands in bytes, eight powers of ten apart: one box",
        "coppice plan dgx-1v -c all_to_all --weights dgx1v.json --json",
        _optimum("527256279/200"),
    ),
    Check(
        "planning/01",
        "rates twelve powers of ten apart",
        "coppice plan two.json -c all_to_all --json",
        _optimum("1000000"),
    ),
    Check(
        "planning/02",
        "demands of 1: algbw 1 GB/s, their sum over ranks and time",
        "coppice bound star --set gpus=2 -c all_to_all --weights a --json",
        lambda answer: answer.json["algbw_gb_per_s"] == 1,
    ),
    Check(
        "planning/02",
        "demands of 1000: the same algbw",
        "coppice bound star --set gpus=2 -c all_to_all --weights b --json",
        lambda answer: answer.json["algbw_gb_per_s"] == 1,
    ),
    Check(
        "planning/03",
        "a certificate for forests without help says nothing about a forest with it",
        "coppice verify helped.json",
        lambda answer: (
            "optimal with 1 tree" not in answer.text and "says nothing about this one" in answer.text
        ),
    ),
    Check(
        "planning/04",
        "a bound without cut and witness does not verify",
        "coppice verify ring.json",
        lambda answer: answer.status == 1 and "FAILED" in answer.text,
    ),
    Check(
        "planning/04",
        "nor is it explained as the optimum",
        "coppice explain ring.json",
        lambda answer: answer.status == 1 and "optimum" not in answer.out,
    ),
    Check(
        "planning/05",
        "what was decided for 2 chunks only is not proved for all",
        "coppice synthesize tiny.json -c reduce_scatter --method sccl --json",
        lambda answer: (
            answer.json["proved"] is False
            and answer.json["proved_for"] == "with up to 2 chunks"
            and answer.json["most_chunks"] == 2
        ),
    ),
    Check(
        "planning/05",
        "with 3 chunks it is better",
        "coppice synthesize tiny.json -c reduce_scatter --method sccl --steps 3 --rounds 7 --chunks 3 --json",
        lambda answer: answer.json["status"] == "sat" and answer.json["rounds_per_chunk"] == "7/3",
    ),
    Check(
        "planning/06",
        "the most that is possible is at least what is reached",
        "coppice synthesize dgx-1v -c broadcast --method blink --json",
        _packing_is_below_its_bound,
    ),
]
