"""Chromium over a pipe: pages are opened, asked what they show, and printed, by one process for all of them."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


class Browser:
    """A browser without a window; speaks the DevTools protocol over two pipes."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="browser")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        # The protocol is spoken over the file descriptors 3 and 4.
        command = (
            'exec "$0" --headless --no-sandbox --disable-gpu --hide-scrollbars --remote-debugging-pipe '
            f'--user-data-dir={self._profile} about:blank 3<&"$1" 4>&"$2" 2>/dev/null'
        )
        assert CHROMIUM is not None
        words = ["bash", "-c", command, CHROMIUM, str(to_browser), str(from_browser)]
        self._process = subprocess.Popen(words, pass_fds=(to_browser, from_browser))
        os.close(to_browser)
        os.close(from_browser)
        self._last = 0
        self._waiting = b""
        self.events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")
        self.call("Runtime.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._out)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._in)
        shutil.rmtree(self._profile, ignore_errors=True)

    def call(self, method: str, **given: Any) -> dict[str, Any]:
        """A command to the page."""
        return self._call(method, session=self._session, **given)

    def open(
        self, path: Path, *, width: int = 1280, height: int = 900, media: str = "screen", dark: bool = False
    ) -> None:
        """Load a page of a size."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._read()

    def said(self) -> list[dict[str, Any]]:
        """What the page wrote to the console, and its errors, since it was opened."""
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [event for event in self.events if event["method"] in kinds]

    def ask(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def pdf(self) -> bytes:
        """The page as it is printed."""
        return base64.b64decode(self.call("Page.printToPDF", preferCSSPageSize=True)["data"])

    def picture(self) -> bytes:
        """The whole page as a PNG file."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        found = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(found["data"])

    def _call(self, method: str, *, session: str | None = None, **given: Any) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": given}
        if session is not None:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._waiting:
            more = os.read(self._in, 1 << 20)
            assert more, "the browser ended"
            self._waiting += more
        text, _, self._waiting = self._waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        if "method" in message:
            self.events.append(message)
        return message


def probed(page: Path, *, width: int, dark: bool) -> str:
    """The attribute ``data-probe`` that the page has once it is drawn, without a word on the console."""
    with Browser() as browser:
        browser.open(page, width=width, dark=dark)
        assert not browser.said()
        found = browser.ask("document.documentElement.dataset.probe")
    assert isinstance(found, str)
    return found
