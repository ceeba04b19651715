"""Headless Chromium, driven by its DevTools protocol over a WebSocket.

Every wait is for an event or a condition of the page, within LIMIT_S.
"""

import asyncio
import json
import re
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

LIMIT_S = 60.0
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}


class Navigated(Exception):
    """The page has been replaced while a script ran in it."""


class Browser:
    """One page. `console`: what scripts and the policy have reported."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.console: list[str] = []
        self._socket = socket
        self._last = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command; events before it are recorded."""
        self._last += 1
        await self._socket.send_json({"id": self._last, "method": method, "params": parameters})
        async with asyncio.timeout(LIMIT_S):
            while True:
                received = json.loads((await self._socket.receive()).data)
                if received.get("id") == self._last:
                    failure = received.get("error", {}).get("message", "")
                    if "navigated" in failure or "context was destroyed" in failure:
                        raise Navigated(failure)
                    assert "error" not in received, received
                    result: dict[str, Any] = received["result"]
                    return result
                self._record(received)

    def _record(self, event: dict[str, Any]) -> None:
        if event.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.console.append(json.dumps(event["params"]))

    async def evaluate(self, script: str) -> Any:
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until the expression is true in the page, which may be replaced in that time."""
        poll = f"""new Promise(done => {{
            const look = () => ({script}) ? done(true) : setTimeout(look, 20);
            look();
        }})"""
        async with asyncio.timeout(LIMIT_S):
            while True:
                with suppress(Navigated):
                    await self.evaluate(poll)
                    return

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    async def press(self, key: str, *, shift: bool = False) -> None:
        common = {"key": key, "code": key, "windowsVirtualKeyCode": KEYS[key], "modifiers": 8 * shift}
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **common, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **common)

    async def show(self, width: int, height: int, scheme: str) -> None:
        """`scheme`: light or dark, as the user prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        await self.call(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )

    async def screenshot(self, path: Path) -> None:
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(b64decode(found["data"]))


@asynccontextmanager
async def browsing(chromium: str, directory: Path) -> AsyncIterator[Browser]:
    """A browser with an empty profile, which ends with the context."""
    process = await asyncio.create_subprocess_exec(
        chromium,
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
        *("--disable-extensions", "--disable-background-networking", "--disable-component-update"),
        f"--user-data-dir={directory}",
        "--remote-debugging-port=0",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with aiohttp.ClientSession() as session:
            async with asyncio.timeout(LIMIT_S):
                port = await _port_of(process)
                async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                    [target] = [one for one in await response.json() if one["type"] == "page"]
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                browser = Browser(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await browser.call(f"{domain}.enable")
                yield browser
    finally:
        process.kill()
        await process.wait()


async def _port_of(process: asyncio.subprocess.Process) -> int:
    """Chromium reports it on standard error."""
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if found := re.search(rb"DevTools listening on ws://[^:]+:(\d+)/", line):
            return int(found[1])
    raise AssertionError("Chromium has ended")
