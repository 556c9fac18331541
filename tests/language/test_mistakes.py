"""Every mistake in a program over chunks is told by the line that makes it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coppice.errors import CheckError, CoppiceError, InputError
from coppice.language import ChunkProgram, compile_program
from support.pages import coppice

START = "from coppice import ChunkProgram\n"
RACES = {
    "overwritten": (
        """\
        p = ChunkProgram("all_reduce", ranks=3)
        old = p.chunk(0, "input", 0)
        old.reduce(p.chunk(1, "input", 0))
        old.copy(2, "mine")
        """,
        5,
        r"race: slot 0 of the input of rank 0, to which program\.py:3 took a ref.*, was overwritten by program\.py:4",
    ),
    "overwritten operand": (
        """\
        p = ChunkProgram("all_reduce", ranks=3)
        one, two = p.chunk(0, "input", 0), p.chunk(1, "input", 0)
        two.reduce(p.chunk(2, "input", 0))
        one.reduce(two)
        """,
        5,
        "race: .*rank 1",
    ),
    "two writes": (
        """\
        p = ChunkProgram("all_gather", ranks=3)
        p.chunk(0, "input", 0).copy(2, "tmp", 0)
        p.chunk(1, "input", 0).copy(2, "tmp", 0)
        """,
        4,
        r"race: this and program\.py:3 write slot 0 of the scratch memory 'tmp' of rank 2 in any order",
    ),
    "part of two writes": (
        """\
        p = ChunkProgram("all_gather", ranks=2, chunks=2)
        p.chunk(0, "input", 0, 2).copy(1, "tmp", 0)
        p.chunk(1, "tmp", 0).copy(1, "output", 0)
        p.chunk(0, "input", 0, 2).copy(1, "tmp", 0)
        """,
        5,
        "race: .*slot 1 of the scratch",
    ),
}
MISSING = {
    "scratch": (
        """\
        p = ChunkProgram("all_reduce", ranks=2)
        p.chunk(1, "tmp", 0)
        """,
        3,
        "missing chunk: slot 0 of the scratch memory 'tmp' of rank 1 holds nothing",
    ),
    "output": (
        """\
        p = ChunkProgram("all_gather", ranks=2)
        p.chunk(0, "output", 0, 2)
        """,
        3,
        "missing chunk: slot 1 of the output of rank 0 holds nothing",
    ),
    "root": (
        """\
        p = ChunkProgram("reduce", ranks=2, in_place=False)
        p.chunk(1, "output", 0)
        """,
        3,
        "the output of rank 1 has 0 slots, found slot 0",
    ),
}
WRONG = {
    "never written": (
        """\
        p = ChunkProgram("all_gather", ranks=3)
        p.chunk(0, "input", 0).copy(1, "output", 0)
        """,
        2,
        r"slot 1 of the output of rank 0 is never written: it should hold chunk 0 of the input of rank 1 \(4 more",
    ),
    "another chunk": (
        """\
        p = ChunkProgram("all_gather", ranks=2)
        p.chunk(0, "input", 0).copy(1, "output", 0)
        p.chunk(1, "input", 0).copy(0, "output", 1)
        p.chunk(0, "input", 0).copy(0, "output", 1)
        """,
        5,
        "race",
    ),
    "places exchanged": (
        """\
        p = ChunkProgram("all_to_all", ranks=2)
        for rank in range(2):
            for peer in range(2):
                p.chunk(rank, "input", peer).copy(
                    peer, "output", 1 - rank)
        """,
        5,
        "wrong result: slot 0 of the output of rank 0 ends with chunk 0 of the input of rank 1: it should hold chunk 0",
    ),
    "a rank is missing": (
        """\
        p = ChunkProgram("all_reduce", ranks=3)
        p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0)).copy(2, "input")
        p.chunk(0, "input", 0).copy(1, "input")
        """,
        3,
        "wrong result: slot 0 of the output of rank 0 ends with the sum of chunk 0 over ranks 0-1: it should hold",
    ),
    "as at the start": (
        """\
        p = ChunkProgram("all_reduce", ranks=2)
        """,
        2,
        "ends with chunk 0 of the input of rank 0, as at the start: it should hold the sum of chunk 0 over ranks 0-1",
    ),
    "twice": (
        """\
        p = ChunkProgram("all_reduce", ranks=2)
        total = p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0))
        total.reduce(p.chunk(1, "input", 0))
        """,
        4,
        "wrong result: adds the contribution of rank 1 to chunk 0 a second time",
    ),
    "different chunks": (
        """\
        p = ChunkProgram("all_reduce", ranks=2, chunks=2)
        p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 1))
        """,
        3,
        "wrong result: adds chunk 1 of the input of rank 1 to chunk 0 of the input of rank 0: expected the same chunk",
    ),
    "a sum where none is": (
        """\
        p = ChunkProgram("all_gather", ranks=2)
        p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0))
        """,
        3,
        "all_gather adds nothing up: copy instead",
    ),
}
DEADLOCKS = {
    "both receive first": (
        """\
        p = ChunkProgram("all_gather", ranks=2)
        first = {"send_block": 0, "recv_block": 0, "send_step": 1, "recv_step": 0}
        p.chunk(0, "input", 0).copy(1, "output", 0, **first)
        p.chunk(1, "input", 0).copy(0, "output", 1, **first)
        """,
        5,
        r"deadlock \(with program\.py:4\): rank 0, thread block 0, step 0 \(recv\) waits for the message of rank 1",
    ),
    "before what it needs": (
        """\
        p = ChunkProgram("broadcast", ranks=3)
        one = p.chunk(0, "input", 0).copy(1, "output", 0, recv_block=3, recv_step=1, send_step=0)
        one.copy(2, "output", 0, send_block=3, send_step=0, recv_step=0)
        """,
        4,
        r"deadlock: this needs what program\.py:3 does, which comes later in thread block 3 of rank 1",
    ),
    "another order of messages": (
        """\
        p = ChunkProgram("broadcast", ranks=2, chunks=2)
        for step in range(2):
            p.chunk(0, "input", step).copy(1, "output", step, recv_step=1 - step, send_step=step)
        """,
        4,
        "a channel delivers messages in the order of their sends",
    ),
}
HINTS = {
    "two peers": (
        """\
        p = ChunkProgram("broadcast", ranks=3)
        p.chunk(0, "input", 0).copy(1, "output", send_block=0)
        p.chunk(0, "input", 0).copy(2, "output", send_block=0)
        """,
        4,
        "the message from rank 0 to rank 2 cannot have thread block 0 of rank 0: a thread block has one channel",
    ),
    "two channels": (
        """\
        p = ChunkProgram("broadcast", ranks=2, chunks=2)
        for channel in range(2):
            p.chunk(0, "input", channel).copy(1, "output", send_block=0, channel=channel)
        """,
        4,
        "thread block 0 of rank 0 and channel 1",
    ),
    "a place for some": (
        """\
        p = ChunkProgram("broadcast", ranks=2, chunks=2)
        p.chunk(0, "input", 0).copy(1, "output", send_step=0)
        p.chunk(0, "input", 1).copy(1, "output")
        """,
        4,
        r"expected a place \(`send_step`, `recv_step`\) for every operation of the thread block, as program\.py:3",
    ),
    "no channel": (
        """\
        p = ChunkProgram("broadcast", ranks=2)
        p.chunk(0, "input", 0).copy(1, "output", channel=32)
        """,
        3,
        "expected `channel` of 0 or more up to 31, found 32",
    ),
}
MISUSE = {
    "rank": ("""p.chunk(2, "input", 0)""", "expected a rank from 0 to 1, found 2"),
    "no number": ("""p.chunk("0", "input", 0)""", "expected a whole number as rank, found '0'"),
    "truth": ("""p.chunk(True, "input", 0)""", "expected a whole number as rank, found True"),
    "index": ("""p.chunk(0, "input", 3, 2)""", "the input of rank 0 has 4 slots, found slots 3 to 4"),
    "negative": ("""p.chunk(0, "input", -1)""", "the input of rank 0 has 4 slots, found slot -1"),
    "buffer": (
        """p.chunk(0, 7, 0)""",
        "expected input, output or a name of scratch memory as buffer, found 7",
    ),
    "parts": ("""p.chunk(0, "input", 0, 4).split(3)""", "expected parts that divide 4 chunks, found 3"),
    "group": (
        """p.chunk(0, "input", 0).group(p.chunk(0, "input", 2))""",
        r"expected neighbours in one buffer to group, found input\[0\] of rank 0 and input\[2\] of rank 0",
    ),
    "onto itself": (
        """p.chunk(0, "input", 0, 2).copy(0, "input", 1)""",
        r"expected slots that do not overlap, found a copy of input\[0:2\] of rank 0 onto itself",
    ),
    "sizes": (
        """p.chunk(0, "input", 0).reduce(p.chunk(1, "input", 0, 2))""",
        "expected as many chunks to add, found 1 and 2",
    ),
    "no reference": (
        """p.chunk(0, "input", 0).reduce(3)""",
        "expected a reference to chunks of this program, found 3",
    ),
    "another program's": (
        """p.chunk(0, "input", 0).reduce(ChunkProgram("all_reduce", ranks=2).chunk(1, "input", 0))""",
        "expected a reference to chunks of this program",
    ),
    "a huge place": (
        """p.chunk(0, "input", 0).copy(1, "tmp", 10**9)""",
        "has 65536 slots, found slot 1000000000",
    ),
}
ARGUMENTS = {
    "barrier": ("""ChunkProgram("barrier", ranks=2)""", "found a barrier"),
    "name": ("""ChunkProgram("all_redcue", ranks=2)""", "did you mean 'all_reduce'"),
    "ranks": ("""ChunkProgram("all_reduce", ranks=0)""", "expected 1 to 4096 ranks"),
    "size": ("""ChunkProgram("all_reduce", ranks=4000, chunks=4000)""", "at most 4,194,304 slots in all"),
    "type": ("""ChunkProgram("all_reduce", ranks="2")""", "to be an int, found '2'"),
    "in place": ("""ChunkProgram("all_to_all", ranks=2, in_place=True)""", "cannot run in place"),
    "root": ("""ChunkProgram("broadcast", ranks=2, root=2)""", "expected a root from 0 to 1"),
    "no root": ("""ChunkProgram("all_reduce", ranks=2, root=0)""", "expected no root for all_reduce"),
    "protocol": (
        """ChunkProgram("all_reduce", ranks=2, protocol="ll")""",
        "expected `protocol` Simple, LL or LL128",
    ),
    "instances": ("""ChunkProgram("all_reduce", ranks=2, instances=0)""", "expected 1 instance or more"),
    "demands": ("""ChunkProgram("all_to_all", ranks=2, demands=[[0, 2], [0, 0]])""", "numbers 0 or 1"),
}


def written(folder: Path, text: str) -> Path:
    """A program that returns what stands in the text, whose first line becomes line 2."""
    body = "\n".join(line[8:] for line in text.splitlines())
    path = folder / "program.py"
    path.write_text(f"{START}{body}\nprogram = p\n")
    return path


CASES = [
    pytest.param(*case, id=f"{kind} {name}")
    for kind, cases in {
        "race": RACES,
        "missing": MISSING,
        "wrong": WRONG,
        "deadlock": DEADLOCKS,
        "hints": HINTS,
    }.items()
    for name, case in cases.items()
]


@pytest.mark.parametrize(("text", "line", "words"), CASES)
def test_a_mistake_is_told_with_its_line(text: str, line: int, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(CoppiceError, match=rf"^program\.py:{line}: .*{words}") as caught:
        compile_program(path)
    assert str(caught.value).count("\n") == 0
    done = coppice("compile", str(path))
    assert done.exit_code == (1 if isinstance(caught.value, CheckError) else 2)
    assert done.stderr.startswith(f"error: program.py:{line}: ")
    assert done.stdout == ""


@pytest.mark.parametrize(("call", "words"), MISUSE.values(), ids=MISUSE)
def test_misuse_is_told_with_its_line(call: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, f'        p = ChunkProgram("all_reduce", ranks=2, chunks=4)\n        {call}')
    with pytest.raises(InputError, match=rf"^program\.py:3: .*{words}"):
        compile_program(path)


@pytest.mark.parametrize(("call", "words"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_judged_where_they_are_given(call: str, words: str, tmp_path: Path) -> None:
    path = written(tmp_path, f"        p = {call}")
    with pytest.raises(InputError, match=rf"^program\.py:2: .*{words}"):
        compile_program(path)


def test_a_mistake_in_a_helper_names_the_helper(tmp_path: Path) -> None:
    """The innermost line of the user's own code, in whichever file it is."""
    (tmp_path / "steps.py").write_text(
        "def pass_on(chunk, rank):\n    return chunk.copy(rank, 'output', 9)\n"
    )
    path = tmp_path / "main.py"
    path.write_text(
        f"{START}from steps import pass_on\n"
        "program = ChunkProgram('broadcast', ranks=2)\npass_on(program.chunk(0, 'input', 0), 1)\n"
    )
    with pytest.raises(InputError, match=r"^steps\.py:2: the output of rank 1 has 1 slot, found slot 9"):
        compile_program(path)
    sys.modules.pop("steps", None)


