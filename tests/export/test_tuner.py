"""Tuner tables: an independent reader of each dialect finds the best choice at every size, and no trap is left."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coppice.cli.export import RUNTIMES, export, option_help
from coppice.collectives import Collective
from coppice.errors import InputError
from coppice.export.formats import FORMATS, MODEL, Dialect, Exported, NcclTunerOptions
from coppice.export.nccl.tuner import export_nccl_tuner, tuner_table
from coppice.fitting.nccl_tuner import (
    COLLECTIVES,
    NO_END,
    TunerRule,
    TunerTiming,
    further_rules,
    impossible,
    model_timings,
    read_timings,
    rules_of,
)
from coppice.selection import select
from coppice.topology.model import Topology
from coppice.topology.presets import preset
from export import tuner_readers as readers

SIZES = tuple(1 << power for power in range(10, 33))
HEAD = "collective,nodes,ranks,size_bytes,algorithm,protocol,time_us\n"


def tuner(topology: Topology, **options: Any) -> Exported:
    return export_nccl_tuner(topology, NcclTunerOptions(**options))


def read(text: str, dialect: str) -> list[readers.Line]:
    if dialect == "ncclx":
        return readers.read_ncclx(text)
    return readers.read_bytes_dialect(text, rccl=dialect == "rccl-builtin")


def timing(size: int, algorithm: str | None, time_us: float, **values: object) -> TunerTiming:
    given: dict[str, object] = {
        "collective": Collective.ALL_REDUCE,
        "nodes": 2,
        "ranks": 16,
        "protocol": None if algorithm is None else "simple",
    }
    given.update(values)
    return TunerTiming(size_bytes=size, algorithm=algorithm, time_us=time_us, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", ["nvidia-example", "ncclx"])
@pytest.mark.parametrize(("name", "boxes"), [("dgx-h100", 1), ("dgx-h100", 4), ("dgx-a100", 2)])
def test_the_table_says_what_the_model_finds(dialect: str, name: str, boxes: int) -> None:
    """At every size that the model was asked about, the table picks the least predicted time, or nearly."""
    topology = preset(name, boxes=boxes)
    lines = read(tuner(topology, dialect=dialect, sizes=SIZES).text, dialect)
    for collective, word in COLLECTIVES.items():
        for size in SIZES:
            call = readers.Call(word, size, boxes, topology.num_ranks)
            line = readers.picked(lines, call, ncclx=dialect == "ncclx")
            assert line is not None
            best = select("nccl", collective, size, topology=topology)
            times = {
                (cell.algorithm.lower(), cell.protocol.lower()): cell.time_us
                for cell in best.cells
                if cell.time_us is not None
            }
            least = min(times.values())
            assert times[line.algorithm.replace("_", ""), line.protocol] <= least * 1.1 + 1e-9


@pytest.mark.parametrize("dialect", ["nvidia-example", "ncclx"])
def test_no_gap_and_no_overlap(dialect: str) -> None:
    lines = read(tuner(preset("dgx-h100", boxes=4), dialect=dialect, sizes=SIZES).text, dialect)
    ncclx = dialect == "ncclx"
    for word in COLLECTIVES.values():
        own = [line for line in lines if line.collective == word and line.nodes.stop == line.nodes.start + 1]
        ranges = list(dict.fromkeys((line.sizes.start, line.sizes.stop) for line in own))
        assert ranges[0][0] == 0
        assert ranges[-1][1] == 2**64
        assert [stop for _, stop in ranges[:-1]] == [start for start, _ in ranges[1:]]
        for edge in [stop for _, stop in ranges[:-1]]:
            for size in (edge - 1, edge, edge + 1):
                call = readers.Call(word, size * (32 if ncclx else 1), 4, 32)
                assert readers.picked(lines, call, ncclx=ncclx) is not None


def test_the_example_plugin_never_falls_to_one_channel() -> None:
    """Every call of every shape and size meets a line whose combination is always there, also far beyond 4 GiB."""
    made = tuner(preset("dgx-h100", boxes=4), dialect="nvidia-example", sizes=SIZES)
    lines = read(made.text, "nvidia-example")
    always = frozenset(
        (algorithm, protocol)
        for algorithm in readers.ALGORITHMS
        for protocol in readers.PROTOCOLS
        if algorithm not in ("ring", "tree") or protocol == "ll128"
    )
    for word in COLLECTIVES.values():
        for nodes, ranks in ((4, 32), (1, 8), (4, 16), (1000, 8000)):
            for size in (0, 1, 2**16, 2**16 + 1, 2**32 - 1, 2**32, 2**63, 2**64 - 1):
                line = readers.picked(lines, readers.Call(word, size, nodes, ranks), missing=always)
                assert line is not None
                assert line.channels == 0


def test_optional_hardware_has_a_fallback() -> None:
    lines = read(tuner(preset("dgx-h100", boxes=4), dialect="ncclx", sizes=SIZES).text, "ncclx")
    optional = [line for line in lines if line.algorithm not in ("ring", "tree") or line.protocol == "ll128"]
    assert optional
    for line in optional:
        after = lines[lines.index(line) + 1]
        assert (after.collective, after.sizes) == (line.collective, line.sizes)
        assert after.algorithm in ("ring", "tree")
        assert after.protocol in ("ll", "simple")


def test_measured_times(tmp_path: Path) -> None:
    table = tmp_path / "times.csv"
    table.write_text(
        "# a comment\n"
        "collective,nodes,ranks,size_bytes,algorithm,protocol,channels,time_us,spread\n"
        "allreduce,2,16,1024,default,,,20,0.01\n"
        "allreduce,2,16,1024,tree,ll,,10,0.01\n"
        "all_reduce,2,16,1024,ring,ll,0,15,0.01\n"
        "AllReduce,2,16,1048576,default,,,100,0.01\n"
        "allreduce,2,16,1048576,tree,simple,,99,0.01\n"
        "allreduce,2,16,1073741824,default,,,1000,0.01\n"
        "allreduce,2,16,1073741824,ring,simple,32,700,0.01\n"
    )
    topology = preset("mi300x", boxes=2)
    made = tuner(topology, dialect="rccl-builtin", times=table)
    lines = read(made.text, "rccl-builtin")
    assert [(line.sizes, line.algorithm, line.protocol, line.channels) for line in lines] == [
        (range(32769), "tree", "ll", -1),
        (range(33554433, 2**64), "ring", "simple", 32),
    ]
    assert "# expected: 2 times as fast as the default" in made.text
    assert any("1.43 to 2 times" in note for note in made.notes)
    body = made.text.partition("below: ")[2]
    digest, _, rest = body.partition("\n")
    assert hashlib.sha256(rest.encode()).hexdigest() == digest
    whole = read(tuner(topology, dialect="nvidia-example", times=table).text, "nvidia-example")
    assert [line.algorithm for line in whole[:3]] == ["tree", "tree", "ring"]
    with pytest.raises(InputError, match="cost model is that of NCCL"):
        tuner(topology, dialect="rccl-builtin")
    with pytest.raises(InputError, match="either times or inputs"):
        tuner(topology, times=table, model="channels=2")


def test_thresholds_of_rules() -> None:
    def made(*rows: TunerTiming) -> list[tuple[str, int, int]]:
        rules = rules_of(rows, algorithms=("ring", "tree"))
        return [(rule.algorithm, rule.first_bytes, rule.last_bytes) for rule in rules]

    assert made(timing(8, None, 100), timing(8, "ring", 97)) == [("ring", 0, NO_END)]
    assert made(timing(8, None, 100), timing(8, "ring", 97.1)) == []
    assert made(timing(8, None, 100, spread=0.05), timing(8, "ring", 91)) == []
    assert made(timing(8, None, 100, spread=0.05), timing(8, "ring", 89.9)) == [("ring", 0, NO_END)]
    # A single size of another winner stays only where it gains more than ten percent.
    for middle, kept in ((91.0, False), (90.9, True)):
        rows = [
            timing(size, name, time)
            for size, ring, tree in ((8, 50.0, 60.0), (32, 100.0, middle), (128, 300.0, 400.0))
            for name, time in (("ring", ring), ("tree", tree))
        ]
        expected = [("ring", 0, 16), ("tree", 17, 64), ("ring", 65, NO_END)]
        assert made(*rows) == (expected if kept else [("ring", 0, NO_END)])
    # The median of several counts.
    assert made(
        timing(8, "ring", 1), timing(8, "ring", 30), timing(8, "ring", 40), timing(8, "tree", 20)
    ) == [("tree", 0, NO_END)]
    with pytest.raises(InputError, match="expected a time of ring"):
        rules_of([timing(8, "nvls", 1)], algorithms=("ring",))


def test_ncclx_ranges_in_bytes_per_rank() -> None:
    def rule(first: int, last: int) -> TunerRule:
        return TunerRule(
            collective=Collective.ALL_GATHER,
            first_bytes=first,
            last_bytes=last,
            nodes=2,
            ranks=6,
            algorithm="ring",
            protocol="ll",
        )

    text = tuner_table([rule(0, 100), rule(101, 102), rule(103, NO_END)], Dialect.NCCLX)
    assert [line.sizes for line in read(text, "ncclx")] == [range(17), range(17, 18), range(18, 2**64)]
    text = tuner_table([rule(0, 100), rule(101, 101), rule(102, NO_END)], Dialect.NCCLX)
    assert [line.sizes for line in read(text, "ncclx")] == [range(17), range(17, 2**64)]
    for nodes, words in ((None, "numbers of nodes"), (4, "equal nodes")):
        odd = replace(rule(0, 1), nodes=nodes)
        with pytest.raises(InputError, match=words):
            tuner_table([odd], Dialect.NCCLX)
    with pytest.raises(InputError, match="has no algorithm nvls"):
        tuner_table([replace(rule(0, 1), algorithm="nvls")], Dialect.RCCL_BUILTIN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no times"),
        (HEAD, "has a header and no times"),
        ("collective,nodes\n", "expected the columns"),
        (HEAD + "allreduce,2,16,8,ring\n", r"7 fields at .*:2, found 5"),
        (HEAD + "# note\n\nalltoall,2,16,8,ring,ll,1\n", r"a collective .*:4"),
        (HEAD + "allreduce,2,16,8,rings,ll,1\n", r"an algorithm .*:2"),
        (HEAD + "allreduce,2,16,8,ring,ll12,1\n", r"a protocol .*:2"),
        (HEAD + "allreduce,2,16,8,nvls,ll,1\n", r":2 has a combination that no library runs"),
        (HEAD + "allgather,2,16,8,tree,ll,1\n", "performs all_reduce only"),
        (HEAD + "allreduce,0,16,8,ring,ll,1\n", "nodes as an integer 1"),
        (HEAD + "allreduce,4,3,8,ring,ll,1\n", "as many ranks as nodes"),
        (HEAD + "allreduce,2,16,8,ring,ll,0\n", "time_us as a number above 0"),
        (HEAD + "allreduce,2,16,8,ring,ll,nan\n", "time_us as a number"),
        (
            HEAD.replace("time_us", "time_us,channels") + "allreduce,2,16,8,ring,ll,1,128\n",
            "channels as an integer 0 .. 127",
        ),
    ],
)
def test_bad_tables(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        read_timings(path)


def test_what_no_library_runs() -> None:
    assert impossible(Collective.ALL_REDUCE, "pat", "simple")
    assert impossible(Collective.REDUCE, "tree", "simple")
    assert impossible(Collective.ALL_GATHER, "nvls_tree", "simple")
    for boxes in (1, 2):
        for row in model_timings(preset("dgx-h100", boxes=boxes), [1 << 20])[0]:
            assert row.algorithm is not None
            assert row.protocol is not None
            assert impossible(row.collective, row.algorithm, row.protocol) is None


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "table.csv"
    options = ["dialect=ncclx", "sizes=1K:1G:4", "model=channels=16,bw_intra=20,bw_inter=24"]
    export("dgx-h100", to="nccl-tuner", boxes=2, options=options, output=path)
    assert len(readers.read_ncclx(path.read_text())) > 5
    assert "note: every rank must read the same file" in capsys.readouterr().err
    with pytest.raises(InputError, match="no input 'chanels'"):
        export("dgx-h100", to="nccl-tuner", boxes=2, options=["model=chanels=16"])
    with pytest.raises(InputError, match="inputs of the model such as"):
        export("dgx-h100", to="nccl-tuner", boxes=2, options=["model=channels"])
    with pytest.raises(InputError, match="2 ranks or more"):
        tuner(preset("star", gpus=1))


def test_further_shapes() -> None:
    """Gathers of further shapes change where as many bytes per rank do; all-reduces get nothing of that kind."""
    topology, sizes = preset("dgx-h100", boxes=2), [1 << power for power in range(10, 31, 2)]
    lines = read(
        tuner(topology, dialect="nvidia-example", sizes=sizes, shapes=["4x32", "2x16"]).text, "nvidia-example"
    )
    for size in (*sizes, *(size + 16 for size in sizes)):
        for word in ("allgather", "reducescatter"):
            own = readers.picked(lines, readers.Call(word, size, 2, 16))
            other = readers.picked(lines, readers.Call(word, 2 * size, 4, 32))
            assert own is not None
            assert other is not None
            assert (own.algorithm, own.protocol) == (other.algorithm, other.protocol)
            assert other.nodes == range(4, 5)
    assert not [line for line in lines if line.collective == "allreduce" and line.nodes == range(4, 5)]
    derived = [line for line in lines if line.collective == "allgather" and line.nodes == range(4, 5)]
    spans = list(dict.fromkeys((line.sizes.start, line.sizes.stop) for line in derived))
    assert [stop for _, stop in spans] == [*(start for start, _ in spans[1:]), 2**64]
    assert len([line for line in lines if line.nodes == range(2, 3)]) == len(
        [
            line
            for line in read(tuner(topology, dialect="nvidia-example", sizes=sizes).text, "nvidia-example")
            if line.nodes == range(2, 3)
        ]
    )
    anywhere = read(tuner(topology, dialect="ncclx", sizes=sizes, shapes=["any"]).text, "ncclx")
    for size in sizes:
        own = readers.picked(anywhere, readers.Call("allgather", size, 2, 16), ncclx=True)
        far = readers.picked(anywhere, readers.Call("allgather", 8 * size, 16, 128), ncclx=True)
        assert own is not None
        assert far is not None
        assert (own.algorithm, own.protocol) == (far.algorithm, far.protocol)
    assert readers.picked(anywhere, readers.Call("allreduce", 64, 16, 128), ncclx=True) is None
    for shapes, words in (
        (["any"], "only ncclx has them"),
        (["32"], "NODESxRANKS"),
        (["8x4"], "NODESxRANKS"),
    ):
        with pytest.raises(InputError, match=words):
            tuner(topology, sizes=sizes, shapes=shapes)
    with pytest.raises(InputError, match="to derive others from"):
        further_rules(rules_of([timing(8, "ring", 1)], algorithms=("ring",)), ["4x32"], any_allowed=True)


def test_version_in_the_head() -> None:
    topology = preset("dgx-h100", boxes=2)
    text = tuner(topology, sizes=[1024], library="2.27.7").text
    assert "# library 2.27.7\n" in text
    with pytest.raises(InputError, match="version of the library"):
        tuner(topology, sizes=[1024], library="new")


def test_help_lists_every_option() -> None:
    for name, target in FORMATS.items():
        if name in RUNTIMES:
            assert f"--to {name}:" not in option_help("")
            continue
        paragraph = next(text for text in option_help("").split("\n\n") if f"--to {name}:" in text)
        words = " ".join(paragraph.split())
        for key, option in target.options.items():
            if option.kind is MODEL:  # --model gives it
                continue
            assert f" {key}=" in words
            assert option.help in words


def test_pat_is_left_out_before_it_came(tmp_path: Path) -> None:
    times, topology = tmp_path / "times.csv", preset("dgx-h100", boxes=2)
    times.write_text(
        "collective,nodes,ranks,size_bytes,algorithm,protocol,channels,time_us,spread\n"
        "allgather,2,16,1024,default,,,20,0.01\n"
        "allgather,2,16,1024,pat,simple,,10,0.01\n"
        "allgather,2,16,1024,ring,ll,,15,0.01\n"
    )
    assert ",pat," in tuner(topology, times=times, library="2.23.4").text
    old = tuner(topology, times=times, library="2.22.3").text
    assert ",pat," not in old
    assert ",ring,ll," in old


def test_the_recommended_table_is_that_of_our_plugin() -> None:
    topology = preset("dgx-h100", boxes=2)
    assert "tuner table (coppice)" in tuner(topology).text
    notes = " ".join(tuner(topology, dialect="nvidia-example").notes)
    assert "2.27.7 to 2.29.7 crash" in notes
    assert "`dialect=coppice`" in notes
