"""Training with torch: ``AutoLRS``, and ``schedule`` for overlap policies. Only this package imports torch."""

from __future__ import annotations

from importlib.util import find_spec

from coppice.errors import MissingExtraError

PACKAGE = "torch"
if find_spec(PACKAGE) is None:
    raise MissingExtraError.of(PACKAGE, extra="autolrs")

from coppice.training.torch.autolrs import AutoLRS, lightning_callback  # noqa: E402 (a missing torch is named first)
from coppice.training.torch.chunked.execution import PlanExecutor, collective_graph, execute_plan  # noqa: E402
from coppice.training.torch.chunked.grids import PhaseGroups  # noqa: E402
from coppice.training.torch.chunked.orders import OrderedPlan, agreed_plan  # noqa: E402
from coppice.training.torch.chunked.recorded_steps import measured_graph  # noqa: E402
from coppice.training.torch.chunked.sections import TensorParallelModule  # noqa: E402
from coppice.training.torch.chunked.templates import CollectiveBuffers  # noqa: E402
from coppice.training.torch.estimation import runtime_estimation  # noqa: E402
from coppice.training.torch.mixture.inference import ExpertPaths, ReplicatedExperts  # noqa: E402
from coppice.training.torch.mixture.layer import MixtureOfExperts, expert_parameter_names  # noqa: E402
from coppice.training.torch.mixture.skewed import PlannedExchange  # noqa: E402
from coppice.training.torch.ordering.gathers import prefetch_order  # noqa: E402
from coppice.training.torch.overlap.scheduling import schedule  # noqa: E402
from coppice.training.torch.pipelines.training import pipeline  # noqa: E402
from coppice.training.torch.servers.server import serve_parameters  # noqa: E402
from coppice.training.torch.tensor.coconet_handoff import PipelineHandoff  # noqa: E402
from coppice.training.torch.tensor.coconet_optimizer import fused_optimizer  # noqa: E402
from coppice.training.torch.tensor.half_batches_degrees import DegreeGroups, tensor_parallel  # noqa: E402
from coppice.training.torch.tensor.half_batches_parts import MegatronBlock, SummedPart  # noqa: E402
from coppice.training.torch.tensor.passes import tensor_overlap  # noqa: E402
from coppice.training.torch.tensor.triggered_product import TrackedProduct  # noqa: E402

__all__ = [
    "AutoLRS",
    "CollectiveBuffers",
    "DegreeGroups",
    "ExpertPaths",
    "MegatronBlock",
    "MixtureOfExperts",
    "OrderedPlan",
    "PhaseGroups",
    "PipelineHandoff",
    "PlanExecutor",
    "PlannedExchange",
    "ReplicatedExperts",
    "SummedPart",
    "TensorParallelModule",
    "TrackedProduct",
    "agreed_plan",
    "collective_graph",
    "execute_plan",
    "expert_parameter_names",
    "fused_optimizer",
    "lightning_callback",
    "measured_graph",
    "pipeline",
    "prefetch_order",
    "runtime_estimation",
    "schedule",
    "serve_parameters",
    "tensor_overlap",
    "tensor_parallel",
]
