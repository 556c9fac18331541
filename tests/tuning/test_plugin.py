"""The compiled tuner plugin does what its Python reference does, on NCCL's side of every API version."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from coppice.doctor import JobFacts, diagnose
from coppice.errors import CheckError, InputError
from coppice.export.nccl.tuner import Dialect
from coppice.fitting.nccl_tuner import ALGORITHMS, COLLECTIVES, PROTOCOLS
from coppice.tuning.building import build_plugin, compiler_found
from coppice.tuning.nccl_sweep import PluginTable, fingerprint, load_table

HERE = Path(__file__).parent
CELLS = [(algorithm, protocol) for algorithm in ALGORITHMS.values() for protocol in PROTOCOLS]
WORDS = list(COLLECTIVES.values())
SHAPES = [(1, 2), (1, 8), (2, 16), (4, 16), (16, 128), (1, 72)]
VERSIONS = (3, 4, 5, 6)
QUERY = np.dtype(
    [
        *((name, "<u8") for name in ("bytes", "nodes", "ranks")),
        *((name, "<i4") for name in ("function", "grouped", "registered", "zero")),
        *((name, "<u4") for name in ("available", "seed")),
    ]
)
ANSWER = np.dtype([(name, "<i4") for name in ("status", "cell", "channels", "touched")])

pytestmark = pytest.mark.skipif(
    compiler_found() is None, reason="the plugin is C, and there is no compiler here: install one or set CC"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The plugin, and the program that plays NCCL's side."""
    place = tmp_path_factory.mktemp("plugin")
    side = place / "nccl_side"
    flags = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, HERE / "nccl_side.c", "-o", side, "-ldl"], check=True)
    return build_plugin(place / "libnccl-tuner-coppice.so"), side


def ask(
    built: tuple[Path, Path], version: int, table: Path | None, queries: np.ndarray, strict: bool = False
) -> tuple[np.ndarray, str, int]:
    """Answers, log and exit code."""
    variables = {} if table is None else {"COPPICE_TUNER_TABLE": str(table)}
    done = subprocess.run(
        [built[1], built[0], str(version)],
        input=queries.tobytes(),
        capture_output=True,
        env={**variables, **({"COPPICE_TUNER_STRICT": "1"} if strict else {})},
        timeout=60,
    )
    return np.frombuffer(done.stdout, dtype=ANSWER), done.stderr.decode(), done.returncode


def random_table(random_: random.Random, sizes: list[int]) -> bytes:
    """Lines that overlap, leave gaps and name what is not there."""
    lines = ["# tuner table (coppice) for a test", "", "  # indented"]
    for _ in range(60):
        first, last = sorted(random_.choices([0, 2**64 - 1, *sizes], k=2))
        nodes, ranks = random_.choice([*SHAPES, (-1, -1), (-1, 16), (4, -1)])
        algorithm, protocol = random_.choice(CELLS)
        space = random_.choice(["", " ", "\t"])
        more = random_.choice(["", ",-1", ",-1, -1"])
        lines.append(
            f"{random_.choice(WORDS)},{first},{space}{last},{algorithm}{space},{protocol},"
            f"{random_.choice([-1, 1, 4, 127])},{nodes},{ranks}{more}"
        )
    return random_.choice(["\n", "\r\n"]).join(lines).encode()


def boundaries() -> list[int]:
    """2^k and its neighbours up to 2^63, 4 GiB among them."""
    return sorted({value for k in range(64) for value in (2**k - 1, 2**k, 2**k + 1)})


def random_queries(random_: random.Random, count: int, sizes: list[int]) -> np.ndarray:
    queries = np.zeros(count, dtype=QUERY)
    near = [*sizes, *(size + 1 for size in sizes), *(max(0, size - 1) for size in sizes), 2**64 - 1]
    for query in queries:
        query["bytes"] = random_.choice(near) if random_.random() < 0.7 else random_.getrandbits(64)
        query["nodes"], query["ranks"] = random_.choice(SHAPES)
        query["function"] = random_.randrange(5)
        query["grouped"], query["registered"] = random_.randrange(1, 9), random_.randrange(2)
        query["available"] = random_.getrandbits(21)
        query["zero"] = random_.choice([-1, random_.randrange(21)])
        query["seed"] = random_.getrandbits(32)
    return queries


