"""The command as a process: interruption, broken pipes, version, errors without a traceback, terminals without bars."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "coppice"]


def test_version_and_help() -> None:
    version = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("coppice ")
    for command in ("bound", "plan", "verify", "explain", "topology"):
        shown = subprocess.run([*COMMAND, command, "--help"], capture_output=True, text=True, check=True)
        assert "Examples:" in shown.stdout or command == "topology"


def test_interrupting_a_long_plan_is_quick_and_quiet(tmp_path: Path) -> None:
    target = tmp_path / "plan.json"
    arguments = ["plan", "torus", "--set", "dims=32x64", "-c", "all_gather", "--no-ring", "-o", str(target)]
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(2.5)
        assert process.poll() is None, "the plan was done before it could be interrupted: choose a larger one"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert (out, err) == (b"", b"")
    assert list(tmp_path.iterdir()) == []


PRESSED_AT = """
import os, runpy, signal, sys

class Pressed:
    "Presses Ctrl-C when a module is looked for."
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
        return None

sys.meta_path.insert(0, Pressed())
sys.path.insert(0, "")
runpy.run_module("coppice", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize(
    "module", ["coppice.cli", "typer", "typer.main", "subprocess", "fractions", "coppice.cli.terminal"]
)
def test_interrupting_the_start_is_quiet(module: str) -> None:
    """Ctrl-C while modules are being loaded leaves no traceback; what Python does before our first line is its own."""
    command = [sys.executable, "-c", PRESSED_AT, module, "--version"]
    done = subprocess.run(command, capture_output=True, timeout=300)
    assert (done.returncode, done.stderr, done.stdout) == (130, b"", b"")


def test_a_closed_pipe_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run([*COMMAND, "bound", "dgx-a100", "--json"], stdout=write_end, stderr=subprocess.PIPE)
    os.close(write_end)
    assert done.stderr == b""
    assert done.returncode == 1


def test_a_file_that_cannot_be_written_is_an_input_error(tmp_path: Path) -> None:
    target = tmp_path / "absent" / "plan.json"
    command = [*COMMAND, "plan", "dgx-a100", "-c", "all_gather", "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr


def test_python_interface_mirrors_the_command() -> None:
    import coppice

    problem = coppice.Problem(
        topology=coppice.load("dgx-a100", boxes=2), collective=coppice.Collective.ALL_GATHER
    )
    found = coppice.bound(problem)
    result = coppice.plan(problem, ring=False)
    assert result.inv_rate == found.inv_rate
    assert coppice.verify(result.plan).optimal


def printed(*words: str | Path, encoding: str = "ascii", cwd: Path | None = None) -> bytes:
    """What the program prints on such a terminal."""
    command = [sys.executable, "-m", "coppice", *map(str, words)]
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "COLUMNS": "100"}
    done = subprocess.run(command, capture_output=True, env=environment, cwd=cwd)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.fixture(scope="module")
def named(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topology and a plan with names beyond ASCII, in a folder with such a name."""
    folder = tmp_path_factory.mktemp("größe")
    document = {
        "format": "coppice-topology",
        "version": 1,
        "name": "grün",
        "nodes": [{"id": f"gpü{i}"} for i in range(3)] + [{"id": "schälter", "kind": "switch"}],
        "links": [{"from": f"gpü{i}", "to": "schälter", "gb_per_s": 1} for i in range(3)],
    }
    (folder / "grün.json").write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    printed("plan", folder / "grün.json", "-c", "all_gather", "-o", folder / "plan.json")
    return folder


def test_explain_draws_in_ascii(named: Path) -> None:
    text = printed("explain", "plan.json", cwd=named).decode("ascii")
    assert "  ########################     100%" in text
    assert "  |- gp?1" in text
    assert "  `- gp?2" in text
    assert "└─" in printed("explain", "plan.json", encoding="utf-8", cwd=named).decode()


@pytest.mark.parametrize(
    "command",
    [
        "topology show grün.json",
        "simulate plan.json --size 1M",
        "compare grün.json -c all_gather --sizes 1M --algorithm forest",
        "algorithms",
        "report plan.json -o größe.html",
    ],
)
def test_commands_print(command: str, named: Path) -> None:
    printed(*command.split(), cwd=named).decode("ascii")


def test_errors_are_sentences() -> None:
    command = [sys.executable, "-m", "coppice", "bound", "fehlt-für.json"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment)
    assert done.returncode == 2
    assert done.stderr.startswith(b"error: there is no file fehlt-f")
    assert done.stderr.count(b"\n") == 1


def test_data_is_the_same_on_every_terminal(named: Path) -> None:
    """JSON means the same, and files that go to standard output are those that `-o` writes."""
    for words in (("topology", "show", "grün.json"), ("bound", "grün.json", "-c", "all_gather")):
        plain, rich = (printed(*words, "--json", encoding=each, cwd=named) for each in ("ascii", "utf-8"))
        assert json.loads(plain.decode("ascii")) == json.loads(rich)
    assert printed("topology", "import", "grün.json", cwd=named) == printed(
        "topology", "import", "grün.json", encoding="utf-8", cwd=named
    )
