"""The doctor: every rule has a file that trips it and one that does not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from coppice.doctor import Diagnosis, Severity, diagnose, rules_for
from coppice.errors import CheckError, InputError
from coppice.export.msccl.targets import TARGETS
from coppice.export.msccl.writer import encode_msccl_xml, msccl_xml
from support.msccl_samples import GATHER_XML, all_pairs, gather, ring_all_reduce

RCCL = GATHER_XML
"""Trips nothing but notes."""


def steps_of(*steps: str, i: int = 4, o: int = 4, s: int = 20, blocks: str = "") -> str:
    """A file of two ranks where rank 0 runs these steps in one thread block that has no peer."""
    body = "\n".join(steps)
    return f"""<algo name="x" proto="Simple" nchannels="1" nchunksperloop="4" ngpus="2" coll="allreduce" inplace="1" \
outofplace="1" minBytes="0" maxBytes="0">
<gpu id="0" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">
<tb id="0" send="-1" recv="-1" chan="0">
{body}
</tb>
{blocks}</gpu>
<gpu id="1" i_chunks="4" o_chunks="4" s_chunks="0">
</gpu>
</algo>
"""


def step(
    place: int,
    kind: str,
    source: str = "i0",
    target: str = "o0",
    *,
    cnt: int = 1,
    wait: str = "-1 -1",
    tell: int = 0,
) -> str:
    depid, deps = wait.split()
    return (
        f'<step s="{place}" type="{kind}" srcbuf="{source[0]}" srcoff="{source[1:]}" dstbuf="{target[0]}" '
        f'dstoff="{target[1:]}" cnt="{cnt}" depid="{depid}" deps="{deps}" hasdep="{tell}"/>'
    )


def block(name: int, *steps: str, send: int = -1, recv: int = -1, chan: int = 0) -> str:
    lines = "\n".join(steps)
    return f'<tb id="{name}" send="{send}" recv="{recv}" chan="{chan}">\n{lines}\n</tb>\n'


def change(old: str, new: str, count: int = 1) -> Callable[[], str]:
    """The good file with a part replaced."""

    def changed() -> str:
        assert old in RCCL
        return RCCL.replace(old, new, count)

    return changed


def overwrites(awaited: str) -> str:
    """Two ranks that send their slot and add what comes, once another thread block is done with it, or with a copy."""
    copied = awaited == "cpy"
    copy = step(1, "cpy", "o0", "o0", tell=1) if copied else ""
    gpus = "".join(
        f'''<gpu id="{rank}" i_chunks="1" o_chunks="1" s_chunks="1">
<tb id="0" send="-1" recv="{1 - rank}" chan="0">
{step(0, "r", "i0", "s0")}
{step(1, "re", "s0", "o0", wait="1 1" if copied else "1 0")}
</tb>
<tb id="1" send="{1 - rank}" recv="-1" chan="0">
{step(0, "s", "o0", "i0", tell=int(not copied))}
{copy}
</tb>
</gpu>
'''
        for rank in range(2)
    )
    return (
        '<algo name="x" proto="LL" nchannels="1" nchunksperloop="1" ngpus="2" coll="allreduce" inplace="1" '
        f'outofplace="0" minBytes="0" maxBytes="1048576">\n{gpus}</algo>\n'
    )


def exchange(most: int) -> str:
    """Two ranks that send 3 slots to each other before they receive: right for 2 messages each."""
    gpus = "".join(
        f'''<gpu id="{rank}" i_chunks="3" o_chunks="6" s_chunks="0">
<tb id="0" send="{1 - rank}" recv="{1 - rank}" chan="0">
<step s="0" type="s" srcbuf="o" srcoff="{3 * rank}" dstbuf="o" dstoff="0" cnt="3" depid="-1" deps="-1" hasdep="0"/>
<step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="o" dstoff="{3 - 3 * rank}" cnt="3" depid="-1" deps="-1" hasdep="0"/>
</tb>
</gpu>
'''
        for rank in range(2)
    )
    return (
        '<algo name="x" proto="Simple" nchannels="1" nchunksperloop="6" ngpus="2" coll="allgather" inplace="1" '
        f'outofplace="0" minBytes="0" maxBytes="{most}">\n{gpus}</algo>\n'
    )


def waits_with_ll(most: int) -> str:
    """A wait of one thread block for another in a file of 4 chunks."""
    text = steps_of(step(0, "cpy", wait="1 0"), blocks=block(1, COPY))
    return text.replace("Simple", "LL").replace('maxBytes="0"', f'maxBytes="{most}"')


STEP_ZERO = '<step s="0" type="s" srcbuf="o" srcoff="0" dstbuf="o" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="0"/>'
COPY = step(0, "cpy", tell=1)

# (rule, target, file that trips it, harmless that does not)
Sample = tuple[str, str, Callable[[], str], Callable[[], str]]


def good() -> str:
    return RCCL


def scratch(slots: int, most: int) -> str:
    """The good file with scratch slots, and with an upper limit of sizes."""
    return RCCL.replace('s_chunks="0"', f's_chunks="{slots}"').replace('maxBytes="0"', f'maxBytes="{most}"')


SAMPLES: list[Sample] = [
    ("X01", "rccl", lambda: '<?xml version="1.0"?>\n' + RCCL, good),
    ("X02", "rccl", lambda: "\ufeff" + RCCL, good),
    ("X03", "rccl", change("  <gpu", "\t<gpu"), change("<!-- two ranks", "<!--\ttwo ranks")),
    ("X04", "rccl", change('name="pair"', "name='pair'"), change('"pair"', '"pai\'r"')),
    (
        "X05",
        "rccl",
        change(' proto="Simple"', '\nproto="Simple"'),
        change(' proto="Simple"', '  proto="Simple"'),
    ),
    ("X05", "rccl", change('proto="Simple"', 'proto ="Simple"'), good),
    ("X05", "rccl", change("</tb>", "</tb >"), good),
    ("X06", "rccl", lambda: RCCL + "Rank 0 chunk 0 is incorrect\n", lambda: RCCL + "\n\n"),
    ("X06", "rccl", change("    </tb>", "    more </tb>"), good),
    (
        "X07",
        "rccl",
        change("<!-- two ranks -->", "<!--a=b -->"),
        change("<!-- two ranks -->", "<!-- a=b -->"),
    ),
    ("X08", "rccl", change('"pair"', f'"{"p" * 256}"'), change('"pair"', f'"{"p" * 255}"')),
    (
        "X09",
        "rccl",
        change('name="pair"', 'name="pair" ' + " ".join(f'a{i}="1"' for i in range(7))),
        change('name="pair"', 'name="pair" ' + " ".join(f'a{i}="1"' for i in range(6))),
    ),
    ("X10", "rccl", change("  <gpu", '  <node id="3"/>\n  <gpu'), good),
    ("X10", "rccl", change("    <tb", '    <gpu id="3"/>\n    <tb'), good),
    ("X11", "rccl", change('"pair"', '"a&amp;b"'), change("<!-- two ranks", "<!-- a & b")),
    (
        "X13",
        "rccl",
        change("  <gpu", "  <![CDATA[ ]]>\n  <gpu"),
        change("<!-- two ranks", "<!-- <![CDATA[ ]]>"),
    ),
    (
        "X12",
        "msccl",
        lambda: steps_of(COPY, blocks="".join(block(1 + i, *[COPY] * 255) for i in range(16))),
        lambda: steps_of(COPY, blocks="".join(block(1 + i, *[COPY] * 254) for i in range(15))),
    ),
    ("X12", "azure-executor", lambda: steps_of(*[COPY] * 1025), lambda: steps_of(*[COPY] * 1024)),
    *(
        ("A01", "rccl", change(f' {key}="{value}"', ""), good)
        for key, value in (
            ("inplace", 1),
            ("outofplace", 0),
            ("minBytes", 0),
            ("maxBytes", 0),
            ("coll", "allgather"),
        )
    ),
    ("A01", "msccl", change(' name="pair"', ""), change(' outofplace="0"', "")),
    ("A01", "msccl", change(' name="pair"', ""), change(' minBytes="0" maxBytes="0"', "")),
    ("A02", "rccl", change('nchannels="1"', 'nchannels="one"'), good),
    ("A02", "rccl", change('minBytes="0"', 'minBytes="010"'), change('minBytes="0"', 'minBytes="10"')),
    ("A03", "rccl", change(' s_chunks="0"', ""), good),
    ("A03", "rccl", change(' hasdep="0"', ""), good),
    ("A04", "rccl", change('srcoff="0"', 'srcoff="x"'), good),
    ("A04", "rccl", change('srcoff="1"', 'srcoff="01"'), good),
    ("A05", "rccl", change('"Simple"', '"simple"'), change('"Simple"', '"LL128"')),
    ("A06", "rccl", change('"allgather"', '"reduce_scatter"'), change('"allgather"', '"reducescatter"')),
    ("A06", "msccl", change('"allgather"', '"reducescatter"'), change('"allgather"', '"reduce_scatter"')),
    ("A06", "msccl", change('"allgather"', '"alltoallv"'), change('"allgather"', '"custom"')),
    ("A07", "rccl", change('nchannels="1"', 'nchannels="129"'), change('nchannels="1"', 'nchannels="128"')),
    (
        "A07",
        "azure-executor",
        change('nchannels="1"', 'nchannels="33"'),
        change('nchannels="1"', 'nchannels="32"'),
    ),
    ("A07", "rccl", change('chan="0"', 'chan="1"', 2), good),
    ("A08", "rccl", change('nchannels="1"', 'nchannels="2"'), good),
    ("A09", "rccl", change('ngpus="2"', 'ngpus="3"'), good),
    ("A09", "rccl", change('gpu id="1"', 'gpu id="0"'), good),
    ("A09", "rccl", change('gpu id="1"', 'gpu id="2"'), good),
    ("A10", "rccl", change('nchunksperloop="2"', 'nchunksperloop="0"'), good),
    ("A11", "msccl", change('i_chunks="1"', 'i_chunks="2"'), change('i_chunks="1"', 'i_chunks="0"')),
    *(
        ("A11", "msccl", change('"allgather"', f'"{name}"'), good)
        for name in ("allreduce", "broadcast", "reduce", "alltoall", "custom", "reduce_scatter")
    ),
    ("A12", "rccl", change('o_chunks="2"', 'o_chunks="3"'), change('i_chunks="1"', 'i_chunks="0"')),
    ("A13", "rccl", change('s_chunks="0"', 's_chunks="-1"'), good),
    ("A14", "msccl", change('"pair"', f'"{"p" * 64}"'), change('"pair"', f'"{"p" * 63}"')),
    ("B01", "rccl", change('tb id="0"', 'tb id="1"'), good),
    (
        "B01",
        "rccl",
        lambda: steps_of(COPY, blocks=block(0, COPY)),
        lambda: steps_of(COPY, blocks=block(1, COPY)),
    ),
    (
        "B02",
        "rccl",
        lambda: steps_of(COPY, blocks="".join(block(1 + i, COPY) for i in range(64))),
        lambda: steps_of(COPY, blocks="".join(block(1 + i, COPY) for i in range(63))),
    ),
    ("B03", "rccl", change('send="1"', 'send="0"'), good),
    ("B03", "rccl", change('send="1"', 'send="2"'), good),
    ("B03", "rccl", change('send="1"', 'send="-2"'), good),
    ("B04", "rccl", change('chan="0"', 'chan="-1"'), good),
    ("B04", "azure-executor", change('chan="0"', 'chan="32"'), change('chan="0"', 'chan="31"')),
    (
        "B05",
        "azure-executor",
        lambda: b"".join(encode_msccl_xml(gather(34), TARGETS["azure-executor"])).decode(),
        lambda: b"".join(encode_msccl_xml(gather(33), TARGETS["azure-executor"])).decode(),
    ),
    (
        "B06",
        "rccl",
        lambda: steps_of(COPY, blocks=block(1, send=1) + block(2, send=1)),
        lambda: steps_of(COPY, blocks=block(1, send=1) + block(2, recv=1)),
    ),
    ("B07", "rccl", change(STEP_ZERO, ""), good),
    ("B07", "rccl", change(STEP_ZERO, STEP_ZERO.replace('cnt="1"', 'cnt="2"')), good),
    ("B08", "rccl", lambda: steps_of(COPY, blocks=block(1, send=1)), good),
    ("B09", "rccl", lambda: steps_of(step(0, "s")), good),
    ("B09", "rccl", lambda: steps_of(step(0, "r")), good),
    ("S01", "rccl", change('type="s"', 'type="S"'), good),
    ("S01", "rccl", change('srcbuf="o"', 'srcbuf="x"'), good),
    *(
        ("S02", "rccl", lambda kind=kind: steps_of(step(0, kind)), lambda: steps_of(step(0, "re", "s0")))
        for kind in ("rcs", "rrs", "rrc", "rrcs", "ra")
    ),
    ("S02", "azure-executor", lambda: steps_of(step(0, "ra")), lambda: steps_of(step(0, "rcs"))),
    (
        "S03",
        "rccl",
        lambda: steps_of(*(step(i, "cpy") for i in range(65))),
        lambda: steps_of(*(step(i, "cpy") for i in range(64))),
    ),
    (
        "S03",
        "msccl",
        lambda: steps_of(step(-1, "cpy")),
        lambda: steps_of(*(step(i, "cpy") for i in range(256))),
    ),
    ("S04", "rccl", lambda: steps_of(step(1, "cpy")), lambda: steps_of(step(0, "cpy"))),
    (
        "S05",
        "rccl",
        lambda: steps_of(step(0, "nop")),
        lambda: steps_of(step(0, "nop", wait="1 0"), blocks=block(1, COPY)),
    ),
    (
        "S06",
        "rccl",
        lambda: steps_of(step(0, "nop", wait="1 0"), step(1, "cpy"), blocks=block(1, COPY)),
        lambda: steps_of(
            step(0, "nop", wait="1 0"), step(1, "cpy", wait="2 0"), blocks=block(1, COPY) + block(2, COPY)
        ),
    ),
    (
        "S06",
        "rccl",
        lambda: steps_of(step(0, "cpy"), step(1, "nop", wait="1 0"), blocks=block(1, COPY)),
        lambda: steps_of(step(0, "cpy")),
    ),
    (
        "S07",
        "rccl",
        lambda: steps_of(step(0, "cpy", cnt=72), i=90, o=90),
        lambda: steps_of(step(0, "cpy", cnt=71), i=90, o=90),
    ),
    ("S07", "rccl", lambda: steps_of(step(0, "cpy", cnt=0)), good),
    ("S08", "rccl", lambda: steps_of(step(0, "cpy", "i4")), lambda: steps_of(step(0, "cpy", "i3"))),
    (
        "S08",
        "rccl",
        lambda: steps_of(step(0, "cpy", "i3", "o0", cnt=2)),
        lambda: steps_of(step(0, "cpy", "i2", "o0", cnt=2)),
    ),
    ("S08", "rccl", lambda: steps_of(step(0, "cpy", "i0", "o-1")), good),
    ("S09", "rccl", lambda: steps_of(step(0, "cpy", tell=2)), lambda: steps_of(step(0, "cpy", tell=1))),
    (
        "S10",
        "rccl",
        lambda: steps_of(step(0, "cpy", wait="5 0")),
        lambda: steps_of(step(0, "cpy", wait="1 0"), blocks=block(1, COPY)),
    ),
    ("S10", "rccl", lambda: steps_of(step(0, "cpy", wait="1 1"), blocks=block(1, COPY)), good),
    ("S10", "rccl", lambda: steps_of(step(0, "cpy", wait="0 0", tell=1)), good),
    (
        "S11",
        "rccl",
        lambda: steps_of(step(0, "cpy", wait="1 0"), blocks=block(1, step(0, "cpy"))),
        lambda: steps_of(step(0, "cpy", wait="1 0"), blocks=block(1, COPY)),
    ),
    (
        "S12",
        "rccl",
        lambda: steps_of(step(0, "cpy", wait="1 0"), blocks=block(1, step(0, "cpy"), step(1, "cpy", tell=1))),
        lambda: steps_of(step(0, "cpy", wait="1 0"), blocks=block(1, COPY, step(1, "cpy"))),
    ),
    (
        "S13",
        "azure-executor",
        lambda: steps_of(
            step(0, "cpy", wait="128 0"), blocks="".join(block(1 + i, COPY) for i in range(128))
        ),
        lambda: steps_of(
            step(0, "cpy", wait="127 0"), blocks="".join(block(1 + i, COPY) for i in range(128))
        ),
    ),
    (
        "S13",
        "rccl",
        lambda: steps_of(step(0, "cpy", "i32768"), i=40_000),
        lambda: steps_of(step(0, "cpy", "i32767"), i=40_000),
    ),
    (
        "S14",
        "rccl",
        lambda: steps_of(step(0, "re", "s0", "i0"), step(1, "re", "s1", "i0", cnt=2)),
        lambda: steps_of(step(0, "re", "s0", "i0", tell=1), step(1, "re", "s1", "i0", cnt=2)),
    ),
    (
        "S15",
        "rccl",
        lambda: steps_of(*(step(i, "re", f"s{i}", "i0") for i in range(17))),
        lambda: steps_of(*(step(i, "re", f"s{i}", "i0", tell=int(i == 15)) for i in range(17))),
    ),
    ("H01", "rccl", lambda: exchange(0), lambda: exchange(6 * 2**20)),
    ("H01", "msccl", lambda: exchange(6 * 2**20 + 1), lambda: exchange(6 * 2**20)),
    ("H02", "rccl", change('"allgather"', '"broadcast"'), good),
    ("H03", "rccl", lambda: waits_with_ll(0), lambda: waits_with_ll(2**32)),
    ("H04", "rccl", lambda: overwrites("s"), lambda: overwrites("cpy")),
    ("U02", "rccl", change('inplace="1"', 'inplace="0"'), good),
    ("U03", "rccl", good, change('outofplace="0"', 'outofplace="1"')),
    ("U04", "rccl", change('minBytes="0" maxBytes="0"', 'minBytes="5" maxBytes="4"'), good),
    ("U04", "msccl", good, change('maxBytes="0"', 'maxBytes="9"')),
    ("U05", "msccl", change(' maxBytes="0"', ""), change('maxBytes="0"', 'maxBytes="9"')),
    ("U06", "rccl", change('"allgather"', '"broadcast"'), good),
    ("U08", "rccl", change('"allgather"', '"allreduce"'), good),
    ("U08", "msccl", change('"allgather"', '"allreduce"'), good),
    ("U11", "rccl", lambda: overwrites("cpy"), lambda: overwrites("cpy").replace('"LL"', '"Simple"')),
    (
        "U11",
        "rccl",
        lambda: overwrites("cpy"),
        lambda: overwrites("cpy").replace('minBytes="0"', 'minBytes="524288"'),
    ),
    ("U10", "msccl", lambda: scratch(1, 2**20), lambda: scratch(0, 2**20)),
]


def found(text: str, target: str) -> set[str]:
    return {finding.rule for finding in diagnose(text.encode(), target).findings}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample[0]}-{sample[1]}")
def test_a_rule_is_tripped_by_its_file_and_not_by_the_harmless_one(sample: Sample) -> None:
    rule, target, bad, harmless = sample
    assert rule in found(bad(), target)
    assert rule not in found(harmless(), target)


def test_every_rule_has_a_sample() -> None:
    tried = {sample[0] for sample in SAMPLES} | {"U01", "U07", "U09"}
    assert tried == {rule.id for rule in rules_for("rccl")}


def test_ranks_of_the_communicator() -> None:
    assert "U01" in {finding.rule for finding in diagnose(RCCL.encode(), "rccl", ranks=4).findings}
    assert "U01" not in {finding.rule for finding in diagnose(RCCL.encode(), "rccl", ranks=2).findings}


def test_sizes_that_hang_are_named_as_the_target_cuts_messages() -> None:
    """With --size an error says which of them; without, that there are such sizes in the range of the file."""

    def hangs(text: str, *sizes: int) -> list[tuple[str, str]]:
        findings = diagnose(text.encode(), "rccl", sizes=sizes).findings
        return [
            (each.severity.value, each.text.partition(" of up")[0]) for each in findings if each.rule == "H01"
        ]

    limit = 6 * 2**20  # slots of 1 MiB go in two messages of 2 and 1
    assert hangs(exchange(0)) == [("error", f"above {limit} bytes steps")]
    assert hangs(exchange(0), 2**20 * 3) == [("warning", f"above {limit} bytes steps")]
    assert hangs(exchange(0), limit, limit + 24) == [("error", "at 6291480 steps")]
    assert hangs(exchange(limit)) == []
    assert diagnose(exchange(0).encode(), "rccl", sizes=(limit,)).loads


def test_shares_of_ranks() -> None:
    def tripped(*sizes: int) -> bool:
        return "U07" in {finding.rule for finding in diagnose(RCCL.encode(), "rccl", sizes=sizes).findings}

    assert tripped(8)  # one element of each rank in two chunks
    assert not tripped(16, 1 << 20)


def test_how_to_use_it_is_always_told() -> None:
    for target in TARGETS.values():
        note = next(each for each in diagnose(RCCL.encode(), target.name).findings if each.rule == "U09")
        assert target.switches in note.fix


@pytest.mark.parametrize("target", TARGETS)
def test_what_the_writer_writes_has_no_errors_and_no_warnings(target: str) -> None:
    programs = [gather(4), gather(4, in_place=False), all_pairs(5)]
    if not TARGETS[target].refused_types:
        programs.append(ring_all_reduce(6))
    for program in programs:
        diagnosis = diagnose(
            msccl_xml(program, target=target).encode(), target, ranks=program.num_ranks, sizes=(1 << 20,)
        )
        worse = [each for each in diagnosis.findings if each.severity is not Severity.NOTE]
        # 5 and 6 chunks do not divide 2^20 bytes: then that is all there is to say.
        assert worse == []
        assert diagnosis.loads
        assert diagnosis.ok == ((1 << 20) % (program.num_chunks * 4) == 0)


def reasons(text: str, target: str = "rccl", **options: int | tuple[int, ...]) -> list[str | None]:
    return [reason for _, reason in diagnose(text.encode(), target, **options).sizes]  # type: ignore[arg-type]


def test_sizes() -> None:
    limited = RCCL.replace('minBytes="0" maxBytes="0"', 'minBytes="64" maxBytes="1024"')
    assert reasons(limited, sizes=(32, 64, 1024, 2048, 100)) == [
        "minBytes is 64",
        None,
        None,
        "maxBytes is 1024",
        "it is no multiple of 2 chunks x 4 bytes",
    ]
    assert reasons(RCCL, sizes=(0, 8)) == ["there is nothing to move", None]
    assert reasons(RCCL, sizes=(8,), ranks=3) == ["it is for 2 ranks, not 3"]


def test_the_missing_maximum_of_microsoft_msccl_is_128_mib() -> None:
    text = RCCL.replace(' maxBytes="0"', "")
    used, unused = reasons(text, "msccl", sizes=((1 << 27) - 8, 1 << 27))
    assert used is None
    assert unused == f"maxBytes is {1 << 27}, and only smaller messages use it"


def test_the_maximum_of_microsoft_msccl_is_the_first_size_that_does_not_use_a_file() -> None:
    text = scratch(0, 1024)
    assert [reason is None for reason in reasons(text, "msccl", sizes=(1016, 1024))] == [True, False]
    assert reasons(text, "rccl", sizes=(1016, 1024)) == [None, None]


@pytest.mark.parametrize(
    ("slots", "most", "severity", "words"),
    [
        (1, 2**20, Severity.NOTE, "524,288 bytes"),
        (2, 2**36, Severity.WARNING, "68,719,476,736 bytes"),
        (2, 2**40, Severity.ERROR, "1,099,511,627,776 bytes"),
        (2, 2**63 - 1, Severity.ERROR, "9,223,372,036,854,775,807 bytes"),
        (4, 2**63 - 1, Severity.ERROR, "9,223,372,036,854,775,806 bytes"),  # as 64 bits count it
    ],
)
def test_scratch_that_microsoft_msccl_allocates_at_start(
    slots: int, most: int, severity: Severity, words: str
) -> None:
    findings = diagnose(scratch(slots, most).encode(), "msccl").findings
    told = next(each for each in findings if each.rule == "U10")
    assert told.severity is severity
    assert words in told.text
    for target in ("rccl", "azure-executor"):
        assert all(each.rule != "U10" for each in diagnose(scratch(slots, most).encode(), target).findings)


def severity_of(rule: str, text: str, target: str) -> list[Severity]:
    return [each.severity for each in diagnose(text.encode(), target).findings if each.rule == rule]


@pytest.mark.parametrize("target", TARGETS)
def test_lost_attributes_matter_where_a_loader_needs_them(target: str) -> None:
    more = " ".join(f'a{i}="1"' for i in range(7))
    behind = RCCL.replace('maxBytes="0"', f'maxBytes="9" {more}')
    assert severity_of("X09", behind, target) == [Severity.WARNING]
    before = RCCL.replace("<algo name", f"<algo {more} name").replace(' coll="allgather"', "")
    lost = before.replace(' maxBytes="0"', ' maxBytes="9" coll="allgather"')
    assert severity_of("X09", lost, target) == [Severity.ERROR]
    blanks = RCCL.replace(' hasdep="0"/>', " " * 8 + 'hasdep="0"/>', 1)
    assert severity_of("X09", blanks, target) == [Severity.ERROR]


@pytest.mark.parametrize("target", TARGETS)
def test_elements_that_loaders_pass_over(target: str) -> None:
    passed = RCCL.replace("  <gpu", "  <copy/>\n  <copy></copy>\n  <gpu", 1).replace(
        "    <tb", "<copy/>\n    <tb"
    )
    assert set(severity_of("X10", passed, target)) == {Severity.WARNING}
    crash = STEP_ZERO.replace("/>", "><copy/></step>")
    assert severity_of("X10", RCCL.replace(STEP_ZERO, crash), target) == [Severity.ERROR]
    misplaced = RCCL.replace("  <gpu", '  <tb id="0"/>\n  <gpu', 1)
    assert severity_of("X10", misplaced, target) == [Severity.ERROR]


def test_a_nop_at_the_end_is_dropped() -> None:
    text = steps_of(step(0, "cpy"), step(1, "nop", wait="1 0"), blocks=block(1, COPY))
    assert severity_of("S06", text, "rccl") == [Severity.WARNING]


def test_a_diagnosis_that_is_not_ok_is_refused_with_the_first_reason() -> None:
    broken = diagnose(RCCL.replace('"Simple"', '"simple"').encode(), "rccl", file="a.xml")
    with pytest.raises(CheckError, match=r"RCCL cannot use a.xml:2: proto is 'simple'"):
        broken.require_ok()
    unused = diagnose(RCCL.encode(), "rccl", file="a.xml", sizes=(8, 12))
    with pytest.raises(
        CheckError, match=r"would not use a.xml at 1 of 2 sizes: at 12 bytes it is no multiple"
    ):
        unused.require_ok()
    diagnose(RCCL.encode(), "rccl", sizes=(8,)).require_ok()


def test_findings_come_errors_first_and_by_line() -> None:
    text = RCCL.replace('srcoff="1"', 'srcoff="7"').replace('"Simple"', '"simple"')
    diagnosis = diagnose(text.encode(), "rccl")
    order = [(list(Severity).index(each.severity), each.line) for each in diagnosis.findings]
    assert order == sorted(order)
    assert diagnosis.findings[0].line == 2


def test_a_rule_that_finds_very_much_is_cut_short() -> None:
    text = steps_of(*(step(i, "cpy", "i9") for i in range(50)))
    diagnosis: Diagnosis = diagnose(text.encode(), "rccl")
    assert sum(each.rule == "S08" for each in diagnosis.findings) == 20
    assert diagnosis.hidden == {"S08": 30}


def test_what_is_no_msccl_xml_is_refused() -> None:
    with pytest.raises(InputError, match="expected an <algo> element"):
        diagnose(b"<system/>", "rccl")
    with pytest.raises(InputError, match="no target 'ncclx': did you mean"):
        diagnose(RCCL.encode(), "ncclx")
    with pytest.raises(InputError, match=r"expected sizes of 0 bytes or more, found \(-1,\)"):
        diagnose(RCCL.encode(), "rccl", sizes=(-1,))
    with pytest.raises(InputError, match=r"cannot read no-such-file\.xml"):
        diagnose("no-such-file.xml", "rccl")


def test_rules_say_what_happens_and_what_to_do() -> None:
    assert len({rule.id for rule in rules_for("rccl")}) == len(rules_for("rccl"))
    for rule in rules_for("rccl"):
        assert rule.title
        assert rule.why
    for _, target, bad, _ in SAMPLES:
        for finding in diagnose(bad().encode(), target).findings:
            assert finding.fix
            assert not re.search(r"[.;:]$", finding.text)
