"""Pages whose commands and interactive sessions need nothing else print what they show."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from coppice.simulation.channels import protocols
from support.pages import coppice, examples, page_text, run_page, run_session
from support.paths import ROOT


def test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPPICE_CACHE", str(tmp_path))
    assert run_session("run.md") > 10
    assert len(list((tmp_path / "plans").iterdir())) == 2  # the plans of the communicator


@pytest.mark.parametrize(
    ("page", "count"), [("iteration.md", 6), ("scheduling.md", 6), ("jobs.md", 6), ("python.md", 31)]
)
def test_sessions(page: str, count: int) -> None:
    assert run_session(page) >= count


@pytest.mark.parametrize(("page", "count"), [("simulation.md", 6), ("placement.md", 4)])
def test_all_blocks(page: str, count: int, tmp_path: Path) -> None:
    assert run_page(page, tmp_path) == count


def test_the_table_of_protocols_is_the_data() -> None:
    for name, each in protocols().items():
        row = next(line for line in page_text("simulation.md").splitlines() if line.startswith(f"| `{name}`"))
        for figure in (each.start_us, each.box_us, each.network_us):
            assert f"{figure:g} us" in row
        limits = each.channel_gb_per_s or each.gpu_gb_per_s
        assert ", ".join(f"{limits[g][0]:g}" for g in ("ampere", "hopper", "blackwell")) in row


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_the_notebook() -> None:
    """That of docs/python.md runs, and shows tables and pictures."""
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    notebook = nbformat.read(ROOT / "examples" / "two-boxes.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear its outputs before it is kept"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(pages) == 6
    assert all("<svg" in page and "<dl>" in page for page in pages)
    assert any("0.84% of the rate is lost" in output.get("text", "") for output in outputs)


@pytest.mark.parametrize(
    ("page", "count"),
    [
        ("tuning.md", 3),
        ("selection.md", 3),
        pytest.param("iteration.md", 19, marks=pytest.mark.slow),
        ("jobs.md", 4),
        ("json.md", 1),
    ],
)
def test_commands(page: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    shown = [each for each in examples(page) if each.command.startswith("coppice ")]
    assert len(shown) >= count
    for each in shown:
        if "module.py:" in each.command and find_spec("torch") is None:
            continue  # traces a module of PyTorch
        done = coppice(*each.words)
        assert done.exit_code == 0, done.output
        assert done.stdout == each.shown
