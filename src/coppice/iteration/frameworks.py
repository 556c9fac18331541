"""What training frameworks add to the kernels of a model: unfused passes, kernels of attention, gradients, host time.

Theory. Two frameworks run the same matrix products on the same GPUs and differ by a quarter of the time, because of
what lies between the products. A profile counts it in units that a trace shows: passes over activations (two bytes a
value) for norms, residuals and dropout, for the activation of the MLP, for splitting and rotating queries and keys, and
for the loss; the kernel of attention; bytes that every micro-batch moves to add a weight's gradient to those before;
bytes of a gradient between replicas, and the share of the network's rate that their sums reach. The constants are
fitted to published iterations (`benchmarks/exam.py --fit`), those of kernels and networks together with them, starting
from what the source code of each framework launches.
"""

from __future__ import annotations

from dataclasses import dataclass

from coppice.errors import InputError
from coppice.text import suggestion


@dataclass(frozen=True, kw_only=True)
class Framework:
    """Profile of a training framework."""

    name: str  # Its name
    about: str = ""  # Programs that it stands for
    # Forward passes over the activations of a layer, of the width of the model; backward passes are twice as many
    norm_passes: float = 10.0
    activation_passes: float = 2.5  # Forward passes over the columns of the MLP's first matrices
    attention_passes: float = 3.5  # Forward passes over queries, keys and values besides attention itself
    loss_passes: float = 12.0  # Passes over the scores of words, forward and backward
    attention: str = "flash-2"  # Kernel of attention where scores stay on the chip (:data:`ATTENTION`)
    softmax: str = "softmax"  # What computes over scores that leave the chip (:data:`SOFTMAX`)
    host_seconds: float = 1e-4  # What a pass over a layer takes at least: the host has to launch its kernels
    gradient_bytes: float = 4.0  # Bytes of an element of the gradients that replicas sum
    # Bytes moved for each weight to add the gradients of a micro-batch to a sum
    accumulated_bytes: float = 6.0
    # Share of the NICs' rate that gradient all-reduces reach; None: the GPU's
    gradient_share: float | None = None
    step_seconds: float = 5e-3  # Host time of an optimizer step
    # Bytes kept of the gradient of a weight, sums over micro-batches included
    kept_gradient_bytes: float = 4.0
    # Bytes kept of a value of a layer's activations for norms, residuals and dropout
    kept_norm_bytes: float = 10.0
    kept_share: float = 1.0  # What is kept of operands of products, over what they are in 16 bits
    score_bytes: float = 5.0  # Bytes kept of a score of attention that leaves the chip
    logit_bytes: float = 10.0  # Bytes of a score of a word: 16 and 32 bits, its softmax and gradient
    gathers_logits: bool = False  # Each tensor-parallel rank has the scores of all words, not of its share
    # Context of the GPU, buffers of collectives, workspaces, and waste of the allocator
    runtime_bytes: float = 5e9
    # What ZeRO scatters and gathers goes tensor by tensor instead of in large buckets
    by_tensor: bool = False
    # Stages get layers so that the slowest is quickest, the head counted; otherwise as many each
    balanced: bool = False
    # ZeRO-3 gathers parameters once more for what is computed again, copies what it gathers, and sums whole
    # gradients of which each replica keeps its share; otherwise it gathers twice and scatters sums
    regathers: bool = False


ATTENTION = ("flash-1", "flash-2", "triton", "cudnn")
"""Kernels of attention whose scores stay on the chip: FlashAttention 1 (Dao et al., NeurIPS 2022) and 2 (Dao, ICLR
2024), the first in Triton, and those of cuDNN 9 and FlashAttention 3."""

SOFTMAX = ("softmax", "eager")
"""What computes mask, softmax and dropout of scores that leave the chip: one kernel, or one for each."""

