"""Files that tune libraries: algorithms as MSCCL XML, tuner tables, topologies, rules of MPI."""

from __future__ import annotations

from published.check import Answer, Check

_AZURE = "allreduce_a100_allpairs_simple_8_1.xml"
_OLD = "same_with_2021_header.xml"


def _has(*words: str, status: int | None = None) -> object:
    """Every one of the words is in the answer."""

    def judge(answer: Answer) -> None:
        for word in words:
            assert word in answer.text, word
        assert status is None or answer.status == status, answer.status

    return judge


def _lacks(*words: str) -> object:
    """None of the words is in the answer."""

    def judge(answer: Answer) -> None:
        for word in words:
            assert word not in answer.text, word

    return judge


CHECKS: list[Check] = [
    Check(
        "25-msccl-reduce-scatter-by-hand",
        "verified",
        "coppice verify reduce_scatter_2.xml",
        _has("verified", "in place", status=0),
    ),
    Check(
        "25-msccl-reduce-scatter-by-hand",
        "imported and simulated",
        ("coppice import reduce_scatter_2.xml -o rs.json", "coppice simulate rs.json --size 64M"),
        _has(status=0),
    ),
    Check(
        "25-msccl-reduce-scatter-by-hand",
        "msccl uses it at 1M to 64M, in place only",
        "coppice doctor reduce_scatter_2.xml --target msccl --ranks 2 --size 1M:64M",
        _has("it loads", "only calls in place", "1M..64M: used", status=0),
    ),
    Check(
        "25-msccl-reduce-scatter-by-hand",
        "RCCL refuses it, so that no size uses it",
        "coppice doctor reduce_scatter_2.xml --target rccl --ranks 2 --size 1M:64M",
        lambda answer: (
            answer.status == 1
            and all(word in answer.text for word in ("outofplace", "minBytes", "maxBytes", "reducescatter"))
            and "1M..64M: NOT used" in answer.text
            and "1M..64M: used" not in answer.text
        ),
    ),
    Check(
        "25-msccl-reduce-scatter-by-hand",
        "the wrong offset is named: GPU 1 adds into chunk 0",
        "coppice verify reduce_scatter_2_wrong_offset.xml",
        _has("FAILED", "rank 1, thread block 0, step 2 (reduce) adds chunk 2 to chunk 0", status=1),
    ),
    Check(
        "26-msccl-tools-for-the-azure-executor",
        "right, up to the size that doctor names, with the remedy",
        f"coppice verify {_AZURE}",
        _has("verified", 'maxBytes="33554432"', "messages of up to 33554432 bytes", status=0),
    ),
    Check(
        "26-msccl-tools-for-the-azure-executor",
        "imported and simulated",
        (f"coppice import {_AZURE} --topology dgx-a100 -o ap.json", "coppice simulate ap.json --size 1K:1G"),
        _has(status=0),
    ),
    *(
        Check(
            "26-msccl-tools-for-the-azure-executor",
            f"{target} refuses it for what it lacks, and uses it at no size",
            f"coppice doctor {_AZURE} --target {target} --ranks 8 --size 1K:32M",
            lambda answer: (
                answer.status == 1
                and all(word in answer.text for word in ("outofplace", "minBytes", "maxBytes"))
                and "1K..32M: NOT used" in answer.text
            ),
        )
        for target in ("azure-executor", "rccl")
    ),
    Check(
        "26-msccl-tools-for-the-azure-executor",
        "msccl: used up to 32M, hangs at 64M, not used from 128M on",
        f"coppice doctor {_AZURE} --target msccl --ranks 8 --size 1K:256M",
        _has(
            "1K..32M: used", "64M: NOT used: ranks would hang", "128M..256M: NOT used: maxBytes is 134217728"
        ),
    ),
    Check(
        "26-msccl-tools-for-the-azure-executor",
        "the header of 2021: doctor names ngpus, coll, inplace",
        f"coppice doctor {_OLD} --target msccl --ranks 8 --size 1M",
        _has("no attribute ngpus", "no attribute coll", "no attribute inplace", "1M: NOT used", status=1),
    ),
    Check(
        "26-msccl-tools-for-the-azure-executor",
        "the header of 2021: verify cannot know the collective",
        f"coppice verify {_OLD}",
        _has("expected an attribute coll", status=2),
    ),
]
