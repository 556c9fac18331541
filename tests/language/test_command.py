"""`coppice compile`: what it prints and writes, and where a program runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import coppice as package
from coppice.doctor import diagnose
from coppice.errors import CheckError, InputError, UnreachableError
from coppice.export.msccl.targets import TARGETS
from coppice.language import ChunkProgram, compile_program
from coppice.schedule.files.plan_file import read_plan
from coppice.topology.presets import preset
from support.language_examples import FOLDER, NAMES, NO_RUNTIME
from support.pages import coppice

RING = str(FOLDER / "all_reduce_ring.py")


def broadcast(ranks: int, **options: object) -> ChunkProgram:
    program = ChunkProgram("broadcast", ranks=ranks, **options)  # type: ignore[arg-type]
    first = program.chunk(0, "input", 0)
    for rank in range(1, ranks):
        first.copy(rank, "output")
    return program


def test_json_has_the_keys_of_a_plan() -> None:
    """Of `coppice plan --json` all but what is about trees, rings, times by a model, memory and processor time, and a
    former name."""
    planned = json.loads(coppice("plan", "star", "--collective", "all_reduce", "--json").stdout)
    made = json.loads(coppice("compile", RING, "--json").stdout)
    elsewhere = {"model", "trees_per_root", "distinct_trees", "max_height", "mean_height"}
    elsewhere |= {"peak_rss_bytes", "processor_seconds", "optimum_algbw_exact"}
    left_out = {key for key in planned if key not in made}
    assert {
        key for key in left_out if not key.startswith(("ring_", "size_bytes_at", "steady_", "trees"))
    } <= elsewhere | {key for key in planned if "tree" in key}
    shared = ("collective", "topology_sha256", "inv_rate", "cut", "planned_inv_rate", "optimal", "loss")
    assert [made[key] for key in shared] == [planned[key] for key in shared]
    own = {
        *("operations", "chunks", "transfers", "in_place", "instances", "protocol", "thread_blocks"),
        "channels",
    }
    assert own | {"steps", "most_steps", "steps_by_type", "max_bytes", "output", "program_file"} <= set(made)
    assert made["steps_by_type"]["recv_reduce_send"] == 48


def test_where_the_plan_goes(tmp_path: Path) -> None:
    done = coppice("compile", RING, "--parameter", "ranks=3", "-o", "-")
    assert json.loads(done.stdout)["provenance"]["planner"] == "language"
    path = tmp_path / "plan.json"
    assert coppice("compile", RING, "--parameter", "ranks=3", "-o", str(path)).exit_code == 0
    assert path.read_text() == done.stdout
    for words in ("verify", "explain", "simulate --size 1M"):
        assert coppice(*words.split(), str(path)).exit_code == 0
    assert coppice("report", str(path), "-o", str(tmp_path / "report.html")).exit_code == 0


def test_from_standard_input() -> None:
    from typer.testing import CliRunner

    from coppice.cli import app

    text = "from coppice import ChunkProgram\nprogram = ChunkProgram('all_gather', ranks={})\n"
    done = CliRunner().invoke(app, ["compile", "-"], input=text.format(1))
    assert done.exit_code == 0
    done = CliRunner().invoke(app, ["compile", "-"], input=text.format(0))
    assert done.exit_code == 2
    assert done.stderr.count(":2: ") == 1


def test_what_a_program_prints_is_not_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(f"print('hello')\n{Path(RING).read_text()}")
    done = coppice("compile", str(path), "--json")
    assert json.loads(done.stdout)["verified"]
    assert done.stderr == "hello\n"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.spread(5)
def test_thread_blocks_for_targets(name: str, target: str, tmp_path: Path) -> None:
    """The doctor finds nothing that the runtime would refuse."""
    path = tmp_path / "algo.xml"
    done = coppice("compile", str(FOLDER / f"{name}.py"), "--program", str(path), "--target", target)
    if name in NO_RUNTIME:
        assert (done.exit_code, path.exists()) == (2, False)
        assert "no runtime takes an all-to-all with demands" in done.stderr
        return
    assert done.exit_code == 0, done.stderr
    ranks = json.loads(coppice("compile", str(FOLDER / f"{name}.py"), "--json").stdout)["ranks"]
    assert diagnose(str(path), target=target, ranks=ranks).ok


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--program x.xml", "--program and --target belong together"),
        ("--target msccl", "--program and --target belong together"),
        ("--boxes 2", "belong to a topology"),
        ("--parameter ranks", "expected --parameter KEY=VALUE"),
        ("--parameter rank=3", "all_reduce_ring.py:6: program has no parameter rank: did you mean 'ranks'?"),
        ("--program x.xml --target nothing", "nothing"),
        (
            "--topology dgx-a100 --parameter ranks=4",
            "expected a topology of 4 ranks, as the program has, found 8",
        ),
        ("--parameter instances=40 --program x.xml --target msccl", "at most 32 channels"),
    ],
)
def test_options_that_do_not_fit(
    words: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = coppice("compile", RING, *words.split())
    assert done.exit_code in (1, 2)
    assert message in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_program_may_name_its_topology(tmp_path: Path) -> None:
    assert compile_program(broadcast(8, topology="dgx-a100")).plan.topology.name == preset("dgx-a100").name
    box = preset("ring", gpus=3)
    assert compile_program(broadcast(3, topology=box), relay_gpus=True).plan.topology is box
    assert (
        compile_program(broadcast(3, topology=box), topology=preset("star", gpus=3)).plan.topology is not box
    )
    with pytest.raises(InputError, match=r"^test_command\.py:\d+: expected a topology of 4 ranks, found 3"):
        broadcast(4, topology=box)
    path = tmp_path / "program.py"
    path.write_text(
        "from coppice import ChunkProgram\n\n\ndef program(topology):\n"
        "    return ChunkProgram('all_gather', ranks=topology.num_ranks, in_place=False)\n"
    )
    with pytest.raises(CheckError, match=r"^program\.py:5: wrong result: .*\(8 more|63 more"):
        compile_program(path, topology="dgx-a100")


def test_a_message_without_a_way_is_told_with_its_line() -> None:
    line = preset("ring", gpus=5)
    with pytest.raises(
        UnreachableError, match=r"^test_command\.py:\d+: the message from rank 0 to rank 2 has no way"
    ):
        compile_program(broadcast(5, topology=line))
    made = compile_program(broadcast(5, topology=line), relay_gpus=True)
    assert made.plan.parameters["relay_gpus"] is True
    assert package.verify(made).ok


@pytest.mark.parametrize("in_place", [True, False])
def test_one_program_for_calls_in_place_and_out_of_place(*, in_place: bool) -> None:
    """The copy of a rank's own block is only made where it is not there already."""
    program = ChunkProgram("all_gather", ranks=4, in_place=in_place)
    for owner in range(4):
        block = program.chunk(owner, "input", 0).copy(owner, "output", owner)
        for step in range(1, 4):
            block = block.copy((owner + step) % 4, "output")
    made = compile_program(program)
    assert made.program is not None
    assert program.num_operations == 12 + 4 * (not in_place)
    assert made.report.optimal


def test_a_plan_file_keeps_what_made_it(tmp_path: Path) -> None:
    package.write_plan(compile_program(RING, parameters={"ranks": 3}), tmp_path / "plan.json")
    plan = read_plan(str(tmp_path / "plan.json"))
    assert plan.planner == "language"
    assert plan.parameters["program"] == "all-reduce ring"
    assert package.verify(plan).optimal
