"""What the doctor says of files for Open MPI and MPICH is what these libraries do with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from coppice.doctor import JobFacts, diagnose
from run.engines.mpi.launching import reason_to_skip, run_mpi

WORKER = str(Path(__file__).parent / "sentinel_worker.py")

# a rule that names algorithm 99 shows by an error that it is used: there is no such algorithm
FILES = [
    ("1\n2\n1\n2\n1\n0 99 0 0\n", "O03", "the rule"),
    ("1\n2\n1\n6\n1\n0 99 0 0\n", "O06", "the rule"),
    ("1\n2\n2\n8\n1\n0 0 0 0\n2\n1\n0 99 0 0\n", "O05", "own choice"),
    ("1\n2\n1\n2\n1\n0 99 0\n", "O01", "own choice"),
    ("1\n2\n1\n2\n1\n4 99 0 0\n", "O02", "own choice"),
    ("1\n2\n1\n2\n3\n0 0 0 0\n9 0 0 0\n4 99 0 0\n", "O04", "own choice"),
    ("1\n2\n2\n0\n1\n0 0 0 0\n010\n1\n0 99 0 0\n", "O12", "own choice"),
]


def test_rules_files_of_open_mpi(tmp_path: Path) -> None:
    """Every file is read by a run with 2 ranks; the doctor names the rule that explains it."""
    reason = reason_to_skip("open-mpi")
    if reason:
        pytest.skip(reason)
    path = tmp_path / "rules.conf"
    for text, rule, expected in FILES:
        path.write_text(text)
        variables = {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(path),
        }
        done = run_mpi("open-mpi", 2, [WORKER], timeout_s=60, variables=variables)
        assert done.stdout.strip() == expected, (text, done.stderr)
        found = diagnose(text.encode(), "ompi-rules", file="f", options=JobFacts(shapes=((1, 2),)))
        assert rule in {each.rule for each in found.findings}


@pytest.mark.parametrize(
    ("variable", "rule", "starts"),
    [
        ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring", "", True),
        ("MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=Ring", "M03", False),
        ("MPIR_CVAR_ALLREDUCE_DEVICE_COLLECTIVE=False", "M03", False),
        ("MPICH_ALLREDUCE_INTRA_ALGORITHM=rings", "M03", False),
        ("MPIR_CVAR_ALLREDUCE_ALGORITHM=rings", "M02", True),
    ],
)
def test_variables_of_mpich(variable: str, rule: str, starts: bool) -> None:
    reason = reason_to_skip("mpich")
    if reason:
        pytest.skip(reason)
    name, _, value = variable.partition("=")
    done = run_mpi("mpich", 2, [WORKER], timeout_s=60, variables={name: value})
    assert (done.returncode == 0) is starts, done.stderr
    found = diagnose(variable.encode(), "mpich-env", file="f", options=JobFacts(shapes=((1, 2),)))
    assert {each.rule for each in found.findings if each.severity.value == "error"} == ({rule} - {""})
