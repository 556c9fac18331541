"""A help loads no room that computes: by the modules that are there then, since times say little on a busy machine."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.main import get_command

from cli.test_times_name_models import commands
from coppice.cli import COMMANDS, app
from coppice.doctor import TUNING_TARGETS
from coppice.doctor.job_facts import OPTIONS
from coppice.export import formats
from coppice.export.msccl.targets import TARGETS
from coppice.export.rank_order import LAUNCHERS
from coppice.innetwork.p4.generator import MODES as FPISA_MODES
from coppice.innetwork.p4.generator import SYSTEMS as P4_SYSTEMS
from coppice.innetwork.p4.generator import VARIANTS as P4_VARIANTS
from coppice.iteration.costs.simulated import CALIBRATED
from coppice.iteration.frameworks import ATTENTION, FRAMEWORKS, SOFTMAX
from coppice.iteration.pipeline.orders import ORDERS
from coppice.iteration.policies.catalogue import POLICIES, policies_of
from coppice.iteration.policies.data_parallel.policy import DataParallelPolicy
from coppice.iteration.policies.data_parallel.sharded import ShardedPolicy
from coppice.iteration.policies.pipelined.policy import Pipelined
from coppice.iteration.policies.policy import Policy
from coppice.iteration.policies.tensor.policy import TensorPolicy
from coppice.iteration.policies.whole.operations import WholePolicy
from coppice.options import names
from coppice.planners.synthesis.synthesizing import METHODS
from coppice.selection import LIBRARIES
from coppice.selection.nccl.selecting import SETTINGS
from coppice.topology.composition.fabric import FABRIC_KINDS
from coppice.tuning.building import NCCL_PLUGINS
from coppice.tuning.exports import FORMS
from coppice.tuning.table import LIBRARIES as TUNED

HEAVY = {"numpy", "highspy", "coppice._core", "multiprocessing", "rich.console", "rich.progress"}

LOADING = {"model": "fits, whose command names what it takes by the classes of the simulator"}
"""Commands whose help loads more, and why."""

PROGRAM = """
import json, sys
from coppice.cli import main
sys.argv = ["coppice", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print(json.dumps(sorted(sys.modules)), file=sys.stderr)
"""


def modules(*words: str) -> set[str]:
    """What a command has loaded when its help is printed."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words, "--help"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("Usage: coppice")
    return set(json.loads(done.stderr))


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in LOADING])
@pytest.mark.spread(3)
def test_no_help_loads_what_computes(name: str) -> None:
    assert not modules(name) & HEAVY


@pytest.mark.parametrize("name", ["design", "topology", "tune"])
def test_no_help_of_a_subcommand_does(name: str) -> None:
    inner = [words.split() for words in commands(get_command(app)) if words.startswith(f"{name} ")]
    assert inner
    assert not modules(*inner[-1]) & HEAVY


def test_lists_of_names_are_those_of_their_rooms() -> None:
    assert tuple(FABRIC_KINDS) == names.FABRICS
    assert tuple(LIBRARIES) == names.SELECTING
    assert tuple(SETTINGS) == names.COST_INPUTS
    assert tuple(TUNED) == names.TUNED
    assert tuple(FORMS) == names.TUNING_FORMS
    assert tuple(NCCL_PLUGINS) == names.PLUGINS
    assert tuple(TARGETS) == formats.MSCCL_RUNTIMES
    assert tuple(LAUNCHERS) == formats.LAUNCHERS
    assert tuple(TUNING_TARGETS) == names.TUNING_FILES
    assert tuple(OPTIONS) == names.JOB_FACTS
    assert tuple(METHODS) == names.SYNTHESIS_METHODS
    assert tuple(policies_of(Policy)) == names.POLICIES
    kinds = {
        DataParallelPolicy: names.GRADIENT_POLICIES,
        Pipelined: names.PIPELINE_POLICIES,
        TensorPolicy: names.TENSOR_POLICIES,
        WholePolicy: names.WHOLE_POLICIES,
        ShardedPolicy: names.SHARDED_POLICIES,
    }
    assert {kind: tuple(policies_of(kind)) for kind in kinds} == kinds
    assert sorted(POLICIES) == sorted(name for listed in kinds.values() for name in listed)
    assert set(ORDERS) < set(names.PIPELINE_POLICIES)
    assert tuple(FRAMEWORKS) == names.FRAMEWORKS
    assert ("auto", *SOFTMAX, *ATTENTION) == names.ATTENTION_KERNELS
    assert names.CALIBRATED == CALIBRATED
    assert P4_VARIANTS == names.P4_VARIANTS
    assert P4_SYSTEMS == names.P4_SYSTEMS
    assert FPISA_MODES == names.FPISA_MODES
