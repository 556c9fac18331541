"""The plan of the house: rooms in order, no circles, folders of a size that can be read, and an import that stays
light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "coppice"

# From the ground up: each room may import itself and what stands before it.
ROOMS = (
    *("version", "errors", "interrupts", "text", "files", "recognising", "decoding", "rows", "equality"),
    *(
        "arguments",
        "collectives",
        "options",
        "display",
        "outputs",
        "_core",
        "_run",
        "_switch",
        "native",
        "topology",
    ),
    *("bounds", "schedule", "program", "planners", "language", "selection", "simulation", "innetwork"),
    *("comparison", "design", "fitting", "export", "logs", "doctor", "report", "diagnosis", "run", "tuning"),
    *("iteration", "advice", "training", "published", "verbs", "cli"),
)
# These only re-export, and may import any room.
FRONT = ("__init__", "__main__", "torch")
# What must not be known, although it stands above: judges do not know planners, writers take what they are given.
STRANGERS = (
    ("bounds", "schedule"),
    ("schedule", "planners"),
    ("program", "planners"),
    ("language", "planners"),
    ("simulation", "planners"),
    ("selection", "simulation"),
    ("innetwork", "planners"),
    ("export", "planners"),
    ("export", "simulation"),
    ("export", "comparison"),
    ("training", "run"),
)
CLASS = re.compile(r"^ *class (\w+)", re.MULTILINE)
MOST_FILES = 25
MOST_LINES = 900
HEAVY = ("typer", "rich", "highspy", "networkx", "yaml", "torch", "scipy", "pytest")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def nodes_of(path: Path, *words: str) -> Iterator[ast.AST]:
    """All nodes of a file that has one of these words: most have none, and need not be parsed."""
    text = path.read_text()
    if any(word in text for word in words):
        yield from ast.walk(ast.parse(text))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """`coppice.topology.model` is in `topology`; the package itself is the front."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def imported_modules(path: Path) -> tuple[tuple[int, str], ...]:
    """(line, module) of every import of our own, inside functions as well; modules taken from a package too."""
    return tuple(imports_in(path))


def imports_in(path: Path) -> Iterator[tuple[int, str]]:
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(), filename=str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "coppice":
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            if base.split(".")[0] == "coppice":
                for alias in node.names:
                    inner = SOURCE.parent.joinpath(*base.split("."), alias.name)
                    whole = base == "coppice" or inner.is_dir() or inner.with_suffix(".py").is_file()
                    yield node.lineno, f"{base}.{alias.name}" if whole else base


