"""Compiler passes that overlap tensor-parallel collectives with products, for torch.compile and FX graphs.

The graph is what torch traces: operations of ``_c10d_functional``, forward and backward. A policy of simulation decides
what is replaced and in which order a rank then works; where it finds nothing that pays the graph stays as it is.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.fx import Graph, GraphModule, Interpreter, Node

from coppice.arguments import checked
from coppice.errors import InputError
from coppice.iteration.machine import Cluster
from coppice.iteration.policies.tensor.coconet.costs import autotune
from coppice.iteration.policies.tensor.decomposition import Decomposition
from coppice.iteration.policies.tensor.fused_collectives import FusedCollectives
from coppice.iteration.policies.tensor.ring_products import RingProduct
from coppice.iteration.step.plan import GroupExchange
from coppice.iteration.tasks import TaskGraph
from coppice.topology.model import Topology
from coppice.training.torch.tensor.coconet.emitted import emit_program
from coppice.training.torch.tensor.coconet.regions import SumRegion, sum_regions_of
from coppice.training.torch.tensor.decomposition import (
    TASK,
    GatherRegion,
    ScatterRegion,
    decompose,
    regions_of,
)
from coppice.training.torch.tensor.passes_hops import (
    MeasuredCosts,
    MeasuredMachine,
    group_of,
    measured_costs,
    modelled_costs,
)
from coppice.training.torch.tensor.passes_layout import in_one_mode


@dataclass(frozen=True, kw_only=True)
class OverlapRegion:
    """A collective next to products, and its transformation."""

    collective: str  # `all_gather`, `reduce_scatter` or `all_reduce`
    ranks: int  # Number of ranks
    # For each product of a ring what cutting it is: `non-contracting`, `contracting` or `batch`; of CoCoNet
    # the transforms, in their order
    cases: tuple[str, ...]
    size_bytes: int  # Of the whole tensor
    before_seconds: float  # What it took as it was, by the costs that the policy decides by
    product_seconds: float  # Of this, its products
    seconds: float  # What it takes now
    # The ring, or the simulated tasks, that took its place; None: nothing, as nothing is faster
    plan: RingProduct | TaskGraph | None = None
    # What a rank does now, in order: `start hop 0`, `run product 0`, `wait hop 0`...
    tasks: tuple[str, ...] = ()


class TensorOverlap:
    """A policy at work on graphs: a backend of torch.compile, :attr:`graph_pass` of Inductor, or :meth:`apply`."""

    def __init__(
        self,
        policy: Decomposition | FusedCollectives,
        *,
        costs: MeasuredCosts | None,
        flops_per_s: float | None,
        record: bool,
    ) -> None:
        self.policy = policy  # The policy, of simulation too
        self.costs = costs  # What it decides by; None until the first graph if they are measured
        self.regions: list[OverlapRegion] = []  # What was found in all graphs so far, in order
        # What ranks did in graphs that were compiled with `record=True`: numbers of regions, and tasks
        self.carried: list[tuple[int, str]] = []
        self._flops_per_s = flops_per_s
        self._record = record

    def __call__(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        """What ``torch.compile(model, backend=overlap)`` calls: forward and backward graphs are passed through."""
        from torch._dynamo.backends.common import aot_autograd

        compiled: Callable[..., Any] = aot_autograd(fw_compiler=self._compile, bw_compiler=self._compile)(
            module, inputs
        )
        return compiled

    @functools.cached_property
    def graph_pass(self) -> Any:
        """For ``torch._inductor.config.post_grad_custom_post_pass``."""
        return _inductor_pass(self)

    def apply(self, module: GraphModule) -> GraphModule:
        """Change a graph of ``make_fx`` or of torch.compile in place, and return it."""
        self.change(module.graph)
        module.recompile()
        return module

    def change(self, graph: Graph) -> list[list[Node]]:
        """Transform profitable regions; return for each the nodes that must run in order."""
        chains: list[list[Node]] = []
        graph.eliminate_dead_code()
        in_one_mode(graph)
        found = regions_of(graph) if isinstance(self.policy, Decomposition) else sum_regions_of(graph)
        for region in found:
            if isinstance(region, SumRegion):
                noted, chain = self._rewritten(region)
            else:
                noted, chain = self._decomposed(region)
            self.regions.append(noted)
            if chain:
                chains.append(chain)
                _settle(graph)
                graph.eliminate_dead_code()
                for node in (region.wait, region.start):
                    if not node.users and node in graph.nodes:
                        graph.erase_node(node)
                graph.eliminate_dead_code()
        graph.lint()
        return chains

    def _decomposed(self, region: GatherRegion | ScatterRegion) -> tuple[OverlapRegion, list[Node]]:
        """Decompose an all-gather or reduce-scatter into a ring, if that pays."""
        costs = self._costs_of(region)
        product = costs.product(region.flops)
        collective = costs.seconds(region.collective, region.size_bytes)
        exchange = GroupExchange(
            group="tp", collective=region.collective, size_bytes=region.size_bytes, seconds=collective
        )
        options = msgspec.structs.replace(self.policy.settings, ranks=region.ranks, rows=region.rows)
        hop = costs.seconds("hop", region.size_bytes / region.ranks)
        ring = Decomposition(options).decomposed(exchange, product, hop=hop)
        tasks, chain = ((), []) if ring is None else decompose(region, ring, len(self.regions))
        noted = OverlapRegion(
            collective=region.collective,
            ranks=region.ranks,
            cases=region.cases,
            size_bytes=region.size_bytes,
            before_seconds=product + collective,
            product_seconds=product,
            seconds=product + collective if ring is None else ring.seconds,
            plan=ring,
            tasks=tasks,
        )
        return noted, chain

    def _rewritten(self, region: SumRegion) -> tuple[OverlapRegion, list[Node]]:
        """Rewrite an all-reduce and its neighbours by the fastest transforms of the tuner."""
        costs = self._costs_of(region)
        program = region.program()
        fitting = (
            each
            for each in range(min(self.policy.settings.chunks, region.rows), 0, -1)
            if region.rows % (each * region.ranks) == 0
        )
        machine = MeasuredMachine.of(
            costs, element_bytes=region.wait.meta["val"].element_size(), chunks=next(fitting, 1)
        )
        tuned = autotune(program, machine)
        tasks: tuple[str, ...] = ()
        chain: list[Node] = []
        if tuned.rewrites:
            tasks, chain = emit_program(region, tuned.program, machine.chunks, len(self.regions))
        noted = OverlapRegion(
            collective=region.kind.value,
            ranks=region.ranks,
            cases=tuned.rewrites,
            size_bytes=region.size_bytes,
            before_seconds=machine.seconds(program),
            product_seconds=costs.product(region.flops),
            seconds=tuned.seconds,
            plan=machine.graph(tuned.program) if tuned.rewrites else None,
            tasks=tasks,
        )
        return noted, chain

    def _costs_of(self, region: GatherRegion | ScatterRegion | SumRegion) -> MeasuredCosts:
        if self.costs is None:
            device = region.start.meta["val"].device
            self.costs = measured_costs(group_of(region.group), device, flops_per_s=self._flops_per_s)
        return self.costs

    def _compile(self, module: GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from torch._functorch._aot_autograd.utils import make_boxed_func

        del inputs
        self.apply(module)
        if not self._record:
            return make_boxed_func(module.forward)
        recorder = _Recorder(module, self.carried)
        return make_boxed_func(recorder.run)


class _Recorder(Interpreter):
    """Interpreter that records the tasks of rings."""

    def __init__(self, module: GraphModule, carried: list[tuple[int, str]]) -> None:
        super().__init__(module)
        self._carried = carried

    def run_node(self, node: Node) -> Any:
        """Run a node."""
        if TASK in node.meta:
            self._carried.append(node.meta[TASK])
        return super().run_node(node)


def _inductor_pass(overlap: TensorOverlap) -> Any:
    """Pass in Inductor's form; imported late, since it is slow."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files
    from torch._inductor.fx_passes.control_dependencies import preserve_node_ordering
    from torch.utils._ordered_set import OrderedSet

    class InductorPass(CustomGraphPass):
        """Changes a graph, and keeps Inductor from another order than the policy's."""

        def __call__(self, graph: Graph) -> None:
            chains = overlap.change(graph)
            behind = {
                after: OrderedSet([before]) for chain in chains for before, after in itertools.pairwise(chain)
            }
            if behind:  # Inductor has an order of its own for what does not wait for each other
                preserve_node_ordering(graph, behind)

        def uuid(self) -> str:
            """Differs where graphs come out differently: by code, policy, costs and rank."""
            rank = dist.get_rank() if dist.is_initialized() else 0
            costs = None if overlap.costs is None else asdict(overlap.costs)
            said = f"{overlap.policy.name} {overlap.policy.settings} {costs} {rank} {torch.__version__}"
            sources = [str(each) for each in sorted(Path(__file__).parent.glob("*.py"))]
            return get_hash_for_files(tuple(sources), extra=said).hex()

    return InductorPass()


