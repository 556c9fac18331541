"""Coppice: provably optimal collective communication for any GPU cluster.

A tour. A cluster is a topology, from a preset, a file, text or a networkx graph; a plan is a verified schedule of a
collective on it; every verb takes what the others return::

    cluster = coppice.load("dgx-a100", boxes=2)
    coppice.bound(cluster, "all_reduce")                 the exact optimum, and the cut that sets it
    result = coppice.plan(cluster, "all_reduce")         a plan that attains it, verified, with its figures
    coppice.verify(result)                               check it again, independently of any planner
    print(coppice.explain(result))                       why it is as fast as it is
    for tree in result.plan.trees: ...                   its trees: ranks, parents, paths by name
    coppice.plan(cluster, "all_reduce", sizes="64K")     the plan that is fastest at sizes
    plans = coppice.plan_set(cluster, "all_reduce", sizes="1K:4G")    few plans, each for a range: plans.at("64K")
    plans.save("plans"); coppice.read_plan_set("plans")  its folder, which every verb takes as well
    coppice.plan_groups(cluster, groups="tp=8,dp=2")     all groups of a job at once: a plan each, which share the links
    coppice.simulate(result, "64M")                      when every message runs, at a size; "1K:1G" for many
    coppice.compare(cluster, "all_reduce", sizes="1K:4G")    every algorithm at every size, beside the limits
    coppice.advise(cluster)                              what to change today for the library that is installed there
    coppice.synthesize(cluster, "all_gather", method="tacos")    by a published method, beside the bound
    coppice.placement(cluster, axes="dp=2,tp=8", reduce="dp,tp")    where to place axes, and how to reduce
    coppice.report(result, "report.html")                one page, or a picture (.svg), or a graph (.dot)
    coppice.export(result, "msccl-xml", "algo.xml", target="rccl")    a file for a runtime or a library
    coppice.doctor("algo.xml", target="rccl", ranks=16)      would that runtime load and use it?
    degraded = coppice.degrade(cluster, nodes={"box0/nic3": 0.5})    a slow NIC; compose joins boxes by a fabric
    coppice.repair(result, degraded)                     the same plan after a fault: most trees stay, the others move
    coppice.replan(cluster, remove=["box1/nic0"])        what faults cost, before and after; keep or drain
    coppice.write_plan(result, "plan.json")              and read_plan; COPPICE_ALGORITHM=plan.json runs it in torch
    coppice.bench("all_reduce", "1K:1M")                 in launched processes: measured, against the library's own
    coppice.train.estimate("gpt-7.5b", topology="dgx-a100", parallel="tp=8", global_batch=8)    a training iteration
    coppice.tune.fit("runs.jsonl")                       rules for an installed library, from `coppice tune sweep`
    coppice.switch.model("switchml,ring", "64M")         what switches that add would bring

Besides: :func:`compose` joins boxes by a fabric, :func:`model` is a model of time by its name, :func:`compile_program`
makes a plan of a collective that you write down yourself, chunk by chunk (:class:`ChunkProgram`), :func:`algorithms`
lists what can be planned, :func:`claims` what was published, measured here, :func:`write_topology` keeps a topology,
:func:`select` says what a library would pick and why, :func:`design` which network to build, :func:`import_plan` reads
algorithm files of runtimes and :func:`read_logs` what libraries print. The options have the names of the command line.
Objects print in short, and show themselves as a table and a picture in a notebook. What cannot be used raises
:class:`InputError`: what was expected, what was found, and what to do. docs/python.md is a study from start to end.

Importing this package loads nothing else: every name comes with its module, when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from coppice.display import DRAWN_BY
from coppice.version import __version__

if TYPE_CHECKING:
    from coppice.bounds.problem import Problem
    from coppice.bounds.result import Bound
    from coppice.collectives import Collective
    from coppice.comparison import Comparison
    from coppice.comparison.placed import PlacementResult
    from coppice.comparison.placing import placement
    from coppice.design.search.finder import design
    from coppice.doctor.diagnose import diagnose as doctor
    from coppice.doctor.framework import Diagnosis
    from coppice.errors import CheckError, CoppiceError, InputError, MissingExtraError, UnreachableError
    from coppice.export.formats import Exported
    from coppice.export.importing import import_plan
    from coppice.export.registry import export
    from coppice.language import ChunkProgram, ChunkRef, CompiledProgram, compile_program
    from coppice.logs.reading import read_logs
    from coppice.planners.choice import listed as algorithms
    from coppice.planners.forest.repairing import RepairedResult, repair
    from coppice.planners.planning import PlannedResult
    from coppice.planners.synthesis.synthesizing import SynthesizedResult, synthesize
    from coppice.published.measuring import measured_claims as claims
    from coppice.report.reporting import report
    from coppice.schedule.explanation import Explanation, explain
    from coppice.schedule.files.plan_file import read_plan, write_plan
    from coppice.schedule.files.set_file import PlanSet, read_plan_set
    from coppice.schedule.forest import Forest
    from coppice.schedule.plan import Plan
    from coppice.schedule.schedule import Schedule
    from coppice.schedule.shape import Tree
    from coppice.schedule.verification.report import Report
    from coppice.schedule.verification.verify import verify
    from coppice.selection import Selection
    from coppice.simulation import Model, Timeline
    from coppice.simulation.models import model_of as model
    from coppice.topology.load import degrade, load
    from coppice.topology.load import join as compose
    from coppice.topology.model import Link, Node, NodeKind, Topology
    from coppice.topology.readers.document import write_topology
    from coppice.verbs import switch, train, tune
    from coppice.verbs.advising import advise
    from coppice.verbs.bench import bench
    from coppice.verbs.bounding import bound
    from coppice.verbs.planning import plan, plan_groups, plan_set
    from coppice.verbs.replanning import replan
    from coppice.verbs.simulating import compare, select, simulate

_LAZY = {
    "model": "coppice.simulation.models:model_of",
    "degrade": "coppice.topology.load",
    "compose": "coppice.topology.load:join",
    "Bound": "coppice.bounds.result",
    "CheckError": "coppice.errors",
    "ChunkProgram": "coppice.language",
    "ChunkRef": "coppice.language",
    "Collective": "coppice.collectives",
    "Comparison": "coppice.comparison",
    "CompiledProgram": "coppice.language",
    "CoppiceError": "coppice.errors",
    "Diagnosis": "coppice.doctor",
    "Explanation": "coppice.schedule.explanation",
    "Exported": "coppice.export.formats",
    "Forest": "coppice.schedule.forest",
    "InputError": "coppice.errors",
    "Link": "coppice.topology.model",
    "MissingExtraError": "coppice.errors",
    "Model": "coppice.simulation",
    "Node": "coppice.topology.model",
    "NodeKind": "coppice.topology.model",
    "Plan": "coppice.schedule.plan",
    "PlacementResult": "coppice.comparison.placed",
    "PlanSet": "coppice.schedule.files.set_file",
    "PlannedResult": "coppice.planners.planning",
    "Problem": "coppice.bounds.problem",
    "RepairedResult": "coppice.planners.forest.repairing",
    "Report": "coppice.schedule.verification.verify",
    "Schedule": "coppice.schedule.schedule",
    "Selection": "coppice.selection",
    "SynthesizedResult": "coppice.planners.synthesis.synthesizing",
    "Timeline": "coppice.simulation",
    "Topology": "coppice.topology.model",
    "Tree": "coppice.schedule.shape",
    "UnreachableError": "coppice.errors",
    "train": "coppice.verbs.train:",
    "tune": "coppice.verbs.tune:",
    "switch": "coppice.verbs.switch:",
    "bench": "coppice.verbs.bench",
    "algorithms": "coppice.planners.choice:listed",
    "bound": "coppice.verbs.bounding",
    "claims": "coppice.published.measuring:measured_claims",
    "compare": "coppice.verbs.simulating",
    "compile_program": "coppice.language",
    "explain": "coppice.schedule.explanation",
    "import_plan": "coppice.export.importing",
    "load": "coppice.topology.load",
    "placement": "coppice.comparison.placing",
    "plan": "coppice.verbs.planning",
    "plan_groups": "coppice.verbs.planning",
    "plan_set": "coppice.verbs.planning",
    "read_logs": "coppice.logs.reading",
    "read_plan": "coppice.schedule.files.plan_file",
    "read_plan_set": "coppice.schedule.files.set_file",
    "repair": "coppice.planners.forest.repairing",
    "replan": "coppice.verbs.replanning",
    "select": "coppice.verbs.simulating",
    "advise": "coppice.verbs.advising",
    "simulate": "coppice.verbs.simulating",
    "synthesize": "coppice.planners.synthesis.synthesizing",
    "verify": "coppice.schedule.verification.verify",
    "write_plan": "coppice.schedule.files.plan_file",
    "write_topology": "coppice.topology.readers.document",
}
"""Where each name comes from: ``module``, ``module:name``, or ``module:`` for the module itself."""

_CALLABLE_ROOMS = ("design", "doctor", "export", "report")
"""Rooms that are called like their main function."""

__all__ = [
    "Bound",
    "CheckError",
    "ChunkProgram",
    "ChunkRef",
    "Collective",
    "Comparison",
    "CompiledProgram",
    "CoppiceError",
    "Diagnosis",
    "Explanation",
    "Exported",
    "Forest",
    "InputError",
    "Link",
    "MissingExtraError",
    "Model",
    "Node",
    "NodeKind",
    "PlacementResult",
    "Plan",
    "PlanSet",
    "PlannedResult",
    "Problem",
    "RepairedResult",
    "Report",
    "Schedule",
    "Selection",
    "SynthesizedResult",
    "Timeline",
    "Topology",
    "Tree",
    "UnreachableError",
    "__version__",
    "advise",
    "algorithms",
    "bench",
    "bound",
    "claims",
    "compare",
    "compile_program",
    "compose",
    "degrade",
    "design",
    "doctor",
    "explain",
    "export",
    "import_plan",
    "load",
    "model",
    "placement",
    "plan",
    "plan_groups",
    "plan_set",
    "read_logs",
    "read_plan",
    "read_plan_set",
    "repair",
    "replan",
    "report",
    "select",
    "simulate",
    "switch",
    "synthesize",
    "train",
    "tune",
    "verify",
    "write_plan",
    "write_topology",
]

DRAWN_BY.update(
    {
        "Topology": "coppice.report.notebook:topology_html",
        "Bound": "coppice.report.notebook:bound_html",
        "Plan": "coppice.report.notebook:plan_html",
        "PlannedResult": "coppice.report.notebook:result_html",
        "Timeline": "coppice.report.notebook:timeline_html",
        "Comparison": "coppice.report.notebook:comparison_html",
    }
)


def __getattr__(name: str) -> Any:
    if name in _CALLABLE_ROOMS:
        return import_module(f"coppice.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, separator, attribute = _LAZY[name].partition(":")
    found = import_module(module)
    value = found if separator and not attribute else getattr(found, attribute or name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
