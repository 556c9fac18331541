"""Names listed in help texts, duplicated here so that help loads no heavy modules.

A test compares each list with its room's.
"""

from __future__ import annotations

AGGREGATING = (
    "switchml",
    "fpisa",
    "atp",
    "netreduce",
    "streaming",
    "switchagg",
    "netagg",
    "camdoop",
    "sharp-v1",
    "sharp",
    "sharp-v3",
    "nvls",
    "nvls-tree",
)
"""Systems that aggregate in the network and have a model."""

CALIBRATED = "calibrated"
"""Collectives of a training job by formula."""

FABRICS = ("switch", "rail", "fat-tree", "dragonfly", "direct")
"""Fabrics that join hosts."""

SELECTING = ("open-mpi", "mpich", "mvapich2", "nccl", "rccl")
"""Libraries whose choice is known."""

ADVISED = ("nccl", "rccl", "open-mpi", "mpich")
"""Libraries that are advised on."""

COST_INPUTS = (
    "generation",
    "cpu",
    "channels",
    "bw_intra",
    "bw_inter",
    "tree_bw_intra",
    "nvls_channels",
    "nvls_bw_intra",
    "nvls_bw_inter",
    "type_intra",
    "type_inter",
    "latency_inter",
    "same_channels",
    "collnet",
)
"""Inputs of NCCL's cost model."""

RCCL_INPUTS = ("generation", "ll128")
"""Inputs of RCCL's cost model."""

TUNED = ("open-mpi", "mpich", "nccl", "rccl", "put-signal")
"""Libraries that can be tuned."""

TUNING_FORMS = ("nccl-tuner", "rccl-csv", "ompi-rules", "mpich-env", "put-signal-rules")
"""Forms in which libraries read rules."""

PLUGINS = ("tuner", "net", "env")
"""Plugins of NCCL and RCCL."""

TUNING_FILES = (
    "nccl-tuner",
    "nccl-graph",
    "nccl-topo",
    "rccl-rings",
    "rccl-trees",
    "ompi-rules",
    "mpich-env",
    "host",
)
"""Kinds of tuning files that the doctor judges."""

JOB_FACTS = (
    "dialect",
    "topology",
    "boxes",
    "log",
    "dump",
    "shapes",
    "channels",
    "version",
    "gpus",
    "nics",
    "max_connections",
    "environment",
)
"""What the doctor can be told of a job."""

SYNTHESIS_METHODS = ("sccl", "taccl", "te-ccl", "tacos", "syccl", "blink")
"""Methods of synthesis."""

GRADIENT_POLICIES = (
    "serial",
    "wfbp",
    "ddp",
    "jia",
    "mg-wfbp",
    "poseidon",
    "gradientflow",
    "priority",
    "p3",
    "tictac",
    "bytescheduler",
    "pace",
    "dear",
    "ooo",
)
"""Policies of gradients."""

SHARDED_POLICIES = ("megatron", "fsdp")
"""Policies of what replicas shard."""

PIPELINE_POLICIES = (
    "gpipe",
    "1f1b",
    "interleaved",
    "breadth-first",
    "zero-bubble",
    "dualpipe-v",
    "fold3d",
    "fast-forward",
    "modulo",
    "trirace",
)
"""Policies of pipelines."""

TENSOR_POLICIES = ("decomposition", "coconet", "t3", "oases", "lynx")
"""Policies inside layers."""

WHOLE_POLICIES = ("lina", "syndicate", "centauri")
"""Policies of the whole iteration."""

POLICIES = (*GRADIENT_POLICIES, *PIPELINE_POLICIES)
"""Policies of communication in an iteration of layers."""

FRAMEWORKS = (
    "megatron",
    "megatron-2021",
    "deepspeed",
    "fsdp",
    "fsdp-eager",
    "foundry",
    "nanotron",
    "internevo",
    "scaling",
    "scaling-unfused",
    "deepspeed-2021",
)
"""Profiles of training frameworks."""

ATTENTION_KERNELS = ("auto", "softmax", "eager", "flash-1", "flash-2", "triton", "cudnn")
"""Kernels of attention: that of the framework, two that let scores leave the chip, and those that do not."""

TORCH_ORDERS = tuple(name for name in PIPELINE_POLICIES if name != "trirace")
"""Those whose order of passes the runtime of PyTorch's pipelines can be given."""

LR_TASKS = ("pictures", "translation", "masked")
"""Small trainings that learning-rate schedules are compared by."""

LR_METHODS = (
    "original",
    "cosine",
    "linear",
    "constant",
    "schedule-free",
    "prodigy",
    "d-adaptation",
    "autolrs",
    "autolrs-staged",
    "autolrs-published",
)
"""Methods that give a training its learning rates; the first is what the others are compared with."""

P4_VARIANTS = ("guarded", "published")
"""Variants of the P4 program of a switch."""

P4_SYSTEMS = ("switchml", "fpisa", "atp")
"""Systems whose switch is written as a P4 program."""

FPISA_MODES = ("full", "approximate")
"""How FPISA adds floats."""

SWITCH_TARGETS = ("p4",)
"""Forms in which the program of a switch is written."""
