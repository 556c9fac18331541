"""The options of a training job: a model with options, or a job file whose keys they replace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct

from coppice.errors import InputError
from coppice.options import Settings, option
from coppice.options.names import (
    GRADIENT_POLICIES,
    PIPELINE_POLICIES,
    SHARDED_POLICIES,
    TENSOR_POLICIES,
    WHOLE_POLICIES,
)
from coppice.options.shared import (
    AttentionOption,
    BatchOption,
    BoxesOption,
    ClusterOption,
    DeviceOption,
    FrameworkOption,
    JobArgument,
    ModelOption,
    ParallelOption,
    RatesOption,
    SetOption,
)
from coppice.text import suggestion

if TYPE_CHECKING:
    from coppice.iteration.job.job import TrainingJob
    from coppice.iteration.job.tables import JobRecord
    from coppice.iteration.layers import LayerWorkload

_DEGREES = {"tp": "tp", "pp": "pp", "dp": "dp", "cp": "cp", "ep": "ep", "vp": "chunks"}


class NamedJob(Struct, frozen=True):
    """A training job by name."""

    job: JobArgument


class JobOptions(NamedJob, frozen=True, kw_only=True):
    """A training job, by a file or the name of a model; what a command does not offer has its default."""

    topology: ClusterOption = None
    boxes: BoxesOption = None
    parallel: ParallelOption = None
    global_batch: BatchOption = None
    micro_batch: Annotated[int | None, option("Samples of a micro-batch [default: 1].", ge=1)] = None
    recompute: Annotated[
        str | None, option("Computed again: none (default), selective, operators or full.", metavar="WHAT")
    ] = None
    shard: Annotated[
        str | None,
        option("What replicas shard: none (default), zero1, zero2, zero3, fsdp.", metavar="WHAT"),
    ] = None
    sequence_parallel: Annotated[
        bool | None,
        option(
            "Shard norms along the sequence [default: they are].",
            "--sequence-parallel/--no-sequence-parallel",
        ),
    ] = None
    device: DeviceOption = None
    framework: FrameworkOption = None
    attention: AttentionOption = None
    policy: Annotated[
        str | None,
        option(
            "Policies, joined by +, one for each question that they decide. Gradients: "
            f"{', '.join(GRADIENT_POLICIES)}; where replicas shard: {', '.join(SHARDED_POLICIES)}. Pipelines: "
            f"{', '.join(PIPELINE_POLICIES)}. Inside layers: {', '.join(TENSOR_POLICIES)}. The whole iteration: "
            f"{', '.join(WHOLE_POLICIES)}. none: nothing overlaps [default: none; of nets ddp]. --set takes their "
            "options too, as partition=4M.",
            metavar="NAME",
            was=["--pipeline-order +{}", "--order +{}", "--overlap +{}"],
        ),
    ] = None
    collectives: Annotated[
        str | None,
        option(
            "What collectives cost: calibrated (rings by formula), nccl (what it would pick), forest (our "
            "optimum) or an algorithm such as ring, all but the first simulated with all groups at once "
            "[default: calibrated].",
            metavar="NAME",
        ),
    ] = None
    model: ModelOption = None
    rates: RatesOption = None
    settings: Annotated[Settings | None, *SetOption.__metadata__] = None

    def record(self, *, note: Callable[[str], None] | None = None) -> tuple[JobRecord, Path | None]:
        """The tables of the job, and the folder of its file.

        Args:
            note: Takes a note on each key of the file that has another name now.

        Raises:
            InputError: If the file cannot be read, or nothing says which cluster.
        """
        from coppice.iteration.job.file import read_job_record, with_values
        from coppice.iteration.job.tables import JobRecord, ModelTable

        folder = None
        layout: dict[str, Any] = dict(parse_degrees(self.parallel))
        if self.job.endswith(".toml"):
            record, folder = read_job_record(self.job, note=note), Path(self.job).parent
        else:
            record = JobRecord(model=ModelTable(name=self.job))
            if self.topology is None:
                raise InputError(
                    "expected `topology`, a preset or topology file, found none: name it, or give a job file."
                )
            layout = {"dp": 1} | layout
        for name in (
            *("global_batch", "micro_batch", "recompute", "shard"),
            "sequence_parallel",
        ):
            layout[name] = getattr(self, name)
        cluster: dict[str, Any] = {"topology": self.topology, "boxes": self.boxes, "device": self.device}
        cluster["rates"] = self.rates
        run: dict[str, Any] = {
            name: getattr(self, name) for name in ("framework", "attention", "policy", "collectives", "model")
        }
        if self.settings:
            given = {key: str(value) for key, value in self.settings.items()}
            policy = self.policy or record.run.policy
            of_policy = _settings_of(policy, given) if policy is not None else {}
            if of_policy:
                run["settings"] = (record.run.settings or {} if self.policy is None else {}) | of_policy
            of_preset = {key: value for key, value in given.items() if key not in of_policy}
            if of_preset:
                cluster["settings"] = (record.cluster.settings or {}) | of_preset
        if self.topology is not None:
            record.cluster.mixed = None
        return with_values(record, {"cluster": cluster, "layout": layout, "run": run}), folder

    def load(
        self, loaded: Callable[..., Any] | None = None, *, note: Callable[[str], None] | None = None
    ) -> TrainingJob:
        """The job.

        Args:
            loaded: Loads a topology; None: :func:`coppice.topology.load.load`.
            note: Takes a note on each key of a job file that has another name now.

        Raises:
            InputError: If the file cannot be read, nothing says which cluster, or the layout does not suit it.
        """
        from coppice.iteration.job.job import job_of

        record, folder = self.record(note=note)
        return job_of(record, folder=folder, loaded=loaded)

    def layers(self) -> LayerWorkload | None:
        """Workload of layers, from a .json file in place of a job; None: it is a job.

        Raises:
            InputError: If the file is no such workload, or options of jobs are given with it.
        """
        if not self.job.endswith(".json"):
            return None
        from coppice.iteration.layers import read_workload

        others = [name for name in JobOptions.__struct_fields__ if name != "job"]
        given = [name for name in others if getattr(self, name) not in (None, {})]
        if given:
            flag = given[0].replace("_", "-")
            raise InputError(
                f"expected no options of jobs with a workload of layers, found --{flag}: leave it out, or name a job."
            )
        return read_workload(self.job)


def _settings_of(policy: str, given: Mapping[str, str]) -> dict[str, str]:
    """Those of some ``KEY=VALUE`` that are options of policies."""
    from coppice.iteration.job.composed import named_policies, owners_of

    names = named_policies(policy)
    return {key: value for key, value in given.items() if owners_of(key, names)}


def parse_degrees(text: str | None, *, option: str = "--parallel") -> dict[str, int]:
    """Parse ``tp=8,pp=4`` into keys of the layout table.

    Args:
        text: The degrees; None is none.
        option: The option that they were given to, for messages.

    Examples:
        >>> parse_degrees("tp=8,vp=2"), parse_degrees(None)
        ({'tp': 8, 'chunks': 2}, {})

    Raises:
        InputError: If a name is none, or a degree is no number of 1 or more.
    """
    found: dict[str, int] = {}
    for word in text.split(",") if text is not None else ():
        name, _, value = word.strip().partition("=")
        if name not in _DEGREES or not value.isdigit() or int(value) < 1:
            hint = "" if name in _DEGREES or not name else f": {suggestion(name, _DEGREES)}"
            raise InputError(f"expected {option} such as tp=8,pp=4,dp=2, found {word.strip()!r}{hint or '.'}")
        if _DEGREES[name] in found:
            raise InputError(
                f"expected each degree once in {option}, found {name} twice in {text!r}: leave one out."
            )
        found[_DEGREES[name]] = int(value)
    return found
