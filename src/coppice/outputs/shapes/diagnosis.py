"""What logs and dumps of a job show, and comparisons of two runs."""

from __future__ import annotations

from typing import TypedDict


class AchievedRateJson(TypedDict):
    """A collective of one size in one group, against what is achievable."""

    collective: str
    ranks: int | None
    node_count: int | None
    size_bytes: int
    call_count: int
    time_us: float
    of_kernels: bool
    algorithm: str | None
    reached_algbw_gb_per_s: float
    reached_busbw_gb_per_s: float | None
    library_us: float | None
    library_model: str | None
    least_us: float | None
    bound_model: str | None
    share_of_optimum: float | None
    file: str
    line: int


class LateRankJson(TypedDict):
    """A rank that others of a group wait for."""

    communicator: str
    rank: int
    ranks: int
    call_count: int
    last_count: int
    wait_us: float
    waited_share: float
    p_value: float


class StoppedRankJson(TypedDict):
    """A rank for which the others of a group wait without end."""

    group: str
    rank: int
    called_count: int
    other_count: int
    operation_name: str
    caller: str
    stopped_how: str
    waits_in: str


class RunFindingJson(TypedDict):
    """A rule that files of a job break, and what to do."""

    rule: str
    severity: str
    file: str
    line: int
    text: str
    fix: str


class RunDiagnosisJson(TypedDict):
    """`coppice diagnose logs`: what logs and dumps of a job show."""

    files_read: list[str]
    ok: bool
    achieved_rates: list[AchievedRateJson]
    late_ranks: list[LateRankJson]
    stopped_ranks: list[StoppedRankJson]
    findings: list[RunFindingJson]
    hidden: dict[str, int]
    undecided: dict[str, str]


class ComparedCallJson(TypedDict):
    """A collective in two runs; of all sizes together where it has none."""

    collective: str
    ranks: int | None
    node_count: int | None
    size_bytes: int | None
    in_place: bool | None
    old_us: float | None
    new_us: float | None
    time_ratio: float
    noise_share: float
    p_value: float
    verdict: str
    old_algorithm: str | None
    new_algorithm: str | None


class ComparedRunsJson(TypedDict):
    """`coppice logs compare`: two runs, call by call."""

    ok: bool
    compared_calls: list[ComparedCallJson]
    compared_groups: list[ComparedCallJson]
    noise_share: float
    noise_from: str
    only_old_count: int
    only_new_count: int
    changed_settings: list[str]
    wrong: int