def _settle(graph: Graph) -> None:
    """Stable topological sort of the nodes."""
    done: set[Node] = set()
    waiting: dict[Node, list[Node]] = {}
    nodes = list(graph.nodes)
    front = list(reversed(nodes))
    last: Node | None = None
    while front:
        node = front.pop()
        missing = next((each for each in node.all_input_nodes if each not in done), None)
        if missing is not None:
            waiting.setdefault(missing, []).append(node)
            continue
        done.add(node)
        if last is not None and last.next is not node:
            last.append(node)
        last = node
        front += reversed(waiting.pop(node, []))


@checked
def tensor_overlap(
    policy: str = "decomposition",
    *,
    costs: Topology | Cluster | MeasuredCosts | tuple[float, float] | None = None,
    flops_per_s: float | None = None,
    group: dist.ProcessGroup | None = None,
    record: bool = False,
    **settings: Any,
) -> TensorOverlap:
    """Pass that overlaps tensor-parallel collectives with dependent products.

    Give it to ``torch.compile(model, backend=...)``, its ``graph_pass`` to Inductor, or a graph to its ``apply``.

    Args:
        policy: ``decomposition`` (Wang et al., ASPLOS 2023): gathers and scatters as rings beside the shards of their
            products; ``coconet`` (ASPLOS 2022): sums with what follows them by the quickest of CoCoNet's transforms.
        costs: What collectives cost: a topology, a cluster, or bytes a second and seconds per message of a hop. None:
            measured on the first graph, by all ranks together.
        flops_per_s: Operations a second of products; None: measured.
        group: The tensor-parallel ranks, for what is not measured; None: all.
        record: Note what ranks do in ``carried``.
        **settings: Options of the policy, as simulation takes them.

    Raises:
        InputError: If there is no such policy or option, or costs are given without ``flops_per_s``.
    """
    kinds: dict[str, type[Decomposition] | type[FusedCollectives]] = {
        each.name: each for each in (Decomposition, FusedCollectives)
    }
    if policy not in kinds:
        raise InputError(
            f"expected a policy that graphs can be changed by ({', '.join(kinds)}), found {policy!r}."
        )
    found = kinds[policy].of(**settings)
    known = None
    if costs is not None:
        known = modelled_costs(costs, ranks=dist.get_world_size(group), flops_per_s=flops_per_s)
    return TensorOverlap(found, costs=known, flops_per_s=flops_per_s, record=record)
