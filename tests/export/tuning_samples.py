"""Tuning files, each with what is known of the job, and the rules that it breaks: ``rule severity line``, sorted."""

from __future__ import annotations

from dataclasses import replace

from coppice.doctor import JobFacts
from coppice.export.nccl.tuner import Dialect
from coppice.logs.reading import parse_log
from coppice.topology.presets import preset

Sample = tuple[str, str, JobFacts, str]
"""(name, file, what is given, what it breaks)"""

END = 2**64 - 1
ANYTHING = "".join(
    f"{name},0,{END},ring,simple,0,-1,-1\n"
    for name in ("broadcast", "reduce", "allgather", "reducescatter", "allreduce")
)
RCCL, EXAMPLE, NCCLX, OURS = (
    JobFacts(dialect=dialect)
    for dialect in (Dialect.RCCL_BUILTIN, Dialect.NVIDIA_EXAMPLE, Dialect.NCCLX, Dialect.COPPICE)
)
LOG = """\
n:1:1 [0] NCCL INFO NCCL version 2.27.7+cuda12.9
n:1:2 [0] NCCL INFO comm 0xd0 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
n:1:2 [0] NCCL INFO   Algorithm   |                  Ring          |
n:1:2 [0] NCCL INFO   Protocol    |   LL |  LL128 |  Simple |
n:1:2 [0] NCCL INFO     AllReduce |    36.2/  12.0 |    75.2/   0.0 |   131.6/ 256.0 |
n:1:2 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 per peer
"""


WHOLE = f"allreduce,0,{END},ring,simple,{{}},2,16\n"


def logged(*lines: str) -> JobFacts:
    return JobFacts(dialect=Dialect.RCCL_BUILTIN, log=parse_log((LOG + "".join(lines)).encode(), file="log"))


