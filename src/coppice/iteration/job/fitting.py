"""Whether a layout divides a model and a cluster: one sentence with both numbers where it does not."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.iteration.transformer import Layout, Shard, Transformer
from coppice.iteration.workload.model import LayeredModel
from coppice.text import shortened

_MOST_PASSES = 500_000
"""Each is a few tasks of a simulation: so many take seconds and less than a gigabyte."""


def check_layout(model: Transformer | LayeredModel, layout: Layout, gpus: int, where: str) -> None:
    """Refuse a layout that does not divide what it lies on.

    Examples:
        >>> from coppice.iteration.models import MODELS
        >>> check_layout(MODELS["mixtral-8x7b"], Layout(data=12, expert=12, global_batch=12), 12, "boxes")
        Traceback (most recent call last):
        coppice.errors.InputError: expected ep that divides 8 experts, found 12.
    """
    if layout.gpus != gpus:
        raise InputError(
            f"expected degrees whose product is the {gpus} GPUs of {where}, found {layout.gpus}: change "
            "`parallel` or `boxes`."
        )
    passes = layout.micro_batches * layout.pipeline * layout.chunks
    if passes > _MOST_PASSES:
        raise InputError(
            f"expected at most {_MOST_PASSES:,} passes of an iteration, found {passes:,} ({layout.micro_batches:,} "
            f"micro-batches on {layout.pipeline * layout.chunks} stages): raise micro_batch, or lower global_batch."
        )
    if isinstance(model, LayeredModel):
        for name in ("tensor", "pipeline", "context", "expert", "chunks"):
            if getattr(layout, name) > 1:
                raise InputError(
                    f"expected replicas alone for {model.name}, which is not cut, found {getattr(layout, name)} for "
                    f"{_SHORT[name]}: lay it out with dp."
                )
        if layout.shard is Shard.ZERO3:
            raise InputError(
                f"expected shard none, zero1 or zero2 for {model.name}, found {layout.shard.value}."
            )
        return
    for what, whole, degree, parts in (
        ("tp", model.heads, "heads", layout.tensor),
        ("tp", model.ffn, "columns of the MLP", layout.tensor),
        ("cp", model.seq, "tokens", layout.context),
        ("ep", model.experts, "experts", layout.expert),
    ):
        if what == "ep" and parts > 1 and not whole:
            raise InputError(
                f"expected a model with experts for ep {parts}, found none: leave ep out, or give `model.experts`."
            )
        if whole % parts:
            raise InputError(f"expected {what} that divides {whole} {degree}, found {parts}.")
    if layout.chunks > 1 and layout.pipeline == 1:
        raise InputError(
            f"expected chunks of a device in a pipeline, found {layout.chunks} with pp 1: raise pp, or leave chunks "
            "out."
        )
    stages = layout.pipeline * layout.chunks
    if model.layers % stages:
        fit = [each for each in range(1, model.layers + 1) if model.layers % each == 0]
        raise InputError(
            f"expected stages that divide {model.layers} layers, found {layout.pipeline} x {layout.chunks}: take pp x "
            f"chunks of {shortened(fit, 16)}, or estimate with "
            f"{-(-model.layers // stages) * stages} layers, which is the pace of the longest stage."
        )


_SHORT = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "chunks": "chunks"}
