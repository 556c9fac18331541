"""Read the settings of published gains of overlap (`settings.toml`)."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.text import suggestion

__all__ = [
    "Difference",
    "PolicyRun",
    "ProductBlock",
    "PublishedSetting",
    "Testbed",
    "published_setting",
    "published_settings",
]


class Testbed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """GPUs that train a model by data parallelism, and their network.

    Attributes:
        models: Names of models, of which the largest gain counts.
        device: Name of the GPUs.
        precision: `single` (32 bits) or `half` (16 bits, gradients of 32 where the model has them).
        samples: Samples of a batch of a GPU.
        batches: The same of models that have another batch, by name.
        boxes: Number of machines.
        gpus: GPUs of a machine.
        gb_per_s: Rates of the NIC of a machine in Gb/s, of which the largest gain counts.
        most_gb_per_s: What the transport reaches at most in Gb/s; 0: the rate of the NIC.
        transport: `ring` of all GPUs, or `servers` on the machines, to which each machine pushes the sum of its GPUs.
        shared_nic: A machine has one NIC; otherwise one for each GPU.
        dedicated: Servers have machines of their own, as many as there are workers.
        hop_us: Microseconds of a hop between machines.
        near_hop_us: Microseconds of a hop inside a machine.
        round_trip_us: Microseconds until a sender or a coordinator has an answer.
        gradient_bytes: Bytes of an element of gradients; none: as precision and model have it.
        classes: Classes of a VGG net.
        seq: Tokens of a sequence; 0: as the model has it.
    """

    models: list[str]
    device: str
    precision: Literal["single", "half"] = "single"
    samples: int
    batches: dict[str, int] = {}
    boxes: int
    gpus: int = 1
    gb_per_s: list[float]
    most_gb_per_s: float = 0.0
    transport: Literal["ring", "servers"] = "ring"
    shared_nic: bool = True
    dedicated: bool = False
    hop_us: float = 0.0
    near_hop_us: float = 0.0
    round_trip_us: float = 0.0
    gradient_bytes: float | None = None
    classes: int = 1000
    seq: int = 0


class PolicyRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A policy, or a baseline, as it was run.

    Attributes:
        policy: Its name, or several joined by `+` on a job.
        tuned: Its settings are chosen for each workload, from those that are given here.
        with_: Settings of it.
        draws: Iterations to draw where its order is random: each takes as long as the slowest worker's.
        layout: Keys of the layout of a job that it has otherwise.
        beside: Settings with which the system is compared with it, where they are others.
    """

    policy: str
    tuned: bool = False
    with_: dict[str, Any] = msgspec.field(default_factory=dict, name="with")
    draws: int = 0
    layout: dict[str, int] = {}
    beside: dict[str, Any] = {}


class Difference(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that the published setting has and a plain simulation has not, as what takes it away.

    Attributes:
        without: What is taken away, in words.
        source: Where it is known from, or `assumed`.
        testbed: Keys of the testbed, with the values that take it away.
        job: Keys of the job, by table.
        links: Rates of links, as the setting has them.
        before: Settings of what is compared with.
        after: Settings of the system itself.
        over: The same as that of the setting.
    """

    without: str
    source: str
    testbed: dict[str, Any] = {}
    job: dict[str, dict[str, Any]] = {}
    links: dict[str, float] = {}
    before: dict[str, Any] = {}
    after: dict[str, Any] = {}
    over: Literal["best", "worst"] | None = None


class ProductBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """End of a tensor-parallel layer: a product of rows x inner and inner x columns, whose inner dimension ranks share.

    Attributes:
        ranks: Ranks of the group.
        rows: Tokens.
        inner: Columns of the input.
        columns: Columns of the result.
    """

    ranks: int
    rows: int
    inner: int
    columns: int


class PublishedSetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A setting in which a gain was published.

    Attributes:
        name: Its name; claims refer to it.
        setting: It in a few words.
        source: Where it is known from.
        assumed: What of it nobody published or nobody here has read, in words.
        measure: `gain` (iterations in the same time, in %), `times` (as fast), `cut` (of the time, in %), or
            `speed-up` over one GPU.
        testbed: GPUs that train by data parallelism; none: a job, or blocks.
        job: Tables of a job file.
        blocks: Blocks of layers whose rewrites are tried, of which the largest gain counts.
        links: `link_gb_per_s` of a GPU (GB/s) and `nic_gb_per_s` of its share of the NICs of a box (Gb/s), where they
            are not those of the topology; `box` GPUs of a box, and `pflops` of one, where they are others.
        layouts: Layouts that every policy chooses from; none: that of the job.
        before: What the system is compared with.
        after: The system.
        over: The `best` of what it is compared with, or the `worst`: that over which it gains most.
        difference: What the setting has that a plain simulation has not.
    """

    name: str
    setting: str
    source: str
    assumed: str = ""
    measure: Literal["gain", "times", "cut", "speed-up"] = "gain"
    testbed: Testbed | None = None
    job: dict[str, dict[str, Any]] = {}
    blocks: list[ProductBlock] = []
    links: dict[str, float] = {}
    layouts: list[dict[str, int]] = []
    before: list[PolicyRun] = []
    after: PolicyRun
    over: Literal["best", "worst"] = "best"
    difference: list[Difference] = []

    def __post_init__(self) -> None:
        if (self.testbed is not None) + bool(self.job) + bool(self.blocks) != 1:
            raise ValueError("expected one of `testbed`, `job` and `blocks`, found none or several")
        if not self.before and self.measure != "speed-up":
            raise ValueError("expected something in `before` that it is compared with, found nothing")


class _SettingsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    setting: list[PublishedSetting]


@cache
def published_settings() -> dict[str, PublishedSetting]:
    """All settings by name."""
    text = files("coppice.published.settings").joinpath("settings.toml").read_text(encoding="utf-8")
    return {
        each.name: each for each in msgspec.convert(tomllib.loads(text), decodable(_SettingsFile)).setting
    }


def published_setting(name: str) -> PublishedSetting:
    """The setting of a name.

    Raises:
        InputError: If there is none.

    Examples:
        >>> published_setting("p3-vgg-19").testbed.device
        'P4000'
    """
    known = published_settings()
    if name not in known:
        raise InputError(f"expected a published setting, found {name!r}: {suggestion(name, known)}.")
    return known[name]