def circles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Sets of modules that import each other, one way round or another (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        open_.append(module)
        for other in graph[module]:
            if other not in order:
                visit(other)
            if other in open_:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            ring = open_[open_.index(module) :]
            del open_[-len(ring) :]
            if len(ring) > 1 or module in graph[module]:
                found.append(sorted(ring))

    for module in graph:
        if module not in order:
            visit(module)
    return found


def import_graph() -> dict[str, set[str]]:
    known = {name_of(path): path for path in modules()}
    return {
        name: {module for _, module in imported_modules(path) if module in known and module != name}
        for name, path in known.items()
    }


def test_rooms_are_those_that_there_are() -> None:
    rooms = {room_of(name_of(path)) for path in modules()} - set(FRONT)
    assert rooms == set(ROOMS) - {"_core", "_run", "_switch"}


def test_imports_only_rooms_above() -> None:
    for path in modules():
        room = room_of(name_of(path))
        if room in FRONT:
            continue
        above = ROOMS[: ROOMS.index(room) + 1]
        for line, module in imported_modules(path):
            assert room_of(module) in above, f"{path}:{line}: {room} imports {module}, which stands below it"


@pytest.mark.parametrize(("room", "stranger"), STRANGERS)
def test_what_a_room_must_not_know(room: str, stranger: str) -> None:
    for path in modules():
        if room_of(name_of(path)) == room:
            known = [module for _, module in imported_modules(path) if room_of(module) == stranger]
            assert not known, f"{path} imports {known[0]}"


def test_no_circles() -> None:
    assert circles(import_graph()) == []


def test_folders_can_be_read() -> None:
    for folder in {path.parent for path in modules()}:
        own = [
            path for path in folder.iterdir() if path.is_file() and not path.name.endswith((".so", ".pyc"))
        ]
        assert len(own) <= MOST_FILES, f"{folder} holds {len(own)} files"


def test_files_can_be_read() -> None:
    lines = {name_of(path): len(path.read_text().splitlines()) for path in modules()}
    assert {name: count for name, count in lines.items() if count > MOST_LINES} == {}


def test_packages_say_what_they_hold() -> None:
    for path in modules():
        if path.name == "__init__.py":
            words = ast.get_docstring(ast.parse(path.read_text())) or ""
            first = words.partition("\n\n")[0]
            assert first.endswith("."), (
                f"{path}: expected one sentence that says what it holds, found {first!r}"
            )


LAUNCHER = "coppice.training.torch.core.launcher"
"""The only module of the training room that may start a thread that launches work."""
SERVE_SOCKETS = {
    "coppice.training.torch.data_parallel.client",
    "coppice.training.torch.data_parallel.server",
    "coppice.training.torch.tensor.triggered_memory",
}
"""Others of it that start threads: these read what comes from other processes."""


def test_one_module_starts_threads_that_launch() -> None:
    started = called_in(("training",), ("Thread", "Timer", "ThreadPoolExecutor", "start_new_thread"))
    assert started == {LAUNCHER, *SERVE_SOCKETS}


def test_training_has_the_folders_and_names_of_policies() -> None:
    """What a policy decides, and how torch does it, are files of one name: others are none of a policy."""
    decided, done = SOURCE / "iteration" / "policies", SOURCE / "training" / "torch"

    def folders(above: Path) -> set[str]:
        return {path.parent.relative_to(above).as_posix() for path in above.rglob("__init__.py")} - {"."}

    assert folders(decided) <= folders(done)
    assert folders(done) - folders(decided) == {"core", "whole/mixture"}
    pairs = {
        path.relative_to(done).as_posix()
        for path in done.rglob("*.py")
        if path.name != "__init__.py" and (decided / path.relative_to(done)).is_file()
    }
    assert pairs == {
        *(f"data_parallel/{name}.py" for name in ("gradientflow", "online", "ooo", "poseidon", "tictac")),
        *(f"tensor/{name}.py" for name in ("decomposition", "degrees", "lynx", "oases", "triggered")),
        *(f"whole/{name}.py" for name in ("lina", "lina_inference", "steps")),
    }
    registered = {policy.__module__.rpartition(".")[2] for policy in policies()}
    named = {Path(each).stem for each in pairs}
    assert named - registered == {"degrees", "lina_inference", "online", "steps"}  # what several policies use


def policies() -> list[type]:
    from coppice.iteration.policies.catalogue import POLICIES

    return list(POLICIES.values())


def called_in(rooms: tuple[str, ...], names: tuple[str, ...]) -> set[str]:
    """Modules of some rooms that call something of these names."""
    found = set()
    for path in modules():
        if room_of(name_of(path)) in rooms:
            calls = (each.func for each in nodes_of(path, *names) if isinstance(each, ast.Call))
            if any(getattr(each, "attr", getattr(each, "id", "")) in names for each in calls):
                found.add(name_of(path))
    return found


LOWER = "coppice.iteration.step.passes"
"""The only module that makes the tasks of a training step, for `step.lower`."""
PLANS = "coppice.iteration.policies.whole.operations"
"""Makes the tasks of whole plans natively, a hundred thousand a plan."""
TASKS = "coppice.iteration.tasks"
SMALLER_GRAPHS = {
    # What is read from files
    "coppice.iteration.kineto",
    "coppice.iteration.modules.timed",
    "coppice.iteration.traces.replay",
    # Passes of layers, from which policies take the times of blocks
    "coppice.iteration.policies.tensor.coconet.costs",
    "coppice.iteration.policies.tensor.half_batches",
    "coppice.iteration.policies.tensor.recompute_windows",
    "coppice.iteration.policies.tensor.ring_products",
    # An order that is found by running what is ready
    "coppice.iteration.pipeline.stages",
}
"""Others that build graphs of tasks: none of them those of a step."""


def test_one_builder_makes_the_graph_of_a_step() -> None:
    assert called_in(("iteration", "advice", "training", "verbs", "cli"), ("TaskGraph",)) == {
        LOWER,
        PLANS,
        TASKS,
    }
    built = called_in(("iteration", "advice", "training", "verbs", "cli"), ("TaskGraphBuilder",))
    assert built == SMALLER_GRAPHS
    assert called_in(("iteration",), ("graph_of_templates",)) == {"coppice.iteration.step.lower"}


def test_one_class_is_a_planned_message() -> None:
    found = {
        node.name
        for path in modules()
        if room_of(name_of(path)) in ("iteration", "training")
        for node in nodes_of(path, "Message")
        if isinstance(node, ast.ClassDef) and node.name.endswith("Message")
    }
    assert found == {"Message", "LaunchedMessage"}  # what plans say, and what a queue holds of it


MEASURE = "coppice.training.torch.core.measure"


def test_one_module_times_training() -> None:
    assert called_in(("training",), ("perf_counter", "perf_counter_ns")) == {MEASURE}
    for path in modules():
        if room_of(name_of(path)) == "training" and name_of(path) != MEASURE:
            assert "perf_counter" not in path.read_text(), path


def test_one_catalogue_has_every_policy() -> None:
    import importlib

    from coppice.iteration.policies.catalogue import BASELINES, POLICIES
    from coppice.iteration.policies.policy import ConfiguredPolicy

    for path in modules():
        if name_of(path).startswith("coppice.iteration.policies."):
            importlib.import_module(name_of(path))

    def below(kind: type[ConfiguredPolicy]) -> Iterator[type[ConfiguredPolicy]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    # Tests have policies of their own.
    own = (each for each in below(ConfiguredPolicy) if each.__module__.startswith("coppice."))
    named = {each for each in own if "name" in vars(each)}
    assert named == {*POLICIES.values(), *BASELINES.values()}
    assigned = {
        name_of(path)
        for path in modules()
        if room_of(name_of(path)) in ("iteration", "training")
        for node in nodes_of(path, "type[ConfiguredPolicy]")
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and "type[ConfiguredPolicy]" in ast.unparse(node)
    }
    assert assigned == {"coppice.iteration.policies.catalogue"}


def test_import_is_light() -> None:
    script = (
        "import sys; before = set(sys.modules); import coppice; "
        "print(*sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & set(HEAVY)
    outside = {name for name in loaded if name not in sys.stdlib_module_names and not name.startswith("_")}
    assert outside <= {"coppice", "numpy", "msgspec", "typing_extensions"}  # the last comes with msgspec


def test_package_lists_what_it_offers() -> None:
    import coppice

    assert set(dir(coppice)) == set(coppice.__all__)
    for name in coppice.__all__:
        assert getattr(coppice, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        coppice.nonsense  # noqa: B018


def test_the_rules_are_seen_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner imported by a room above it is found, whichever way it is written; so is a circle."""
    package = tmp_path / "coppice" / "topology"
    package.mkdir(parents=True)
    bad, other = package / "bad.py", package / "other.py"
    bad.write_text(
        "def f():\n    from ..planners.forest import g\n    from coppice import cli\n    from . import other\n"
    )
    other.write_text("from coppice.topology.bad import f\n")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path / "coppice")
    assert {room_of(module) for _, module in imported_modules(bad)} == {"planners", "cli", "topology"}
    with pytest.raises(AssertionError, match="stands below it"):
        test_imports_only_rooms_above()
    assert circles(import_graph()) == [["coppice.topology.bad", "coppice.topology.other"]]


def test_a_class_name_means_one_thing() -> None:
    lines = [name for path in modules() for name in CLASS.findall(path.read_text())]
    likely = [f"class {name}" for name in {name for name in lines if lines.count(name) > 1}]
    found: dict[str, list[str]] = {}
    for path in modules():
        for node in nodes_of(path, *likely):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(name_of(path))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}