TUNER: list[Sample] = [
    ("a gap", "allreduce,0,9,ring,ll,-1,2,16\nallreduce,11,{END},ring,simple,-1,2,16\n", RCCL, "T01 note 1"),
    (
        "a gap that is one channel",
        "allreduce,0,9,ring,ll,0,2,16\nallreduce,11,{END},ring,simple,0,2,16\n"
        + ANYTHING.replace(f"allreduce,0,{END}", "allreduce,0,8"),
        EXAMPLE,
        "T01 error 1, T02 error 7",
    ),
    (
        "an overlap",
        "allreduce,0,9,ring,ll,-1,2,16\nallreduce,9,{END},ring,simple,-1,2,16\n",
        RCCL,
        "T01 warning 2",
    ),
    (
        "a dead line",
        "allreduce,0,{END},ring,ll,-1,-1,-1\nallreduce,8,9,tree,ll,-1,2,16\n",
        RCCL,
        "T01 warning 2",
    ),
    ("bytes per rank meet", "allgather,[0,9),ring,ll,-1,2,8\nallgather,[9,),ring,simple,-1,2,8\n", NCCLX, ""),
    (
        "bytes per rank overlap",
        "allgather,[0,9],ring,ll,-1,2,8\nallgather,[9,),ring,simple,-1,2,8\n",
        NCCLX,
        "T01 warning 2",
    ),
    (
        "larger sizes first",
        "allreduce,9,{END},ring,simple,-1,2,16\nallreduce,0,4,ring,ll,-1,2,16\nallreduce,5,8,tree,ll,-1,2,16\n",
        RCCL,
        "",
    ),
    (
        "a condition hides nothing",
        "allreduce,0,{END},ring,ll,-1,2,16,4,-1\nallreduce,0,{END},ring,simple,-1,2,16\n",
        RCCL,
        "T04 warning 1",
    ),
    ("no end", "allreduce,0,4294967295,ring,ll,-1,2,16\n", RCCL, "T02 note 1"),
    ("no end, one channel", ANYTHING.replace(str(END), "4294967295", 1), EXAMPLE, "T02 error 1"),
    (
        "no line for reduce",
        ANYTHING.replace("reduce,", "broadcast,", 1),
        EXAMPLE,
        "T01 warning 2, T02 error 0",
    ),
    ("-1 is one channel", ANYTHING + WHOLE.format(-1), EXAMPLE, "T01 warning 6, T03 error 6"),
    ("0 is ignored loudly", WHOLE.format(0), RCCL, "T03 warning 1"),
    ("-2 as well", WHOLE.format(-2), RCCL, "T03 warning 1"),
    ("-1 is the default", WHOLE.format(-1), RCCL, ""),
    ("registered buffers", WHOLE.format(-1).replace("16\n", "16,-1,1\n"), RCCL, "T04 error 1"),
    ("grouped calls", WHOLE.format(-1).replace("16\n", "16,4,-1\n"), RCCL, "T04 warning 1"),
    ("any of them", WHOLE.format(-1).replace("16\n", "16,-1,-1\n"), RCCL, ""),
    ("unknown protocol", WHOLE.format(-1).replace("simple", "ll12"), RCCL, "T05 error 1"),
    ("unknown collective", ANYTHING + f"alltoall,0,{END},ring,simple,0,2,16\n", EXAMPLE, "T05 error 6"),
    ("no number", WHOLE.format("x"), RCCL, "T05 error 1"),
    ("an upside-down range", "allreduce,9,8,ring,ll,-1,2,16\n", RCCL, "T05 error 1"),
    ("a long line", WHOLE.format(-1) + "#" + "x" * 255 + "\n", RCCL, "T06 error 2"),
    ("a line that just fits", WHOLE.format(-1) + "#" + "x" * 254 + "\n", RCCL, ""),
    ("an empty field", WHOLE.format(""), RCCL, "T07 error 1"),
    ("too few fields", "allreduce,0,9,ring,ll\n", RCCL, "T07 error 1"),
    ("too many fields", WHOLE.format(-1).replace("16\n", "16,-1,-1,0\n"), RCCL, "T05 error 1"),
    ("no fallback", "allreduce,[0,),nvls,simple,-1,2,8\n", NCCLX, "T08 warning 1"),
    ("a fallback", "allreduce,[0,),nvls,simple,-1,2,8\nallreduce,[0,),ring,simple,-1,2,8\n", NCCLX, ""),
    (
        "a short one",
        "allreduce,[0,),nvls,simple,-1,2,8\nallreduce,[0,9),ring,ll,-1,2,8\n",
        NCCLX,
        "T08 warning 1",
    ),
    (
        "no fallback, one channel",
        f"allreduce,0,{END},nvls,simple,0,2,16\n" + ANYTHING[:-1].rpartition("\n")[0] + "\n",
        EXAMPLE,
        "T02 error 0, T08 error 1",
    ),
    ("an impossible pair", f"broadcast,0,{END},tree,ll,-1,2,16\n", RCCL, "T09 warning 1"),
    ("not in RCCL", f"allreduce,0,{END},nvls,simple,-1,2,16\n" + WHOLE.format(-1), RCCL, "T09 warning 1"),
    ("128 channels", WHOLE.format(128), RCCL, "T10 error 1"),
    ("65 channels", ANYTHING.replace("simple,0", "simple,65", 1), EXAMPLE, "T10 error 1"),
    (
        "64 channels before 2.25",
        ANYTHING.replace("simple,0", "simple,64", 1),
        replace(EXAMPLE, version=(2, 24, 3)),
        "T10 error 1, T16 warning 0",
    ),
    ("more than given", WHOLE.format(17), replace(RCCL, channels=16), "T10 warning 1"),
    ("more than logged", WHOLE.format(25), logged(), "T10 warning 1"),
    ("as many as logged", WHOLE.format(24), logged(), ""),
    (
        "off in the model",
        f"allreduce,0,{END},ring,ll128,-1,2,16\n" + WHOLE.format(-1),
        logged(),
        "T11 warning 1",
    ),
    (
        "of another communicator",
        WHOLE.format(-1).replace("2,16", "4,32"),
        logged(),
        "T12 warning 0, T12 warning 1",
    ),
    (
        "a communicator without lines of one collective",
        WHOLE.format(-1) + WHOLE.format(-1).replace("allreduce", "allgather").replace("2,16", "1,8"),
        replace(RCCL, shapes=((1, 8), (2, 16))),
        "T12 note 0",
    ),
    (
        "one without any, with the example plug-in",
        ANYTHING.replace(",-1,-1", ",2,16"),
        replace(EXAMPLE, shapes=((1, 16), (2, 16))),
        "T02 error 0, T12 warning 0",
    ),
    (
        "equal by ranks, not by nodes",
        WHOLE.format(-1).replace("2,16", "8,16"),
        replace(RCCL, shapes=((2, 16),)),
        "T12 warning 0, T12 warning 1",
    ),
    ("of the topology", WHOLE.format(-1), replace(RCCL, topology=preset("mi300x", boxes=2)), ""),
    (
        "not of the topology",
        WHOLE.format(-1),
        replace(RCCL, topology=preset("mi300x")),
        "T12 warning 0, T12 warning 1",
    ),
    (
        "ranks per node",
        "allreduce,[0,),ring,ll,-1,2,16\n",
        replace(NCCLX, shapes=((2, 16),)),
        "T12 warning 0, T12 warning 1",
    ),
    *(
        (f"the example plug-in of {version}", ANYTHING, replace(EXAMPLE, version=version), expected)
        for version, expected in (
            ((2, 21, 5), "T16 error 0"),
            ((2, 26, 2), "T16 warning 0"),
            ((2, 27, 7), "T16 error 0"),
            ((2, 29, 7), "T16 error 0"),
            ((2, 30, 3), ""),
        )
    ),
    (
        "our plug-in does not crash",
        ANYTHING.replace(",0,-1", ",-1,-1"),
        replace(OURS, version=(2, 27, 7)),
        "",
    ),
    (
        "PAT before it came",
        "allgather,0,{END},pat,simple,-1,2,16\nallgather,0,{END},ring,simple,-1,2,16\n",
        replace(OURS, version=(2, 22, 3)),
        "T09 warning 1",
    ),
    ("of another version", "# library 2.21.5\n" + WHOLE.format(-1), logged(), "T13 warning 1"),
    ("of this version", "# library 2.27.7\n" + WHOLE.format(-1), logged(), ""),
    ("of another dialect", "# tuner table (ncclx) by hand\n" + WHOLE.format(-1), RCCL, "T13 error 1"),
    (
        "another machine",
        "# topology mi300x 0123456789abcdef\n" + WHOLE.format(-1),
        replace(RCCL, topology=preset("mi300x", boxes=2)),
        "T13 warning 1",
    ),
    (
        "calls beside the tuner",
        WHOLE.format(-1),
        logged("n:1:1 [0] NCCL INFO Send: opCount 3\n"),
        "T14 note 0",
    ),
    (
        "another tuner",
        WHOLE.format(-1),
        logged("n:1:1 [0] NCCL INFO TUNER/Plugin: Using libnccl_ofi_tuner (v3)\n"),
        "T15 error 0",
    ),
    (
        "no tuner, none needed",
        WHOLE.format(-1),
        logged("n:1:1 [0] NCCL INFO TUNER/Plugin: Could not find: x\n"),
        "",
    ),
]