def expected(table: PluginTable, queries: np.ndarray) -> np.ndarray:
    """Cell and channels for each query; -1 where the library decides."""
    found = np.full((len(queries), 2), -1)
    for at, query in enumerate(queries.tolist()):
        bytes_, nodes, ranks, function, _, _, _, available, _ = query
        offered = {cell for bit, cell in enumerate(CELLS) if available >> bit & 1}
        line = table.decide(WORDS[function], bytes_, nodes=nodes, ranks=ranks, available=offered)
        if line is not None:
            found[at] = CELLS.index((line.algorithm, line.protocol)), max(line.channels, 0)
    return found


def test_it_decides_as_the_reference(built: tuple[Path, Path], tmp_path: Path) -> None:
    """100,000 random queries for every API version, on ten tables."""
    random_ = random.Random(7)
    sizes = random_.sample(boundaries(), 40)
    decided = 0
    for number in range(10):
        data = random_table(random_, sizes)
        table = tmp_path / f"{number}.csv"
        table.write_bytes(data)
        queries = random_queries(random_, 10_000, sizes)
        wanted = expected(load_table(data), queries)
        decided += int((wanted[:, 0] >= 0).sum())
        for version in VERSIONS:
            answers, log, code = ask(built, version, table, queries)
            assert code == 0, log
            assert len(answers) == len(queries)
            assert not (answers["touched"] & 1).any(), "a cell that is not available was written"
            ours = wanted[:, 0] >= 0
            assert (answers["cell"][ours] == wanted[ours, 0]).all()
            assert (answers["channels"] == np.maximum(wanted[:, 1], 0)).all()
            assert (answers["touched"][~ours] == 0).all(), "something was written without a rule"
            assert f"fingerprint {fingerprint(data)}" in log
    assert 20_000 < decided < 80_000


def test_boundaries(built: tuple[Path, Path], tmp_path: Path) -> None:
    """A range ends where it says: at 2^k and its neighbours, 4 GiB and 2^63."""
    table = tmp_path / "table.csv"
    everything = (1 << 21) - 1
    for power in (0, 10, 31, 32, 33, 62, 63):
        edge = 2**power
        table.write_text(
            f"allreduce,0,{edge - 1},tree,ll,-1,-1,-1\nallreduce,{edge},{edge},nvls,simple,3,-1,-1\n"
            f"allreduce,{edge + 1},18446744073709551615,ring,simple,-1,-1,-1\n"
        )
        queries = np.zeros(5, dtype=QUERY)
        queries["bytes"] = [0, edge - 1, edge, edge + 1, 2**64 - 1]
        queries["nodes"], queries["ranks"], queries["function"], queries["zero"] = 1, 8, 4, -1
        queries["available"] = everything
        for version in VERSIONS:
            answers, _, code = ask(built, version, table, queries)
            assert code == 0
            assert [CELLS[cell][0] for cell in answers["cell"]] == ["tree", "tree", "nvls", "ring", "ring"]
            assert answers["channels"].tolist() == [0, 0, 3, 0, 0]


def test_all_ranks_decide_alike(built: tuple[Path, Path], tmp_path: Path) -> None:
    """Whether buffers are registered, and how many calls are grouped, changes nothing."""
    random_ = random.Random(3)
    table = tmp_path / "table.csv"
    table.write_bytes(random_table(random_, boundaries()))
    queries = random_queries(random_, 2_000, boundaries())
    other = queries.copy()
    other["registered"], other["grouped"] = 1 - queries["registered"], queries["grouped"] + 5
    for version in VERSIONS:
        assert (ask(built, version, table, queries)[0] == ask(built, version, table, other)[0]).all()


