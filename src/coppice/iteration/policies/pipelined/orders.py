"""Standard pipeline orders: GPipe, 1F1B, interleaved 1F1B, and zero-bubble.

With p devices alike, m micro-batches, and forward and backward times f and b of a device for a micro-batch, the first
two take (m + p - 1) (f + b) without communication: a bubble of (p - 1) / m of the computation.

*GPipe* runs all forward passes before all backward passes, and holds the activations of all m micro-batches.
*1F1B* (PipeDream-Flush) takes the same time, and device d of 0 .. p - 1 holds those of p - d micro-batches at most.
*Interleaved* 1F1B gives v chunks to a device, which runs p micro-batches of a chunk before it turns to the next: the
bubble is (p - 1) / (m v) of the computation, for about v times as many sends between devices. *Zero bubble* (ZB-H1)
parts backward passes: gradients of inputs, which the stage before waits for, come first, gradients of weights where a
device would wait. With times i and w of the parts, all alike, the bubble is (p - 1) (f + i - w), a third of that of
1F1B, and no device holds more than p micro-batches. *DualPipeV* lays 2 p stages in a V, so that device d has stages d
and 2 p - 1 - d, and runs the forward pass of one micro-batch together with the backward pass of another, whose
exchanges hide behind each other's computation.

Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism" (NeurIPS 2019);
Narayanan et al., "Memory-Efficient Pipeline-Parallel DNN Training" (ICML 2021); Narayanan et al., "Efficient
Large-Scale Language Model Training on GPU Clusters Using Megatron-LM" (SC 2021, section 2.2); Qi et al., "Zero Bubble
Pipeline Parallelism" (ICLR 2024); DeepSeek-AI, "DeepSeek-V3 Technical Report" (arXiv 2412.19437, 2024), whose DualPipe
DualPipeV halves.
"""

from __future__ import annotations

from coppice.iteration.policies.pipelined.policy import ChunkedOptions, Pipelined


class GPipe(Pipelined):
    """All forward passes, then all backward passes (Huang et al., NeurIPS 2019)."""

    name = "gpipe"
    about = "all forward, then all backward passes (GPipe, NeurIPS'19)"
    stock = "torch.distributed.pipelining.ScheduleGPipe"


class OneForwardOneBackward(Pipelined):
    """1F1B (Narayanan et al., ICML 2021)."""

    name = "1f1b"
    about = "one forward, one backward pass in turn (PipeDream-Flush, ICML'21)"
    stock = "torch.distributed.pipelining.Schedule1F1B; Megatron-LM --pipeline-model-parallel-size"


class Interleaved(Pipelined):
    """Interleaved 1F1B: chunks alternate (Narayanan et al., SC 2021)."""

    name = "interleaved"
    about = "chunks in turn, depth first (Megatron-LM, SC'21)"
    assumes = "micro-batches that are a multiple of the devices; stages of like time"
    stock = (
        "torch.distributed.pipelining.ScheduleInterleaved1F1B; Megatron-LM "
        "--num-layers-per-virtual-pipeline-stage"
    )
    options = ChunkedOptions


class DualPipeV(Pipelined):
    """Co-scheduled passes of two directions, on devices in the shape of a V (DeepSeek-V3, 2024)."""

    name = "dualpipe-v"
    about = "forward and backward passes at once, in a V (DualPipeV, DeepSeek-V3)"
    assumes = "memory for two chunks, and passes of two micro-batches that share a device"
    on_one_stage = False

    def chunks_on(self, chunks: int, devices: int, layers: int | None) -> int:
        """Chunks of a device: a V has two."""
        del chunks, devices, layers
        return 2


class ZeroBubble(Pipelined):
    """Weight gradients fill bubbles (Qi et al., ICLR 2024)."""

    name = "zero-bubble"
    about = "gradients of weights fill bubbles (ZB-H1, ICLR'24)"
    assumes = "gradients of inputs and of weights that take as long as each other, half of the backward pass"
