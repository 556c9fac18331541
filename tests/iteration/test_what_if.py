"""What if: changes go the right way, losses are kept or drained by what trains most, kinds of boxes pace each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coppice.errors import InputError
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import Machines, TrainingJob, job_of
from coppice.iteration.job.what_if import compare_kinds, what_if, what_ifs


def job(text: str) -> TrainingJob:
    return job_of(parse_job_record(text, where="job.toml"))


JOB = job(
    """
    model.name = "gpt-22b"
    cluster = {topology = "dgx-a100", boxes = 4}
    layout = {tp = 8, pp = 2, global_batch = 32, shard = "zero1"}
    """
)
NET = job(
    """
    model.name = "vgg-16"
    cluster = {topology = "dgx-a100", boxes = 4}
    layout = {micro_batch = 32}
    """
)


def seconds(change: str, of: TrainingJob = JOB) -> float:
    return what_if(of, change).rows[0].seconds


def test_changes_go_the_right_way() -> None:
    base = simulated_job(JOB).seconds
    assert seconds("nic=x1") == base
    for name in ("nic", "nvlink", "memory", "flops"):
        assert seconds(f"{name}=x2") < base < seconds(f"{name}=x0.5")
        assert seconds(f"{name}=x2") >= base / 2
    assert seconds("gpu=H100") != base
    assert seconds("memory=100") == base
    assert not what_if(JOB, "memory=10").best.fits
    assert what_if(JOB, "memory=100GB").best.fits


def test_a_drained_box_leaves_the_others() -> None:
    one = what_if(JOB, "drain=1")
    assert [each.way for each in one.rows] == ["drain"]
    assert one.best.gpus <= 24
    assert what_if(JOB, "drain=node2").best == one.best == what_if(JOB, "without=node2").best
    assert what_if(JOB, "drain=3").best.gpus == 8
    assert what_if(JOB, "without=gpu:3@node1").best == one.best


def test_keep_or_drain() -> None:
    # A NIC that is a little slow costs less than a box; a box at a fifth of its pace costs more.
    keep = what_if(JOB, "slow=nic:3:x0.9")
    assert [each.way for each in keep.rows] == ["keep", "keep, laid out anew", "drain"]
    assert keep.best.way.startswith("keep")
    drain = what_if(JOB, "slow=node1:x0.2")
    assert drain.best.way == "drain"
    assert drain.best.samples_per_second == max(each.samples_per_second for each in drain.rows)
    assert what_if(NET, "slow=node1:x0.9").best.way.startswith("keep")
    assert what_if(NET, "slow=node1:x0.5").best.way == "drain"


def test_a_loss_is_never_a_gain() -> None:
    losses = ["without=nic:5", "slow=nic:5:x0.5", "slow=node1:x0.9", "drain=1", "without=node2", "nic=x0.5"]
    for of in (JOB, NET):
        healthy, *found = what_ifs(of, losses)
        assert [each.way for each in healthy.rows] == ["as it is", "laid out anew"]
        assert [each.change for each in found] == losses
        kept = [row for each in found for row in each.rows if not row.searched]
        assert {row.layout for row in kept} == {of.layout}
        assert all(row.samples_per_second <= healthy.rows[0].samples_per_second for row in kept)
        assert all(each.best.samples_per_second <= healthy.best.samples_per_second for each in found)


def test_a_slow_nic_paces_more_than_a_lost_one() -> None:
    lost, slow = (what_if(JOB, change).rows[0].seconds for change in ("without=nic:5", "slow=nic:5:x0.5"))
    assert simulated_job(JOB).seconds < lost < slow
    # The same nodes of the topology say the same.
    named = [what_if(JOB, f"degrade=box2/nic5={share}").rows[0].seconds for share in ("0%", "50%")]
    assert named == pytest.approx([lost, slow])
    half = what_if(JOB, "degrade=box1/gpu3=50%").rows[0].seconds
    assert half == pytest.approx(seconds("nvlink=x0.5"), rel=0.02)
    assert [each.way for each in what_if(JOB, "degrade=box1/gpu3=0%").rows] == ["drain"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("nic", "expected a change such as nic=x2"),
        ("nicc=x2", "did you mean 'nic'"),
        ("nic=2", "a factor such as nic=x2, found 'nic=2'"),
        ("nic=x0", "a factor above 0"),
        ("memory=lots", "a factor such as memory=x2 or GB"),
        ("gpu=H300", "found 'H300': did you mean"),
        ("drain=4", "expected boxes that remain of 4, found 4 drained"),
        ("drain=node9", "expected a box of 4, node0 to node3, found node9"),
        ("drain=some", "expected drain=3 (boxes) or drain=node17"),
        ("without=fan:1", "expected without=nic:5"),
        ("slow=nic:1", "with a factor up to 1"),
        ("without=nic:99", "expected a nic of a box, nic:0 to nic:7, found nic:99"),
        ("without=gpu:8@node1", "gpu:0 to gpu:7, found gpu:8"),
        ("slow=nic:1:x2", "with a factor up to 1"),
        ("degrade=box0/nic99=50%", "has no node 'box0/nic99'"),
        ("degrade=box0/nic1", "such as box0/nic3=50%"),
    ],
)
def test_changes_that_cannot_be(change: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        what_if(JOB, change)
    assert words in str(caught.value)


def test_the_slowest_kind_paces() -> None:
    text = """
    model.name = "gpt-22b"
    cluster = {{mixed = [{{topology = "dgx-a100", boxes = 2}}, {{topology = "{other}", boxes = 2}}]}}
    layout = {{tp = 8, pp = {stages}, global_batch = 32}}
    """
    same = job(text.format(other="dgx-a100", stages=2))
    one = replace(
        JOB, machines=Machines(name="x", kinds=(replace(JOB.machines.kinds[0], boxes=4),)), layout=same.layout
    )
    assert simulated_job(same).seconds == pytest.approx(simulated_job(one).seconds)
    fast = job(text.format(other="dgx-h100", stages=2))
    # Computation of the faster stage is shorter, that of the slower one as long.
    slow_stage, fast_stage = (
        sum(block.compute for block in stage) for stage in simulated_job_step(fast).stages
    )
    only = [sum(block.compute for block in stage) for stage in simulated_job_step(same).stages]
    assert slow_stage == pytest.approx(only[0])
    assert fast_stage < only[1]
    across = job(text.format(other="dgx-h100", stages=1))
    stage = simulated_job_step(across).stages[0]
    assert sum(block.compute for block in stage) >= sum(only) * 0.99
    kinds = compare_kinds(fast)
    assert kinds is not None
    assert [each.way for each in kinds.rows][1:] == ["only 2 x dgx-a100", "only 2 x dgx-h100"]
    assert kinds.best.way == "only 2 x dgx-h100"
    assert compare_kinds(JOB) is None


def simulated_job_step(of: TrainingJob) -> object:
    from coppice.iteration.job.composed import step_of

    return step_of(of.model, of.layout, of.machines)
