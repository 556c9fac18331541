"""Whether a layout divides a model and a cluster: one sentence with both numbers where it does not."""

from __future__ import annotations

from coppice.errors import InputError
from coppice.iteration.transformer import Layout, Transformer
from coppice.iteration.workload.model import LayeredModel

__all__ = ["check_layout"]


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
    if isinstance(model, LayeredModel):
        for name in ("tensor", "pipeline", "context", "expert", "chunks"):
            if getattr(layout, name) > 1:
                msg = (
                    f"expected replicas alone for {model.name}, which is not cut, found {getattr(layout, name)} for "
                    f"{_SHORT[name]}: lay it out with dp."
                )
                raise InputError(msg)
        return
    for what, whole, degree, parts in (
        ("tp", model.heads, "heads", layout.tensor),
        ("tp", model.ffn, "columns of the MLP", layout.tensor),
        ("cp", model.seq, "tokens", layout.context),
        ("ep", model.experts, "experts", layout.expert),
    ):
        if whole % parts or (what == "ep" and parts > max(1, whole)):
            msg = f"expected {what} that divides {whole} {degree}, found {parts}."
            raise InputError(msg)
    stages = layout.pipeline * layout.chunks
    if model.layers % stages:
        msg = (
            f"expected stages that divide {model.layers} layers, found {layout.pipeline} x {layout.chunks}: change pp "
            "or the chunks of a device."
        )
        raise InputError(msg)


_SHORT = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep", "chunks": "chunks"}
