"""Exports, diagnoses of files, logs of libraries, tuning, reports."""

from __future__ import annotations

from typing import Annotated, NotRequired, TypedDict

from coppice.outputs.shapes.nouns import former, own


class ExportedJson(TypedDict):
    """`coppice export`: a file for a runtime, a library or a launcher."""

    to: str
    output: str
    notes: list[str]


class ClaimJson(TypedDict):
    """A published claim with what is measured here, and a verdict."""

    system: str
    claim: str
    source: str
    evidence: str
    published: float | None
    measured: float | None
    unit: str
    command: str
    date: str | None
    verdict: str
    why: str


class ClaimsJson(TypedDict):
    """`coppice claims`: published claims next to what is measured here."""

    rows: list[ClaimJson]


class PageJson(TypedDict):
    """`coppice report`: a page or a picture."""

    output: str
    output_bytes: int
    bytes: Annotated[int, former("output_bytes")]


class TuningPageJson(PageJson):
    """`coppice tune report`: a page about a fit."""

    undo: str


class FindingJson(TypedDict):
    """A rule that a file breaks, and what to do."""

    rule: str
    severity: str
    line: int
    path: NotRequired[str]
    text: str
    fix: str


class UsedAtJson(TypedDict):
    """Whether a file is used at a size."""

    size_bytes: int
    used: bool
    reason: str | None


class DiagnosisJson(TypedDict):
    """`coppice doctor` of what a runtime loads: whether it loads the file and uses it."""

    file: str
    target: str
    loads: bool
    ok: bool
    findings: list[FindingJson]
    hidden: dict[str, int]
    sizes: list[UsedAtJson]


class ChosenAtJson(TypedDict):
    """What a tuning file chooses at a size."""

    size_bytes: int
    choice: str
    line: int


class CoverageJson(TypedDict):
    """What a tuning file chooses for a call."""

    call: str
    sizes: list[ChosenAtJson]


class TuningDiagnosisJson(TypedDict):
    """`coppice doctor` of a tuning file: what it gets wrong, and what it chooses."""

    file: str
    target: str
    ok: bool
    findings: list[FindingJson]
    hidden: dict[str, int]
    undecided: dict[str, str]
    coverage: NotRequired[list[CoverageJson]]


class IterationsJson(TypedDict):
    """Times of single iterations of a measurement."""

    least_us: float
    most_us: float
    p99_us: float
    variation_percent: float
    times_us: list[float]
    skipped: int


class MeasurementJson(TypedDict):
    """A measured time in a log."""

    collective: str
    ranks: int | None
    node_count: int | None
    nodes: Annotated[int | None, former("node_count")]
    size_bytes: int
    time_us: float
    least_us: float | None
    algorithm: str | None
    protocol: str | None
    channels: int | None
    forced: bool | None
    in_place: bool | None
    wrong: int | None
    type: str | None
    clock: str | None
    iterations: IterationsJson | None
    file: str
    line: int


class DecisionJson(TypedDict):
    """What a library chose for calls of a size, in a log."""

    collective: str | None
    rank_bytes: int
    size_bytes: int | None
    ranks: int | None
    node_count: int | None
    nodes: Annotated[int | None, former("node_count")]
    algorithm: str
    protocol: str
    channels: int | None
    time_us: float | None
    call_count: int
    calls: Annotated[int, former("call_count")]
    line: int


class LoggedCellJson(TypedDict):
    """A cell of a cost model that a library printed."""

    collective: str
    algorithm: str
    protocol: str
    latency_us: float
    rate_gb_per_s: float
    gb_per_s: Annotated[float, former("rate_gb_per_s")]
    line: int


class CommunicatorJson(TypedDict):
    """A communicator in a log."""

    ranks: int | None
    node_count: int | None
    nodes: Annotated[int | None, former("node_count")]
    channels: int | None
    cells: list[LoggedCellJson]
    line: int


class ChannelPathJson(TypedDict):
    """The GPUs of a channel in their order, and the NICs by which it enters and leaves."""

    entry: int | None
    gpu_list: list[int]
    gpus: Annotated[list[int], former("gpu_list")]
    exit: int | None


class LoggedGraphJson(TypedDict):
    """The channels of one pattern in a graph dump of NCCL."""

    graph_id: int
    id: Annotated[int, former("graph_id")]
    kind: str
    nchannels: int
    speed_intra_gb_per_s: float
    speed_inter_gb_per_s: float
    type_intra: str
    type_inter: str
    channel_paths: list[ChannelPathJson]
    channels: Annotated[list[ChannelPathJson], former("channel_paths")]


class LoggedTopologyJson(TypedDict):
    """The machine of a topology dump."""

    name: str
    ranks: int
    sha256: str