GRAPH = """\
<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="1" speedintra="20" speedinter="20" latencyinter="0" \
typeintra="NVL" typeinter="PIX" samechannels="1">
    <channel>
      <net dev="0x0"/>
      <gpu dev="0x0"/>
      <gpu dev="0x1"/>
      <net dev="0x0"/>
    </channel>
  </graph>
</graphs>
"""


def many(count: int) -> str:
    head, _, rest = GRAPH.replace('nchannels="1"', f'nchannels="{count}"').partition("    <channel>")
    channel, _, tail = rest.partition("</channel>\n")
    return head + ("    <channel>" + channel + "</channel>\n") * count + tail


def crossed(crossnic: int, *channels: str) -> str:
    """The graph with channels that begin and end with these NICs."""
    head, _, rest = GRAPH.replace('nchannels="1"', f'nchannels="{len(channels)}"').partition("    <channel>")
    tail = rest.partition("</channel>\n")[2]
    body = "".join(
        f'    <channel>\n      <net dev="{first}"/>\n      <gpu dev="0x0"/>\n      <gpu dev="0x1"/>\n'
        f'      <net dev="{last}"/>\n    </channel>\n'
        for first, last in channels
    )
    return head.replace('crossnic="0"', f'crossnic="{crossnic}"') + body + tail


