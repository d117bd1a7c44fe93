"""Look at the built site in Chromium: `mkdocs build -d SITE` and `python docs/_tools/look.py SITE PICTURES [PAGE...]`.

Each page (every HTML file of the site, or those whose path begins with a PAGE, such as `index.html` or `ko/story/`) is opened in light and
dark and in two widths, and its screenshot written to the folder PICTURES. The script prints these faults, and fails if there are any:
messages on the console, requests to other servers, images that did not load, equations that were not rendered, tables without a header,
pages wider than the window, and pages in the wrong colour scheme.
"""

import asyncio
import base64
import functools
import http.server
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp

WIDTHS = (1200, 375)
SCHEMES = ("light", "dark")
FAULTS = """(() => {
  const found = [];
  const scheme = matchMedia('(prefers-color-scheme: dark)').matches ? 'slate' : 'default';
  const theme = document.body.dataset.mdColorScheme;  // of the pages of mkdocs; reports have a theme of their own
  if (theme && theme !== scheme) found.push(`in the scheme ${theme}, not ${scheme}`);
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) {
    const outside = (e) => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.md-typeset__scrollwrap, pre, .equation');
    const first = [...document.querySelectorAll('body *')].filter(outside).slice(0, 3).map((e) => e.outerHTML.slice(0, 80));
    found.push(`${wide} px wide: ${first.join(' ')}`);
  }
  for (const image of document.images) if (!image.naturalWidth) found.push(`image not loaded: ${image.src}`);
  for (const text of document.querySelectorAll('.md-content p')) if (/^\\|/.test(text.innerText)) found.push('a table without a header');
  for (const text of document.querySelectorAll('.arithmatex')) found.push(`not rendered: ${text.textContent.slice(0, 60)}`);
  for (const equation of document.querySelectorAll('math')) {
    const box = equation.getBoundingClientRect();
    const shown = equation.parentElement.checkVisibility();
    if (shown && box.width * box.height === 0) found.push(`empty equation: ${equation.textContent}`);
    if (/\\\\/.test(equation.textContent)) found.push(`raw LaTeX: ${equation.textContent}`);
  }
  return found;
})()"""


class Browser:
    """A page of Chromium, over its DevTools protocol."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, home: str) -> None:
        self.socket, self.home, self.count, self.faults = socket, home, 0, list[str]()
        self.loaded = False

    async def do(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its answer, recording the events that arrive before it."""
        self.count += 1
        await self.socket.send_json({"id": self.count, "method": method, "params": params})
        while True:
            message = await self.socket.receive_json()
            if message.get("id") == self.count:
                return dict(message.get("result", message))
            self.note(message)

    def note(self, event: dict[str, Any]) -> None:
        """Record what an event says about the page."""
        params = event.get("params", {})
        match event.get("method"):
            case "Page.loadEventFired":
                self.loaded = True
            case "Runtime.exceptionThrown":
                self.faults.append(f"exception: {params['exceptionDetails']['text']}")
            case "Runtime.consoleAPICalled":
                self.faults.append(f"console: {' '.join(str(a.get('value')) for a in params['args'])}")
            case "Log.entryAdded":
                self.faults.append(f"console: {params['entry']['text']} {params['entry'].get('url', '')}")
            case "Network.requestWillBeSent" if not params["request"]["url"].startswith((self.home, "data:", "blob:")):
                self.faults.append(f"asks another server: {params['request']['url']}")

    async def prefer(self, scheme: str) -> None:
        """Set the scheme before any page is opened: an open page would store the change, and the next page might read it."""
        await self.open("about:blank")
        await self.do("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def open(self, url: str) -> None:
        """Open an address and wait until it is loaded."""
        self.loaded = False
        await self.do("Page.navigate", url=url)
        while not self.loaded:
            self.note(await self.socket.receive_json())

    async def look(self, page: str, width: int, picture: Path) -> list[str]:
        """Open a page, write its screenshot and return its faults."""
        self.faults = []
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
        await self.do("Emulation.setDeviceMetricsOverride", **metrics)
        await self.open(f"{self.home}/{page}")
        ready = "Promise.all([document.fonts.ready, new Promise((done) => setTimeout(done, 150))])"
        await self.do("Runtime.evaluate", expression=ready, awaitPromise=True)
        answer = await self.do("Runtime.evaluate", expression=FAULTS, returnByValue=True)
        shot = await self.do("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        picture.write_bytes(base64.b64decode(shot["data"]))
        return self.faults + list(answer["result"]["value"])


async def look_at(site: Path, pictures: Path, wanted: tuple[str, ...]) -> int:
    """Look at pages of a site, print their faults and return how many there are."""
    handler = functools.partial(Quiet, directory=site)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    home, faults = f"http://127.0.0.1:{server.server_port}", 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-port=0"]
        command = [shutil.which("chromium") or "chromium", *arguments, f"--user-data-dir={profile}", "about:blank"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            address = next(found[1] for line in process.stderr or () if (found := re.search(r"ws://([^/]+)", line)))
            async with aiohttp.ClientSession() as session:
                tabs = json.loads(await (await session.get(f"http://{address}/json")).text())
                tab = next(tab for tab in tabs if tab["type"] == "page")
                async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    browser = Browser(socket, home)
                    for domain in ("Page", "Runtime", "Log", "Network"):
                        await browser.do(f"{domain}.enable")
                    forget = "localStorage.clear()"  # the theme remembers its first palette
                    await browser.do("Page.addScriptToEvaluateOnNewDocument", source=forget)
                    for scheme in SCHEMES:
                        await browser.prefer(scheme)
                        for page in pages_of(site, wanted):
                            for width in WIDTHS:
                                name = f"{page.removesuffix('.html').replace('/', '-')}_{width}_{scheme}.png"
                                for fault in await browser.look(page, width, pictures / name):
                                    faults += 1
                                    print(f"{page} {width} {scheme}: {fault}", flush=True)
        finally:
            process.terminate()
            process.wait()
    server.shutdown()
    return faults


def pages_of(site: Path, wanted: tuple[str, ...]) -> Iterator[str]:
    """Yield the paths of pages of a site.

    Raises:
        SystemExit: There is no such page.
    """
    pages = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    for start in wanted or ("",):
        if not any(page.startswith(start) for page in pages):
            raise SystemExit(f"{site}: no page begins with {start!r}")
    yield from (page for page in pages if page.startswith(wanted or ""))


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A file server that logs nothing."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    sys.exit(asyncio.run(look_at(Path(sys.argv[1]), folder, tuple(sys.argv[3:]))) > 0)
