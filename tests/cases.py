"""Run Coppice on published inputs and print whether each is answered rightly: `python tests/cases.py DIRECTORY`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from pathlib import Path

import published
from published.check import Check


def all_checks() -> list[Check]:
    """Every module's checks, by case."""
    names = sorted(
        module.name for module in pkgutil.iter_modules(published.__path__) if module.name != "check"
    )
    modules = [importlib.import_module(f"published.{name}") for name in names]
    return sorted((check for module in modules for check in module.CHECKS), key=lambda check: check.case)


def main(directory: Path) -> int:
    """Print a table; the exit status is 1 where an answer is wrong, or where a case has no check."""
    checks = all_checks()
    wrong = 0
    for check in checks:
        fault = check.run(directory)
        wrong += bool(fault)
        print(f"{'WRONG' if fault else 'right'}  {check.case:40} {check.wants}")
        if fault:
            print(f"       {check.commands}\n       {fault}")
    checked = {check.case.split("/")[0] for check in checks}
    missing = sorted(path.name for path in directory.iterdir() if path.is_dir() and path.name not in checked)
    print(
        f"{len(checks) - wrong} of {len(checks)} answers are right; cases without a check: {missing or 'none'}"
    )
    return int(wrong > 0 or bool(missing))


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python tests/cases.py DIRECTORY, the directory that holds the cases' folders")
    sys.exit(main(Path(sys.argv[1])))
