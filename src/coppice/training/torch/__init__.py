"""Training with torch: ``AutoLRS``, and ``schedule`` for overlap policies. Only this package imports torch."""

from __future__ import annotations

from importlib.util import find_spec

from coppice.errors import MissingExtraError

PACKAGE = "torch"
if find_spec(PACKAGE) is None:
    raise MissingExtraError.of(PACKAGE, extra="autolrs")

from coppice.training.torch.autolrs import AutoLRS, lightning_callback  # noqa: E402 (a missing torch is named first)
from coppice.training.torch.data_parallel.server import serve_parameters  # noqa: E402
from coppice.training.torch.data_parallel.tictac import prefetch_order  # noqa: E402
from coppice.training.torch.estimation import runtime_estimation  # noqa: E402
from coppice.training.torch.pipelined.training import pipeline  # noqa: E402
from coppice.training.torch.scheduling import schedule  # noqa: E402
from coppice.training.torch.tensor.coconet.handoff import PipelineHandoff  # noqa: E402
from coppice.training.torch.tensor.coconet.optimizer import fused_optimizer  # noqa: E402
from coppice.training.torch.tensor.degrees import DegreeGroups, tensor_parallel  # noqa: E402
from coppice.training.torch.tensor.parts import MegatronBlock, SummedPart  # noqa: E402
from coppice.training.torch.tensor.passes import tensor_overlap  # noqa: E402
from coppice.training.torch.tensor.triggered import TrackedProduct  # noqa: E402
from coppice.training.torch.whole.execution import PlanExecutor, collective_graph, execute_plan  # noqa: E402
from coppice.training.torch.whole.grids import PhaseGroups  # noqa: E402
from coppice.training.torch.whole.lina_inference import ExpertPaths, ReplicatedExperts  # noqa: E402
from coppice.training.torch.whole.mixture.layer import MixtureOfExperts, expert_parameter_names  # noqa: E402
from coppice.training.torch.whole.mixture.skewed import PlannedExchange  # noqa: E402
from coppice.training.torch.whole.orders import OrderedPlan, agreed_plan  # noqa: E402
from coppice.training.torch.whole.recorded_steps import measured_graph  # noqa: E402
from coppice.training.torch.whole.sections import TensorParallelModule  # noqa: E402
from coppice.training.torch.whole.templates import CollectiveBuffers  # noqa: E402

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
