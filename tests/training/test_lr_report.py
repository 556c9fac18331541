"""The log on disk, and what is drawn of it."""

from __future__ import annotations

import json
import subprocess
import sys
from math import exp, log10, nan
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from coppice.cli.train import app
from coppice.errors import InputError, MissingExtraError
from coppice.training.autolrs.controller import Controller
from coppice.training.autolrs.log import (
    EventLog,
    Retreat,
    SearchPhase,
    Settings,
    curve,
    read_events,
    read_search,
)
from coppice.training.autolrs.report import write_report


def loss(rate: float, step: int, stage: int) -> float:
    if rate > 0.4 or (rate > 0.2 and step > 120):
        return nan
    return 0.3 * (log10(rate) + 0.5 + 0.4 * stage) ** 2 + 2 * exp(-0.03 * step) + 0.5


def written(path: Path, *, kept_steps: int | None = 4620, most: int = 100_000) -> Path:
    settings = Settings(tau=1000, tau_max=2000, warmup_steps=20, kept_steps=kept_steps, validation=True)
    control, log = Controller(settings), EventLog(path, settings)
    steps = 0
    while control.phase is not SearchPhase.DONE and steps < most:
        state, count = control.state, control.steps_to_event
        losses = [loss(control.lr_at(state.done + k), state.done + k, state.stage) for k in range(count)]
        due = control.validation_due(count)
        validation = loss(state.lr, state.done + count, state.stage) if due else None
        log.write(control.observe(losses, validation).events)
        steps += count
    return path


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("log") / "log.jsonl")


def test_log_is_the_same_bytes_for_the_same_training(log: Path, tmp_path: Path) -> None:
    assert written(tmp_path / "again").read_bytes() == log.read_bytes()


def test_log_is_json_without_nan_and_tells_everything(log: Path) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    rows = [json.loads(line, parse_constant=refuse) for line in log.read_text().splitlines()]
    assert rows[0]["format"] == "coppice-autolrs"
    kinds = [row["event"] for row in rows]
    assert kinds[:2] == ["start", "kept"]
    assert kinds.count("trial") == 30
    assert kinds[-1] == "finished"
    assert {row["verdict"] for row in rows if row["event"] == "trial"} >= {"ok", "not finite"}
    assert all(len(row["losses"]["steps"]) <= 201 for row in rows if "losses" in row)


def test_curves_are_thinned_to_their_end() -> None:
    thin = curve(range(1000), [float(step) for step in range(1000)])
    assert len(thin.steps) == 201
    assert thin.steps[-1] == 999


def test_a_torn_last_line_is_left_out(log: Path, tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    torn.write_bytes(log.read_bytes()[:-10])
    assert read_events(torn) == read_events(log)[:-1]


def test_a_resumed_log_takes_lines_back(log: Path, tmp_path: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    copy = tmp_path / "copy"
    copy.write_bytes(b"".join(lines) + b'{"torn')
    again = EventLog(copy, read_search(log).start.settings)
    again.resume(5)
    again.write(read_events(log)[5:7])
    assert copy.read_bytes() == b"".join(lines[:7])
    again.resume(99)
    with pytest.raises(InputError, match="expected 99 lines"):
        again.write(read_events(log)[:1])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "begins with format"),
        ('{"event":"nonsense"}\n', ":1"),
        ("[1]\n", ":1"),
        ('{"event":"finished","kept_steps":1,"search_steps":1,"lost_steps":0}\n', "begins with format"),
    ],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "other").write_text(text)
    with pytest.raises(InputError, match=words):
        read_events(tmp_path / "other")
    with pytest.raises(InputError, match="cannot read"):
        read_events(tmp_path / "missing")


@pytest.mark.parametrize("suffix", [".svg", ".html", ".png"])
@pytest.mark.spread(3)
def test_pictures_are_drawn_and_repeat(log: Path, suffix: str, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws")
    size = write_report(log, tmp_path / f"a{suffix}")
    write_report(log, tmp_path / f"b{suffix}")
    content = (tmp_path / f"a{suffix}").read_bytes()
    assert len(content) == size > 10_000
    assert content == (tmp_path / f"b{suffix}").read_bytes()
    if suffix == ".png":
        assert content.startswith(b"\x89PNG")
        return
    text = content.decode()
    ET.fromstring(text[text.index("<svg") : text.rindex("</svg>") + 6])
    if suffix == ".html":
        page = ET.fromstring(text.partition("\n")[2])
        words = " ".join(page.itertext())
        assert "Stages that began again" in words
        assert words.count(" chosen ") == 3
        assert "http://www.w3.org" in text
        assert "<script" not in text


def test_a_training_that_still_runs_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws")
    early = written(tmp_path / "log", kept_steps=None, most=400)
    assert read_search(early).finished is None
    assert write_report(early, tmp_path / "early.svg")


def test_what_cannot_be_drawn(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"\*\.html, \*\.svg, \*\.png, found 'a.pdf'"):
        write_report(log, tmp_path / "a.pdf")
    empty = tmp_path / "empty"
    empty.write_bytes(log.read_bytes().splitlines(keepends=True)[0])
    with pytest.raises(InputError, match="none yet"):
        read_search(empty)
    monkeypatch.setattr("coppice.training.autolrs.report.find_spec", lambda _: None)
    with pytest.raises(MissingExtraError, match=r"coppice\[autolrs\]"):
        write_report(log, tmp_path / "a.svg")


def test_command(log: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["lr-report", str(log)])
    assert shown.exit_code == 0
    assert "warm-up  20 steps up to lr 0.1" in shown.stdout
    assert shown.stdout.count("the best of 10 tried") == 3
    assert "lost in stages that failed" in shown.stdout
    record = json.loads(CliRunner().invoke(app, ["lr-report", str(log), "--json"]).stdout)
    assert record["finished"]
    assert sum(part["steps"] for part in record["schedule"]) == 4620
    assert record["lost_steps"] == sum(e.steps for e in read_events(log) if isinstance(e, Retreat)) > 0
    if pytest.importorskip("matplotlib", reason="matplotlib draws"):
        done = CliRunner().invoke(app, ["lr-report", str(log), "-o", str(tmp_path / "r.html")])
        assert done.exit_code == 0
        assert (tmp_path / "r.html").read_text().startswith("<!DOCTYPE html>")


def test_the_room_needs_no_torch() -> None:
    script = (
        "import sys, coppice.training, coppice.training.autolrs, coppice.training.autolrs.report; "
        "print(*sorted({'torch', 'scipy', 'matplotlib', 'rich'} & {name.split('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_missing_torch_is_named() -> None:
    script = (
        "import importlib.util as u; f = u.find_spec; "
        "u.find_spec = lambda name, *a: None if name == 'torch' else f(name, *a)\n"
        "try:\n    import coppice.training.torch\nexcept Exception as e:\n    print(type(e).__name__, e)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(
        "MissingExtraError this needs the package torch: run `pip install 'coppice[autolrs]'"
    )
