"""What networks allow, beside what people measured."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from published.check import Answer, Check


def reaches(algbw: str, busbw: str | None = None) -> Callable[[Answer], bool]:
    """A judge of the bound's exact rates, in GB/s."""

    def judge(answer: Answer) -> bool:
        found = answer.json
        pairs = [("algbw", algbw), *([] if busbw is None else [("busbw", busbw)])]
        return all(Fraction(found[f"{key}_exact"]) == Fraction(rate) for key, rate in pairs)

    return judge


def composed(boxes: int, *settings: str) -> str:
    words = " ".join(f"--host-set {setting}" for setting in settings)
    return f"coppice topology compose {boxes}xv100_4x_2nic.txt --fabric switch {words} -o made.json"


EDR = "18-busbw-above-the-nic"
ONE_GPU = "19-one-gpu-four-nics"
NOMINAL = ("pcie=nics", "rates=nominal")

CHECKS: list[Check] = [
    Check(
        EDR,
        "two boxes: algbw 25, busbw 43.75 by data sheets",
        (composed(2, *NOMINAL), "coppice bound made.json -c all_reduce --json"),
        reaches("25", "175/4"),
    ),
    Check(
        EDR,
        "four boxes: algbw 16.67, busbw 31.25 by data sheets",
        (composed(4, *NOMINAL), "coppice bound made.json -c all_reduce --json"),
        reaches("50/3", "125/4"),
    ),
    Check(
        EDR,
        "two boxes at measured rates, a NIC behind PCIe 3 sends 12 GB/s: algbw 24, busbw 42",
        "coppice bound two_nodes.json -c all_reduce --json",
        reaches("24", "42"),
    ),
    Check(
        EDR,
        "four boxes at measured rates: algbw 16, busbw 30",
        "coppice bound four_nodes.json -c all_reduce --json",
        reaches("16", "30"),
    ),
    Check(
        EDR,
        "a rate given for the NICs is their rate",
        (composed(2, "pcie=nics", "nic_gb_per_s=6"), "coppice bound made.json -c all_reduce --json"),
        reaches("12", "21"),
    ),
    Check(
        EDR,
        "the cut is the NICs",
        "coppice bound two_nodes.json -c all_reduce",
        lambda answer: "through 2 NICs of 12 GB/s" in answer.text,
    ),
    Check(
        EDR,
        "2 x 200G a box: 50, 93.75",
        "coppice bound a100_2x200g.json -c all_reduce --json",
        reaches("50", "375/4"),
    ),
    Check(
        EDR,
        "1 x 100G a box: 12.5, 23.44",
        "coppice bound a100_1x100g.json -c all_reduce --json",
        reaches("25/2", "375/16"),
    ),
    Check(
        EDR,
        "all_to_all of two DGX A100: 50, 46.875",
        "coppice bound dgx-a100 --boxes 2 -c all_to_all --json",
        reaches("50", "375/8"),
    ),
    Check(
        EDR,
        "a ring on two boxes takes 161 ms and no algorithm less than 85.9",
        "coppice compare p3dn.json -c all_reduce --sizes 1G -a forest,best-ring,nccl-ring,double-binary-tree --json",
        lambda answer: _ring_and_best(answer.json),
    ),
    Check(
        ONE_GPU,
        "one GPU of each host: its own PCIe link, 48",
        "coppice bound two_hosts.json --ranks 0,8 -c all_reduce --json",
        reaches("48", "48"),
    ),
    Check(
        ONE_GPU,
        "with relays four NICs at 48, and what two far ones get through sockets",
        "coppice bound two_hosts.json --ranks 0,8 --relay-unranked -c all_reduce --json",
        lambda answer: 192 <= Fraction(answer.json["algbw_exact"]) <= 236,
    ),
    Check(
        ONE_GPU,
        "all 16 ranks: no more than the NICs of a host, twice",
        "coppice bound two_hosts.json -c all_reduce --json",
        lambda answer: 192 <= Fraction(answer.json["algbw_exact"]) <= 236,
    ),
    Check(
        ONE_GPU,
        "two NICs hang from no GPU",
        "coppice topology show h100_6nic.txt --set gpu=h100",
        lambda answer: "mlx5_4, mlx5_5 share no PCIe switch or CPU with a GPU" in answer.text,
    ),
]


def _ring_and_best(document: dict[str, Any]) -> bool:
    times = [(row["algorithm"], row["time_us"]) for row in document["rows"] if row["time_us"] is not None]
    rings = [time for name, time in times if name.endswith("ring")]
    return min(time for _, time in times) >= 85_899 and min(rings) >= 161_000
