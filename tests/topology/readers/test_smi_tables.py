"""Tables of smi tools as terminals, reports and launchers leave them: no cell moves, and nothing goes in silence."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coppice.errors import InputError
from coppice.topology.model import NodeKind, Topology
from coppice.topology.readers import Reading, read
from support.reader_samples import ROCM

TITLES = ("CPU Affinity", "NUMA Affinity", "GPU NUMA ID")


def table(
    gpus: int = 4, nics: int = 12, *, titles: tuple[str, ...] = TITLES, link: str = "NV18"
) -> list[list[str]]:
    """Fields of each line as `nvidia-smi topo -m` has them between tabs: two sockets, NICs near each GPU."""
    names = [f"GPU{i}" for i in range(gpus)] + [f"NIC{i}" for i in range(nics)]

    def group(number: int) -> int:
        return number if number < gpus else (number - gpus) * gpus // max(nics, 1)

    rows = [["", *names, *titles]]
    for a, name in enumerate(names):
        cells = []
        for b in range(len(names)):
            if a == b:
                cells.append(" X ")
            elif max(a, b) < gpus:
                cells.append(link)
            elif group(a) == group(b):
                cells.append("PIX" if min(a, b) >= gpus else "PXB")
            else:
                cells.append("NODE" if group(a) * 2 // gpus == group(b) * 2 // gpus else "SYS")
        socket = group(a) * 2 // gpus
        affinity = (
            [f"{40 * socket}-{40 * socket + 39}", str(socket), "", "N/A"] if a < gpus else ["", "", "", ""]
        )
        rows.append([name, *cells, *(affinity if titles == TITLES else affinity[: len(titles)])])
    return rows


def text(rows: list[list[str]], *, tab: str = "\t", end: str = "\n") -> str:
    return end.join(tab.join(row) for row in rows) + end


def parsed(source: str, **options: str) -> Reading:
    return read(source.encode(), name="box", options={"gpu": "h100", **options})


def refused(source: str, **options: str) -> str:
    with pytest.raises(InputError) as caught:
        parsed(source, **options)
    return str(caught.value)


def kinds(topology: Topology, kind: NodeKind) -> list[str]:
    return [
        name for name, each in zip(topology.node_ids, topology.kind.tolist(), strict=True) if each == kind
    ]


def cpu_of(topology: Topology) -> dict[str, str]:
    """The CPU that each GPU hangs from, by the shortest way up."""
    links = [
        (link.src, link.dst) for link in topology.links() if not link.dst.startswith(("gpu", "nvs", "NIC"))
    ]
    found = {}
    for gpu in kinds(topology, NodeKind.GPU):
        at = {gpu}
        while not any(node.startswith("cpu") for node in at):
            at = {dst for src, dst in links if src in at}
        found[gpu] = next(node for node in at if node.startswith("cpu"))
    return found


WHOLE = parsed(text(table()))


class TestWhiteSpace:
    def test_the_table_as_the_tool_prints_it(self) -> None:
        assert WHOLE.warnings == ()
        assert len(kinds(WHOLE.topology, NodeKind.NIC)) == 12
        assert list(cpu_of(WHOLE.topology).values()) == ["cpu0", "cpu0", "cpu1", "cpu1"]

    @pytest.mark.parametrize(
        "source",
        [
            text(table(), end="\r\n"),
            text(table(), end="\r\r\n"),
            text(table(), end="\n\n"),
            text(table()).expandtabs(8),
            text(table(), tab="\t\t"),
            text(table(), tab=" \t "),
            text([[cell.strip() for cell in row] for row in table()], tab="   "),
            text(table()).replace("\t\n", "\n").replace("\t\n", "\n"),
            text(table()).expandtabs(8).split("\n", 1)[0] + "\n" + text(table()).split("\n", 1)[1],
            "".join(f"> {line}\n" for line in text(table()).splitlines()),
            "".join(f"[{7}] {line}\n" for line in text(table()).splitlines()),
            "".join(f"[1,3]<stdout>:{line}\n" for line in text(table()).splitlines()),
            "".join(f"node-{5}: {line}\n" for line in text(table()).splitlines()),
            "".join(f"2024-05-01T10:00:{i:02} {line}\n" for i, line in enumerate(text(table()).splitlines())),
            "\t\x1b[4m" + text(table())[1:].replace("\n", "\x1b[0m\n", 1),
            "\t[4m" + text(table())[1:].replace("\n", "[0m\n", 1),
            "\ufffd[4m" + text(table()).replace("\n", "\ufffd[0m\n", 1),
            "\t^[[4m" + text(table())[1:].replace("\n", "^[[0m\n", 1),
            "".join(f"{i:6}\t{line}\n" for i, line in enumerate(text(table()).splitlines(), start=1)),
            "".join(f"> > {line}\n" for line in text(table()).splitlines()),
            "".join(f"gpu-1  | {line}\n" for line in text(table()).splitlines()),
            text(table()).replace(" ", "\u00a0"),
            "[me@host ~]$ nvidia-smi topo -m\n" + text(table()),
            "<me@host> nvidia-smi topo -m\n" + text(table()),
            "{container} $ nvidia-smi topo -m\n" + text(table()),
            "a package and its version\n" * 4000 + text(table()),
        ],
    )
    def test_white_space_and_what_surrounds_a_table_change_nothing(self, source: str) -> None:
        reading = parsed(source)
        assert reading.topology.sha256 == WHOLE.topology.sha256
        assert reading.warnings == ()


class TestColumns:
    def test_a_blank_cpu_list_leaves_the_numa_node_where_it_is(self) -> None:
        rows = table(4, 0)
        for row in rows[2:5]:
            row[5] = ""
            row[6] = "1"
        expected = {"gpu0": "cpu0", "gpu1": "cpu1", "gpu2": "cpu1", "gpu3": "cpu1"}
        assert cpu_of(parsed(text(rows)).topology) == expected
        assert cpu_of(parsed(text(rows).expandtabs(8)).topology) == expected

    def test_where_white_space_does_not_tell_the_column_nothing_is_guessed(self) -> None:
        rows = [[cell.strip() for cell in row] for row in table(4, 0)]
        for row in rows[1:]:
            row[5] = row[7] = ""
        reading = parsed("\n".join("   ".join(cell for cell in row if cell) for row in rows))
        assert any(
            "0 after the devices may belong below several of CPU Affinity" in each
            for each in reading.warnings
        )
        assert set(cpu_of(reading.topology).values()) == {"cpu0", "cpu1", "cpu2", "cpu3"}

    def test_only_n_a_names_no_numa_node(self) -> None:
        rows = table(2, 0, link="NV12")
        for row in rows[1:]:
            row[3:6] = ["", "", ""]
        for source in (text(rows), text(rows).expandtabs(8)):
            reading = parsed(source, gpu="a100")
            assert reading.warnings == ()
            assert set(cpu_of(reading.topology).values()) == {"cpu0", "cpu1"}

    def test_columns_in_another_order(self) -> None:
        rows = table(4, 0)
        for row in rows:
            row[5], row[6] = row[6], row[5]
        rows = [row[:7] for row in rows]
        assert cpu_of(parsed(text(rows)).topology) == cpu_of(parsed(text(table(4, 0))).topology)

    def test_devices_in_another_order(self) -> None:
        order = [0, 4, 5, 1, 2, 3]
        rows = table(4, 2)
        moved = [["", *(rows[0][1 + i] for i in order), *rows[0][7:]]]
        moved += [[rows[1 + i][0], *(rows[1 + i][1 + j] for j in order), *rows[1 + i][7:]] for i in order]
        found, expected = parsed(text(moved)).topology, parsed(text(rows)).topology
        assert sorted((link.src, link.dst, link.gb_per_s) for link in found.links()) == sorted(
            (link.src, link.dst, link.gb_per_s) for link in expected.links()
        )

    def test_a_numa_affinity_of_several_nodes_is_told(self) -> None:
        rows = table(2, 0, link="NV4")
        for row in rows[1:]:
            row[4] = "0-1"
        assert any(
            "'0-1' is not one node: left out" in each for each in parsed(text(rows), gpu="a6000").warnings
        )

    def test_cells_below_no_title_are_told(self) -> None:
        rows = table(4, 0)
        rows[0] = rows[0][:5]
        assert any("without a title follow the devices" in each for each in parsed(text(rows)).warnings)


class TestGluedWords:
    @pytest.mark.parametrize("first", range(1, 16))
    def test_two_names_of_the_header_in_one_word(self, first: int) -> None:
        rows = table()
        rows[0][first : first + 2] = ["".join(rows[0][first : first + 2])]
        reading = parsed(text(rows))
        assert reading.topology.sha256 == WHOLE.topology.sha256
        assert any(f"header's {rows[0][first]} is taken for" in each for each in reading.warnings)

    def test_the_last_name_and_the_titles_in_one_word(self) -> None:
        glued = text(table()).replace("NIC11\tCPU Affinity\tNUMA", "NIC11CPU AffinityNUMA")
        assert parsed(glued).topology.sha256 == WHOLE.topology.sha256

    def test_three_cells_in_one_word(self) -> None:
        rows = table()
        for row in rows[1:]:
            row[8:11] = ["".join(cell.strip() for cell in row[8:11])]
        reading = parsed(text(rows))
        assert reading.topology.sha256 == WHOLE.topology.sha256
        assert any("is taken for" in each for each in reading.warnings)

    @settings(max_examples=60, deadline=None)
    @given(data=st.data())
    def test_tabs_lost_anywhere(self, data: st.DataObject) -> None:
        """The machine is the same, or the text is refused with the line: no cell counts for another device."""
        rows = table(4, 4)
        lost = data.draw(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 10)), min_size=1, max_size=6))
        lines = text(rows).splitlines()
        for line, which in lost:
            parts = lines[line].split("\t")
            if which < len(parts) - 1 and parts[which]:
                parts[which : which + 2] = ["".join(parts[which : which + 2])]
                lines[line] = "\t".join(parts)
        try:
            topology = parsed("\n".join(lines)).topology
        except InputError as error:
            assert "input:" in str(error)  # noqa: PT017
        else:
            expected = parsed(text(rows)).topology
            devices = {"gpu", "NIC", "pci", "nvs"}
            assert [
                (link.src, link.dst)
                for link in topology.links()
                if link.src[:3] in devices and link.dst[:3] in devices
            ] == [
                (link.src, link.dst)
                for link in expected.links()
                if link.src[:3] in devices and link.dst[:3] in devices
            ]


class TestNothingIsDroppedInSilence:
    def test_a_row_without_a_column(self) -> None:
        rows = table()
        rows[0].remove("NIC11")
        message = refused(text(rows))
        assert "the row NIC11 at input:17 has no column in the header at line 1" in message

    def test_a_cell_without_a_device(self) -> None:
        rows = table()
        rows[3].insert(9, "SYS")
        assert (
            "expected 16 cells in the row GPU2 at input:4, as the header names devices, found one more"
            in refused(text(rows))
        )

    def test_a_wrapped_table(self) -> None:
        lines = text(table()).expandtabs(8).splitlines()
        wrapped = "\n".join(line[i : i + 100] for line in lines for i in range(0, len(line), 100))
        assert "no row follows the header of the matrix at input:1: the text was cut or wrapped" in refused(
            wrapped
        )

    def test_a_title_that_was_cut(self) -> None:
        rows = table()
        rows[0].remove("GPU NUMA ID")
        reading = parsed(text(rows))
        assert reading.topology.sha256 == WHOLE.topology.sha256
        assert reading.warnings == ()

    def test_a_lost_cell(self) -> None:
        rows = table()
        del rows[3][9]
        assert "expected 16 cells in the row GPU2 at input:4, found 15" in refused(text(rows))

    @pytest.mark.parametrize("tab", ["\t", "   "])
    def test_a_blank_cell(self, tab: str) -> None:
        rows = [[cell.strip() for cell in row] for row in table(4, 4, titles=())]
        rows[3][6] = ""
        assert "input:4" in refused("\n".join(tab.join(row) for row in rows))

    def test_nics_that_the_tool_left_out(self) -> None:
        reading = parsed("76 NICs found in the topology, only displaying 12 in the matrix.\n" + text(table()))
        assert any("input:1: 64 of the 76 NICs" in each for each in reading.warnings)

    def test_nics_of_the_legend_only(self) -> None:
        legend = "\nNIC Legend:\n\n" + "".join(f"  NIC{i}: mlx5_{i}\n" for i in range(14))
        reading = parsed(text(table()) + legend)
        assert any("NIC12, NIC13 of the legend have no column" in each for each in reading.warnings)

    def test_nics_without_a_row(self) -> None:
        reading = parsed(text(table(4, 4)[:5]))
        assert any("NIC0, NIC1, NIC2, NIC3 have no row" in each for each in reading.warnings)

    def test_several_machines(self) -> None:
        both = "== a ==\n" + text(table(4, 4)) + "\n== b ==\n" + text(table(4, 12))
        assert "found one at line 2 and another one at line 13" in refused(both)
        twice = parsed(text(table()) + "\n" + text(table()))
        assert twice.topology.sha256 == WHOLE.topology.sha256
        assert any("2 times and is read once" in each for each in twice.warnings)

    def test_tables_of_peer_access(self) -> None:
        peers = "\tGPU0\tGPU1\nGPU0\tX\tOK\nGPU1\tOK\tX\n"
        reading = parsed(peers + "\n" + text(table()))
        assert reading.topology.sha256 == WHOLE.topology.sha256
        assert any("peers may access" in each for each in reading.warnings)
        assert "which knows no distances" in refused(peers)


class TestModelAndRates:
    def test_the_model_that_a_report_names(self) -> None:
        report = "GPU models and configuration :\nGPU 0: NVIDIA H800\nGPU 1: NVIDIA H800\n\n" + text(
            table(8, 0, link="NV8")
        )
        reading = read(report.encode())
        assert any("input:2: the text names H800" in each for each in reading.warnings)
        rates = {link.src: link.gb_per_s for link in reading.topology.links() if link.dst == "nvswitch"}
        assert rates["gpu0"] == 8 * Fraction("20.6")
        assert parsed(report, gpu="a800").topology.sha256 != reading.topology.sha256

    def test_several_models_are_told_and_none_is_taken(self) -> None:
        report = "0: NVIDIA A100-SXM4-80GB\n1: Tesla V100-SXM2\n" + text(table(4, 0))
        reading = read(report.encode())
        assert any("several GPU models (A100, V100)" in each for each in reading.warnings)
        assert any("18 links per GPU are taken for model h100" in each for each in reading.warnings)

    @pytest.mark.parametrize(
        ("options", "assumed"),
        [
            ({}, "PCIe, sockets"),
            ({"pcie_gb_per_s": "12"}, "sockets"),
            ({"pcie_gb_per_s": "12", "socket_gb_per_s": "6"}, None),
            ({"gpu": "v100"}, None),
        ],
    )
    def test_a_guess_is_told_for_the_rates_that_it_gives(
        self, options: dict[str, str], assumed: str | None
    ) -> None:
        warnings = read(text(table(2, 0, link="SYS")).encode(), options=options).warnings
        guesses = [each for each in warnings if "not in the text" in each]
        assert len(guesses) == (assumed is not None)
        assert ("gen 4 is assumed" in "".join(guesses)) == (
            assumed == "PCIe, sockets" or assumed == "sockets"
        )
        if assumed == "sockets":
            assert "pcie_gb_per_s" not in guesses[0]

    @pytest.mark.parametrize("options", [{}, {"gpu": "h800"}, {"gpu": "h800", "pcie_gb_per_s": "12"}])
    def test_a_matrix_without_nvlink_says_so_whatever_is_given(self, options: dict[str, str]) -> None:
        reading = read(text(table(4, 4, link="NODE")).encode(), options=options)
        assert any("no NVLink is listed" in each for each in reading.warnings)
        assert any("gpu=h800 sets rates only" in each for each in reading.warnings) == ("gpu" in options)

    def test_a_model_of_another_maker_is_refused(self) -> None:
        assert "which AMD makes" in refused(text(table(4, 4)), gpu="mi300x")
        assert "which NVIDIA makes" in refused(ROCM.decode(), gpu="h100")

    def test_a_model_with_more_links_than_the_matrix_is_told(self) -> None:
        warnings = parsed(text(table(8, 8, link="NV12")), gpu="h100").warnings
        assert any("12 links each where model h100 has 18" in each for each in warnings)

    @pytest.mark.parametrize(
        ("gpus", "link", "words"),
        [
            (8, "NV18", "18 links per GPU are taken for model h100 (b200, b300 would show as many)"),
            (8, "NV8", "8 links per GPU are taken for model a800 (h800 would show as many)"),
            (4, "NV4", "12 links per GPU are taken for model a100, and its rates"),
            (2, "NV4", "4 links per GPU are taken for model v100 (p100, a6000 would show as many)"),
        ],
    )
    def test_a_guess_names_what_else_it_could_be(self, gpus: int, link: str, words: str) -> None:
        assert any(words in each for each in read(text(table(gpus, 0, link=link)).encode()).warnings)

    def test_gpus_said_to_have_no_links_are_not_told_again(self) -> None:
        reading = read(text(table(4, 4, link="NODE")).encode(), options={"gpu": "pcie"})
        assert not any("no NVLink" in each for each in reading.warnings)


class TestXgmiLinks:
    """The node of four MI250X: 12 pairs of dies, 4 links within a package, 2 for 0-6 and 2-4, 1 otherwise."""

    PAIRS = ("01", "23", "45", "67", "06", "24", "02", "13", "15", "37", "46", "57")

    def report(self, pairs: tuple[str, ...] = PAIRS, model: str = "", gpus: int = 8) -> bytes:
        names = [f"GPU{i}" for i in range(gpus)]

        def section(title: str, near: str, far: str) -> str:
            rows = [
                [
                    a,
                    *(
                        "0" if i == j else near if f"{min(i, j)}{max(i, j)}" in pairs else far
                        for j in range(gpus)
                    ),
                ]
                for i, a in enumerate(names)
            ]
            return "\n".join(
                [f"=== {title} between two GPUs ===", *("   ".join(row) for row in [["", *names], *rows])]
            )

        return (
            f"{model}\n{section('Weight', '15', '30')}\n\n{section('Link Type', 'XGMI', 'XGMI')}\n".encode()
        )

    def rates(self, data: bytes, **options: str) -> dict[tuple[str, str], Fraction]:
        links = read(data, options={"pcie": "drop", "rates": "nominal", **options}).topology.links()
        return {(link.src, link.dst): link.gb_per_s for link in links}

    def test_the_known_node(self) -> None:
        found = self.rates(self.report())
        assert len(found) == 24
        assert found["gpu0", "gpu1"] == 200
        assert found["gpu6", "gpu0"] == found["gpu2", "gpu4"] == 100
        assert found["gpu5", "gpu7"] == 50

    def test_one_link_for_every_pair_is_told_there(self) -> None:
        reading = read(self.report(), options={"xgmi_links": "1"})
        assert any("xgmi_links=1 is taken for every pair" in each for each in reading.warnings)

    def test_a_count_that_boards_do_not_have_is_told(self) -> None:
        mesh = self.report(tuple(f"{i}{j}" for j in range(8) for i in range(j)))
        told = read(mesh, options={"gpu": "mi300x", "xgmi_links": "2"}).warnings
        assert any("boards of 8 GPUs of model mi300x have 1" in each for each in told)
        assert not any(
            "boards of" in each for each in read(mesh, options={"gpu": "mi300x", "xgmi_links": "1"}).warnings
        )

    def test_other_wirings_are_refused_with_the_ways_out(self) -> None:
        with pytest.raises(InputError, match=r"topology XML of RCCL, a native file .* `xgmi_links=N`"):
            read(self.report((*self.PAIRS[:-1], "56")))

    @pytest.mark.parametrize(
        ("model", "name"),
        [
            ("GPU models: AMD Instinct MI355X (gfx950:sramecc+)", "mi355x"),
            ("Name: gfx950", "mi355x"),
            ("Card Series: AMD Instinct MI325X", "mi325x"),
            ("Name: gfx942", "mi300x"),
        ],
    )
    def test_the_model_that_a_report_names(self, model: str, name: str) -> None:
        mesh = self.report(tuple(f"{i}{j}" for j in range(8) for i in range(j)), model)
        reading = read(mesh)
        assert f"{name} with measured rates" in reading.topology.source
        assert any("not in the text: mi300x is assumed" in each for each in reading.warnings) == (
            name == "mi300x"
        )


class TestOtherTexts:
    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("<!DOCTYPE topology SYSTEM 'hwloc2.dtd'>\n<topology version='2.0'/>", ["input:1", "lstopo"]),
            ("<?xml version='1.0'?>\n<topology version='2.0'><object/></topology>", ["input:2", "lstopo"]),
            (
                "<!DOCTYPE nvidia_smi_log SYSTEM 'nvsmi_device_v12.dtd'>\n<nvidia_smi_log/>",
                ["nvidia-smi -q -x"],
            ),
            ("<!DOCTYPE other [<!ENTITY a 'b'>]>\n<system/>", ["document type", "NCCL_TOPO_DUMP_FILE"]),
            (
                "GPU 0: NVIDIA RTX A6000 (UUID: x)\n\t Link 0: 14.062 GB/s\n",
                ["nvlink -s", "`nvidia-smi topo -m`"],
            ),
            ("LINK TYPE TABLE:\n       0000:05:00.0\n", ["amd-smi topology", "rocm-smi --showtopo"]),
            ("Machine (2015GB total)\n  Package L#0\n", ["lstopo", "`nvidia-smi topo -m`"]),
            ("| NVIDIA-SMI 535.104.05   Driver Version: 535 |\n", ["overview", "`nvidia-smi topo -m`"]),
            ("[me@host ~]$ ls\n", ["JSON"]),
            ('{"system": {"(Topology) Weight between DRM devices 0 and 1": "15"}}', ["JSON of rocm-smi"]),
            ('[{"gpu": 0, "links": [{"gpu": 1, "link_type": "XGMI"}]}]', ["JSON of amd-smi"]),
        ],
    )
    def test_are_named(self, source: str, words: list[str]) -> None:
        message = refused(source)
        assert all(word in message for word in words), message
        assert "remove" not in message
