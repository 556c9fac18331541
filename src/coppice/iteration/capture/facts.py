"""Facts of a script's modules and operators, from which a job is recognised."""

# What PyTorch offers for tracing is private or untyped.
# mypy: disable-error-code="attr-defined, no-untyped-call, arg-type, misc"

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from coppice.iteration.capture.request import AttentionFact, ParameterFact, ScriptFacts
from coppice.iteration.modules.tracing import ModuleOperation

_HEADS = ("n_heads", "num_heads", "num_attention_heads", "n_head", "nheads")


class FactsOfScript:
    """Facts, those of a step begun anew with each step."""

    def __init__(self) -> None:
        self.found = ScriptFacts()
        self.of_step = ScriptFacts()
        self._blocks: dict[int, int] = {}
        self._inside: dict[int, int] = {}  # Layer of the transformer that a module is in
        self._first: nn.Module | None = None
        self._tables: dict[int, str] = {}
        register_optimizer_step_pre_hook(self._optimizer)

    def root(self, module: nn.Module) -> None:
        """Note the parameters of a module that the script calls."""
        self.found.roots += 1
        self._first = self._first or module
        inner = _unwrapped(module)
        self.found.data_parallel |= isinstance(module, nn.parallel.DistributedDataParallel)
        blocks = _blocks(inner)
        first = len(self._blocks)
        for place, each in enumerate(blocks):
            self._blocks[id(each)] = first + place
            self._inside |= {id(inside): first + place for inside in each.modules()}
        prefixes = {
            name: self._blocks[id(each)] for name, each in inner.named_modules() if id(each) in self._blocks
        }
        seen: dict[int, str] = {}
        for name, each in inner.named_modules(remove_duplicate=False):
            for key, parameter in each._parameters.items():  # noqa: SLF001
                if parameter is None:
                    continue
                full = f"{name}.{key}" if name else key
                if id(parameter) in seen:
                    self.found.tied |= any(
                        isinstance(other, nn.Embedding) or "mbed" in type(other).__name__
                        for other in inner.modules()
                        if other._parameters.get(key) is parameter  # noqa: SLF001
                    )
                    continue
                seen[id(parameter)] = full
                block = next((at for prefix, at in prefixes.items() if full.startswith(prefix + ".")), -1)
                self._parameter(full, parameter, each, block)
            if not self.found.heads:
                self.found.heads = next(
                    (value for word in _HEADS if isinstance(value := getattr(each, word, None), int)), 0
                )
        self._sharding(inner)

    def _parameter(self, name: str, parameter: Any, module: nn.Module, block: int) -> None:
        whole = hasattr(parameter, "device_mesh")
        local = parameter.to_local() if whole else parameter
        self.found.parameters.append(
            ParameterFact(
                name=name,
                shape=list(parameter.shape),
                local=local.numel(),
                element_bytes=parameter.element_size(),
                kind=type(module).__name__.removeprefix("FSDP"),
                block=block,
                whole=whole,
            )
        )

    def _sharding(self, module: nn.Module) -> None:
        """Groups that FSDP shards over."""
        for each in module.modules():
            state = getattr(each, "_get_fsdp_state", None)
            if state is None:
                continue
            group = getattr(state(), "_fsdp_param_group", None)
            if group is None:
                continue
            info = group.mesh_info
            mesh = getattr(info, "shard_process_group", None)
            if mesh is not None:
                ranks = list(torch.distributed.get_process_group_ranks(mesh))
                if ranks not in self.found.sharded_ranks:
                    self.found.sharded_ranks.append(ranks)
            if group.post_forward_mesh_info is None and each is not module:
                self.found.reshards = False

    def forward(self, module: nn.Module) -> None:
        """Note a forward pass that the script begins."""
        self.of_step.forwards += module is self._first

    def enters(self, module: nn.Module, layer: int) -> None:
        """Note that a module runs.

        Args:
            layer: Its number among modules with parameters of their own; -1: it has none.
        """
        if layer >= 0 and id(module) in self._inside:
            self.found.layer_blocks[layer] = self._inside[id(module)]

    def sends(self, ranks: list[int]) -> None:
        """Note a send between stages."""
        if len(ranks) > 1 and not self.found.pipeline_ranks:
            self.found.pipeline_ranks = ranks

    def schedule(self, name: str, stages: int, micro_batches: int) -> None:
        """Note the schedule of a pipeline."""
        self.found.schedule, self.found.stages, self.found.micro_batches = name, stages, micro_batches

    def operator(self, args: Any, operation: ModuleOperation) -> None:
        """Note an operator of the GPU."""
        name, again = operation.name, operation.again
        if again:
            self.of_step.recomputed_flops += operation.flops
        if "scaled_dot_product" in name and "backward" not in name and not again:
            causal = any(each is True for each in args[3:])
            fact = AttentionFact(
                query=list(args[0].shape), key=list(args[1].shape), value=list(args[2].shape), causal=causal
            )
            if fact not in self.found.attention:
                self.found.attention.append(fact)
        elif name == "aten.embedding" and not again and not operation.backward:
            weight, tokens = args[0], args[1]
            if not self.found.embedding_rows or weight.shape[0] == self.found.embedding_rows:
                self.found.embedding_rows = weight.shape[0]
                self.found.embedding_layer = operation.layer
                self.of_step.embeddings.append(list(tokens.shape))
        elif name == "aten.topk" and len(args) > 1:
            self.found.top_k = [int(args[1]), int(args[0].shape[-1])]

    def step_is_over(self) -> None:
        """Keep the facts of the step that has ended."""
        for name in ("forwards", "embeddings", "recomputed_flops"):
            setattr(self.found, name, getattr(self.of_step, name))
        self.of_step = ScriptFacts()

    def _optimizer(self, optimizer: Any, *_: Any) -> None:
        self.found.sharded_optimizer |= type(optimizer).__name__ == "ZeroRedundancyOptimizer"


def _unwrapped(module: nn.Module) -> nn.Module:
    """The model inside of wrappers."""
    while True:
        inner: Any = getattr(module, "_orig_mod", None)
        if inner is None and len(list(module.children())) == 1:
            inner = getattr(module, "module", None)
        if not isinstance(inner, nn.Module):
            return module
        module = inner


def _blocks(module: nn.Module) -> list[nn.Module]:
    """Layers of a transformer: the like members of the list that holds the most parameters."""
    best: tuple[int, list[nn.Module]] = (0, [])
    for each in module.modules():
        if not isinstance(each, nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        members = list(each.children())
        kinds = {type(member).__name__ for member in members}
        size = sum(parameter.numel() for parameter in each.parameters())
        if len(kinds) == 1 and size > best[0] and any(True for _ in members[0].children()):
            best = (size, members)
    return best[1]
