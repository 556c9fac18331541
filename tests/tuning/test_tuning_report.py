"""The page of a fit: well-formed, self-contained, and the figures of the fit are in it."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from typer.testing import CliRunner

from coppice.cli.tune import app
from coppice.collectives import Collective
from coppice.topology.presets import preset
from coppice.tuning.fit import fit_runs
from coppice.tuning.records import encode_run
from coppice.tuning.report import bounds_us, tuning_html
from support.tuning_made_runs import made_runs

GAINS = {"ring": {1024: 1.0, 65536: 1.5, 1 << 20: 2.5}}


def runs() -> list:
    return [*made_runs(GAINS), *made_runs({"binomial": {1024: 1.4}}, collective=Collective.BROADCAST)]


def page_of(text: str) -> ET.Element:
    return ET.fromstring(text.removeprefix("<!DOCTYPE html>\n"))


def test_cells_are_those_of_the_fit() -> None:
    topology = preset("star", gpus=4, gb_per_s=1)
    found = fit_runs(runs(), bounds_us=bounds_us(runs(), topology))
    text = tuning_html(found, topology="star <&>")
    page = page_of(text)
    gain, bound = (
        next(each for each in page.iter() if each.get("class") == f"picture {name}")
        for name in ("gain", "bound")
    )
    space = "{http://www.w3.org/2000/svg}"
    cells = [each.text or "" for each in gain.iter(f"{space}text") if each.get("class") == "cell"]
    taken = [size.taken for each in found.sizes.values() for size in each]
    assert cells == ["" if each is None else f"{each.verdict.gain:.2f}" for each in taken]
    assert cells.count("") == 1
    strengths = [float(each.get("fill-opacity", 0)) for each in gain.iter(f"{space}rect")]
    assert strengths[0] == 0
    assert strengths[1] < strengths[2]  # the larger gain has the stronger colour
    shares = [size.reached(size.time_us) for each in found.sizes.values() for size in each]
    shown = [each.text for each in bound.iter(f"{space}text") if each.get("class") == "cell"]
    assert shown == [f"{100 * share:.3g} %" for share in shares if share is not None]
    assert "star &lt;&amp;&gt;" in text
    assert not re.search(r"(src|href)=", text)


def test_without_a_bound_there_is_one_map() -> None:
    text = tuning_html(fit_runs(runs()))
    assert 'class="picture gain"' in text
    assert 'class="picture bound"' not in text
    assert text == tuning_html(fit_runs(runs()))


def test_command(tmp_path: Path) -> None:
    (tmp_path / "runs.jsonl").write_bytes(b"".join(map(encode_run, runs())))
    page = tmp_path / "page.html"
    found = CliRunner().invoke(app, ["report", str(tmp_path / "runs.jsonl"), "-o", str(page)])
    assert found.exit_code == 0, found.output
    assert "undo: unset OMPI_MCA" in found.output
    assert page_of(page.read_text()).tag == "html"
