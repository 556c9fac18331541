"""Ctrl-C on a terminal, which reaches all processes of a command: one line, exit code 130; long work tells its time."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.context import SpawnProcess
from pathlib import Path

import pytest

from coppice.comparison.pool import local_processes

LINE = "interrupted: no file was left half-written."


def press(words: str, when: Callable[[str], bool]) -> tuple[int, str]:
    """Run a command on a terminal of its own and press Ctrl-C as soon as it shows something: exit code and text."""
    process, terminal = pty.fork()
    if process == 0:  # pragma: no cover (another program)
        os.environ |= {"TERM": "xterm", "COLUMNS": "80"}
        os.execv(sys.executable, [sys.executable, "-m", "coppice", *words.split()])
    shown, pressed = "", False
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # how Linux tells that the other end is closed
            break
        if not piece:
            break
        shown += piece.decode(errors="replace")
        if not pressed and when(shown):
            os.write(terminal, b"\x03")
            pressed = True
    _, status = os.waitpid(process, 0)
    os.close(terminal)
    assert pressed, shown
    return os.waitstatus_to_exitcode(status), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", shown)


def check(code: int, shown: str) -> None:
    assert code == 130, shown
    assert shown.replace("\r", "").rstrip().endswith(LINE)
    assert shown.count("interrupted") == 1
    for word in ("Traceback", "Error", "error:", "Aborted"):
        assert word not in shown


def test_long_stages_tell_how_long_they_take() -> None:
    code, shown = press(
        "bound random-balanced --set gpus=300 -c all_to_all", lambda text: "computing the bound, 2 s" in text
    )
    check(code, shown)


@pytest.mark.parametrize(
    "words",
    [
        "compare dgx-h100 --boxes 8 -c all_reduce --sizes 1K:4G -j 2",
        "export fat-tree --to ompi-rules --option jobs=2 -o {folder}/rules.conf",
    ],
)
def test_processes_that_are_being_started_say_nothing(words: str, tmp_path: Path) -> None:
    """The spinner comes first, then the processes, which load for a while."""
    starts = ("starting", "making ompi-rules", "0/1", "0/")
    code, shown = press(words.format(folder=tmp_path), lambda text: any(start in text for start in starts))
    check(code, shown)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("after", [0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.3, 1.6])
def test_any_time_will_do(after: float) -> None:
    process, terminal = pty.fork()
    if process == 0:  # pragma: no cover (another program)
        os.environ |= {"TERM": "xterm"}
        words = "compare dgx-h100 --boxes 8 -c all_reduce --sizes 1K:4G -j 2"
        os.execv(sys.executable, [sys.executable, "-m", "coppice", *words.split()])
    threading.Timer(after, os.write, (terminal, b"\x03")).start()
    shown = ""
    while True:
        try:
            shown += os.read(terminal, 65536).decode(errors="replace")
        except OSError:
            break
    _, status = os.waitpid(process, 0)
    check(os.waitstatus_to_exitcode(status), re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", shown))


def test_ctrl_c_in_code_given_as_text(tmp_path: Path) -> None:
    """CPython remembers it there, and would kill the process at its end: imports make dataclasses of text."""
    file = tmp_path / "endless.py"
    file.write_text('exec("raise KeyboardInterrupt")\n')
    done = subprocess.run(
        [sys.executable, "-m", "coppice", "compile", str(file)], capture_output=True, text=True, check=False
    )
    assert "endless.py:1: interrupted here" in done.stderr
    assert done.returncode == 130


def test_processes_are_deaf_to_ctrl_c_until_they_can_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """And hear it once they work: it is blocked while they are started, and let through by what they do first."""
    start, masks = SpawnProcess._Popen, []

    def started(process: SpawnProcess) -> object:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        return start(process)

    monkeypatch.setattr(SpawnProcess, "_Popen", staticmethod(started))
    with local_processes(1) as pool:
        # A function of Python's own: by which name a process finds this module depends on how pytest was started.
        blocked = pool.submit(signal.pthread_sigmask, signal.SIG_BLOCK, []).result()
    assert signal.SIGINT not in blocked
    assert [signal.SIGINT in mask for mask in masks] == [True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, []), "this process hears it, too"


STARTED = """
import multiprocessing.util, os, signal, threading
from coppice.comparison.pool import local_processes

start = multiprocessing.util.spawnv_passfds

def press():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

def and_press(*given):
    number = start(*given)
    if not any("spawn_main" in str(word) for word in given[1]):  # of multiprocessing itself
        return number
    presses = threading.Thread(target=press)  # any thread may get the signal: this one has blocked it
    presses.start()
    presses.join()
    return number

multiprocessing.util.spawnv_passfds = and_press
try:
    with local_processes(1) as pool:
        pool.submit(abs, -1).result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_waits_until_a_process_has_been_started() -> None:
    """Else the process that was started finds nothing in its pipe and prints a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", STARTED], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted\n", "", 0)
