"""Settings of published gains: whole records, differences that change something, figures that follow."""

from __future__ import annotations

import msgspec
import pytest

from coppice.errors import InputError
from coppice.iteration.devices import DEVICES
from coppice.iteration.models import any_model
from coppice.published.records import claims
from coppice.published.settings.gains import _largest, _without, setting_gain, shown
from coppice.published.settings.records import (
    PolicyRun,
    PublishedSetting,
    published_setting,
    published_settings,
)
from coppice.published.settings.testbeds import run_seconds, workload_on

SETTINGS = list(published_settings().values())


def test_every_setting_has_one_claim() -> None:
    named = [each.setting for each in claims() if each.setting]
    assert sorted(named) == sorted(published_settings())
    assert len(named) == 22


@pytest.mark.parametrize("each", SETTINGS, ids=lambda each: each.name)
def test_settings_are_whole(each: PublishedSetting) -> None:
    assert each.source
    assert each.difference
    for difference in each.difference:
        assert difference.source
        assert _without(each, difference) != each, difference.without
    if each.testbed is not None:
        assert each.testbed.device in DEVICES
        assert all(any_model(model) for model in each.testbed.models)
    units = {"gain": "%", "cut": "%", "times": "times", "speed-up": "times"}
    (claim,) = (claim for claim in claims() if claim.setting == each.name)
    assert claim.unit == ("%" if units[each.measure] == "%" else "times")
    assert claim.neutral == (0 if units[each.measure] == "%" else 1)


def test_a_setting_that_cannot_be() -> None:
    with pytest.raises(InputError, match="did you mean 'lynx'"):
        published_setting("lynks")
    record = msgspec.to_builtins(published_setting("t3"))
    with pytest.raises(msgspec.ValidationError, match="one of `testbed`, `job` and `blocks`"):
        msgspec.convert(record | {"job": {}}, PublishedSetting)
    with pytest.raises(msgspec.ValidationError, match="found nothing"):
        msgspec.convert(record | {"before": []}, PublishedSetting)


def test_rates_of_testbeds() -> None:
    bed = published_setting("ddp").testbed
    assert bed is not None
    work = workload_on(bed, "resnet-50", 100)
    # 32 Gb/s of TCP; a ring of 32 GPUs; 4 hops of TCP and 28 of NVLink, each way of each of its 31 steps.
    once = 2 * 31 / 32 * (4 * 69e-6 + 28 * 3.4e-6)
    assert work.message(1e9) == pytest.approx(once + 2 * 31 / 32 * 1e9 / 4e9)
    own = workload_on(msgspec.structs.replace(bed, shared_nic=False, most_gb_per_s=0.0), "resnet-50", 100)
    assert own.bytes_per_second == pytest.approx(work.bytes_per_second * 8 * 100 / 32)
    p3 = published_setting("p3-vgg-19").testbed
    assert p3 is not None
    assert workload_on(p3, "vgg-19", 8).message(1e9) == pytest.approx(10e-6 + 0.75)
    dedicated = msgspec.structs.replace(p3, dedicated=True)
    assert workload_on(dedicated, "vgg-19", 8).message(1e9) == pytest.approx(10e-6 + 1)


def test_gains_are_those_of_the_policies() -> None:
    found = setting_gain("ddp")
    assert found.setting.testbed is not None
    work = workload_on(found.setting.testbed, "resnet-50", 100)
    serial, ddp = (run_seconds(each, work, 4) for each in (*found.setting.before, found.setting.after))
    assert found.value == pytest.approx(100 * (1 - ddp / serial))
    assert shown(found.setting, 41.2) == "41%"
    assert list(found.without) == [each.without for each in found.setting.difference]
    assert max(found.without.values()) < found.value
    blocks = setting_gain("coconet", differences=False)
    assert (blocks.where, blocks.without) == ("16,384 x 12,288", {})
    assert 1 < setting_gain("t3", differences=False).value < 2


def test_runs_may_differ_in_more_than_their_policy() -> None:
    """A layout of its own, and settings of the system beside which a run stands."""
    lina = published_setting("lina")
    assert lina.after.layout == {"ep": 4}
    own = msgspec.structs.replace(lina.after, layout={})
    assert (
        setting_gain("lina").without[lina.difference[0].without]
        == _largest(msgspec.structs.replace(lina, after=own))[0]
    )
    dear = published_setting("dear-100-ib")
    assert dear.testbed is not None
    work = workload_on(dear.testbed, "densenet-201", 100)
    wfbp = next(each for each in dear.before if each.policy == "wfbp")
    plain = PolicyRun(policy="dear", with_={"threshold_bytes": 0})
    only = msgspec.structs.replace(dear, before=[wfbp])
    assert _largest(only) == (
        pytest.approx(100 * (run_seconds(wfbp, work, 16) / run_seconds(plain, work, 16) - 1)),
        "densenet-201, 100 Gb/s",
    )
    assert work.samples == 32
