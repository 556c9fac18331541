"""`python -m coppice` and the `coppice` command."""

import os
import signal
from typing import Any


def main() -> None:
    """Run the command line; Ctrl-C ends it with code 130, while its modules are being loaded as well."""
    # An exception inside an import can come out as another one; nothing is open yet that would need care.
    before = signal.signal(signal.SIGINT, _leave)
    from coppice.cli import main as run

    signal.signal(signal.SIGINT, before)
    run()


def _leave(*_: Any) -> None:
    os._exit(130)


if __name__ == "__main__":
    main()