class LogJson(TypedDict):
    """What stands in one file of a library or a benchmark."""

    file: str
    kind: str
    library_version: str | None
    version: Annotated[str | None, former("library_version")]
    tuner: str | None
    settings: dict[str, str]
    beside: dict[str, int]
    measurements: list[MeasurementJson]
    decisions: list[DecisionJson]
    communicators: list[CommunicatorJson]
    graphs: list[LoggedGraphJson]
    machine: LoggedTopologyJson | None
    topology: Annotated[LoggedTopologyJson | None, former("machine")]
    warnings: list[str]


class LogsJson(TypedDict):
    """`coppice logs`: what stands in files of libraries and benchmarks."""

    files: list[LogJson]


class CallShapeJson(TypedDict):
    """What the rules of a library distinguish calls by, next to their size."""

    collective: str
    node_count: int
    nodes: Annotated[int, former("node_count")]
    ranks: int


class CandidateJson(TypedDict):
    """A choice that was measured at a size, against the default."""

    choice: str
    gain: float
    low: float
    high: float
    p_value: float
    sure: bool
    repeats: int
    outliers: int


class RefusedChoiceJson(TypedDict):
    """A choice that was not measured."""

    choice: str
    reason: str


class FittedSizeJson(CallShapeJson):
    """The choices at a size, and the one that was taken."""

    size_bytes: int
    default_us: float
    bound_us: float | None
    taken: str | None
    candidates: list[CandidateJson]
    refused: list[RefusedChoiceJson]


class TuningRuleJson(CallShapeJson):
    """A choice for a range of sizes; none is the default."""

    first_bytes: int
    last_bytes: int
    choice: str | None
    gain: float | None
    low: float | None
    high: float | None
    share_of_optimum: float | None
    bound_share: Annotated[float | None, former("share_of_optimum")]


class FitJson(TypedDict):
    """`coppice tune fit`, `from-logs`: rules for a library that beat its defaults."""

    library: str
    library_version: str
    sizes: list[FittedSizeJson]
    rules: list[TuningRuleJson]


class SweptJson(TypedDict):
    """`coppice tune sweep`: measurements of a library."""

    library: str
    output: str
    undo: str


class PluginJson(TypedDict):
    """`coppice tune plugin build`: a plugin of NCCL or RCCL."""

    output: str
    use: str
    undo: str


class PluginSettingsJson(TypedDict):
    """`coppice tune plugin settings`: settings that a plugin hands to jobs."""

    output: str
    settings: dict[str, str]
    use: str


class CheckedRuleJson(CallShapeJson):
    """A rule at a size, measured again."""

    size_bytes: int
    rule: str
    gain: float
    low: float
    high: float
    p_slower: float
    slower: bool


class TuningCheckJson(TypedDict):
    """`coppice tune check`: rules measured again."""

    ok: bool
    sizes: list[CheckedRuleJson]


class OutputJson(TypedDict):
    """A format of JSON that commands print."""

    name: str
    output_format: str
    output_version: int
    commands: list[str]
    lines: bool
    summary: str


class OutputsJson(TypedDict):
    """`coppice schema`: the formats of JSON that commands print."""

    outputs: list[OutputJson]


class AdviceRowJson(TypedDict):
    """What a library picks for a call, and what it could pick best."""

    group: str
    collective: str
    node_count: int
    ranks: int
    size_bytes: int
    picked: str
    best: Annotated[str, own("What the library could pick best; the pick itself where nothing is gained.")]
    picked_seconds: float | None
    best_seconds: float | None
    rival: str | None
    rival_seconds: float | None
    latency_seconds: float | None
    p99_seconds: float | None
    model: Annotated[
        str, own("What the times are from: a model by its name, or the files that measured them.")
    ]
    why: str
    by_change: str | None


class AdvisedChangeJson(TypedDict):
    """A change that can be made today."""

    name: str
    text: str
    undo: str


class AdvisedFileJson(TypedDict):
    """A file that carries a change."""

    output: str | None
    text: str
    undo: str
    judged: str


class HostFindingJson(FindingJson):
    """What was found of a host."""

    file: str


class ChannelBudgetJson(TypedDict):
    """A limit on the channels of a group, and what it makes of a step."""

    group: str
    channels: int | None
    communication_seconds: float
    iteration_seconds: float


class AdvisedStepJson(TypedDict):
    """A step of a job, before and after all changes."""

    job: str
    picked_seconds: float
    best_seconds: float
    rows: list[AdviceRowJson]
    channel_budgets: list[ChannelBudgetJson]


class LibraryAdviceJson(TypedDict):
    """`coppice advise`: what to change today."""

    library: str
    library_version: str
    version_source: str
    topology: str
    ranks: int
    rows: list[AdviceRowJson]
    changes: list[AdvisedChangeJson]
    findings: list[HostFindingJson]
    job_step: AdvisedStepJson | None
    assumptions: list[str]
    notes: list[str]
    files: list[AdvisedFileJson]
