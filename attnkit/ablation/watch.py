"""Serves the live page of a study on this machine, from the files of its runs, wherever these run (SLURM included)."""

import errno
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from typing_extensions import override

from attnkit.registry import ConfigurationError

HOST = "127.0.0.1"  # only this machine can open the page
FRESH = 5.0  # seconds for which a page is cached, however many browsers request it


class Server(ThreadingHTTPServer):
    """Serves the page of each path, such as `/`; pages are rendered on request. Port 0 selects any free port."""

    daemon_threads = True

    def __init__(self, pages: Mapping[str, Callable[[], str]], port: int) -> None:
        self._pages, self._made, self._lock = pages, dict[str, tuple[float, str]](), threading.Lock()
        try:
            super().__init__((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
            why = "is in use" if taken else f"cannot be opened ({error})"
            raise ConfigurationError(f"port {port} {why}: choose another with --port, or --port 0 for any free one") from error

    @property
    def url(self) -> str:
        """The URL of the main page."""
        return f"http://{HOST}:{self.server_port}/"

    def page(self, path: str) -> str | None:
        """Return the page of a path; None if there is none."""
        if path not in self._pages:
            return None
        with self._lock:  # figures are drawn by one thread at a time
            made, text = self._made.get(path, (-FRESH, ""))
            if time.monotonic() - made >= FRESH:
                text = self._pages[path]()
                self._made[path] = time.monotonic(), text
            return text


_RELOADING = f'<!doctype html><meta http-equiv="refresh" content="{FRESH:.0f}">'  # the start of a page about a possibly temporary error


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        if (self.headers.get("Host") or "").partition(":")[0] not in (HOST, "localhost"):  # another site's host name that points here
            self.send_error(403)
            return
        status = 200
        try:
            text = self.server.page(unquote(self.path.partition("?")[0]))
        except ConfigurationError as error:  # a file of the study is damaged or being moved
            status = 503
            text = f"{_RELOADING}<p>{escape(str(error))}</p>"
        except Exception as error:  # an error must not end the server
            traceback.print_exc()
            status = 500
            text = f"{_RELOADING}<p>{escape(f'{type(error).__name__}: {error}')}; the terminal of attnkit ablate watch shows where</p>"
        if text is None:
            self.send_error(404)
            return
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""