GRAPHS: list[Sample] = [
    ("a good one", GRAPH, JobFacts(gpus=2, shapes=((2, 4),), dump=GRAPH.encode()), ""),
    ("32 channels", many(32), JobFacts(), ""),
    ("33 channels", many(33), JobFacts(), "G01 error 2"),
    ("33 channels of RCCL", many(33), JobFacts(rccl=True), ""),
    ("17 channels before 2.25", many(17), JobFacts(version=(2, 24)), "G01 error 2"),
    ("miscounted", GRAPH.replace('nchannels="1"', 'nchannels="2"'), JobFacts(), "G02 error 2"),
    ("counted as none", GRAPH.replace('nchannels="1"', 'nchannels="0"'), JobFacts(), "G02 warning 2"),
    ("a GPU twice", GRAPH.replace('dev="0x1"', 'dev="0"'), JobFacts(), "G03 error 3"),
    ("a GPU missing", GRAPH, JobFacts(gpus=3), "G03 error 3"),
    ("a GPU too many", GRAPH.replace('gpu dev="0x1"', 'gpu dev="10"'), JobFacts(gpus=2), "G03 error 3"),
    ("ranks", GRAPH.replace('gpu dev="0x1"', 'gpu dev="0x1" rank="1"'), JobFacts(), "G04 warning 6"),
    ("unknown type", GRAPH.replace('typeintra="NVL"', 'typeintra="C2C"'), JobFacts(), "G05 error 2"),
    ("too good a type", GRAPH, JobFacts(dump=GRAPH.replace("PIX", "PHB").encode()), "G06 error 2"),
    ("a worse type", GRAPH.replace("PIX", "SYS"), JobFacts(dump=GRAPH.encode()), ""),
    ("a small group", GRAPH, JobFacts(shapes=((2, 4), (2, 2))), "G07 error 0"),
    ("crossed rails", GRAPH.replace('<net dev="0x0"/>', '<net dev="0x1"/>', 1), JobFacts(), "G08 warning 3"),
    ("pairs that change places", crossed(2, "01", "10"), JobFacts(), ""),
    ("two pairs", crossed(2, "01", "10", "23", "32"), JobFacts(), ""),
    ("pairs that do not", crossed(2, "00", "11"), JobFacts(), "G08 warning 3, G08 warning 9"),
    ("half a pair", crossed(2, "01", "10", "22"), JobFacts(), "G08 warning 3, G08 warning 9"),
    ("no exchange without crossnic", crossed(1, "01", "10"), JobFacts(), "G08 warning 3, G08 warning 9"),
]


TEXTS: list[tuple[str, str, str, str]] = [
    ("as NCCL writes it", "", "", ""),
    ("CRLF", "\n", "\r\n", ""),
    ("leading blank lines", "<graphs", "\n\n<graphs", ""),
    ("no end of the last line", "</graphs>\n", "</graphs>", ""),
    ("single quotes", '"4"', "'4'", ""),
    ("a comment", "    <channel>\n", "    <!-- <?x\t --><channel>\n", ""),
    ("two blanks", ' crossnic="0"', '  crossnic="0"', ""),
    ("a blank before the end", 'dev="0x1"/>', 'dev="0x1" />', ""),
    ("a declaration", "<graphs", '<?xml version="1.0"?>\n<graphs', "G09 error 1"),
    ("a tab", "    <channel>\n", "\t<channel>\n", "G09 error 3"),
    ("an attribute in the next line", ' crossnic="0"', '\n crossnic="0"', "G09 error 2"),
    ("blanks around =", 'crossnic="0"', 'crossnic = "0"', "G09 error 2"),
    ("no version", ' version="1"', "", "G09 error 1"),
    ("17 attributes", ' crossnic="0"', " " * 8 + 'crossnic="0"', "G09 error 2"),
    ("an unknown element", "<channel>", "<lane/><channel>", "G09 note 3"),
    ("a long value", ' crossnic="0"', f' crossnic="0" note="{"x" * 254}"', "G09 error 2"),
    ("an entity", ' crossnic="0"', ' crossnic="0" note="&amp;"', "G09 warning 2"),
    ("a byte order mark", "<graphs", "\ufeff<graphs", "G09 error 1"),
]


TOPOLOGY = """\
<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="25" modelid="1">
    <pci busid="0000:01:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="90">
        <nvlink target="0000:02:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0000:02:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="1" sm="90">
        <nvlink target="0000:01:00.0" count="4" tclass="0x030200"/>
      </gpu>
    </pci>
    <pci busid="0000:03:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
      <nic>
        <net name="mlx5_0" dev="0" speed="400000" port="1"/>
      </nic>
    </pci>
  </cpu>
</system>
"""


