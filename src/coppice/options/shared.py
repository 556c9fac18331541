"""Options that several commands and functions share, each described once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from coppice.collectives import Collective
from coppice.options import Settings, argument, option
from coppice.options.names import ATTENTION_KERNELS, FRAMEWORKS

TopologyArgument = Annotated[
    str,
    argument(
        "Preset name (`coppice topology list`) or file: coppice JSON/YAML, a cluster file, "
        "NCCL/RCCL XML, `nvidia-smi topo -m` or `rocm-smi --showtopo` text; - is standard input.",
        metavar="TOPOLOGY",
    ),
]

BoxesOption = Annotated[int | None, option("Number of boxes of a box preset.", "--boxes", ge=1)]

RatesOption = Annotated[
    str | None,
    option(
        "Rates of a preset: nominal (default) or measured (the achievable class).", "--rates", metavar="CLASS"
    ),
]

SetOption = Annotated[
    list[str] | None,
    option("Parameter of a preset; may be repeated.", "--set", metavar="KEY=VALUE"),
]

RanksOption = Annotated[
    str | None,
    option(
        "Only these ranks take part, such as 0,1,2 or 0-7,16; they are renumbered.", "--ranks", metavar="LIST"
    ),
]

RelaysOption = Annotated[
    bool,
    option(
        "GPUs without a rank, left out by --ranks, may forward data as switches do.",
        "--relay-unranked",
        was=["--relays"],
    ),
]

RoundOption = Annotated[
    int | None,
    option("Round all rates (GB/s) to this many decimals.", "--round", metavar="DIGITS", ge=0, le=9),
]

JsonOption = Annotated[bool, option("Print JSON to standard output.", "--json")]

OutputOption = Annotated[Path | None, option("File to write.", "-o", "--output", metavar="FILE")]

JobsOption = Annotated[
    int | None, option("Processes [default: one per core].", "--jobs", "-j", metavar="N", ge=1)
]

ModelOption = Annotated[
    str | None,
    option(
        "What messages cost: nccl-2.30, msccl, mpi-tcp, shm, alpha-beta, ideal, or a file (see `coppice model`) "
        "[default: nccl-2.30].",
        "--model",
        metavar="NAME|FILE",
    ),
]

EngineOption = Annotated[
    str | None,
    option("What moves the data [default: by the launcher].", "--engine", metavar="torch|mpi|shm|put-signal"),
]

TogetherOption = Annotated[
    str | None,
    option(
        "Instead of one plan: several at once, from a JSON file (see docs/simulation.md).",
        "--together",
        metavar="FILE",
        was=["--jobs"],
    ),
]

TimeoutOption = Annotated[float, option("Longest wait for another rank, s.", "--timeout", ge=0.1)]

RoundsOption = Annotated[int, option("Measured rounds.", "-n", "--rounds", ge=1, was=["--iters"])]

NumRanksOption = Annotated[
    int | None, option("Number of ranks.", "--num-ranks", metavar="N", ge=1, was=["--ranks"])
]

TimeLimitOption = Annotated[
    float | None,
    option(
        "Time limit in seconds; what was found until then counts.",
        "--time-limit",
        metavar="SECONDS",
        ge=0.001,
        was=["--timeout", "--seconds"],
    ),
]

SeedOption = Annotated[int, option("Where random choices begin.", "--seed", ge=0)]

PlotOption = Annotated[
    Path | None,
    option("Draw it: a .png, .svg or .pdf (needs matplotlib).", "--plot", metavar="FILE"),
]

LauncherOption = Annotated[
    str | None, option("mpirun, mpiexec or srun [default: on PATH].", "--launcher", metavar="PATH")
]

LauncherWordsOption = Annotated[
    list[str] | None,
    option(
        "Further argument for the launcher; may be repeated.",
        "--launcher-option",
        metavar="WORD",
        was=["--mpi-option"],
    ),
]

SizeOption = Annotated[
    str, option("Message size M: bytes, or with K, M, G in powers of 1024.", "--size", "-s", metavar="SIZE")
]

SizesOption = Annotated[
    str,
    option(
        "Message sizes M: one or a list such as 1K,64K,1M, or FIRST:LAST[:FACTOR], such as 1K:4G or 1K:4G:4 "
        "[factor: 2].",
        "--size",
        "--sizes",
        "-s",
        metavar="SIZES",
    ),
]

LEAST_SIZE, MOST_SIZE, SIZE_FACTOR = "1K", "256M", 4
USUAL_SIZES = f"{LEAST_SIZE}:{MOST_SIZE}:{SIZE_FACTOR}"
"""The sizes of commands that simulate or measure many."""

USUAL_SIZE = "64M"
"""The size of commands that take one, and of those that tell more of one: it is among the others."""

CollectiveOption = Annotated[
    Collective,
    option(
        f"One of: {', '.join(Collective)}; also as all-reduce, AllReduce or MPI_Allreduce.",
        "--collective",
        "-c",
        metavar="NAME",
    ),
]

RootOption = Annotated[
    int | None,
    option(
        "Root rank of broadcast, reduce, gather and scatter [default: 0].", "--root", metavar="RANK", ge=0
    ),
]

WeightsOption = Annotated[
    str | None,
    option(
        "Relative shard size of each rank (all_gather, reduce_scatter): a JSON list, or numbers in lines; - is "
        "standard input.",
        "--weights",
        metavar="FILE",
    ),
]

DemandsOption = Annotated[
    str | None,
    option(
        "What each rank sends to each (all_to_all): a row for each sender as CSV, JSON or .npy, or recorded tokens for "
        "experts (.jsonl); - is standard input.",
        "--demands",
        metavar="FILE",
    ),
]

AlgorithmOption = Annotated[
    str | None,
    option(
        "Algorithm (`coppice algorithms` lists them) [default: the optimal planner, forest or flow].",
        "--algorithm",
        "-a",
        metavar="NAME",
    ),
]

ParameterOption = Annotated[
    Settings | None,
    option("Parameter of the algorithm; may be repeated.", "--parameter", "-p", metavar="KEY=VALUE"),
]

OrderOption = Annotated[
    str,
    option(
        "Order in which an algorithm takes the ranks: as numbered, with boxes and rails kept together, or "
        "(auto) the latter where the former has no routes.",
        "--order",
        metavar="auto|rank|topology",
    ),
]

RelayGpusOption = Annotated[
    bool,
    option(
        "Where an algorithm sends between GPUs that no path of switches and NICs joins, other GPUs pass it on.",
        "--relay-gpus",
    ),
]

InNetworkOption = Annotated[
    bool,
    option(
        "Use switches that can copy (multicast) or add (aggregate), and print both optima.", "--in-network"
    ),
]

TreesOption = Annotated[
    int | str | None,
    option(
        "Trees per root: a number, or auto:1% for the fewest within 1% of the optimum "
        "[default: as many as the exact optimum needs].",
        "--trees",
        metavar="K|auto:P%",
    ),
]

JobArgument = Annotated[
    str,
    argument(
        "Job file (.toml), or name of a model (`coppice train models`); options replace keys of the file.",
        metavar="JOB",
    ),
]

ClusterOption = Annotated[
    str | None,
    option(
        "Preset or topology file [needed without a job file].",
        "--topology",
        metavar="TOPOLOGY",
        was=["--cluster"],
    ),
]

ParallelOption = Annotated[
    str | None,
    option(
        "Degrees, such as tp=8,pp=16,dp=4: tensor, pipeline, data, context (cp), experts (ep), chunks of a "
        "device (vp).",
        "--parallel",
        metavar="LIST",
    ),
]

BatchOption = Annotated[
    int | None, option("Samples of an iteration [default: one each].", "--global-batch", ge=1)
]

AttentionOption = Annotated[
    str | None,
    option(
        f"Kernel of attention: {', '.join(ATTENTION_KERNELS)}; of softmax and eager, scores leave the chip "
        "[default: the framework's].",
        metavar="NAME",
        was=["--no-fused-attention softmax", "--fused-attention auto"],
    ),
]

FrameworkOption = Annotated[
    str | None,
    option(
        f"Framework that runs it: {', '.join(FRAMEWORKS)} [default: megatron; fsdp where replicas shard "
        "parameters].",
        metavar="NAME",
    ),
]

DeviceOption = Annotated[
    str | None,
    option("GPU, or file of a measured one [default: by the topology's name].", "--device", metavar="NAME"),
]


AnchorOption = Annotated[
    list[str] | None,
    option(
        "Correct the estimate by a measured step: JSON or TOML with measured_seconds and what that run had otherwise "
        "([layout], [cluster], ...), or the job's trace by PyTorch's profiler; may be repeated.",
        "--anchor",
        metavar="FILE",
    ),
]

RoutingOption = Annotated[
    str | None,
    option(
        "Tokens reach experts unevenly: the k-th most popular of a layer gets 1/k^S (zipf:S), one gets N times as many "
        "(hot:N), or as recorded (JSON Lines of counts). Also what placement, copies and capacity bring.",
        metavar="zipf:S|hot:N|FILE",
    ),
]

PlacementOption = Annotated[
    str,
    option("Experts as the job or the recording has them, or packed by popularity.", metavar="given|popular"),
]
