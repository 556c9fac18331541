"""Run capturing processes: a rank, and those whose objects it receives."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from coppice.decoding import decodable
from coppice.errors import InputError
from coppice.iteration.capture.request import CapturedRank, CaptureRequest, CaptureResult
from coppice.iteration.devices import DEVICES
from coppice.text import suggestion

_GRACE = 10.0
"""Seconds that a script has for its exit handlers once its step is recorded."""
_MOST_BESIDE = 64
"""So many ranks run beside the one that is captured; each is a process."""


class ScriptError(InputError):
    """A script that crashed, with its own traceback."""

    def __init__(self, message: str, traceback: str) -> None:
        super().__init__(message)
        self.traceback = traceback


def capture_ranks(
    script: os.PathLike[str] | str,
    arguments: Sequence[str] = (),
    *,
    ranks: int = 1,
    rank: int = 0,
    steps: int = 2,
    device: str = "H100",
    strict: bool = False,
    assume: Mapping[str, Any] | None = None,
    echo: bool = False,
) -> dict[int, CapturedRank]:
    """Run a training script as one rank of a job, and record its last step.

    Ranks that send it objects run beside it, such as the other stages of a pipeline of PyTorch; so do those of its
    pipeline, each of which has layers of its own.

    Args:
        script: The script.
        arguments: Its arguments.
        ranks: Ranks of the job.
        rank: The rank that is captured.
        steps: Steps after which it is stopped; the last is recorded.
        device: GPU that it is told about.
        strict: Refuse every value of a GPU tensor that is not assumed.
        assume: Values that lines read, by ``FILE:LINE``.
        echo: Show what the rank prints, on standard error.

    Returns:
        The rank, and those of its pipeline.

    Raises:
        InputError: If the script cannot be run, or needs what is not there.
        ScriptError: If it crashes.
    """
    path = Path(script)
    if not path.is_file():
        raise InputError(f"cannot read the script {path} (no such file): name a Python file, as train.py.")
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            "expected PyTorch to capture a script with, found it not installed: install coppice[torch]."
        )
    if not 0 <= rank < ranks:
        raise InputError(f"expected `rank` from 0 to {ranks - 1}, found {rank}: it counts from 0.")
    name = _device(device)
    with tempfile.TemporaryDirectory(prefix="coppice-") as folder:
        request = CaptureRequest(
            script=str(path),
            arguments=list(arguments),
            ranks=ranks,
            rank=rank,
            box=DEVICES[name].box,
            steps=steps,
            device=name,
            strict=strict,
            assume=dict(assume or {}),
            folder=folder,
        )
        return _Processes(request, Path(folder), echo=echo).run()


def _device(name: str) -> str:
    """The device of a name, in any case."""
    known = {each.lower(): each for each in DEVICES}
    if name.lower() not in known:
        raise InputError(
            f"expected a device ({', '.join(DEVICES)}), found {name!r}: {suggestion(name, list(DEVICES))}."
        )
    return known[name.lower()]


class _Processes:
    """Capturing processes, one a rank."""

    def __init__(self, request: CaptureRequest, folder: Path, *, echo: bool) -> None:
        self.request, self.folder, self.echo = request, folder, echo
        self.running: dict[int, subprocess.Popen[bytes]] = {}
        self.found: dict[int, CapturedRank] = {}
        self.shown = 0  # Where the next output of the captured rank begins in its log

    def run(self) -> dict[int, CapturedRank]:
        """Run the rank, and then those of its pipeline."""
        first = self.request.rank
        try:
            self._start(first)
            self._wait([first])
            beside = self.found[first].facts.pipeline_ranks
            if len(beside) <= _MOST_BESIDE:
                for rank in beside:
                    self._start(rank)
                self._wait(beside)
        finally:
            for process in self.running.values():
                process.kill()
                process.wait()
        return {rank: self.found[rank] for rank in dict.fromkeys([first, *beside]) if rank in self.found}

    def _start(self, rank: int) -> None:
        if rank in self.running or rank in self.found:
            return
        asked = msgspec.structs.replace(self.request, rank=rank)
        words = [
            "-m",
            "coppice.iteration.capture.worker",
            msgspec.json.encode(asked).decode(),
            str(self._answer(rank)),
        ]
        with self._log(rank).open("wb") as log:
            self.running[rank] = subprocess.Popen(
                [sys.executable, *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"},
            )

    def _log(self, rank: int) -> Path:
        return self.folder / f"log-{rank}"

    def _show(self) -> None:
        """Print what the rank that is captured has printed since the last time."""
        if self.echo:
            with self._log(self.request.rank).open(errors="replace") as log:
                log.seek(self.shown)
                sys.stderr.write(log.read())
                self.shown = log.tell()

    def _answer(self, rank: int) -> Path:
        return self.folder / f"answer-{rank}.json"

    def _wait(self, ranks: Sequence[int]) -> None:
        """Wait for ranks, and start those that they receive objects from."""
        ended: dict[int, float] = {}
        while not all(rank in self.found for rank in ranks):
            for path in self.folder.glob("wanted-*"):
                rank = int(path.name.rpartition("-")[2])
                path.unlink()
                self._start(rank)
            for rank, process in [*self.running.items()]:
                if process.poll() is None:
                    if self._answer(rank).is_file() and time.monotonic() > ended.setdefault(
                        rank, time.monotonic() + _GRACE
                    ):
                        process.kill()
                    continue
                del self.running[rank]
                self._show()
                self._read(rank, process.returncode)
            self._show()
            time.sleep(0.02)

    def _read(self, rank: int, code: int) -> None:
        """Read the answer of a process that ended."""
        if not self._answer(rank).is_file():
            log = self._log(rank).read_text(errors="replace")
            lines = [line for line in log.splitlines() if line.strip()]
            last = lines[-1] if lines else f"exit code {code}"
            raise InputError(
                f"expected rank {rank} of {self.request.script} to end, found it stopped: {last.strip().rstrip('.')}."
            )
        result = msgspec.json.decode(self._answer(rank).read_bytes(), type=decodable(CaptureResult))
        if result.captured is None:
            self._fail(rank, result)
        self.found[rank] = result.captured

    def _fail(self, rank: int, result: CaptureResult) -> NoReturn:
        """Refuse the script for what it needs."""
        whose = "" if rank == self.request.rank else f" (on rank {rank})"
        message = result.error[:-1] + whose + "." if whose else result.error
        if result.traceback:
            raise ScriptError(message, result.traceback)
        raise InputError(message)