FRAMEWORKS = {
    each.name: each
    for each in (
        Framework(
            name="megatron",
            about="Megatron-LM and NeMo with Transformer Engine",
            norm_passes=13.0,
            activation_passes=2.11,
            loss_passes=15.9,
            attention="cudnn",
            accumulated_bytes=5.92,
            gradient_share=0.763,
            kept_gradient_bytes=3.0,
            kept_norm_bytes=5.0,
            kept_share=0.6,
            logit_bytes=5.5,
            runtime_bytes=4000000000.0,
        ),
        Framework(
            name="megatron-2021",
            about="Megatron-LM before Transformer Engine",
            norm_passes=2.89,
            activation_passes=1.86,
            loss_passes=10.9,
            accumulated_bytes=5.07,
            gradient_share=0.894,
        ),
        Framework(
            name="deepspeed",
            about="Megatron-DeepSpeed",
            norm_passes=37.7,
            activation_passes=2.4,
            loss_passes=11.6,
            accumulated_bytes=10.4,
            gradient_share=0.763,
            kept_gradient_bytes=2.0,
            runtime_bytes=4500000000.0,
        ),
        Framework(
            name="fsdp",
            about="PyTorch FSDP with kernels of PyTorch 2: torchtitan, fms-fsdp, KempnerForge",
            norm_passes=13.1,
            activation_passes=4.56,
            loss_passes=12.4,
            gradient_bytes=2.0,
            accumulated_bytes=5.16,
            gradient_share=0.421,
            kept_norm_bytes=6.0,
            kept_share=0.8,
            logit_bytes=5.2,
            runtime_bytes=4000000000.0,
        ),
        Framework(
            name="fsdp-eager",
            about="PyTorch FSDP operator by operator, without torch.compile",
            norm_passes=42.0,
            activation_passes=4.0,
            attention_passes=7.0,
            loss_passes=13.0,
            gradient_bytes=2.0,
            accumulated_bytes=5.08,
            gradient_share=0.438,
            kept_norm_bytes=15.0,
            kept_share=0.8,
            logit_bytes=5.2,
            runtime_bytes=4000000000.0,
        ),
        Framework(
            name="foundry",
            about="llm-foundry: FSDP, attention in Triton",
            norm_passes=11.2,
            activation_passes=2.68,
            loss_passes=7.71,
            attention="triton",
            gradient_bytes=2.0,
            accumulated_bytes=6.32,
            gradient_share=0.234,
            kept_norm_bytes=6.7,
            kept_share=0.85,
            logit_bytes=5.3,
            runtime_bytes=3000000000.0,
        ),
        Framework(
            name="nanotron",
            about="nanotron",
            norm_passes=6.93,
            activation_passes=1.62,
            loss_passes=13.7,
            accumulated_bytes=17.3,
            gradient_share=0.69,
            by_tensor=True,
            balanced=True,
        ),
        Framework(
            name="internevo",
            about="InternEvo",
            norm_passes=33.5,
            activation_passes=4.59,
            loss_passes=12.5,
            gradient_bytes=2.0,
            accumulated_bytes=9.8,
            gradient_share=0.614,
            kept_gradient_bytes=2.0,
        ),
        Framework(
            name="scaling",
            about="Aleph Alpha's Scaling",
            norm_passes=15.5,
            activation_passes=2.52,
            loss_passes=12.8,
            accumulated_bytes=6.64,
            gradient_share=0.11,
            kept_gradient_bytes=1.5,
            kept_norm_bytes=5.5,
            kept_share=1.77,
            logit_bytes=18.5,
            gathers_logits=True,
            runtime_bytes=6200000000.0,
        ),
        Framework(
            name="scaling-unfused",
            about="Aleph Alpha's Scaling with norms of PyTorch",
            norm_passes=42.0,
            activation_passes=2.45,
            loss_passes=12.3,
            accumulated_bytes=7.34,
            gradient_share=0.104,
            kept_gradient_bytes=1.0,
            kept_norm_bytes=15.0,
            kept_share=1.85,
            score_bytes=5.4,
            logit_bytes=17.7,
            gathers_logits=True,
            runtime_bytes=9900000000.0,
        ),
        Framework(
            name="deepspeed-2021",
            about="DeepSpeed when ZeRO-3 was new",
            norm_passes=9.62,
            activation_passes=2.44,
            gradient_share=0.476,
            by_tensor=True,
            regathers=True,
        ),
    )
}
"""Profiles by name."""
MEGATRON = FRAMEWORKS["megatron"]


def framework_named(name: str) -> Framework:
    """The profile of a name.

    Raises:
        InputError: If there is none.
    """
    if name not in FRAMEWORKS:
        raise InputError(
            f"expected a framework ({', '.join(FRAMEWORKS)}), found {name!r}: {suggestion(name, list(FRAMEWORKS))}"
        )
    return FRAMEWORKS[name]
