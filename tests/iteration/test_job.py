"""Jobs simulated task by task: beside the closed form, the bound, and their own trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coppice.errors import InputError
from coppice.iteration.cluster import cluster_of
from coppice.iteration.estimate import estimate
from coppice.iteration.job import simulate_job
from coppice.iteration.models import MODELS
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.trace import write_task_trace
from coppice.iteration.transformer import Layout
from coppice.topology.presets import preset

CLUSTER = cluster_of(preset("dgx-a100", boxes=2))
GPT = MODELS["gpt-175b"]
LAYOUT = Layout(tensor=8, pipeline=8, data=4, global_batch=128)


@pytest.mark.parametrize("order", ORDERS)
def test_no_order_beats_the_bound_or_the_closed_form_by_much(order: str) -> None:
    chunks = 3 if order in ("interleaved", "breadth-first") else 1
    layout = replace(LAYOUT, chunks=chunks)
    found = simulate_job(GPT, layout, CLUSTER, order)
    assert found.seconds >= found.lower_bound_seconds * (1 - 1e-6)
    closed = estimate(GPT, layout, CLUSTER)
    if order == "1f1b":  # sends and the last sums of gradients overlap with something there
        assert found.seconds + closed.optimizer == pytest.approx(closed.seconds, rel=0.02)


def test_a_breadth_first_order_hides_sums_of_gradients() -> None:
    layout = replace(LAYOUT, chunks=3, global_batch=32)
    depth, breadth = (
        simulate_job(GPT, layout, CLUSTER, each).seconds for each in ("interleaved", "breadth-first")
    )
    assert breadth <= depth


def test_orders_that_do_not_suit() -> None:
    with pytest.raises(InputError, match="expected an order of a pipeline"):
        simulate_job(GPT, LAYOUT, CLUSTER, "best")
    with pytest.raises(InputError, match="one chunk of a device for order 1f1b, found 3"):
        simulate_job(GPT, replace(LAYOUT, chunks=3), CLUSTER, "1f1b")


def test_the_trace_has_every_task_on_a_stream(tmp_path: Path) -> None:
    found = simulate_job(GPT, LAYOUT, CLUSTER)
    path = tmp_path / "trace.json"
    shown = write_task_trace(found.times, path)
    events = json.loads(path.read_text())["traceEvents"]
    tasks = [event for event in events if event["ph"] == "X"]
    assert len(tasks) == shown == int((found.times.graph.stream >= 0).sum())
    assert {event["cat"] for event in tasks} == {"forward", "backward", "transfer", "all_reduce"}
    ends = max(event["ts"] + event["dur"] for event in tasks)
    assert ends == pytest.approx(1e6 * found.seconds, rel=1e-6)
    again = tmp_path / "again.json"
    write_task_trace(simulate_job(GPT, LAYOUT, CLUSTER).times, again)
    assert again.read_bytes() == path.read_bytes()