GOOD = "allreduce,0,1023,ring,ll,-1,1,8"
BAD = {
    "allreduce,0,1023,ring,ll,-1,1": "8 to 10 fields",
    GOOD + ",-1,-1,-1": "8 to 10 fields",
    "sendrecv,0,1023,ring,ll,-1,1,8": "broadcast",
    "AllReduce,0,1023,ring,ll,-1,1,8": "broadcast",
    "allreduce,-1,1023,ring,ll,-1,1,8": "first size",
    "allreduce,0,18446744073709551616,ring,ll,-1,1,8": "last size",
    "allreduce,1024,1023,ring,ll,-1,1,8": "last size",
    "allreduce,0,1023,rings,ll,-1,1,8": "algorithm",
    "allreduce,0,1023,ring,ll12,-1,1,8": "ll, ll128",
    "allreduce,0,1023,ring,ll,0,1,8": "channels",
    "allreduce,0,1023,ring,ll,128,1,8": "channels",
    "allreduce,0,1023,ring,ll,-2,1,8": "channels",
    "allreduce,0,1023,ring,ll,-1,0,8": "nodes",
    "allreduce,0,1023,ring,ll,-1,1,": "ranks",
    GOOD + ",2": "numPipeOps",
    GOOD + ",-1,1": "regBuff",
    GOOD + " " * 250: "255",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_table_is_refused_as_a_whole(built: tuple[Path, Path], tmp_path: Path, line: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(f"# head\n{GOOD}\n{line}\n")
    query = np.zeros(1, dtype=QUERY)
    query["nodes"], query["ranks"], query["function"], query["available"] = 1, 8, 4, 0b1111
    query["zero"] = -1
    for version in VERSIONS:
        answers, log, code = ask(built, version, table, query)
        assert code == 0
        assert answers["touched"].tolist() == [0]
        assert f"{table}:3: expected" in log
        assert BAD[line] in log
        assert ask(built, version, table, query, strict=True)[2] == 5
    with pytest.raises(InputError, match=r"table\.csv:3: "):
        load_table(table.read_bytes(), file="table.csv")


@pytest.mark.parametrize("content", [None, b"", b"# only words\n\n"])
def test_no_table_changes_nothing(built: tuple[Path, Path], tmp_path: Path, content: bytes | None) -> None:
    table = tmp_path / "table.csv"
    if content is not None:
        table.write_bytes(content)
    query = np.zeros(1, dtype=QUERY)
    query["nodes"], query["ranks"], query["available"] = 1, 8, 0b111000
    for version in VERSIONS:
        answers, log, code = ask(built, version, table, query)
        assert (code, answers["touched"].tolist()) == (0, [0])
        assert "all stays" in log
        answers, log, code = ask(built, version, None, query)
        assert (code, answers["touched"].tolist()) == (0, [0])
        assert "is not set" in log


def test_the_doctor_knows_the_dialect() -> None:
    head = "# tuner table (coppice) by hand\n"
    fine = diagnose((head + GOOD + "\n").encode(), "nccl-tuner", file="t", options=JobFacts())
    assert fine.ok
    zero = head + GOOD.replace("ll,-1", "ll,0") + "\n"
    found = diagnose(zero.encode(), "nccl-tuner", file="t", options=JobFacts(dialect=Dialect.COPPICE))
    assert [finding.rule for finding in found.findings if finding.severity.value == "error"] == ["T03"]


def test_building_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no 'no-such-compiler'"):
        build_plugin(tmp_path / "p.so", compiler="no-such-compiler")
    with pytest.raises(CheckError, match="build the plugin"):
        build_plugin(tmp_path / "p.so", compiler="cc -DNO -include no-such-header.h")
    with pytest.raises(InputError, match="directory"):
        build_plugin(tmp_path / "none" / "p.so")
    assert list(tmp_path.iterdir()) == []
