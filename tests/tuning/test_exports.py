"""Tables in the form of each library: the rules are there, the default stays elsewhere, checks notice losses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from typer.testing import CliRunner

from coppice.cli.tune import app
from coppice.collectives import Collective
from coppice.errors import CheckError, InputError
from coppice.topology.presets import preset
from coppice.tuning.exports import export_table
from coppice.tuning.fit import fit_runs
from coppice.tuning.nccl_sweep import load_table
from coppice.tuning.records import LibraryChoice, encode_run
from coppice.tuning.report import bounds_us, tuning_html
from coppice.tuning.sweep import check_runs, sweep_mpi
from coppice.tuning.table import RuleTable, encode_table
from coppice.tuning.worker import Spec
from export.ompi_reader import classic
from run.engines.mpi.launching import HOME, environment, reason_to_skip, run_mpi
from support.tuning_made_runs import made_runs

SIZES = [1 << power for power in (10, 12, 14, 16, 18, 20)]
LARGE = {**dict.fromkeys(SIZES[:3], 1.0), **dict.fromkeys(SIZES[3:], 2.0)}


def table(
    library: str, protocol: str = "", numbers: dict[str, int] | None = None, **gains: dict[int, float]
) -> RuleTable:
    runs = made_runs(gains, library=library, protocol=protocol)
    runs = [
        type(run)(**{**{name: getattr(run, name) for name in run.__struct_fields__}, "choice": choice})
        for run in runs
        for choice in [
            LibraryChoice(run.choice.algorithm, protocol, 0, 0, (numbers or {}).get(run.choice.algorithm, 0))
        ]
    ]
    return RuleTable.of(fit_runs(runs), topology="two boxes 0123456789abcdef")


def test_tuner_table_of_nccl() -> None:
    made = export_table(table("nccl", "ll", ring=LARGE), "nccl-tuner")
    rules = load_table(made.text.encode())
    cells = [("ring", "ll"), ("tree", "simple")]
    decided = [rules.decide("allreduce", size, nodes=2, ranks=4, available=cells) for size in SIZES]
    assert [line is not None for line in decided] == [False, False, False, True, True, True]
    assert rules.decide("allreduce", SIZES[-1], nodes=2, ranks=8, available=cells) is None
    assert rules.decide("allgather", SIZES[-1], nodes=2, ranks=4, available=cells) is None
    assert made.notes[-1] == "undo: unset NCCL_TUNER_PLUGIN"
    assert "# topology two boxes 0123456789abcdef" in made.text
    assert "# library 5.0" in made.text


def test_csv_of_rccl() -> None:
    made = export_table(table("rccl", "ll", ring=LARGE), "rccl-csv")
    assert "allreduce,32769,2097152,ring,ll,-1,2,4" in made.text
    assert made.notes[-1] == "undo: unset NCCL_TUNER_CONFIG_FILE"
    with pytest.raises(InputError, match="no algorithm nvls"):
        export_table(table("rccl", "simple", nvls=LARGE), "rccl-csv")


def test_rules_file_of_open_mpi() -> None:
    made = export_table(table("open-mpi", numbers={"ring": 4}, ring=LARGE), "ompi-rules")
    fewer, exact, others = classic(made.text)["allreduce"]
    assert [rule.algorithm for rule in fewer.rules] == [0]
    assert (exact.least, others.least) == (4, 5)
    assert [(rule.least, rule.algorithm) for rule in exact.rules] == [(0, 0), (32769, 4), (2097153, 0)]
    assert [rule.algorithm for rule in others.rules] == [0]
    with pytest.raises(InputError, match="no number"):
        export_table(table("open-mpi", ring=LARGE), "ompi-rules")
    with pytest.raises(CheckError, match="breaks rule O03 of ompi-rules"):
        export_table(table("open-mpi", numbers={"ring": 9}, ring=LARGE), "ompi-rules")


def test_rules_of_open_mpi_6_are_json() -> None:
    """From 6.0 on the classic form means something else."""
    measured = replace(table("open-mpi", numbers={"ring": 4}, ring=LARGE), version="6.0.0rc1")
    made = export_table(measured, "ompi-rules")
    assert made.suffix == ".json"
    assert json.loads(made.text)["module"] == "tuned"
    late = replace(table("open-mpi", numbers={"ring": 7}, ring=LARGE), version="6.0.0")
    assert export_table(late, "ompi-rules").suffix == ".json"  # 5.0 has no algorithm 7


def test_variables_of_mpich() -> None:
    """One algorithm for all sizes: it must be nowhere slower."""
    everywhere = {**dict.fromkeys(SIZES[:3], 1.0), **dict.fromkeys(SIZES[3:], 1.5)}
    harmful = {**dict.fromkeys(SIZES[:3], 0.8), **dict.fromkeys(SIZES[3:], 3.0)}
    found = table("mpich", ring=everywhere, tree=harmful)
    made = export_table(found, "mpich-env")
    lines = [line for line in made.text.splitlines() if not line.startswith("#")]
    assert lines == ["MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring", "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE=0"]
    with pytest.raises(InputError, match="nothing to export"):
        export_table(table("mpich", tree=harmful), "mpich-env")
    with pytest.raises(CheckError, match="breaks rule M03 of mpich-env"):
        export_table(table("mpich", rings=everywhere), "mpich-env")
    little = made_runs({"ring": {1024: 0.985, 1 << 20: 3.0}}, library="mpich", noise=0.0005)
    assert not RuleTable.of(fit_runs(little)).changed  # 1.5 percent slower, but surely so


@pytest.mark.parametrize("form", ["nccl-tuner", "rccl-csv", "mpich-env"])
def test_the_form_of_another_library_is_refused(form: str) -> None:
    with pytest.raises(InputError, match="the table is for open-mpi"):
        export_table(table("open-mpi", ring=LARGE), form)


def test_check_passes_and_fails(tmp_path: Path) -> None:
    rules = table("mpich", ring=dict.fromkeys(SIZES, 1.5))
    good = made_runs({"ring": dict.fromkeys(SIZES, 1.3)}, library="mpich", seed=9)
    bad = made_runs({"ring": {**dict.fromkeys(SIZES, 1.3), SIZES[2]: 0.8}}, library="mpich", seed=9)
    assert not any(each.slower for each in check_runs(rules, good))
    assert [each.size_bytes for each in check_runs(rules, bad) if each.slower] == [SIZES[2]]
    with pytest.raises(InputError, match="no rule of the table was measured"):
        check_runs(rules, made_runs({"tree": dict.fromkeys(SIZES, 1.0)}, library="mpich"))
    with pytest.raises(InputError, match="found nccl"):
        check_runs(rules, made_runs({"ring": dict.fromkeys(SIZES, 1.0)}, library="nccl"))
    (tmp_path / "table.csv").write_text(encode_table(rules))
    for name, runs in (("good", good), ("bad", bad)):
        (tmp_path / name).write_bytes(b"".join(map(encode_run, runs)))
    words = ["check", str(tmp_path / "table.csv")]
    fine = CliRunner().invoke(app, [*words, str(tmp_path / "good")])
    assert fine.exit_code == 0, fine.output
    assert "undo: unset the variables of the file" in fine.output
    failed = CliRunner().invoke(app, [*words, str(tmp_path / "bad")])
    assert isinstance(failed.exception, CheckError)
    assert "all_reduce on 2x4 of 16K by ring" in str(failed.exception)
    assert json.loads(CliRunner().invoke(app, [*words, str(tmp_path / "good"), "--json"]).output)["ok"]


@pytest.mark.parametrize("library", ["open-mpi", pytest.param("mpich", marks=pytest.mark.slow)])
def test_rules_take_effect_in_the_library(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the exported rules, sums come out as by the algorithm of the rule, bit by bit; without them, they do not."""
    from coppice.tuning.exports import deployed_environment

    reason = reason_to_skip(library)
    if reason:
        pytest.skip(reason)
    name, number = {"open-mpi": ("basic_linear", 1), "mpich": ("tree", 0)}[library]
    rules = table(library, numbers={name: number}, **{name: dict.fromkeys(SIZES, 2.0)})
    worker = str(Path(__file__).parent / "bits_worker.py")
    words = [worker, library, "deployed", "deployed", name]
    for variables, same in ((deployed_environment(rules, tmp_path), True), ({}, False)):
        if library == "open-mpi":
            variables = {"OMPI_MCA_coll_tuned_use_dynamic_rules": "1", **variables}
        done = run_mpi(library, 4, words, timeout_s=60, variables=variables)
        assert done.returncode == 0, done.stderr
        deployed, forced, default = json.loads(done.stdout)
        assert (deployed == forced) is same
        assert default != forced
    for key, value in environment(library).items():
        monkeypatch.setenv(key, value)
    runs = tmp_path / "runs.jsonl"
    spec = Spec(
        library=library, collectives=[Collective.ALL_REDUCE], sizes=[4096], rounds=1, output=str(runs)
    )
    launcher = str(HOME / library / "bin" / "mpiexec")
    sweep_mpi(spec, ranks=2, launcher=launcher, timeout_s=60)
    (tmp_path / "table.csv").write_text(encode_table(rules))
    found = CliRunner().invoke(
        app,
        [
            "check",
            str(tmp_path / "table.csv"),
            str(runs),
            "--num-ranks",
            "2",
            "--launcher",
            launcher,
            "-n",
            "2",
            "--json",
        ],
    )
    assert json.loads(found.output[found.output.index("{") :])["sizes"][0]["size_bytes"] == 4096


def test_export_command(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text(encode_table(table("open-mpi", numbers={"ring": 4}, ring=LARGE)))
    rules = tmp_path / "rules.conf"
    found = CliRunner().invoke(
        app, ["export", str(tmp_path / "table.csv"), "--to", "ompi-rules", "-o", str(rules)]
    )
    assert found.exit_code == 0, found.output
    assert "undo: unset OMPI_MCA_coll_tuned_use_dynamic_rules" in found.output
    assert f"filename={rules}" in found.output
    assert classic(rules.read_text())
    found = CliRunner().invoke(app, ["export", str(tmp_path / "table.csv"), "--to", "ompi"])
    assert "one of nccl-tuner" in str(found.exception)


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
