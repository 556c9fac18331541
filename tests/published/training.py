"""Training jobs and traces that people posted, beside what they measured."""

from __future__ import annotations

from collections.abc import Callable

from published.check import Answer, Check

BLOOM, LLAMA = "28-bloom-throughput-tests", "30-fms-fsdp-llama2"
HOROVOD, TRACES = "32-horovod-resnet-scaling", "33-traces-that-break-importers"


def _refused(*words: str) -> Callable[[Answer], bool]:
    """One sentence that holds some words."""
    return lambda answer: (
        answer.status in (1, 2)
        and answer.err.strip().count("\n") < 2
        and all(word in answer.text for word in words)
    )


def _near(key: str, wanted: float, share: float) -> Callable[[Answer], bool]:
    """A number of an answer lies near to a measured one."""
    return lambda answer: abs(answer.json[key] / wanted - 1) <= share


def _bloom(tp: int, pp: int, dp: int, micro: int, batch: int) -> str:
    degrees = f"tp={tp},pp={pp},dp={dp}"
    return f"coppice train estimate bloom.toml --json --parallel {degrees} --micro-batch {micro} --global-batch {batch}"


def _busy(compute: float, communication: float) -> Callable[[Answer], bool]:
    def judge(answer: Answer) -> bool:
        busy = answer.json["busy_us"]
        return abs(busy["compute"] - compute) < 1e-6 and abs(busy["communication"] - communication) < 1e-6

    return judge


def _three_kernels(answer: Answer) -> bool:
    found = answer.json
    total = found["collectives"][0]
    return found["operations"] == 3 and found["steps"] == {"4": 900.0} and "2" in str(total)


CHECKS: list[Check] = [
    Check(
        BLOOM,
        "a model that is told in full has a name of its own: 181 billion weights",
        "coppice train job bloom.toml",
        lambda answer: answer.status == 0 and "181.2 billion weights" in answer.text,
    ),
    Check(BLOOM, "TP4 PP12 DP8 fits", _bloom(4, 12, 8, 2, 2048), lambda answer: answer.json["fits"]),
    Check(BLOOM, "TP8 PP2 DP24 fits", _bloom(8, 2, 24, 2, 2016), lambda answer: answer.json["fits"]),
    Check(BLOOM, "TP8 PP1 DP48 ran out of memory", _bloom(8, 1, 48, 1, 2016), _refused("fits 80 GB")),
    Check(BLOOM, "TP2 PP6 DP32 MBS2 ran out of memory", _bloom(2, 6, 32, 2, 2048), _refused("fits 80 GB")),
    Check(
        BLOOM,
        "a batch that replicas do not divide is refused with both numbers",
        _bloom(4, 12, 8, 2, 2020),
        _refused("multiple of 2 sequences x 8 replicas", "found 2020"),
    ),
    Check(
        BLOOM,
        "layers that stages do not divide go at the pace of the longest stage",
        _bloom(4, 16, 6, 2, 2016),
        lambda answer: answer.json["iteration_seconds"] > 0,
    ),
    Check(
        LLAMA,
        "7b on A100: 1.80 s, by HSDP",
        "coppice train estimate 7b_a100.toml --json",
        _near("iteration_seconds", 1.80, 0.15),
    ),
    Check(
        LLAMA,
        "7b on H100: 0.853 s",
        "coppice train estimate 7b_h100.toml --json",
        _near("iteration_seconds", 0.853, 0.15),
    ),
    Check(
        LLAMA,
        "7b on H100: MFU of 989 TFLOP/s, not of the sparse peak",
        "coppice train estimate 7b_h100.toml --json",
        lambda answer: 0.42 <= answer.json["mfu"] * answer.json["iteration_seconds"] / 0.853 <= 0.47,
    ),
    Check(
        LLAMA,
        "70b on H100: 9.20 s, no more than with full recomputation",
        "coppice train estimate 70b_h100.toml --recompute full --json",
        lambda answer: answer.json["iteration_seconds"] >= 9.2 and answer.json["fits"],
    ),
    Check(
        HOROVOD,
        "V100: 872 images/s a GPU, within 20%",
        "coppice train estimate resnet50_8.toml --json",
        lambda answer: abs(answer.json["samples_per_second"] / 8 / 872 - 1) <= 0.2,
    ),
    *(
        Check(
            HOROVOD,
            f"{gpus} GPUs: the network is not the limit",
            f"coppice train estimate resnet50_{gpus}.toml --json",
            lambda answer: (
                answer.json["seconds_by_part"]["gradients"] < 0.05 * answer.json["iteration_seconds"]
            ),
        )
        for gpus in (8, 16, 32, 64, 128)
    ),
    Check(
        HOROVOD,
        "sums of 102 MB that nothing hides take 10 to 21% at 128 GPUs",
        "coppice train estimate resnet50_128.toml --policy none --json",
        lambda answer: (
            0.1 <= answer.json["seconds_by_part"]["gradients"] / answer.json["iteration_seconds"] <= 0.215
        ),
    ),
    Check(
        HOROVOD,
        "the cut of a box is 3.125 GB/s",
        "coppice bound p3_16.json -c all_reduce",
        lambda answer: "3.125 GB/s" in answer.out,
    ),
    Check(
        TRACES,
        "good: 550 us of compute, 200 us of an all-reduce of 2 MB over 8 ranks",
        "coppice train import good.json --json",
        lambda answer: _busy(550, 200)(answer) and _three_kernels(answer) and answer.json["notes"] == [],
    ),
    Check(
        TRACES,
        "old_2021: a copy of 0 us and a kernel of 310 us, inf told with its place",
        "coppice train import old_2021.json",
        lambda answer: (
            "2 operations" in answer.out and "inf" in answer.err and "line 7, column" in answer.err
        ),
    ),
    Check(
        TRACES,
        "unescaped_quotes: not JSON, with line and column",
        "coppice train import unescaped_quotes.json",
        _refused("not JSON", "line 105, column 25"),
    ),
    Check(
        TRACES,
        "overlapping_kernels: stream 7 is busy for 365 us, and the overlap of 15 us is told",
        "coppice train import overlapping_kernels.json --json",
        lambda answer: _busy(365, 200)(answer) and "15 us" in answer.json["notes"][0],
    ),
    Check(
        TRACES,
        "times_as_text: equal to good",
        "coppice train import times_as_text.json --json",
        lambda answer: _busy(550, 200)(answer) and _three_kernels(answer),
    ),
    Check(
        TRACES,
        "cpu_ops_only: nothing ran on a device, and how to profile",
        "coppice train import cpu_ops_only.json",
        _refused("nothing ran on a device", "ProfilerActivity.CUDA"),
    ),
]
