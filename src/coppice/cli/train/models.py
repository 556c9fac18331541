"""`coppice train models`: list the models for jobs."""

from __future__ import annotations

from coppice.cli.options.declaring import with_options
from coppice.cli.output.render import print_json, print_lines
from coppice.options.shared import JsonOption
from coppice.text import columns


@with_options()
def models(*, as_json: JsonOption = False) -> None:
    """List the models for jobs: their weights, and operations of a forward pass of a sample.

    A multiply-add counts as two operations; of a mixture of experts, weights that a token meets stand beside all.

    \b
    Example:
      coppice train models
    """  # noqa: D301 (\b is for the help formatter)
    from coppice.iteration.models import MODELS
    from coppice.iteration.transformer import Transformer
    from coppice.iteration.workload.catalogue import LAYERED_MODELS, any_model

    found = [(name, any_model(name)) for name in (*MODELS, *LAYERED_MODELS)]
    if as_json:
        records = [
            {
                "name": name,
                "sample": model.sample,
                "layer_count": model.layers,
                "layers": model.layers,
                "parameter_count": round(model.parameters),
                "parameters": round(model.parameters),
                "forward_flops": model.forward_flops(1),
            }
            for name, model in found
        ]
        print_json("train-models", {"models": records})
        return
    rows = [("name", "layers", "weights", "active", "GFLOP", "")]
    for name, model in found:
        active = ""
        if isinstance(model, Transformer) and model.experts:
            active = _count(model.active_parameters)
        flops = f"{model.forward_flops(1) / 1e9:,.4g}" if model.forward_flops(1) < 1e13 else ""
        flops = flops or f"{model.forward_flops(1) / 1e9:,.0f}"
        rows.append((name, str(model.layers), _count(model.parameters), active, flops, f"per {model.sample}"))
    print_lines(columns(rows, "lrrrrl"))


def _count(number: float) -> str:
    """Weights with a unit: 175B, 25.6M."""
    return f"{number / 1e9:,.{0 if number >= 1e11 else 1}f}B" if number >= 1e9 else f"{number / 1e6:.3g}M"