def test_a_value_that_a_plan_cannot_hold(tmp_path: Path) -> None:
    """A rank's own share sent after others were added to it elsewhere: right, but no schedule."""
    path = written(
        tmp_path,
        """\
        p = ChunkProgram("all_reduce", ranks=2, in_place=False)
        p.chunk(0, "input", 0).copy(0, "output", 0).reduce(p.chunk(1, "input", 0))
        p.chunk(1, "input", 0).copy(1, "output", 0).reduce(p.chunk(0, "input", 0))
        """,
    )
    with pytest.raises(InputError, match=r"^program\.py:4: expected the latest value of a chunk at its rank"):
        compile_program(path)


FILES = {
    "empty": (b"", r"^program\.py:1: expected program to be a ChunkProgram, .*found none"),
    "another thing": (b"program = 3\n", r"^program\.py:1: .*found int"),
    "syntax": (b"a = 1\nfor x in:\n", r"^program\.py:2: expected Python, found invalid syntax\.$"),
    "indent": (b"if True:\npass\n", r"^program\.py:2: expected Python, found expected an indented block"),
    "zero": (b"a = 1\n\0\n", r"^program\.py:1: expected Python, found"),
    "no text": (b"\xff\xfe\xfa\n", r"^program\.py:\d: expected Python, found"),
    "raises": (
        b"def f():\n    1 / 0\n\nf()\n",
        r"^program\.py:2: the program raises ZeroDivisionError: division by zero\.$",
    ),
    "raises lines": (
        b"raise ValueError('a\\nb')\n",
        r"^program\.py:1: the program raises ValueError: a b\.$",
    ),
    "raises nothing": (b"\nraise KeyError\n", r"^program\.py:2: the program raises KeyError\.$"),
    "ends itself": (b"import sys\nsys.exit(3)\n", r"^program\.py:2: the program raises SystemExit: 3\.$"),
    "import": (b"import nothing_of_that_name\n", r"^program\.py:1: the program raises ModuleNotFoundError"),
    "recursion": (b"def f():\n    f()\nf()\n", r"^program\.py:2: the program raises RecursionError"),
    "needs more": (
        b"x = 0\ndef program(ranks, *, n):\n    pass\n",
        r"^program\.py:2: program needs a value for ranks",
    ),
    "returns none": (b"def program():\n    pass\n", r"^program\.py:1: .*found none"),
    "library": (b"import coppice\n\ncoppice.load('nothing-there')\n", r"^program\.py:3: "),
}


