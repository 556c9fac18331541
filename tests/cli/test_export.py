"""`coppice export`: formats with their options, pictures, and standard input for plans and algorithm files alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Run, write
from coppice.bounds.problem import Problem
from coppice.cli.export import FLAGS, NAMES, PICTURES, SOURCE_FLAGS, flags_of
from coppice.collectives import Collective
from coppice.export.formats import FORMATS
from coppice.planners.planning import plan as make
from coppice.schedule.files.plan_file import write_plan
from coppice.topology.presets import preset


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("export") / "plan.json"
    problem = Problem(topology=preset("dgx-a100"), collective=Collective.ALL_GATHER)
    write_plan(make(problem, trees=1).plan, path)
    return path


ALL_FLAGS = {*FLAGS.values(), *SOURCE_FLAGS, "--option"}


def test_every_format_takes_options_that_exist() -> None:
    summaries = {**PICTURES, **{name: chosen.summary for name, chosen in FORMATS.items()}}
    assert sorted(NAMES) == sorted(summaries)
    for name in NAMES:
        assert set(flags_of(name)) <= ALL_FLAGS, name
        assert summaries[name].endswith(".")
    assert set().union(*map(flags_of, NAMES)) == ALL_FLAGS


def test_options_of_other_formats_are_refused(run: Run, plan: Path) -> None:
    values = {
        "--out-of-place": [],
        "--in-place": [],
        "--channels": ["2"],
        "--boxes": ["2"],
        "--ranks": ["0-3"],
        "--instances": ["2"],
    }
    for name in NAMES:
        for flag in ALL_FLAGS - set(flags_of(name)):
            done = run("export", plan, "--to", name, flag, *values.get(flag, ["x=1"]))
            assert done.code == 2
            assert f"{flag} does not go with --to {name}" in done.err
    done = run("export", plan, "--to", "chakrra")
    assert done.code == 2
    assert "there is no export 'chakrra'" in done.err


def test_pictures_are_those_of_report_and_simulate(run: Run, plan: Path, tmp_path: Path) -> None:
    for suffix in ("html", "svg", "dot"):
        assert run("report", plan, "-o", tmp_path / f"one.{suffix}").code == 0
        assert run("export", plan, "--to", suffix, "-o", tmp_path / f"two.{suffix}").code == 0
        assert (tmp_path / f"one.{suffix}").read_bytes() == (tmp_path / f"two.{suffix}").read_bytes()
    assert run("export", plan, "--to", "dot").out == (tmp_path / "one.dot").read_text()
    trace = tmp_path / "trace.json"
    assert run("simulate", plan, "--size", "1M", "--trace", trace).code == 0
    assert run("export", plan, "--to", "trace", "--size", "1M", "-o", tmp_path / "again.json").code == 0
    assert (tmp_path / "again.json").read_bytes() == trace.read_bytes()
    assert "a trace is a file" in run("export", plan, "--to", "trace").err


def test_standard_input_is_xml_or_a_plan(run: Run, plan: Path) -> None:
    arguments = ("--to", "msccl-xml", "--target", "msccl")
    text = run("export", plan, *arguments).out.encode()
    assert text.startswith(b"<!--")
    assert run("export", "-", *arguments, stdin=plan.read_bytes()).out.encode() == text
    assert run("export", "-", *arguments, stdin=text).code == 0
    verified = run("verify", "-", "--json", stdin=text)
    assert verified.code == 0
    assert json.loads(verified.out)["fifo_depth"] == 2
    assert "8 trees" in run("verify", "-", stdin=plan.read_bytes()).out
    examined = run("doctor", "-", "--target", "msccl", stdin=text)
    assert examined.code == 0
    assert "standard input for microsoft/msccl: it loads" in examined.out
    assert "56" in run("import", "-", stdin=text).out
    for command in (("import", "-"), ("doctor", "-", "--target", "msccl")):
        refused = run(*command, stdin=plan.read_bytes())
        assert refused.code == 2
        assert "found a plan, which `coppice verify`" in refused.err
    wrong = text.replace(b'dstoff="3"', b'dstoff="4"', 1)
    assert run("verify", "-", stdin=wrong).code == 1


def test_msccl_xml_says_what_was_chosen(run: Run, plan: Path, tmp_path: Path) -> None:
    to = ("--to", "msccl-xml", "--target")
    done = run("export", plan, *to, "msccl", "--instances", "2", "-o", tmp_path / "a.xml")
    assert done.code == 0
    assert (
        "note: 2 instances: 28 thread blocks and 2 channels of a GPU instead of 14 and 1; the busiest"
        in done.err
    )
    assert "sends 21.4 GB/s at the plan's rate instead of 42.9 (one sends about 24 with Simple)" in done.err
    assert "note: messages of 256K and more use it, by simulation: at 256K" in done.err
    assert 'minBytes="262144" maxBytes="4294967297"' in (tmp_path / "a.xml").read_text()
    assert "note: microsoft/msccl needs an upper limit" in done.err
    assert "messages of up to 4G use it, for 0 of scratch on a GPU; `--size LOW:HIGH` sets it" in done.err
    done = run("export", plan, *to, "rccl", "-o", tmp_path / "b.xml")
    assert "calls in place and out of place use it" in done.err
    assert "`--instances 2` spreads it" in done.err
    text = (tmp_path / "b.xml").read_text()
    assert 'inplace="1" outofplace="1"' in text
    assert run("verify", tmp_path / "b.xml").code == 0
    for flags, switches in (
        (("--in-place",), 'inplace="1" outofplace="0"'),
        (("--out-of-place",), 'inplace="0" outofplace="1"'),
        (("--in-place", "--out-of-place"), 'inplace="1" outofplace="1"'),
    ):
        assert switches in run("export", plan, *to, "rccl", "--size", "all", *flags).out
    done = run("export", plan, *to, "rccl", "--size", "all", "--trees", "3")
    assert 'minBytes="0" maxBytes="0"' in done.out
    assert "planned again with 3 trees per root" in done.err
    done = run("export", plan, *to, "rccl", "--instances", "3", "--size", "1K,1M")
    assert "at 2 of 2 sizes from 1K to 1M it is not used: 1K is no multiple of 96" in done.err
    assert 'minBytes="1024" maxBytes="1048576"' in done.out
    slow = run("export", plan, *to, "rccl", "--trees", "64", "--channels", "1", "--instances", "2")
    assert slow.code == 1
    assert "at most 1 instances, one channel each, found 2" in slow.err


def test_msccl_xml_says_whether_nics_are_kept(run: Run, tmp_path: Path) -> None:
    nodes: list[dict[str, object]] = [{"id": f"plane{plane}", "kind": "switch"} for plane in range(2)]
    nodes += [{"id": f"gpu{gpu}", "kind": "gpu", "host": f"host{gpu}"} for gpu in range(3)]
    links: list[dict[str, object]] = [
        {"from": f"gpu{gpu}", "to": f"plane{plane}", "gb_per_s": 50 - 25 * plane}
        for gpu in range(3)
        for plane in range(2)
    ]
    planes, plan, xml = write(tmp_path / "planes.json", nodes, links), tmp_path / "p.json", tmp_path / "p.xml"
    assert run("plan", planes, "--collective", "all_gather", "-o", plan).code == 0
    arguments = ("--to", "msccl-xml", "--trees", "plan", "--size", "3M", "-o", xml, "--target")
    assert "one NIC of a GPU whatever the channel" in run("export", plan, *arguments, "msccl").err
    done = run("export", plan, *arguments, "azure-executor")
    assert (
        "every NIC carries what the plan says: a GPU with n NICs to itself sends by NIC c mod n" in done.err
    )
    shown = run("import", xml, "--topology", planes)
    assert "algbw 112.5 GB/s" in shown.out
    assert "12 of them by the NIC of their channel" in shown.out
    assert "by default routes" in run("import", xml).out
