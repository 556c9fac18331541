"""docs/simulation.md shows what the commands print: all of its examples are run."""

from __future__ import annotations

from pathlib import Path

from coppice.simulation.channels import protocols
from support.pages import page_text, run_page


def test_examples_print_what_is_shown(tmp_path: Path) -> None:
    assert run_page("simulation.md", tmp_path) == 5


def test_the_table_of_protocols_is_the_data() -> None:
    page = page_text("simulation.md")
    for name, each in protocols().items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}`"))
        for figure in (each.start_us, each.box_us, each.network_us):
            assert f"{figure:g} us" in row
        limits = each.channel_gb_per_s or each.gpu_gb_per_s
        assert ", ".join(f"{limits[g][0]:g}" for g in ("ampere", "hopper", "blackwell")) in row
