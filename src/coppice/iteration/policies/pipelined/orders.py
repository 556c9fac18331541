"""The plain orders of pipelines."""

from __future__ import annotations

from coppice.iteration.policies.pipelined.policy import ChunkedOptions, Pipelined

__all__ = ["GPipe", "Interleaved", "OneForwardOneBackward", "ZeroBubble"]


class GPipe(Pipelined):
    """All forward passes, then all backward passes (Huang et al., NeurIPS 2019)."""

    name = "gpipe"
    about = "all forward, then all backward passes (GPipe, NeurIPS'19)"
    stock = "torch.distributed.pipelining.ScheduleGPipe"


class OneForwardOneBackward(Pipelined):
    """One forward, one backward pass (Narayanan et al., ICML 2021)."""

    name = "1f1b"
    about = "one forward, one backward pass in turn (PipeDream-Flush, ICML'21)"
    stock = "torch.distributed.pipelining.Schedule1F1B; Megatron-LM --pipeline-model-parallel-size"


class Interleaved(Pipelined):
    """One forward, one backward pass of chunks in turn (Narayanan et al., SC 2021)."""

    name = "interleaved"
    about = "chunks in turn, depth first (Megatron-LM, SC'21)"
    assumes = "micro-batches that are a multiple of the devices; stages of like time"
    stock = (
        "torch.distributed.pipelining.ScheduleInterleaved1F1B; Megatron-LM "
        "--num-layers-per-virtual-pipeline-stage"
    )
    options = ChunkedOptions


class ZeroBubble(Pipelined):
    """Gradients of weights fill bubbles (Qi et al., ICLR 2024)."""

    name = "zero-bubble"
    about = "gradients of weights fill bubbles (ZB-H1, ICLR'24)"
    assumes = "gradients of inputs and of weights that take as long as each other, half of the backward pass"
