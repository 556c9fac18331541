"""Whether a layout divides a model and a cluster: one sentence with both numbers where it does not."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.iteration.transformer import Layout, Shard, Transformer
from coppice.iteration.workload.model import LayeredModel
from coppice.text import shortened

__all__ = ["check_layout"]

_MOST_PASSES = 500_000
"""Each is a few tasks of a simulation: so many take seconds and less than a gigabyte."""


def check_layout(model: Transformer | LayeredModel, layout: Layout, gpus: int, where: str) -> None:
    """Refuse a layout that does not divide what it lies on.

    Args:
        model: The model.
        layout: The layout.
        gpus: GPUs of the cluster.
        where: Name of the cluster.

    Raises:
        InputError: If it does not; both numbers are named.

    Examples:
        >>> from coppice.iteration.models import MODELS
        >>> check_layout(MODELS["mixtral-8x7b"], Layout(data=12, expert=12, global_batch=12), 12, "boxes")
        Traceback (most recent call last):
        coppice.errors.InputError: expected ep that divides 8 experts, found 12.
    """
    if layout.gpus != gpus:
        msg = (
            f"expected degrees whose product is the {gpus} GPUs of {where}, found {layout.gpus}: change "
            "`parallel` or `boxes`."
        )
        raise InputError(msg)
    passes = layout.micro_batches * layout.pipeline * layout.chunks
    if passes > _MOST_PASSES:
        msg = (
            f"expected at most {_MOST_PASSES:,} passes of an iteration, found {passes:,} ({layout.micro_batches:,} "
            f"micro-batches on {layout.pipeline * layout.chunks} stages): raise micro_batch, or lower global_batch."
        )
        raise InputError(msg)
    if isinstance(model, LayeredModel):
        for name in ("tensor", "pipeline", "context", "expert", "chunks"):
            if getattr(layout, name) > 1:
                msg = (
                    f"expected replicas alone for {model.name}, which is not cut, found {getattr(layout, name)} for "
                    f"{_SHORT[name]}: lay it out with dp."
                )
                raise InputError(msg)
        if layout.shard is Shard.ZERO3:
            msg = f"expected shard none, zero1 or zero2 for {model.name}, found {layout.shard.value}."
            raise InputError(msg)
        return
    for what, whole, degree, parts in (
        ("tp", model.heads, "heads", layout.tensor),
        ("tp", model.ffn, "columns of the MLP", layout.tensor),
        ("cp", model.seq, "tokens", layout.context),
        ("ep", model.experts, "experts", layout.expert),
    ):
        if what == "ep" and parts > 1 and not whole:
            msg = f"expected a model with experts for ep {parts}, found none: leave ep out, or give `model.experts`."
            raise InputError(msg)
        if whole % parts:
            msg = f"expected {what} that divides {whole} {degree}, found {parts}."
            raise InputError(msg)
    if layout.chunks > 1 and layout.pipeline == 1:
        msg = (
            f"expected chunks of a device in a pipeline, found {layout.chunks} with pp 1: raise pp, or leave chunks "
            "out."
        )
        raise InputError(msg)
    stages = layout.pipeline * layout.chunks
    if model.layers % stages:
        fit = [each for each in range(1, model.layers + 1) if model.layers % each == 0]
        msg = (
            f"expected stages that divide {model.layers} layers, found {layout.pipeline} x {layout.chunks}: take pp x "
            f"chunks of {shortened(fit, 16)}, or estimate with "
            f"{-(-model.layers // stages) * stages} layers, which is the pace of the longest stage."
        )
        raise InputError(msg)


_SHORT = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "chunks": "chunks"}
