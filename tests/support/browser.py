"""Pages in a real browser: what their script ``PROBE`` leaves behind."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


def probed(page: Path, folder: Path, *, width: int, dark: bool) -> str:
    """The attribute ``data-probe`` that the page has once it is drawn, without a word on the console."""
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += [f"--user-data-dir={folder}", f"--window-size={width},900"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    found = re.search(r'data-probe="([^"]*)"', done.stdout)
    assert found is not None
    return found[1]
