"""Iterations under every policy are those on record.

A change that redraws the code leaves the files alone; one that means to change a time writes them anew and says why:
`PYTHONPATH=tests python tests/iteration/test_goldens.py`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from coppice.errors import InputError
from coppice.iteration.job.compared import compare_policies
from coppice.iteration.job.composed import simulated_job
from coppice.iteration.job.file import parse_job_record
from coppice.iteration.job.job import job_of
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.policies.catalogue import policies_of, policy_named
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.policy import Policy
from coppice.iteration.step.workloads import steady_iteration
from iteration.policies.workloads import random_workload

FILES = Path(__file__).parent / "golden"
JOBS = {
    "gpt": """
model = {name = "gpt-7.5b"}
cluster = {topology = "dgx-a100", boxes = 2}
layout = {tp = 4, pp = 2, dp = 2, global_batch = 32}
""",
    "experts": """
model = {name = "mixtral-8x7b"}
cluster = {topology = "dgx-h100", boxes = 4}
layout = {tp = 2, pp = 2, dp = 8, ep = 4, global_batch = 64}
""",
    "images": """
model = {name = "resnet-50"}
cluster = {topology = "dgx-a100", boxes = 2}
layout = {dp = 16, global_batch = 512}
""",
    "chunks": """
model = {name = "bert-large"}
cluster = {topology = "dgx-a100", boxes = 4}
layout = {pp = 4, dp = 8, chunks = 2, global_batch = 128}
""",
    "sharded": """
model = {name = "llama3-8b"}
cluster = {topology = "dgx-h100", boxes = 2}
layout = {dp = 16, global_batch = 32, shard = "zero3", recompute = "full"}
""",
    "optimizer": """
model = {name = "gpt-3.6b"}
cluster = {topology = "dgx-a100", boxes = 4}
layout = {tp = 2, pp = 2, dp = 8, cp = 1, global_batch = 64, shard = "zero1"}
""",
}
RUNS = {
    **JOBS,
    "interleaved": JOBS["gpt"].replace("pp = 2, dp = 2", "pp = 2, dp = 2, chunks = 2")
    + 'run = {overlap = "ddp"}\n',
    "zero-bubble": JOBS["gpt"] + 'run = {order = "zero-bubble", overlap = "ddp"}\n',
    "fsdp": JOBS["sharded"] + 'run = {overlap = "fsdp", collectives = "nccl"}\n',
    "forest": JOBS["optimizer"] + 'run = {overlap = "megatron", collectives = "forest"}\n',
    "inside": JOBS["gpt"] + 'run = {inside = "oases"}\n',
}
WORKLOADS = 24  # Random ones, of each policy of gradients
SENT = [
    "name",
    "size_bytes",
    "layers",
    "carries",
    "offset_bytes",
    "after",
    "after_forward",
    "stream",
    "priority",
    "needed_by",
    "collective",
    "credit_bytes",
]


def compared(text: str) -> dict[str, Any]:
    """Every policy on a job, and the best composition: times, bounds, messages, memory, refusals."""
    return compare_policies(job_of(parse_job_record(text, where="golden")), processes=1).record()


def simulated(text: str) -> dict[str, Any]:
    """The parts and the critical path of a job as it says it runs."""
    found = simulated_job(job_of(parse_job_record(text, where="golden"))).step
    assert found is not None
    return {
        "seconds": found.seconds,
        "bounds": asdict(found.bounds),
        "parts": dict(found.parts),
        "path": [asdict(each) for each in found.path],
    }


def messages_of(name: str) -> dict[str, Any]:
    """What a policy of gradients sends on random workloads (a digest of all but the times), and what that takes."""
    draw = random.Random(name)
    sent, seconds = hashlib.sha256(), []
    for case in range(WORKLOADS):
        workload = random_workload(draw, graph=case % 2 == 1)
        try:
            policy = policy_named(name).of()
            messages = policy.messages(workload) if isinstance(policy, DataParallelPolicy) else ()
            steady = steady_iteration(partial(policy.iterations, workload))
        except InputError as error:
            sent.update(str(error).encode())
            continue
        for each in messages:
            sent.update(repr([getattr(each, field) for field in SENT]).encode())
        seconds.append([steady.seconds, sum(each.seconds for each in messages)])
    return {"sent": sent.hexdigest(), "seconds": seconds}


def orders() -> dict[str, str]:
    """A digest of the programs of devices in every pipeline order."""
    found = {}
    for name, order in ORDERS.items():
        programs = hashlib.sha256()
        for devices, micro_batches, chunks in itertools.product((2, 3, 4), (4, 8, 12), (1, 2)):
            try:
                made = order(devices, micro_batches, chunks)
            except InputError as error:
                programs.update(str(error).encode())
                continue
            programs.update(
                " ".join(map(str, itertools.chain(*made.devices, sorted(made.co_scheduled)))).encode()
            )
        found[name] = programs.hexdigest()
    return found


RECORDS: Mapping[str, Callable[[], Any]] = {
    **{f"compared_{name}": partial(compared, text) for name, text in JOBS.items()},
    "simulated": lambda: {name: simulated(text) for name, text in RUNS.items()},
    "gradients": lambda: {name: messages_of(name) for name in policies_of(Policy)},
    "orders": orders,
}


def leaves(record: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """The values of a record with their places."""
    if isinstance(record, Mapping):
        for key, value in record.items():
            yield from leaves(value, f"{where}.{key}")
    elif isinstance(record, list):
        yield f"{where}.length", len(record)
        for number, value in enumerate(record):
            label = value.get("policy", number) if isinstance(value, Mapping) else number
            yield from leaves(value, f"{where}[{label}]")
    else:
        yield where, record


@pytest.mark.parametrize("name", RECORDS)
def test_every_time_and_plan_is_the_one_on_record(name: str) -> None:
    kept = dict(leaves(json.loads((FILES / f"{name}.json").read_text())))
    found = dict(leaves(json.loads(json.dumps(RECORDS[name]()))))
    assert found.keys() == kept.keys()
    # Libraries for floating point differ in the last bit between processors.
    different = {
        where: (value, kept[where])
        for where, value in found.items()
        if (
            value != pytest.approx(kept[where], rel=1e-12)
            if isinstance(value, float)
            else value != kept[where]
        )
    }
    assert not different


if __name__ == "__main__":
    FILES.mkdir(exist_ok=True)
    for title, record in RECORDS.items():
        (FILES / f"{title}.json").write_text(json.dumps(record(), indent=1) + "\n")
