"""What commands print as JSON: formats by name, with their shapes and versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class OutputFormat(NamedTuple):
    """A format of JSON that a command prints."""

    shape: str  # Module and name of its shape, below `coppice.outputs.shapes` unless the module is whole
    commands: tuple[str, ...]  # What prints it, without `coppice` and `--json`
    version: int = 1  # Raised where a key goes or changes its meaning
    lines: bool = False  # A line each, as things happen, instead of one document


OUTPUTS: Mapping[str, OutputFormat] = {
    "topology-list": OutputFormat("networks:PresetsJson", ("topology list",)),
    "topology": OutputFormat("networks:TopologyJson", ("topology show",)),
    "topology-written": OutputFormat(
        "networks:WrittenTopologyJson",
        ("topology import", "topology compose", "topology subset", "topology degrade"),
    ),
    "probe": OutputFormat("networks:ProbeJson", ("probe",)),
    "probe-costs": OutputFormat("networks:SignalCostsJson", ("probe --costs",)),
    "diagnose-design": OutputFormat(
        "networks:ProbeDesignJson", ("diagnose design", "diagnose simulate", "diagnose run")
    ),
    "diagnose-results": OutputFormat("networks:DiagnosedJson", ("diagnose results",)),
    "diagnose-logs": OutputFormat("diagnosis:RunDiagnosisJson", ("diagnose logs",)),
    "lab": OutputFormat("networks:LabJson", ("lab up", "lab status")),
    "lab-check": OutputFormat("networks:LabCheckJson", ("lab check",)),
    "lab-bytes": OutputFormat("networks:LabTrafficJson", ("lab bytes",)),
    "lab-down": OutputFormat("networks:LabDownJson", ("lab down",)),
    "bound": OutputFormat("planning:BoundAtSizesJson", ("bound",)),
    "bound-groups": OutputFormat("planning:GroupsBoundJson", ("bound --groups",)),
    "plan": OutputFormat("planning:PlanJson", ("plan",)),
    "plan-groups": OutputFormat("planning:GroupPlansJson", ("plan --job JOB",)),
    "plan-set": OutputFormat("planning:PlannedSetJson", ("plan -o FOLDER/",)),
    "plan-repair": OutputFormat("planning:RepairedPlanJson", ("plan --repair",)),
    "degrade": OutputFormat("planning:DegradedJson", ("degrade",)),
    "synthesize": OutputFormat("synthesis:SynthesizedJson", ("synthesize",)),
    "synthesize-none": OutputFormat("synthesis:UnsynthesizedJson", ("synthesize",)),
    "synthesize-groups": OutputFormat("synthesis:GroupsSynthesisJson", ("synthesize -p groups=...",)),
    "placement": OutputFormat("planning:PlacementJson", ("placement",)),
    "algorithms": OutputFormat("planning:AlgorithmsJson", ("algorithms",)),
    "compile": OutputFormat("planning:CompiledJson", ("compile",)),
    "verify": OutputFormat("planning:VerificationJson", ("verify",)),
    "verify-program": OutputFormat("planning:ProgramVerificationJson", ("verify",)),
    "verify-set": OutputFormat("planning:SetVerificationJson", ("verify",)),
    "verify-bounds": OutputFormat("planning:BoundsVerificationJson", ("verify",)),
    "verify-put-signal": OutputFormat("planning:SignalVerificationJson", ("verify",)),
    "explain": OutputFormat("planning:ExplanationJson", ("explain",)),
    "simulate": OutputFormat("timing:SimulatedJson", ("simulate",)),
    "simulate-sizes": OutputFormat("timing:SimulatedSizesJson", ("simulate",)),
    "simulate-collisions": OutputFormat("timing:CollisionsOutputJson", ("simulate --percentiles",)),
    "simulate-jobs": OutputFormat("timing:SimulatedJobsJson", ("simulate --together",)),
    "compare": OutputFormat("timing:ComparisonJson", ("compare",)),
    "compare-several": OutputFormat("timing:ComparisonsJson", ("compare",)),
    "compare-gain": OutputFormat("timing:GainJson", ("compare --gain",)),
    "claims": OutputFormat("deploying:ClaimsJson", ("claims",)),
    "model-list": OutputFormat("timing:KnownModelsJson", ("model list",)),
    "model": OutputFormat("timing:SourcedModelJson", ("model show",)),
    "model-fit": OutputFormat("timing:FittedModelJson", ("model fit",)),
    "select": OutputFormat("timing:SelectionJson", ("select",)),
    "select-several": OutputFormat("timing:SelectionsJson", ("select",)),
    "advise": OutputFormat("deploying:LibraryAdviceJson", ("advise",)),
    "report": OutputFormat("deploying:PageJson", ("report",)),
    "export": OutputFormat("deploying:ExportedJson", ("export", "tune export")),
    "import": OutputFormat("planning:ImportedJson", ("import",)),
    "doctor": OutputFormat("deploying:DiagnosisJson", ("doctor",)),
    "doctor-tuning": OutputFormat("deploying:TuningDiagnosisJson", ("doctor",)),
    "bench": OutputFormat("timing:BenchRowJson", ("bench",), lines=True),
    "tune-sweep": OutputFormat("deploying:SweptJson", ("tune sweep",)),
    "tune-fit": OutputFormat("deploying:FitJson", ("tune fit", "tune from-logs")),
    "tune-report": OutputFormat("deploying:TuningPageJson", ("tune report",)),
    "tune-check": OutputFormat("deploying:TuningCheckJson", ("tune check",)),
    "tune-plugin": OutputFormat("deploying:PluginJson", ("tune plugin build",)),
    "tune-plugin-settings": OutputFormat("deploying:PluginSettingsJson", ("tune plugin settings",)),
    "schema": OutputFormat("deploying:OutputsJson", ("schema",)),
    "logs": OutputFormat("deploying:LogsJson", ("logs read",)),
    "logs-compare": OutputFormat("diagnosis:ComparedRunsJson", ("logs compare",)),
    "train-estimate": OutputFormat("training:EstimateJson", ("train estimate",)),
    "train-estimate-plan": OutputFormat("training:PlannedEstimateJson", ("train estimate --policy",)),
    "train-search": OutputFormat("training:LayoutsJson", ("train search",)),
    "train-pipeline": OutputFormat("training:PipelineOrderJson", ("train pipeline",)),
    "train-torch-profile": OutputFormat("training:TorchProfileJson", ("train torch-profile",)),
    "train-report": OutputFormat("training:IterationPageJson", ("train report",)),
    "train-policy": OutputFormat("training:PolicyPlanJson", ("train policy",)),
    "train-compare": OutputFormat("training:ComparedPoliciesJson", ("train compare",)),
    "train-tune": OutputFormat("training:TunedPolicyJson", ("train tune",)),
    "train-advise": OutputFormat("training:AdviceJson", ("train advise",)),
    "train-job": OutputFormat("coppice.iteration.job.tables:JobRecord", ("train job",)),
    "train-models": OutputFormat("training:TrainingModelsJson", ("train models",)),
    "train-measure": OutputFormat("training:DeviceJson", ("train measure",)),
    "train-profile": OutputFormat("training:ProfileJson", ("train import",)),
    "train-traces": OutputFormat("training:ExecutionTracesJson", ("train import",)),
    "train-capture": OutputFormat("training:CaptureJson", ("train capture",)),
    "train-module": OutputFormat("training:ModuleJson", ("train import",)),
    "train-lr-compare": OutputFormat("training:LrComparisonJson", ("train lr-compare",)),
    "train-lr-report": OutputFormat("training:LearningRatesJson", ("train lr-report",)),
    "design": OutputFormat("networks:GraphFrontJson", ("design",)),
    "design-several": OutputFormat("networks:GraphFrontsJson", ("design",)),
    "design-show": OutputFormat("networks:GraphDesignJson", ("design show",)),
    "design-schedule": OutputFormat("networks:GraphScheduleJson", ("design schedule",)),
    "design-cabling": OutputFormat("networks:CablingJson", ("design cabling",)),
    "design-compare": OutputFormat("networks:MarketJson", ("design compare",)),
    "switch-model": OutputFormat("switches:SystemTableJson", ("switch model",)),
    "switch-model-sweep": OutputFormat("switches:SystemSweepJson", ("switch model --sweep",)),
    "switch-model-cluster": OutputFormat("switches:ClusterSystemsJson", ("switch model --topology",)),
    "switch-place": OutputFormat("switches:AggregationPlacementJson", ("switch place",)),
    "switch-check": OutputFormat("switches:ProtocolSearchJson", ("switch check",)),
    "switch-export": OutputFormat("switches:SwitchProgramJson", ("switch export",)),
    "switch-xdp": OutputFormat("switches:PacketCountersJson", ("switch xdp",)),
    "switch-listening": OutputFormat("switches:SwitchListeningJson", ("switch serve",), lines=True),
    "switch-event": OutputFormat("switches:SwitchEventJson", ("switch serve",), lines=True),
    "switch-counters": OutputFormat("switches:SwitchCountersJson", ("switch serve",), lines=True),
}
"""Formats by the name of the output; the name in the JSON is that of :func:`format_of`."""


def format_of(output: str) -> str:
    """Name of a format as it stands in the JSON.

    Names of outputs end so that none is the name of a file format (``coppice-plan``, ``coppice-topology``).

    >>> format_of("plan")
    'coppice-plan-output'
    """
    return f"coppice-{output}-output"


def document(output: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON document of an output: its format, its version, and what the command found.

    Examples:
        >>> document("lab-down", {"labs": ["lab"]})
        {'format': 'coppice-lab-down-output', 'version': 1, 'labs': ['lab']}
    """
    return {"format": format_of(output), "version": OUTPUTS[output].version, **value}
