"""A rank of a program of the lab: ``PROGRAM MODEL POLICY SETTINGS STEPS``; rank 0 prints what it found as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

__all__ = ["run_in_lab", "run_model"]


def run_in_lab(work: Callable[[], dict[str, Any]]) -> None:
    """Do the work in a group of all ranks, over gloo."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found = work()
    if dist.get_rank() == 0:
        print(json.dumps(found), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def run_model(models: Mapping[str, Callable[[str, dict[str, Any], int], dict[str, Any]]]) -> None:
    """Train the model of the command line; each takes a policy, its settings and a number of steps."""
    model, policy, settings, steps = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), int(sys.argv[4])
    if model not in models:
        sys.exit(f"expected one of the models {', '.join(models)}, found {model}.")
    run_in_lab(lambda: models[model](policy, settings, steps))
