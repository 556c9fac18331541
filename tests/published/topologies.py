"""Descriptions of machines as people post them: matrices, XML of several tools, environment reports."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction

from published.check import Answer, Check


def says(*words: str) -> Callable[[Answer], bool]:
    """A judge of what is said, whatever line ends stand between."""
    return lambda answer: all(word in answer.text for word in words)


def refuses(*words: str) -> Callable[[Answer], bool]:
    return lambda answer: answer.status == 2 and says(*words)(answer) and "remove" not in answer.text


def rate(algbw: str, busbw: str) -> Callable[[Answer], bool]:
    return lambda answer: (
        Fraction(answer.json["algbw_exact"]) == Fraction(algbw)
        and Fraction(answer.json["busbw_exact"]) == Fraction(busbw)
    )


def at_most(limit: str) -> Callable[[Answer], bool]:
    return lambda answer: Fraction(answer.json["algbw_exact"]) <= Fraction(limit)


def near(*pairs: tuple[str, str]) -> Callable[[Answer], bool]:
    """A judge of an imported machine: each GPU shares a switch, or a chain of them, with this NIC."""

    def judge(answer: Answer) -> bool:
        links = {(link["from"], link["to"]) for link in answer.json["links"]}
        both = links | {(b, a) for a, b in links}

        def reached(start: str) -> set[str]:
            found = {start}
            for _ in range(3):
                found |= {b for a, b in both if a in found and (b.startswith("pcie") or a.startswith("pcie"))}
                found = {each for each in found if not each.startswith("cpu")}
            return found

        return all(nic in reached(gpu) for gpu, nic in pairs)

    return judge


def cpus(*expected: str) -> Callable[[Answer], bool]:
    """A judge of an imported machine whose GPUs hang from these CPUs, in order."""

    def judge(answer: Answer) -> bool:
        ends = [(link["from"], link["to"]) for link in answer.json["links"]]
        found = {a: b for pair in ends for a, b in (pair, pair[::-1]) if a[:3] + b[:3] == "gpucpu"}
        return [found[gpu] for gpu in sorted(found)] == list(expected)

    return judge


SKELETONS = "09-aws-p5-skeletons"
HWLOC = "10-lstopo-xml"
WIDE = "11-wide-matrices"
MP = "12-topo-mp-h800"
K80 = "14-k80-soc"
PARTIAL = "15-partial-machines"
MI250X = "16-frontier-mi250x-node"
MI355X = "17-mi355x-in-an-environment-report"
TWELVE = [
    ("gpu0", 0),
    ("gpu1", 3),
    ("gpu2", 4),
    ("gpu3", 5),
    ("gpu4", 6),
    ("gpu5", 9),
    ("gpu6", 10),
    ("gpu7", 11),
]
B200 = [(f"gpu{i}", f"NIC{11 - i}") for i in range(8)]

CHECKS: list[Check] = [
    Check(
        SKELETONS,
        "a skeleton without GPUs is refused with the option that completes it",
        "coppice topology show p5.48xl-topo-old.xml",
        refuses("describes no GPU", "--set gpu="),
    ),
    Check(
        SKELETONS,
        "and with it 8 GPUs, each beside 4 NICs",
        "coppice topology show p5.48xl-topo-old.xml --set gpu=h100 --json",
        lambda answer: (
            answer.json["nodes"]["gpu"] == 8
            and answer.json["nodes"]["nic"] == 32
            and any(
                group["from"] == "nic" and group["to"] == "pcie" and group["count"] == 32
                for group in answer.json["link_groups"]
            )
            and "taken for NICs" in answer.text
        ),
    ),
    Check(
        SKELETONS,
        "a file without NVLinks says so",
        "coppice topology show p5.48xl-topo-pr1226.xml",
        says("8 GPUs", "32 NICs", "no NVLink or xGMI link is listed"),
    ),
    Check(
        SKELETONS,
        "two boxes: no more than 800 by the NICs, and less by what a GPU receives",
        (
            "coppice topology compose 2xp5.48xl-topo-pr1226.xml --fabric switch --host-set gpu=h100 -o p5x2.json",
            "coppice bound p5x2.json -c all_gather --json",
        ),
        at_most("800"),
    ),
    *(
        Check(
            HWLOC,
            f"output of lstopo is named by {command.split()[1]}",
            command,
            refuses("lstopo", "NCCL_TOPO_DUMP_FILE"),
        )
        for command in (
            "coppice topology show topology.xml",
            "coppice doctor topology.xml --target nccl-topo",
            "coppice logs topology.xml",
        )
    ),
    Check(
        WIDE,
        "13 NICs, though two names of the header are one word",
        "coppice topology import b200_glued_header.txt --set gpu=b200",
        lambda answer: near(*B200)(answer) and "NIC11NIC12" in answer.text,
    ),
    Check(
        WIDE,
        "two sockets, and a CPU for the NICs of neither",
        "coppice topology show b200_glued_header.txt --set gpu=b200",
        says("13 NICs", "NIC0, NIC1, NIC2, NIC3 share no PCIe switch"),
    ),
    *(
        Check(
            WIDE,
            f"{name}: each GPU is near its NIC",
            f"coppice topology import {name} --set gpu=h100",
            near(*((gpu, f"mlx5_{nic}") for gpu, nic in TWELVE)),
        )
        for name in ("h100_12nic_whole.txt", "h100_glued_header_and_cells.txt")
    ),
    Check(
        WIDE,
        "glued words are told",
        "coppice topology show h100_glued_header_and_cells.txt --set gpu=h100",
        says("NIC8NIC9", "NODENODE", "12 NICs"),
    ),
    Check(
        WIDE,
        "20 of 76 NICs are not in the matrix",
        "coppice topology show h100_76_nics.txt --set gpu=h100 --set pcie=nics",
        says("56 NICs", "20 of the 76 NICs"),
    ),
    Check(
        WIDE,
        "nine functions of a port do not lift the PCIe link of their GPU",
        (
            "coppice topology compose 2xh100_76_nics.txt --fabric switch --host-set gpu=h100 --host-set pcie=nics -o b",
            "coppice bound b --ranks 0,8 -c all_reduce --json",
        ),
        rate("48", "48"),
    ),
    Check(
        MP,
        "no NVLink is listed, and why",
        "coppice topology show h800_topo_mp.txt",
        says("no NVLink is listed", "-mp"),
    ),
    Check(
        MP,
        "the same where the model is given, which sets rates only",
        "coppice topology show h800_topo_mp.txt --set gpu=h800",
        lambda answer: (
            says("no NVLink is listed", "rates only", "`topo -m`", "48 GB/s")(answer)
            and "gen 4" not in answer.text
            and "a100" not in answer.text
        ),
    ),
    Check(
        K80,
        "a prompt before the table, SOC, two sockets, and the assumption",
        "coppice topology show k80_6x.txt",
        says("6 GPUs", "gen 4 is assumed", "1 x cpu <-> cpu", "3 x pcie <-> cpu"),
    ),
    Check(
        K80,
        "no assumption of rates that are given",
        "coppice topology show k80_6x.txt --set pcie_gb_per_s=12 --set socket_gb_per_s=6",
        lambda answer: answer.status == 0 and "assumed" not in answer.text,
    ),
    Check(
        K80,
        "measured 3.81 GB/s lie below the bound of the three ranks",
        "coppice bound k80_6x.txt --set pcie_gb_per_s=12 --set socket_gb_per_s=6 --ranks 1,3,5 -c all_gather --json",
        rate("9", "6"),
    ),
    Check(
        PARTIAL,
        "one pair with NVLink, one GPU without; the model is a guess",
        "coppice topology show pair_and_single.txt",
        says("4 links per GPU are taken for model v100", "GPU2 has no NVLink", "80 GB/s"),
    ),
    Check(
        PARTIAL,
        "gpu=a6000 changes NVLink and PCIe",
        "coppice topology show pair_and_single.txt --set gpu=a6000",
        lambda answer: says("48 GB/s", "24 GB/s")(answer) and "not in the text" not in answer.text,
    ),
    Check(
        PARTIAL,
        "all three GPUs: 1.5 times the PCIe link of the third",
        "coppice bound pair_and_single.txt --set gpu=a6000 -c all_gather --json",
        rate("36", "24"),
    ),
    Check(
        PARTIAL,
        "two of eight: 12 links, two near NICs, six far ones",
        "coppice topology show a100_slice_2.txt",
        says("240 GB/s", "NIC0, NIC1, NIC2, NIC3, NIC4, NIC5 share no", "8 NICs"),
    ),
    Check(
        PARTIAL,
        "blank CPU lists leave the NUMA nodes where they are",
        "coppice topology import h100_slice_4_blank_cpu.txt",
        cpus("cpu0", "cpu1", "cpu1", "cpu1"),
    ),
    Check(
        PARTIAL,
        "a switch machine of 18 links each",
        "coppice topology show h100_slice_4_blank_cpu.txt",
        says("4 x gpu <-> nvswitch, 370.8 GB/s"),
    ),
    Check(
        PARTIAL,
        "three A6000 with one bridge",
        "coppice topology show a6000_3x.txt --set gpu=a6000",
        says("1 x gpu <-> gpu, 48 GB/s", "GPU2 has no NVLink"),
    ),
    *(
        Check(
            MI250X,
            f"the node {name}: {algbw}, {busbw}",
            f"coppice bound {name} -c all_gather --json",
            rate(algbw, busbw),
        )
        for name, algbw, busbw in (
            ("mi250x_node_50.json", "1000/3", "875/3"),
            ("mi250x_node_36.json", "240", "210"),
            ("rocm_smi_mi250x_8.txt --set pcie=drop", "240", "210"),
            ("rocm_smi_mi250x_8.txt --set pcie=drop --set rates=nominal", "1000/3", "875/3"),
        )
    ),
    Check(
        MI250X,
        "the numbers of links are not in the text, and which are taken",
        "coppice topology show rocm_smi_mi250x_8.txt",
        says("not in the text", "4 within a package", "2 for 0-6 and 2-4"),
    ),
    Check(
        MI250X,
        "one link for every pair is told to be wrong here",
        "coppice topology show rocm_smi_mi250x_8.txt --set xgmi_links=1",
        says("xgmi_links=1 is taken for every pair", "4 within a package"),
    ),
    Check(
        MI250X,
        "a plan of the node verifies",
        ("coppice plan mi250x_node_50.json -c all_gather -o p.json", "coppice verify p.json"),
        lambda answer: answer.status == 0,
    ),
    Check(
        MI355X,
        "the model is in the report",
        "coppice topology show collect_env_mi355x.txt",
        lambda answer: (
            says("names MI355X", "28 x gpu <-> gpu, 48 GB/s")(answer) and "mi300x" not in answer.text
        ),
    ),
    *(
        Check(
            MI355X,
            f"a full mesh of 7 links{setting}: {algbw}, {busbw}",
            f"coppice bound collect_env_mi355x.txt{setting} --set pcie=drop -c all_gather --json",
            rate(algbw, busbw),
        )
        for setting, algbw, busbw in (
            ("", "384", "336"),
            (" --set gpu=mi355x", "384", "336"),
            (" --set gpu=mi355x --set rates=nominal", "3072/5", "2688/5"),
        )
    ),
    Check(
        MI355X,
        "PCIe only, on four NUMA nodes, and no model's xGMI",
        "coppice topology import rocm_smi_pcie_4x.txt",
        lambda answer: (
            cpus("cpu0", "cpu1", "cpu3", "cpu2")(answer)
            and "no xGMI link" in answer.text
            and not re.search(r"\bmi[0-9]", answer.text)
        ),
    ),
    Check(
        MI355X,
        "weights that differ by direction are refused with the pair",
        "coppice topology show rocm_smi_asymmetric_4x.txt",
        refuses("from GPU0 to GPU1 is 14", "from GPU1 to GPU0 15"),
    ),
    Check(
        MI355X,
        "four of eight MI300X receive over three links: 192, 144",
        "coppice bound mi300x --ranks 0-3 --rates measured -c all_gather --json",
        rate("192", "144"),
    ),
]
