"""What libraries would pick on machines that people described, and that no predicted time passes the bound."""

from __future__ import annotations

from typing import Any

from published.check import Answer, Check

_THREE = "20-three-nodes-half-as-fast"
_ABOVE = "21-nvls-above-the-bound"
_CUTS = "18-busbw-above-the-nic"


def _bound(case: str, command: str, algbw: float, busbw: float) -> Check:
    def judge(answer: Answer) -> bool:
        found = answer.json
        return abs(found["algbw_gb_per_s"] - algbw) < 0.005 * algbw and (
            abs(found["busbw_gb_per_s"] - busbw) < 0.005 * busbw
        )

    return Check(case, f"algbw {algbw:g}, busbw {busbw:g}", f"{command} --json", judge)


def _rows(answer: Answer, name: str) -> list[dict[str, Any]]:
    return [row for row in answer.json["rows"] if row["algorithm"] == name and row["refusal"] is None]


def _no_row_below(answer: Answer) -> bool:
    least = 1 / answer.json["optimum"]["algbw_gb_per_s"] / 1000
    rows = [row for row in answer.json["rows"] if row["refusal"] is None]
    return bool(rows) and all(row["time_us"] >= row["size_bytes"] * least * (1 - 1e-9) for row in rows)


def _select_within(nodes: int) -> Check:
    """The bound is 48 n / (n - 1); NCCL's rings are held by the 40 GB/s between sockets."""
    ranks = 8 * nodes
    least_us = 2**30 / (48 * ranks / (ranks - 1)) / 1000

    def judge(answer: Answer) -> bool:
        found = answer.json
        names = " ".join([found["algorithm"], *found["assumptions"]])
        return least_us <= found["time_us"] <= 2 * least_us and "dgx" not in names and "NVLS" not in names

    command = f"coppice select nodes_{nodes}.json --library nccl -c all_gather --size 1G --json"
    return Check(_THREE, f"{nodes} nodes: no time below the bound, none half as fast, no DGX", command, judge)


CHECKS: list[Check] = [
    _bound(_THREE, "coppice bound nodes_2.json -c all_gather", 51.2, 48),
    _bound(_THREE, "coppice bound nodes_3.json -c all_gather", 50.09, 48),
    _bound(_THREE, "coppice bound nodes_4.json -c all_gather", 49.55, 48),
    *(_select_within(nodes) for nodes in (2, 3, 4)),
    Check(
        _THREE,
        "NCCL's pick says what it was made of",
        "coppice select nodes_3.json --library nccl -c all_gather --size 1G --why",
        lambda answer: (
            "LL128 needs NVLink between GPUs, found PIX" in answer.text
            and "nothing here tells" in answer.text
        ),
    ),
    Check(
        _THREE,
        "no row lies below the bound; rings come near it",
        "coppice compare nodes_3.json -c all_gather --sizes 1G --json",
        lambda answer: (
            _no_row_below(answer)
            and max(row["algbw_gb_per_s"] for row in answer.json["rows"] if row["algbw_gb_per_s"])
            > 0.9 * 50.09
        ),
    ),
    _bound(_ABOVE, "coppice bound dgx-h100 -c all_reduce", 257.14, 450),
    _bound(_ABOVE, "coppice bound dgx-h100 -c all_reduce --in-network", 450, 787.5),
    _bound(_ABOVE, "coppice bound dgx-h100 -c all_reduce --in-network --rates measured", 370.8, 648.9),
    Check(
        _ABOVE,
        "the plain bound says that switches may pass it, and by how much",
        "coppice bound dgx-h100 -c all_reduce",
        lambda answer: (
            "only GPUs copy and add" in answer.text
            and "450 GB/s, busbw 787.5 GB/s at most (`--in-network`)" in answer.text
        ),
    ),
    Check(
        _ABOVE,
        "so does its JSON",
        "coppice bound dgx-h100 -c all_reduce --json",
        lambda answer: (
            "only GPUs" in answer.json["holds_for"]
            and answer.json["with_in_network"]["algbw_gb_per_s"] == 450
        ),
    ),
    Check(
        _ABOVE,
        "a box whose switches do not add has one bound",
        "coppice bound dgx-a100 -c all_reduce",
        lambda answer: "in-network" not in answer.text,
    ),
    Check(
        _ABOVE,
        "NVLS is chosen at 1G, between what was measured and its bound",
        "coppice select dgx-h100 --library nccl -c all_reduce --size 1G --json",
        lambda answer: (
            answer.json["algorithm"].startswith("NVLS")
            and 2**30 / 450 / 1000 <= answer.json["time_us"] <= 2**30 / 250 / 1000
        ),
    ),
    Check(
        _ABOVE,
        "NVLS by its closed form lies between 273 and 450",
        "coppice switch model nvls --topology dgx-h100 --size 1G --json",
        lambda answer: any(
            273 <= number <= 450 for number in _numbers(answer.json) if isinstance(number, float)
        ),
    ),
    Check(
        _ABOVE,
        "a ring, which no switch carries out, is named with what simulates it",
        "coppice switch model nvls,ring --topology dgx-h100 --size 1G",
        lambda answer: answer.status == 2 and "`coppice compare` simulates it" in answer.text,
    ),
    Check(
        _ABOVE,
        "NCCL's pick is measured by others of its class",
        "coppice compare dgx-h100 -c all_reduce --sizes 1G --all",
        lambda answer: (
            "NVLS/Simple: as good as the best of those whose switches copy and add" in answer.text
            and "was not simulated" not in answer.text
        ),
    ),
    *(
        _bound(
            _ABOVE,
            f"coppice bound dgx-h100 --ranks 0-{n - 1} -c all_reduce --in-network",
            450,
            900 * (n - 1) / n,
        )
        for n in (2, 4, 5, 8)
    ),
    Check(
        _CUTS,
        "two p3dn: no row below 85.9 ms, NCCL's ring at least 161 ms",
        "coppice compare p3dn.json -c all_reduce --sizes 1G --json",
        lambda answer: (
            _no_row_below(answer)
            and all(row["time_us"] >= 85_890 for row in answer.json["rows"] if row["time_us"])
            and all(row["time_us"] >= 160_000 for row in _rows(answer, "ring"))
        ),
    ),
    Check(
        _CUTS,
        "two p3dn: NCCL's own prediction lies above the bound and is no DGX H100's",
        "coppice select p3dn.json --library nccl --size 1G --json",
        lambda answer: answer.json["time_us"] >= 85_890 and "NVLS" not in answer.json["algorithm"],
    ),
    Check(
        _CUTS,
        "2 x 4 V100: NCCL's prediction does not pass the cut between boxes",
        "coppice select two_nodes.json --library nccl --size 1G --json",
        lambda answer: answer.json["time_us"] >= 2**30 / 25 / 1000 and "NVLS" not in answer.json["algorithm"],
    ),
]


def _numbers(value: Any) -> list[Any]:
    """All numbers of a record."""
    if isinstance(value, dict):
        return [each for inner in value.values() for each in _numbers(inner)]
    if isinstance(value, list):
        return [each for inner in value for each in _numbers(inner)]
    return [value]