LINK = 'link_speed="8 GT/s" link_width="8"'


def filled(count: int, version: str = "1") -> str:
    """The topology with so many elements."""
    more = "".join(
        f'    <pci busid="{n // 200:04x}:{n % 200 + 16:02x}:00.0" class="0x060400" {LINK}/>\n'
        for n in range(count - 11)
    )
    return TOPOLOGY.replace("  </cpu>", f"{more}  </cpu>").replace('version="1"', f'version="{version}"')


TOPOLOGIES: list[Sample] = [
    ("as old kernels print speeds", TOPOLOGY.replace("32.0 GT/s PCIe", "32 GT/s"), JobFacts(), ""),
    (
        "a speed that Linux never prints",
        TOPOLOGY.replace("32.0 GT/s PCIe", "32 GT/s PCIe/s"),
        JobFacts(),
        "P01 note 3",
    ),
    ("no arch", TOPOLOGY.replace(' arch="x86_64"', ""), JobFacts(), "P06 error 2"),
    ("no vendor", TOPOLOGY.replace(' vendor="AuthenticAMD"', ""), JobFacts(), "P06 error 2"),
    ("an AMD needs no model", TOPOLOGY.replace(' familyid="25" modelid="1"', ""), JobFacts(), ""),
    (
        "an Intel does",
        TOPOLOGY.replace(' familyid="25" modelid="1"', "").replace("AuthenticAMD", "GenuineIntel"),
        JobFacts(),
        "P06 error 2",
    ),
    ("an ARM needs no vendor", TOPOLOGY.replace('"x86_64" vendor="AuthenticAMD"', '"arm64"'), JobFacts(), ""),
    ("an unknown arch", TOPOLOGY.replace('"x86_64"', '"amd64"'), JobFacts(), "P06 warning 2"),
    ("no numaid", TOPOLOGY.replace(' numaid="0"', ""), JobFacts(), "P06 error 2"),
    ("no class", TOPOLOGY.replace(' class="0x030200"', ""), JobFacts(), "P06 warning 3"),
    ("no width of one", TOPOLOGY.replace(' link_width="16"', "", 1), JobFacts(), "P06 warning 3"),
    ("no bus id", TOPOLOGY.replace(' busid="0000:03:00.0"', ""), JobFacts(), "P06 error 13"),
    ("links without a count", TOPOLOGY.replace(' count="4"', ""), JobFacts(), "P06 error 5"),
    ("128 elements of two hosts", filled(128), JobFacts(boxes=2), "P04 note 1"),
    ("129 elements of two hosts", filled(129), JobFacts(boxes=2), "P04 warning 1"),
    ("few of two hosts", filled(90), JobFacts(boxes=2), ""),
    ("a good one", TOPOLOGY, JobFacts(dump=TOPOLOGY.encode(), nics=("mlx5_0",)), ""),
    ("half a speed", TOPOLOGY.replace("32.0 GT/s PCIe", "32.0 GT/s", 1), JobFacts(), "P01 warning 3"),
    ("another NIC", TOPOLOGY, JobFacts(nics=("mlx5_1",)), "P02 error 15"),
    (
        "another NIC than dumped",
        TOPOLOGY,
        JobFacts(dump=TOPOLOGY.replace("mlx5_0", "rdma0").encode()),
        "P02 error 15, P05 warning 15",
    ),
    ("fewer links", TOPOLOGY.replace('count="4"', 'count="2"', 1), JobFacts(), "P03 warning 4"),
    ("no links of one", TOPOLOGY.replace("<nvlink", '<c2c bw="1"', 1), JobFacts(), "P03 warning 4"),
    ("256 elements", filled(256), JobFacts(), ""),
    ("257 elements", filled(257), JobFacts(), "P04 error 1"),
    ("RCCL takes more", filled(8192, "2"), JobFacts(), ""),
    ("but not all", filled(8193, "2"), JobFacts(), "P04 error 1"),
    (
        "two hosts",
        TOPOLOGY.replace("  </cpu>\n", '  </cpu>\n  <cpu numaid="1" host_hash="0x2" arch="arm64"/>\n'),
        JobFacts(),
        "P04 error 1",
    ),
    (
        "a speed that was not taken",
        TOPOLOGY,
        JobFacts(dump=TOPOLOGY.replace("400000", "200000").encode()),
        "P05 warning 15",
    ),
    (
        "detected anyway",
        TOPOLOGY.replace('dev="0" speed', 'dev="3" speed'),
        JobFacts(dump=TOPOLOGY.encode()),
        "",
    ),
    (
        "a GPU that is not there",
        TOPOLOGY,
        JobFacts(dump=TOPOLOGY.replace("0000:02", "0000:09").encode()),
        "P05 warning 5, P05 warning 8, P05 warning 9, P05 warning 10",
    ),
    ("a tab", TOPOLOGY.replace("  <cpu", "\t<cpu"), JobFacts(), "G09 error 2"),
]


