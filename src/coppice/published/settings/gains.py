"""Simulate a published setting, as it was and with one of its differences taken away at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.iteration.job.composed import compose, composition_of
from coppice.iteration.job.file import parse_job_record, with_values
from coppice.iteration.job.job import TrainingJob, job_of
from coppice.iteration.layers import LayerWorkload
from coppice.iteration.policies.tensor.coconet.costs import Machine, variants
from coppice.iteration.policies.tensor.coconet.program import tensor_parallel_layer
from coppice.published.settings.records import (
    Difference,
    PolicyRun,
    ProductBlock,
    PublishedSetting,
    published_setting,
)
from coppice.published.settings.testbeds import run_seconds, workload_on

__all__ = ["SettingGain", "setting_gain"]


class SettingGain(NamedTuple):
    """What a setting gains in simulation.

    Attributes:
        setting: The setting.
        value: The gain in its measure.
        where: Model and rate at which it is largest; empty: there is one only.
        without: The gain with a difference taken away, by what is taken away.
    """

    setting: PublishedSetting
    value: float
    where: str
    without: Mapping[str, float]

    @property
    def why(self) -> str:
        """What each difference brings, in words.

        >>> found = SettingGain(published_setting("p3-vgg-19"), 50.0, "", {"servers": 20.0})
        >>> found.why
        '20% without servers'
        """
        return "; ".join(
            f"{shown(self.setting, value)} without {name}" for name, value in self.without.items()
        )


def shown(setting: PublishedSetting, value: float) -> str:
    """A value of a setting in its measure, for people."""
    if setting.measure in ("gain", "cut"):
        return f"{value:.0f}%"
    return f"{value:.2f}x" if setting.measure == "times" else f"{value:.1f}x"


def setting_gain(name: str, *, differences: bool = True) -> SettingGain:
    """Simulate a published setting.

    Args:
        name: Its name in `settings.toml`.
        differences: Also with each difference taken away.

    Raises:
        InputError: If there is no such setting.

    Examples:
        >>> found = setting_gain("poseidon", differences=False)
        >>> found.value > 14
        True
    """
    setting = published_setting(name)
    value, where = _largest(setting)
    taken = setting.difference if differences else []
    return SettingGain(
        setting, value, where, {each.without: _largest(_without(setting, each))[0] for each in taken}
    )


def _without(setting: PublishedSetting, difference: Difference) -> PublishedSetting:
    """The setting with a difference taken away."""
    changed: dict[str, Any] = {}
    if difference.testbed:
        assert setting.testbed is not None
        changed["testbed"] = msgspec.structs.replace(setting.testbed, **difference.testbed)
    if difference.job:
        changed["job"] = {
            table: {**setting.job.get(table, {}), **difference.job.get(table, {})}
            for table in {**setting.job, **difference.job}
        }
    if difference.links:
        changed["links"] = setting.links | difference.links
    if difference.before:
        changed["before"] = [_rerun(each, difference.before) for each in setting.before]
    if difference.after:
        changed["after"] = _rerun(setting.after, difference.after)
    if difference.over:
        changed["over"] = difference.over
    return msgspec.structs.replace(setting, **changed)


def _rerun(run: PolicyRun, changed: Mapping[str, Any]) -> PolicyRun:
    """A run with other keys, or with other settings of the policy."""
    own = {key: value for key, value in changed.items() if key in _OF_RUNS}
    settings = {key: value for key, value in changed.items() if key not in own}
    return msgspec.structs.replace(run, **own, with_={} if "policy" in own else run.with_ | settings)


_OF_RUNS = ("policy", "tuned", "draws", "layout", "beside")
"""Keys of a run that are no settings of its policy."""


def _largest(setting: PublishedSetting) -> tuple[float, str]:
    """The largest value of a setting, and where it is."""
    found = [(value, where) for value, where in _values(setting)]
    if not found:
        raise InputError(f"expected a layout of {setting.name} that some policy can run, found none.")
    return max(found, key=lambda pair: pair[0])


def _values(setting: PublishedSetting) -> Iterator[tuple[float, str]]:
    bed = setting.testbed
    for block in setting.blocks:
        where = f"{block.rows:,} x {block.inner:,}"
        yield _measured(setting, partial(_block_seconds, block)), where
    if setting.blocks:
        return
    if bed is None:
        yield _measured(setting, partial(_job_seconds, setting)), ""
        return
    several = len(bed.models) > 1 or len(bed.gb_per_s) > 1
    for model in bed.models:
        for rate in bed.gb_per_s:
            workload = workload_on(bed, model, rate)
            alone = workload.compute_seconds * workload.workers
            seconds = partial(_bed_seconds, workload, bed.boxes)
            yield _measured(setting, seconds, alone), f"{model}, {rate:g} Gb/s" if several else ""


def _bed_seconds(workload: LayerWorkload, boxes: int, run: PolicyRun) -> float:
    return _run(msgspec.json.encode(run), workload, boxes)


@cache
def _run(run: bytes, workload: LayerWorkload, workers: int) -> float:
    return run_seconds(msgspec.json.decode(run, type=decodable(PolicyRun)), workload, workers)


def _measured(setting: PublishedSetting, seconds: Callable[[PolicyRun], float], alone: float = 0.0) -> float:
    if setting.measure == "speed-up":
        return alone / seconds(setting.after)
    ratios = [seconds(each) / seconds(_rerun(setting.after, each.beside)) for each in setting.before]
    gain = min(ratios) if setting.over == "best" else max(ratios)
    if setting.measure == "cut":
        return 100 * (1 - 1 / gain)
    return gain if setting.measure == "times" else 100 * (gain - 1)


def _block_seconds(block: ProductBlock, run: PolicyRun) -> float:
    """Time of a block with the best of the rewrites of the kinds that a run allows."""
    program = tensor_parallel_layer(
        ranks=block.ranks, rows=block.rows, inner=block.inner, columns=block.columns
    )
    kinds = run.with_.get("rewrites")
    return min(
        Machine().seconds(each)
        for rewrites, each in variants(program)
        if kinds is None or all(name.split()[0] in kinds for name in rewrites)
    )


def _job(setting: PublishedSetting, layout: Mapping[str, int]) -> TrainingJob:
    record = with_values(parse_job_record("", where=setting.name), setting.job)
    job = job_of(with_values(record, {"layout": layout}) if layout else record)
    links = setting.links
    kinds = []
    for kind in job.machines.kinds:
        device = kind.cluster.device
        if "link_gb_per_s" in links:
            device = replace(device, link_bytes_per_second=links["link_gb_per_s"] * 1e9)
        if "box" in links:
            device = replace(device, box=int(links["box"]))
        if "pflops" in links:
            device = replace(device, flops=links["pflops"] * 1e15)
        nic = kind.cluster.nic_bytes_per_second
        if "nic_gb_per_s" in links:
            nic = links["nic_gb_per_s"] / 8 * 1e9 * device.box
        kinds.append(replace(kind, cluster=replace(kind.cluster, device=device, nic_bytes_per_second=nic)))
    return replace(job, machines=replace(job.machines, kinds=tuple(kinds)))


def _job_seconds(setting: PublishedSetting, run: PolicyRun) -> float:
    """Time of an iteration of a job with the best of its layouts."""
    found: list[float] = []
    refused = ""
    for layout in setting.layouts or [{}]:
        try:
            step = compose(_job(setting, {**layout, **run.layout}), composition_of(run.policy, run.with_))
        except InputError as error:
            refused = str(error)
            continue
        found.append(step.seconds)
    if not found:
        raise InputError(f"expected a layout that {run.policy} can run, found none: {refused}")
    return min(found)
