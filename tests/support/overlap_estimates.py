"""An FSDP-like graph of 16 fake ranks, scheduled by torch: ``overlap_estimates.py OUTPUT SLOW FAST``.

Writes the order of products, collectives and waits by torch's own estimates of collectives, by those of profiles of a
slow and a fast cluster, and by those of ``runtime_estimation`` on the slow one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.utils._runtime_estimation as rates
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._inductor.fx_passes.overlap_scheduling import estimate_collective_time, schedule_overlap_bucketing
from torch._inductor.fx_passes.profile_guided_estimation import ProfileGuidedEstimator
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from coppice.iteration.layout import Layout
from coppice.iteration.machine import cluster_of
from coppice.topology.presets import preset
from coppice.training.torch import runtime_estimation

WIDTH, LAYERS, RANKS = 256, 4, 16
SLOW = Fraction(1, 20)
"""GB/s of a GPU."""


def sharded(model: nn.Module, mesh: Any) -> nn.Module:
    """The model with its parameters sharded, and gathered whenever they are read."""

    def whole(parameter: Any) -> torch.Tensor:
        made = parameter.redistribute(placements=[Replicate()])
        return made.to_local(grad_placements=[Partial("avg")])

    for module in model.modules():
        names = [name for name, _ in module.named_parameters(recurse=False)]
        for name in names:
            given = distribute_tensor(module._parameters[name].data, mesh, [Shard(0)])
            module.register_parameter(name, nn.Parameter(given))
        if names:
            read = {name: property(lambda self, name=name: whole(self._parameters[name])) for name in names}
            module.__class__ = type("Sharded", (type(module),), read)
    return model


def forward_graph() -> torch.fx.GraphModule:
    """The forward pass as torch.compile traces it."""
    graphs = {}

    def keeps(name: str) -> Callable[..., Any]:
        def compiled(graph: torch.fx.GraphModule, _: Any) -> Any:
            graphs[name] = graph
            return make_boxed_func(graph.forward)

        return compiled

    layers = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH, bias=False), nn.ReLU())]
    model = sharded(nn.Sequential(*layers), init_device_mesh("cpu", (RANKS,)))
    backend = aot_autograd(fw_compiler=keeps("forward"), bw_compiler=keeps("backward"))
    made = torch.compile(model, fullgraph=True, backend=backend)
    made(torch.randn(64, WIDTH)).sum().backward()
    return graphs["forward"]


def order_of(graph: torch.fx.GraphModule) -> list[str]:
    """Products, starts and waits in their order."""
    words = {"all_gather": "gather", "wait_tensor": "wait", "mm": "product"}
    names = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
    return [next(word for key, word in words.items() if key in name) for name in names if _shown(name)]


def _shown(name: str) -> bool:
    return "all_gather" in name or "wait_tensor" in name or name.startswith("aten.mm")


def main(output: Path, slow_profile: str, fast_profile: str) -> None:
    """Schedule the graph by each."""
    # So slow a GPU that a product takes 2 ms.
    rates.get_gpu_dram_gbps = lambda: 1000.0
    rates.get_device_tflops = lambda _: 0.0025
    dist.init_process_group("fake", rank=0, world_size=RANKS, store=FakeStore())
    slow = cluster_of(preset("star", gpus=RANKS, gb_per_s=SLOW), "A100-80G")
    ours = runtime_estimation(slow, layout=Layout(data=RANKS, global_batch=RANKS))
    found: dict[str, Any] = {}
    ways: dict[str, dict[str, Any]] = {
        "torch": {},
        "slow": {"pge_profile_path": slow_profile},
        "fast": {"pge_profile_path": fast_profile},
        "function": {"custom_runtime_estimation": ours},
    }
    for name, settings in ways.items():
        graph = forward_graph()
        found.setdefault("traced", order_of(graph))
        scheduled = schedule_overlap_bucketing(
            graph,
            compute_estimator="analytical",
            pre_bucketing_fsdp_collectives=False,
            max_memory_increase_gb=1e4,
            max_memory_increase_ratio=1e4,
            **settings,
        )
        found[name] = order_of(scheduled)
        torch._dynamo.reset()
    guided = ProfileGuidedEstimator(slow_profile)
    starts = [node for node in graph.graph.nodes if "all_gather" in str(node.target)]
    found["milliseconds"] = [
        [estimate_collective_time(node), guided(node), ours(node, None), ours(node, 0)] for node in starts
    ]
    output.write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