@pytest.mark.parametrize(("data", "words"), FILES.values(), ids=FILES)
def test_files_that_are_no_programs(data: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        compile_program(path)
    assert "\n" not in str(caught.value)
    done = coppice("compile", str(path), "-o", str(tmp_path / "plan.json"))
    assert done.exit_code == 2
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "plan.json").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = coppice("compile", str(tmp_path / "none.py"))
    assert done.exit_code == 2
    assert "none.py" in done.stderr


def test_parameters(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(
        f"{START}def program(ranks=2, word='x', topology=None):\n"
        "    print(ranks, word)\n    return ChunkProgram('all_gather', ranks=ranks, name=word).chunk\n"
    )
    with pytest.raises(
        InputError, match=r"^program\.py:2: program has no parameter rank: did you mean 'ranks'\?"
    ):
        compile_program(path, parameters={"rank": 3})
    with pytest.raises(InputError, match="found method"):
        compile_program(path, parameters={"ranks": "3", "word": "3"})
    path.write_text(f"{START}program = ChunkProgram('all_gather', ranks=1)\n")
    assert compile_program(path).plan.topology.num_ranks == 1
    with pytest.raises(InputError, match=r"expected a function program\(ranks\), found no function"):
        compile_program(path, parameters={"ranks": 3})
    with pytest.raises(InputError, match="found a ChunkProgram with them"):
        compile_program(ChunkProgram("all_gather", ranks=1), parameters={"ranks": 1})
    with pytest.raises(InputError, match="expected a ChunkProgram or the name of a file with one, found int"):
        compile_program(3)


def test_endless_loops_stop_at_an_interrupt(tmp_path: Path) -> None:
    """One sentence with the line, exit code 130, and no file."""
    path, plan = tmp_path / "program.py", tmp_path / "plan.json"
    path.write_text(
        "import sys\nprint('begun', file=sys.stderr, flush=True)\nx = 0\nwhile True:\n    x = 1 - x\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-m", "coppice", "compile", str(path), "-o", str(plan)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    assert started.stderr.readline() == "begun\n"
    time.sleep(0.1)
    os.kill(started.pid, signal.SIGINT)
    printed, told = started.communicate(timeout=60)
    assert started.returncode == 130
    assert printed == ""
    assert re.fullmatch(r"error: program\.py:[2-5]: interrupted here: does a loop not end\?\n", told)
    assert not plan.exists()


def test_endless_programs_stop_by_themselves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coppice.language.trace.MOST_SLOTS", 100)
    path = written(
        tmp_path,
        """\
        p = ChunkProgram("all_gather", ranks=2)
        c = p.chunk(0, "input", 0)
        while True:
            c = c.copy(1 - c.rank, "tmp", 0)
        """,
    )
    with pytest.raises(
        InputError, match=r"^program\.py:5: expected at most 100 operations, found more: does a loop"
    ):
        compile_program(path)
