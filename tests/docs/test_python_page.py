"""docs/python.md is one session that prints what it shows; its notebook runs, and shows tables and pictures."""

from __future__ import annotations

import pytest

from support.pages import run_session
from support.paths import ROOT

NOTEBOOK = ROOT / "examples" / "two-boxes.ipynb"


def test_the_study() -> None:
    assert run_session("python.md") > 30


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.slow
def test_the_notebook() -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbclient is not installed")
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear its outputs before it is kept"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pages = [output.data["text/html"] for output in outputs if "text/html" in output.get("data", {})]
    assert len(pages) == 6
    assert all("<svg" in page and "<dl>" in page for page in pages)
    assert any("0.84% of the rate is lost" in output.get("text", "") for output in outputs)
