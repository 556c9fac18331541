"""The order of the rooms: a room imports only rooms above it, and `import coppice` stays light."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "coppice"

# From the top down: each room may import itself and what stands before it.
ROOMS = (
    "errors",
    "_core",
    "topology",
    "collectives",
    "bounds",
    "schedule",
    "program",
    "planners",
    "innetwork",
    "simulation",
    "comparison",
    "design",
    "export",
    "run",
    "training",
    "cli",
)
# These only re-export, and may import any room.
FRONT = ("__init__", "__main__", "torch")
# What a plan's makers and its judges must not share.
STRANGERS = {"schedule": "planners", "bounds": "schedule", "simulation": "planners"}
HEAVY = ("typer", "rich", "highspy", "networkx", "yaml", "torch", "scipy", "pytest")


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(module: str) -> str:
    """`coppice.topology.model` is in `topology`; the package itself is the front."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imported_modules(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import of our own, inside functions as well."""
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
            if base == "coppice":
                for alias in node.names:
                    yield node.lineno, f"coppice.{alias.name}"
            elif base.startswith("coppice."):
                yield node.lineno, base


def test_every_module_is_in_a_room() -> None:
    rooms = {room_of(name_of(path)) for path in modules()}
    assert rooms <= {*ROOMS, *FRONT}
    assert {"topology", "bounds", "schedule", "planners", "cli"} <= rooms


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_only_rooms_above(path: Path) -> None:
    room = room_of(name_of(path))
    if room in FRONT:
        return
    above = ROOMS[: ROOMS.index(room) + 1]
    for line, module in imported_modules(path):
        if module in ("coppice", "coppice.__version__"):  # the version, for provenance
            continue
        assert room_of(module) in above, f"{path}:{line}: {room} imports {module}, which stands below it"


@pytest.mark.parametrize(("room", "stranger"), STRANGERS.items())
def test_judges_do_not_know_planners(room: str, stranger: str) -> None:
    for path in modules():
        if room_of(name_of(path)) == room:
            assert not [module for _, module in imported_modules(path) if room_of(module) == stranger]


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


def test_the_rule_is_seen_to_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner imported by a room above it is found, whichever way it is written."""
    package = tmp_path / "coppice" / "topology"
    package.mkdir(parents=True)
    bad = package / "bad.py"
    bad.write_text("def f():\n    from ..planners.forest import g\n    from coppice import cli\n")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path / "coppice")
    assert {room_of(module) for _, module in imported_modules(bad)} == {"planners", "cli"}
    with pytest.raises(AssertionError, match="stands below it"):
        test_imports_only_rooms_above(bad)