RINGS: list[Sample] = [
    ("good ones", "NCCL_RINGS=0 1 2 3|3 2 1 0\n", JobFacts(gpus=4), ""),
    ("quoted, with NICs", '# x\nexport NCCL_RINGS="N0 0 1 2 3 N1|3 2 1 0"\n', JobFacts(gpus=4), ""),
    ("the text alone", "0 1|1 0", JobFacts(), ""),
    ("for groups of two sizes", "NCCL_RINGS=0 1|0 1 2 3", JobFacts(shapes=((1, 2), (2, 8))), ""),
    ("another number of GPUs", "NCCL_RINGS=0 1 2 3|0 1 2", JobFacts(gpus=4), "R01 warning 1"),
    ("a GPU twice", "NCCL_RINGS=0 1 2 3|0 1 2 2", JobFacts(), "R01 warning 1"),
    ("a GPU too high", "NCCL_RINGS=0 1 2 3|0 1 2 4", JobFacts(), "R01 warning 1"),
    ("odd NICs", "NCCL_RINGS=0 1|N0 1 0", JobFacts(), "R01 warning 1"),
    ("none left", "NCCL_RINGS=0 1 2", JobFacts(gpus=4), "R01 error 1, R01 warning 1"),
    ("65 rings", "NCCL_RINGS=" + "|".join(["0 1"] * 65), JobFacts(), "R01 error 1"),
    ("64 rings", "NCCL_RINGS=" + "|".join(["0 1"] * 64), JobFacts(), ""),
    ("trees as well", "NCCL_RINGS=0 1\nRCCL_TREES=(0(1))\n", JobFacts(), "R01 error 1"),
]
TREES: list[Sample] = [
    ("good ones", "RCCL_TREES=(0(1(3))(2))|(2(0)(3(1)))\n", JobFacts(gpus=4, shapes=((1, 4),)), ""),
    ("several nodes", "RCCL_TREES=(0(1))", JobFacts(shapes=((2, 4),)), "R02 error 1"),
    ("four children", "RCCL_TREES=(0(1)(2)(3)(4))", JobFacts(), "R03 error 1"),
    ("64 trees", "RCCL_TREES=" + "|".join(["(0(1))"] * 64), JobFacts(), "R03 error 1"),
    ("63 trees", "RCCL_TREES=" + "|".join(["(0(1))"] * 63), JobFacts(), ""),
    (
        "a long tree",
        "RCCL_TREES=" + "".join(f"({n:04}" for n in range(60)) + ")" * 60,
        JobFacts(),
        "R03 error 1",
    ),
    ("two roots", "RCCL_TREES=(0)(1)", JobFacts(), "R03 error 1"),
    ("a parenthesis too few", "RCCL_TREES=(0(1)", JobFacts(), "R03 error 1"),
    ("a GPU twice", "RCCL_TREES=(0(1)(1))", JobFacts(), "R03 error 1"),
    ("no parentheses", "RCCL_TREES=0 1", JobFacts(), "R03 error 1"),
    ("a subgroup", "RCCL_TREES=(0(1)(2)(3))", JobFacts(shapes=((1, 2),)), "R04 error 1"),
    ("a GPU missing", "RCCL_TREES=(0(1)(2)(3))|(1(0)(2))", JobFacts(), "R04 error 1"),
    ("a GPU too many", "RCCL_TREES=(0(1)(2)(3))", JobFacts(gpus=3), "R04 error 1"),
]
