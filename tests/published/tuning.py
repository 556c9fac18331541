"""Files that tune libraries: algorithms as MSCCL XML, tuner tables, topologies, rules of MPI."""

from __future__ import annotations

from collections.abc import Callable

from published.check import Answer, Check

_AZURE = "allreduce_a100_allpairs_simple_8_1.xml"
_OLD = "same_with_2021_header.xml"


def _has(*words: str, status: int | None = None) -> Callable[[Answer], object]:
    """Every one of the words is in the answer."""

    def judge(answer: Answer) -> None:
        for word in words:
            assert word in answer.text, word
        assert status is None or answer.status == status, answer.status

    return judge


_RCCL_TABLE = "coppice doctor rccl_tuner_gfx950.conf --target nccl-tuner --fact dialect"
_SUBSET = "coppice doctor subset_gpus_nccl_cu_tuning.conf --target nccl-tuner"
_MPI = "34-open-mpi-rule-files"

CHECKS: list[Check] = [
    Check(
        "09-aws-p5-skeletons",
        "the old file: <cpu> lacks arch and its like, <pci> a class, and Linux prints no such speed",
        "coppice doctor p5.48xl-topo-old.xml --target nccl-topo",
        _has(
            "<cpu> elements lack arch, vendor, familyid, modelid",
            "Attribute arch of node cpu not found",
            "lack class",
            "'32 GT/s PCIe/s', which Linux never prints",
            "32.0 GT/s PCIe",
            status=1,
        ),
    ),
    Check(
        "09-aws-p5-skeletons",
        "the new file: sound, and two hosts nearly fill a tree of XML",
        "coppice doctor p5.48xl-topo-pr1226.xml --target nccl-topo --fact gpus=8 --fact boxes=2",
        _has("no errors", "2 hosts have 243 of the 256 elements", status=0),
    ),
    Check(
        "10-lstopo-xml",
        "the doctor names the kind of file and what is wanted",
        "coppice doctor topology.xml --target nccl-topo",
        _has("lstopo (hwloc)", "NCCL_TOPO_DUMP_FILE", status=2),
    ),
    Check(
        "running",
        "RCCL with LL: a send that others wait for may still read what they write",
        "coppice verify msccl_xml/mi.xml",
        _has("FAILED", "counts as done before all its threads have read", status=1),
    ),
    Check(
        "running",
        "the doctor says the same for RCCL",
        "coppice doctor msccl_xml/ll.xml --target rccl",
        _has("H04", "it will NOT work", status=1),
    ),
    Check(
        "running",
        "an export of that plan waits for something else",
        (
            "coppice export msccl_xml/plan.json --to msccl-xml --target rccl --protocol LL -o again.xml",
            "coppice verify again.xml",
        ),
        _has("verified", status=0),
    ),
    Check(
        "27-rccl-tuner-tables",
        "which line holds for 2 x 8 and 4 x 8, nothing for one node and beyond 16 GiB, the dialect",
        f"{_RCCL_TABLE}=rccl-builtin --option shapes=2x16,4x32,1x8 --size 1K:32G",
        _has(
            "nccl-tuner (rccl-builtin): no errors",
            "no line holds on 1 node with 8 ranks",
            "no line for broadcast, allgather, reducescatter holds on 4 nodes with 32 ranks",
            "end at 17179869184 bytes",
            "32G: no line: the library decides",
            "512K..8M: tree with ll128, 64 channels (line 31)",
            status=0,
        ),
    ),
    Check(
        "27-rccl-tuner-tables",
        "the same as NVIDIA's example plug-in reads it: one channel elsewhere",
        f"{_RCCL_TABLE}=nvidia-example --option shapes=2x16",
        _has("nccl-tuner (nvidia-example)", "the plug-in runs it on one channel", status=1),
    ),
    Check(
        "27-rccl-tuner-tables",
        "equal ranks on other nodes are told apart; below 32 MB nothing; no end of the last line",
        f"{_SUBSET} --option dialect=rccl-builtin --option shapes=2x8,4x8,8x8,2x4 --size 1K:4G",
        _has(
            "allreduce on 2 nodes with 8 ranks: 1K..16M: no line: the library decides 32M..4G: ring with simple, 16",
            "allreduce on 4 nodes with 8 ranks: 1K..8M: no line: the library decides 16M..4G: ring with simple, 4",
            "allreduce on 8 nodes with 8 ranks: 1K..32M: no line: the library decides 64M..4G: ring with simple, 4",
            "reducescatter on 8 nodes with 8 ranks",
            "8M: ring with simple, 4 channels (line 53)",
            status=0,
        ),
    ),
    Check(
        "27-rccl-tuner-tables",
        "the hole of the reduce-scatter of two ranks, nothing above 2 MB, and the dialect that is assumed",
        f"{_SUBSET} --option shapes=2x2 --size 64K:4M",
        _has(
            "since nothing tells another dialect",
            "512K: no line: the plug-in takes one channel 1M..2M: ring with simple, 4 channels (line 51) 4M: no line",
            "no line for reducescatter of 262145 .. 1048575 bytes on 2 nodes and 2 ranks",
            status=1,
        ),
    ),
    *(
        Check(
            _MPI,
            f"the only list, for 64 ranks, holds for fewer as well ({version}), as Open MPI 5.0.11 does",
            f"coppice doctor scatter.conf --target ompi-rules --fact shapes=1x16,2x48 --fact version={version}",
            _has("for 64 ranks holds for 2 to 63 ranks, too, as the job has them (16, 48)", status=0),
        )
        for version in ("4.1.6", "5.0.11")
    ),
    Check(
        _MPI,
        "4.0.3 counts one element, so that the rule from 8192 bytes on is never reached",
        "coppice doctor scatter.conf --target ompi-rules --fact shapes=1x16 --fact version=4.0.3",
        _has("the size of scatter is that of one element times the ranks", "before 4.1"),
    ),
    Check(
        _MPI,
        "64 to 1K are binomial, 8K is linear_nb",
        "coppice doctor scatter.conf --target ompi-rules --fact shapes=2x64 --size 64,128,1K,8K",
        _has("64..1K: binomial (line 6)", "8K: linear_nb (line 7)"),
    ),
    Check(
        _MPI,
        "a list for 0 ranks is meant for all",
        "coppice doctor version2.conf --target ompi-rules --fact shapes=2x64,1x100,2x105 --fact version=5.0.7",
        lambda answer: answer.status == 0 and "O06" not in answer.text and "no errors" in answer.text,
    ),
    Check(
        _MPI,
        "4.1.6 does not know the second form",
        "coppice doctor version2.conf --target ompi-rules --fact shapes=2x64 --fact version=4.1.6",
        _has("5.0.7 and later", status=1),
    ),
    Check(
        _MPI,
        "the fifth number may be missing",
        "coppice doctor version2_mixed.conf --target ompi-rules --fact shapes=2x64 --fact version=5.0.7 "
        "--size 0,64,100,1M",
        _has(
            "allgatherv on 64 ranks (the list of allgatherv for 64 ranks): 0..1M: default",
            "0: basic_linear (line 18) 64: nonoverlapping (line 19) 100: recursive_doubling (line 20) 1M: ring",
            status=0,
        ),
    ),
    Check(
        _MPI,
        "a file of HAN",
        "coppice doctor han.conf --target ompi-rules --fact shapes=4x32",
        _has("component han", "coll_han_dynamic_rules_filename", "coll_han_use_dynamic_file_rules", status=2),
    ),
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
