"""The doctor of Open MPI's rules and MPICH's variables: for every rule a file that trips it, and one that does not.

What is expected of the files is what Open MPI 5.0.11 and MPICH 5.0.2 did with them.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest

from coppice.cli.doctor import doctor as command
from coppice.collectives import Collective
from coppice.doctor import Diagnosis, JobFacts, diagnose, rules_for
from coppice.errors import CheckError, InputError
from coppice.export.formats import OMPI_FORMS
from coppice.export.open_mpi.rules_file import read_ompi_rules
from coppice.export.open_mpi.writer import OmpiRule, rules_file
from coppice.selection import tables_of
from coppice.selection.tables import ALGORITHMS, COLLECTIVES, algorithms_of
from support.paths import ROOT

OMPI, MPICH = "ompi-rules", "mpich-env"
NOTHING = JobFacts()


def found(artefact: str, text: str, facts: JobFacts | None = None) -> Diagnosis:
    return diagnose(text.encode(), artefact, file="file", options=facts)


def broken(artefact: str, text: str, facts: JobFacts | None = None) -> str:
    entries = [(each.rule, each.severity.value, each.line) for each in found(artefact, text, facts).findings]
    return ", ".join(f"{rule} {severity} {line}" for rule, severity, line in sorted(set(entries)))


def rules(
    *lines: str, number: int = 2, ranks: int = 4, head: str = "", after: str = "5\n1\n0 0 0 0\n"
) -> str:
    """A file for a collective: 0 ranks as Open MPI decides, some rules for a number of ranks, the same beyond."""
    listed = "".join(f"{line}\n" for line in lines)
    return f"{head}1\n{number}\n{2 + bool(after)}\n0\n1\n0 0 0 0\n{ranks}\n{len(lines)}\n{listed}{after}"


def lists(*pairs: tuple[int, str], number: int = 2) -> str:
    return f"1\n{number}\n{len(pairs)}\n" + "".join(f"{ranks}\n1\n{rule}\n" for ranks, rule in pairs)


def document(*rows: dict[str, object], name: str = "allreduce", **members: object) -> str:
    ranks = {"comm_size_min": 4, "comm_size_max": 4, "rules": list(rows), **members}
    return json.dumps({"rule_file_version": 3, "module": "tuned", "collectives": {name: [ranks]}})


RING, OWN = "0 4 0 0", "0 0 0 0"
SIX = JobFacts(version=(6, 0, 0))
FOUR = JobFacts(shapes=((1, 4),))

RULES = [
    ("good", rules(RING, "1000 0 0 0", "2000 5 0 65536"), NOTHING, ""),
    ("good, known of the job", rules(RING), FOUR, ""),
    (
        "good, with words",
        "# made by\n" + rules("0 4 0 0 # ring").replace("\n2\n", "\n2 # allreduce\n", 1),
        NOTHING,
        "",
    ),
    ("good, on one line", rules(RING).replace("\n", " "), NOTHING, ""),
    ("good, ends of lines", rules(RING).replace("\n", "\r\n"), NOTHING, ""),
    ("good, a mark of the byte order", "\ufeff" + rules(RING), NOTHING, ""),
    ("good, five numbers", rules("0 4 0 0 7", "8 0 0 0", head="rule-file-version-2\n"), NOTHING, ""),
    ("good, in JSON", document({"alg": "ring"}), SIX, ""),
    ("cut", rules(RING, after="5\n1\n0 0 0"), NOTHING, "O01 error 12"),
    ("negative", rules("0 4 0 -1"), NOTHING, "O01 error 9"),
    ("too many collectives", "23" + rules(RING)[1:], NOTHING, "O01 error 1"),
    ("no such collective", rules(RING, number=22), NOTHING, "O01 error 2"),
    ("more than the counts", rules(RING) + "3\n1\n4\n1\n0 1 0 0\n", NOTHING, "O01 error 13"),
    (
        "version after a comment",
        rules("0 4 0 0 7", head="# made by\nrule-file-version-2\n"),
        NOTHING,
        "O01 error 2",
    ),
    (
        "version that is too new",
        rules("0 4 0 0 7", head="rule-file-version-2\n"),
        JobFacts(version=(5, 0, 6)),
        "O01 error 1",
    ),
    ("nothing in the JSON", '{"rules": []}', SIX, "O01 error 0"),
    ("no such collective in the JSON", document({"alg": 1}, name="all_reduce"), SIX, "O01 error 0"),
    ("a word for a size", document({"alg": 1, "msg_size_min": "1K"}), SIX, "O01 error 0"),
    ("not from 0 bytes", rules("8 4 0 0", "100 0 0 0"), NOTHING, "O02 error 9"),
    ("no such algorithm", rules("0 7 0 0"), NOTHING, "O03 error 9"),
    ("an algorithm of 6.0", rules("0 7 0 0"), SIX, "O11 warning 0"),
    ("none in 4.1", rules("0 7 0 0", number=0), JobFacts(version=(4, 1, 8)), "O03 error 9"),
    ("no such name", document({"alg": "rings"}), SIX, "O03 error 0"),
    ("a name of 6.0", document({"alg": "bruck-k-fanout", "faninout": 8}, name="allgather"), SIX, ""),
    ("a name of 5.0", document({"alg": "bruck"}, name="allgather"), SIX, "O03 error 0"),
    ("numbers and names of 6.0", document({"alg": 8}, name="allgather"), NOTHING, "O11 warning 0"),
    ("no algorithm at all", document({"seg_size": 0}), SIX, "O03 error 0"),
    ("sizes not ascending", rules(RING, "1000 0 0 0", "100 3 0 0"), NOTHING, "O04 error 11"),
    ("a size twice", rules(RING, "1000 0 0 0", "1000 3 0 0"), NOTHING, "O04 warning 11"),
    (
        "a rule behind another",
        document({"alg": 4}, {"alg": 3, "msg_size_min": 8, "msg_size_max": 9}),
        SIX,
        "O04 warning 0",
    ),
    ("a range that is none", document({"alg": 4, "msg_size_min": 8, "msg_size_max": 7}), SIX, "O04 error 0"),
    ("ranks not ascending", lists((0, OWN), (8, OWN), (2, RING), (9, OWN)), NOTHING, "O05 error 10"),
    (
        "ranks not ascending, in the job",
        lists((16, OWN), (8, RING), (17, OWN)),
        JobFacts(shapes=((1, 8),)),
        "O05 error 7, O07 warning 7",
    ),
    ("ranks twice", lists((0, OWN), (4, OWN), (4, RING), (5, OWN)), NOTHING, "O05 warning 10"),
    ("a collective twice", rules(RING).replace("1", "2", 1) + rules(RING)[2:], NOTHING, "O05 error 13"),
    ("ranks that are none", document({"alg": 4}, comm_size_min=5), SIX, "O05 error 0"),
    ("also fewer ranks", lists((4, RING), (5, OWN)), NOTHING, "O06 warning 4"),
    (
        "also fewer ranks of the job",
        lists((4, RING), (5, OWN)),
        JobFacts(shapes=((1, 4), (1, 2))),
        "O06 warning 4",
    ),
    ("fewer ranks that the job lacks", lists((4, RING), (5, OWN)), FOUR, ""),
    ("also more ranks", rules(RING, after=""), NOTHING, "O06 note 7"),
    ("also more ranks of the job", rules(RING, after=""), JobFacts(shapes=((1, 4), (1, 8))), "O06 warning 7"),
    ("a list for 0 ranks is meant for all", lists((0, RING)), NOTHING, ""),
    ("also behind others", lists((0, RING)), JobFacts(shapes=((1, 64), (1, 100))), ""),
    ("up to the next list", lists((0, OWN), (4, RING), (8, OWN)), NOTHING, "O06 note 7"),
    ("all ranks, in JSON", document({"alg": 4}, comm_size_max=2**31 - 1), SIX, "O06 note 0"),
    ("ranks that the job lacks", rules(RING), JobFacts(shapes=((1, 8),)), "O07 warning 7"),
    ("han", rules(RING), JobFacts(shapes=((2, 4),)), "O08 warning 0"),
    ("no han in 4.1", rules(RING), JobFacts(shapes=((2, 4),), version=(4, 1, 8)), ""),
    ("no han with a rank on each node", rules(RING), JobFacts(shapes=((4, 4),)), ""),
    ("no han for reduce_scatter_block", rules(RING, number=13), JobFacts(shapes=((2, 4),)), ""),
    (
        "han of 6.0",
        document({"alg": 1}, name="alltoallv"),
        JobFacts(shapes=((2, 4),)),
        "O08 warning 0, O11 warning 0",
    ),
    ("two ranks", rules("0 6 0 0", number=0), NOTHING, "O09 error 9"),
    ("two ranks, which they are", rules("0 6 0 0", number=0, ranks=2, after="3\n1\n0 0 0 0\n"), NOTHING, ""),
    ("two ranks at a barrier", rules("0 5 0 0", number=6), NOTHING, "O09 error 9"),
    ("no power of two", rules("0 3 0 0", number=0, ranks=3, after="4\n1\n0 0 0 0\n"), NOTHING, "O09 note 9"),
    ("a power of two", rules("0 3 0 0", number=0), NOTHING, ""),
    ("a ring without segments", rules("0 5 0 0"), NOTHING, "O09 note 9"),
    ("many chains", rules("0 2 33 0", number=7), NOTHING, "O10 warning 9"),
    ("no chains", rules("0 2 0 0", number=7), NOTHING, "O10 note 9"),
    ("some chains", rules("0 2 32 0", number=7), NOTHING, ""),
    ("a fan-out of a ring", rules("0 4 4 0"), NOTHING, "O10 note 9"),
    ("a radix in 6.0", rules("0 8 4 0", number=11), SIX, "O11 warning 0"),
    ("segments of a tree", rules("0 7 0 1024", number=7), NOTHING, ""),
    ("segments of a scatter", rules("0 8 0 1024", number=7), NOTHING, "O10 note 9"),
    ("segments of a ring", rules("0 4 0 1024"), NOTHING, "O10 note 9"),
    ("32 bits", rules("0 4294967299 0 0"), NOTHING, "O10 error 9"),
    ("32 bits of ranks", lists((0, OWN), (2**32 + 2, RING)), NOTHING, "O10 error 7"),
    ("JSON", document({"alg": 4}), NOTHING, "O11 warning 0"),
    ("JSON in 5.0", document({"alg": 4}), JobFacts(version=(5, 0, 11)), "O11 error 0"),
    ("no JSON in 6.0", rules(RING), SIX, "O11 warning 0"),
    ("octal", rules(RING, "010 3 0 0"), NOTHING, "O12 warning 10"),
    ("hexadecimal", rules(RING, "0x10 3 0 0"), NOTHING, "O12 warning 10"),
    ("a letter behind", rules(RING, "1K 3 0 0"), NOTHING, "O12 error 10"),
    ("a letter before", rules(RING, "M1 3 0 0"), NOTHING, "O12 error 10"),
    (
        "five numbers",
        rules("0 4 0 0 5", "1000 3 0 0 5"),
        NOTHING,
        "O02 error 11, O03 error 9, O05 error 10, O12 error 9",
    ),
    (
        "three numbers",
        rules("0 4 0", "1000 3 0 0"),
        NOTHING,
        "O01 error 13, O05 error 12, O10 note 9, O12 error 9",
    ),
    ("a barrier with sizes", rules("0 3 0 0", "8 4 0 0", number=6), NOTHING, "O13 warning 10"),
    ("a scan with sizes", rules("0 1 0 0", "8 2 0 0", number=14), NOTHING, "O13 warning 10"),
    ("a barrier without", rules("0 3 0 0", number=6), NOTHING, ""),
    ("not of this component", rules("0 1 0 0", number=10), NOTHING, "O13 warning 2"),
]

A, D = "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM", "MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE=0\n"
G, GD = "MPIR_CVAR_ALLGATHER_INTRA_ALGORITHM", "MPIR_CVAR_ALLGATHER_DEVICE_COLLECTIVE=0\n"
S, SD = "MPIR_CVAR_REDUCE_SCATTER_INTRA_ALGORITHM", "MPIR_CVAR_REDUCE_SCATTER_DEVICE_COLLECTIVE=0\n"

VARIABLES = [
    ("good", f"# made by\nexport {A}='ring' # words\n{D}PATH=/bin\n", NOTHING, "M04 note 2"),
    ("good, nothing chosen", f"set -a\n{A}=auto\n", NOTHING, ""),
    ("good, other prefixes", f"MPIR_PARAM_BCAST_INTRA_ALGORITHM=auto\nMPICH_{A[10:]}=auto\n", NOTHING, ""),
    ("from another variable", f"{A}=$ALGORITHM\n", NOTHING, ""),
    ("blanks", f"{A} = ring\n{D}", NOTHING, "M01 error 1"),
    ("carriage returns", f"{A}=auto\r\n{D}", NOTHING, "M01 error 1"),
    ("a quote", f"{A}='auto\n{D}", NOTHING, "M01 error 1"),
    ("no such variable", "MPIR_CVAR_ALLREDUCE_ALGORITHM=ring\n", NOTHING, "M02 error 1"),
    ("no such variable, elsewhere", "MPIR_CVAR_X=1\n", JobFacts(version=(4, 3, 1)), "M02 warning 1"),
    ("no such prefix", f"MPI_{A[5:]}=auto\n", NOTHING, "M02 error 1"),
    ("no such algorithm", f"{A}=rings\n", NOTHING, "M03 error 1"),
    ("letters", f"{A}=Ring\n", NOTHING, "M03 error 1"),
    ("a number", f"{A}=4\n", NOTHING, "M03 error 1"),
    ("nothing", f"{A}=\n", NOTHING, "M03 error 1"),
    ("another version", f"{A}=circ_graph\n", JobFacts(version=(6, 0)), "M03 warning 1"),
    ("neither yes nor no", "MPIR_CVAR_BCAST_DEVICE_COLLECTIVE=False\n", NOTHING, "M03 error 1"),
    (
        "yes and no",
        "MPIR_CVAR_BCAST_DEVICE_COLLECTIVE=off\nMPIR_CVAR_REDUCE_DEVICE_COLLECTIVE=TRUE\n",
        NOTHING,
        "",
    ),
    ("the device first", f"{A}=ring\n", NOTHING, "M04 note 1, M05 note 1"),
    (
        "the device first, as it is said",
        f"{A}=ring\n{D.replace('=0', '=1')}",
        NOTHING,
        "M04 note 1, M05 note 1",
    ),
    ("the device first on nodes", f"{A}=ring\n", JobFacts(shapes=((2, 8),)), "M04 note 1, M05 warning 1"),
    ("one node", f"{A}=ring\n", JobFacts(shapes=((1, 8),)), "M04 note 1"),
    ("no device", f"{A}=ring\nMPIR_CVAR_DEVICE_COLLECTIVES=none\n", JobFacts(shapes=((2, 8),)), "M04 note 1"),
    (
        "all of the device",
        f"{A}=ring\n{D}MPIR_CVAR_DEVICE_COLLECTIVES=all\n",
        NOTHING,
        "M04 note 1, M05 warning 3",
    ),
    (
        "no power of two",
        f"{G}=recursive_doubling\n{GD}",
        JobFacts(shapes=((1, 6),)),
        "M04 note 1, M06 warning 1",
    ),
    ("a power of two", f"{G}=recursive_doubling\n{GD}", JobFacts(shapes=((1, 8),)), "M04 note 1"),
    ("an assertion", f"{S}=noncommutative\n{SD}", JobFacts(shapes=((1, 6),)), "M04 note 1, M06 error 1"),
    ("smp on a node", f"{A}=smp\n{D}", JobFacts(shapes=((1, 8),)), "M04 note 1, M06 warning 1"),
    ("smp without peers", f"{A}=smp\n{D}", JobFacts(shapes=((8, 8),)), "M04 note 1, M06 warning 1"),
    ("smp", f"{A}=smp\n{D}", JobFacts(shapes=((2, 8),)), "M04 note 1"),
    (
        "in place",
        f"{A.replace('REDUCE', 'TOALL')}=pairwise_sendrecv_replace\n",
        FOUR,
        "M04 note 1, M07 warning 1",
    ),
    ("few elements", f"{A}=reduce_scatter_allgather\n{D}", NOTHING, "M04 note 1, M07 note 1"),
    ("twice", f"{A}=tree\n{A}=ring\n{D}", NOTHING, "M04 note 2, M08 warning 2"),
    ("by two names", f"{A}=ring\nMPICH_{A[10:]}=ring\n{D}", NOTHING, "M04 note 2, M08 warning 2"),
]


@pytest.mark.parametrize(("name", "text", "facts", "expected"), RULES, ids=[case[0] for case in RULES])
def test_rules_files(name: str, text: str, facts: JobFacts, expected: str) -> None:
    assert broken(OMPI, text, facts) == expected, name


@pytest.mark.parametrize(
    ("name", "text", "facts", "expected"), VARIABLES, ids=[case[0] for case in VARIABLES]
)
def test_variables(name: str, text: str, facts: JobFacts, expected: str) -> None:
    assert broken(MPICH, text, facts) == expected, name


def test_every_rule_has_a_file_that_breaks_it() -> None:
    for artefact, cases, count in ((OMPI, RULES, 13), (MPICH, VARIABLES, 8)):
        seen = {entry.split()[0] for case in cases for entry in case[3].split(", ") if entry}
        assert seen == {rule.id for rule in rules_for(artefact)}
        assert len(seen) == count


SIZES = [
    ([(0, 100), (10, 20), (15, 30)], ["rule 2 ... rule 1", "rule 3 ... rule 1"]),
    ([(0, 100), (200, 300), (10, 20), (250, 250)], ["rule 3 ... rule 1", "rule 4 ... rule 2"]),
    ([(50, 60), (0, 10), (55, 60)], ["rule 3 ... rule 1"]),
    ([(0, 9), (10, 20), (21, 30)], []),
    ([(5, 6), (0, 100)], []),
]


@pytest.mark.parametrize(("spans", "expected"), SIZES)
def test_the_first_one_that_fits_is_used(spans: list[tuple[int, int]], expected: list[str]) -> None:
    """6.0 takes the first rule whose range has the size, and the first list whose range has the ranks."""
    rows = [{"alg": 4, "msg_size_min": first, "msg_size_max": last} for first, last in spans]
    lists = [
        {"comm_size_min": 2 + first, "comm_size_max": 2 + last, "rules": [{"alg": 4}]}
        for first, last in spans
    ]
    for text, rule, word in (
        (document(*rows), "O04", "rule"),
        (json.dumps({"collectives": {"allreduce": lists}}), "O05", "list"),
    ):
        texts = [each.text for each in found(OMPI, text, SIX).findings if each.rule == rule]
        places = [re.findall(rf"{word} \d+", text) for text in texts]
        assert [" ... ".join(pair) for pair in places] == [each.replace("rule", word) for each in expected]


@pytest.mark.parametrize("form", OMPI_FORMS)
def test_own_rules_are_clean(form: str) -> None:
    """What the exporter writes breaks no rule but the one about versions that cannot read it."""
    sums = [OmpiRule(first_bytes=0, id=3), OmpiRule(first_bytes=9000, id=5, segment_bytes=4096)]
    made = {
        Collective.ALL_REDUCE: {4: sums, 8: sums[:1], 9: sums},
        Collective.BROADCAST: {6: [OmpiRule(first_bytes=0, id=0), OmpiRule(first_bytes=1, id=2, fanout=4)]},
    }
    text = rules_file(
        made, version=(6, 0) if form == "json" else (5, 0), comments=["made by\nus", "for them"]
    )
    assert broken(OMPI, text, SIX if form == "json" else JobFacts(version=(5, 0, 11))) == ""


def test_names_agree_with_the_tables_of_selection() -> None:
    """Two lists of names, for releases and for decisions, number the algorithms of 6.0 alike."""
    functions = tables_of("open-mpi").functions
    assert set(ALGORITHMS) == {*functions, "exscan", "scan"}  # the catalogue performs no prefix sums
    for function, table in functions.items():
        names = {entry.id: name for name, entry in table.algorithms.items() if entry.id}
        assert names == dict(enumerate(algorithms_of(function, (6,)), start=1)), function


@pytest.mark.parametrize(
    ("version", "allgather", "allreduce", "reduce"),
    [
        ((4, 1, 8), (6, "bruck"), 6, 7),
        (None, (7, "bruck"), 6, 7),
        ((5, 0, 11), (7, "bruck"), 6, 7),
        ((6, 0, 0), (8, "bruck-k-fanout"), 7, 8),
    ],
)
def test_names_of_each_version(
    version: tuple[int, ...] | None, allgather: tuple[int, str], allreduce: int, reduce: int
) -> None:
    """What is told apart is what the sources of 4.1.8, 5.0.10 and the branch of 6.0 tell apart."""
    gathering = algorithms_of("allgather", version)
    assert (len(gathering), gathering[1]) == allgather
    assert ("sparbit" in gathering) is (version is None or version >= (5,))
    assert len(algorithms_of("allreduce", version)) == allreduce
    assert len(algorithms_of("reduce", version)) == reduce
    assert algorithms_of("neighbor_alltoallw", version) == ()


def test_numbers_as_c_reads_them() -> None:
    """Signs without digits swallow what follows; a 0 before 8 or 9 is a number of its own."""
    text = "1 + 2 -x 1 4 rank 1 0 08 0x1g 5 -\n#9\n"
    values = [number.value for number in read_ompi_rules(text, file="f").numbers]
    assert values == [1, 2, 1, 4, 1, 0, 0, 8, 1, 5]
    swallowed = read_ompi_rules("1 2 1 4 1 0 4 0 -#9\n0", file="f").numbers
    assert [number.value for number in swallowed] == [1, 2, 1, 4, 1, 0, 4, 0, 0]
    assert len(COLLECTIVES) == 22


@pytest.mark.parametrize(
    ("artefact", "text", "words"),
    [
        (OMPI, "# nothing\n", "holds no number"),
        (OMPI, "", "holds no number"),
        (OMPI, "{'a': 1}", "begins as JSON"),
        (MPICH, "PATH=/bin\n", "sets no variable of MPICH"),
    ],
)
def test_what_is_no_such_file(artefact: str, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        found(artefact, text)


def test_damaged_files() -> None:
    """Whatever is in a file, the doctor judges it or refuses it."""
    rng = random.Random(5)
    pieces = (b"", b"9" * 22, b"-", b"+", b"#", b"\n", b"\xff", b"{", b"'", b"=", b"0x", b"\r", b'"', b"\x00")
    texts = [(OMPI, case[1]) for case in RULES] + [(MPICH, case[1]) for case in VARIABLES]
    judged = 0
    for artefact, text in texts * 4:
        data = bytearray(text.encode())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 2)] = rng.choice(pieces)
        try:
            diagnose(bytes(data), artefact, file="x", options=JobFacts(shapes=((1, 3), (2, 4))))
        except InputError:
            continue
        judged += 1
    assert judged > 100


def test_what_happens_is_said() -> None:
    """Open MPI 5 fails where an algorithm is none; what 6.0 reads as JSON goes without the rule."""
    assert "calls fail with MPI_ERR_ARG" in found(OMPI, rules("0 7 0 0")).findings[0].text
    assert "leaves the rule out" in found(OMPI, document({"alg": 9}), SIX).findings[0].text
    odd = rules("0 3 0 0", number=0, ranks=3, after="4\n1\n0 0 0 0\n")
    for version, instead in (((5, 0, 11), "bruck"), ((6, 0, 0), "bruck-k-fanout")):
        texts = [
            each.text for each in found(OMPI, odd, JobFacts(version=version)).findings if each.rule == "O09"
        ]
        assert texts == [f"recursive_doubling cannot serve 3 ranks: Open MPI runs {instead}"]


def test_page(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """What docs/stock-libraries.md shows is what is printed."""
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs" / "stock-libraries.md").read_text()
    shown = re.findall(
        r"```console\n\$ coppice doctor (\S+) --target (\S+) --fact (\S+)\n(.*?)```", page, re.DOTALL
    )
    assert len(shown) == 2
    for file, target, option, output in shown:
        with pytest.raises(CheckError):
            command(file, target=target, options=[option])
        assert capsys.readouterr().out == output


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rules.conf"
    path.write_text(rules(RING))
    command(str(path), target="ompi-rules", options=["shapes=2x4", "version=5.0.11"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{path} as ompi-rules: no errors"
    assert lines[1].startswith("  warning  O08  on 2 nodes with 4 ranks the component han comes before tuned")
    path.write_text(f"{A}=rings\n")
    with pytest.raises(CheckError, match="breaks rule M03 of mpich-env: 'rings' is no value"):
        command(str(path), target="mpich-env")
    assert "fix: write ring, if that is meant" in capsys.readouterr().out


SCATTER = "1\n15\n1\n64\n2\n0 2 0 0\n8192 3 0 0\n"


def chosen(text: str, facts: JobFacts, sizes: tuple[int, ...]) -> list[tuple[str, list[tuple[str, int]]]]:
    found = diagnose(text.encode(), OMPI, file="file", options=facts, sizes=sizes)
    return [(call, [choice[1:] for choice in choices]) for call, choices in found.coverage]


def test_sizes_tell_which_rule_holds_for_the_job() -> None:
    """As Open MPI 5.0.11 chose: a list for 8 ranks also on 2, 3 and 6, by the bytes of all ranks."""
    facts = JobFacts(shapes=((1, 16), (2, 64)), version=(5, 0, 11))
    assert chosen(SCATTER, facts, (0, 8191, 8192)) == [
        (f"scatter on {ranks} ranks (the list of scatter for 64 ranks)", [
            ("binomial", 6), ("binomial", 6), ("linear_nb", 7),
        ])
        for ranks in (16, 64)
    ]  # fmt: skip
    two = lists((4, "0 1 0 0"), (8, OWN), number=15)
    facts = JobFacts(shapes=((1, 2), (1, 4), (1, 6), (1, 8)))
    assert [choices for _, choices in chosen(two, facts, (64,))] == [
        [("basic_linear", 6)],
        [("basic_linear", 6)],
        [("basic_linear", 6)],
        [("the choice of Open MPI", 9)],
    ]
    assert chosen(rules(RING, "9 9 9 9"), JobFacts(shapes=((1, 4),)), (0,))[0][1] == [("ring", 9)]
    fifth = "rule-file-version-2\n1\n2\n1\n0\n2\n0 1 0 0 0\n64 4 0 0\n"
    assert chosen(fifth, JobFacts(shapes=((1, 4),), version=(5, 0, 7)), (63, 64))[0][1] == [
        ("basic_linear", 7),
        ("ring", 8),
    ]
    assert chosen(rules("0 2 0 0", "8 3 0 0", number=6), FOUR, (99,))[0][1] == [("double_ring", 9)]


def test_before_4_1_gather_and_scatter_count_one_element() -> None:
    for version, rule in (((4, 0, 3), "O13 warning 7"), ((4, 1, 6), ""), ((5, 0, 11), "")):
        found = broken(OMPI, SCATTER, JobFacts(version=version, shapes=((1, 64),)))
        assert ("O13" in found) == bool(rule)
        assert rule in found
    old = chosen(SCATTER, JobFacts(version=(4, 0, 3), shapes=((1, 64),)), (2**20,))
    assert old[0][1] == [("binomial", 6)]


@pytest.mark.parametrize(
    "text",
    [
        "1 # number of collectives\nallreduce # collective\n1\nglobal_communicator\n1\n1\n4\n0 tuned\n1000 han\n",
        "1\n7\n1\n2\n1\n1\n2\n0 tuned\n1000 @simple\n1000000 han @simple\n",
        "1\n7\n1\nINTER_NODE\n1\n1\n1\n0 libnbc\n",
    ],
)
def test_files_of_han_are_named(text: str) -> None:
    with pytest.raises(InputError, match="coll_han_dynamic_rules_filename"):
        found(OMPI, text)


def test_words_of_han_in_comments_are_no_file_of_han() -> None:
    assert broken(OMPI, "# as han does\n" + lists((0, RING)) + "# tuned and han\n") == ""
