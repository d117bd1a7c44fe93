"""Data sets from the hub: the real libraries read them from a server on this machine that speaks the hub's API."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import numpy as np
import pytest
from typing_extensions import override

pytestmark = pytest.mark.skipif(find_spec("datasets") is None, reason="the extra `data` is not installed")

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIGURATIONS = b"""---
configs:
- config_name: lower
  default: true
  data_files:
  - {split: train, path: lower/train.jsonl}
  - {split: test, path: lower/test.jsonl}
- config_name: upper
  data_files:
  - {split: train, path: upper/train.jsonl}
---
"""


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def rows(name: str, count: int) -> bytes:
    return b"".join(json.dumps({"text": f"{name} {i}", "label": i % 2}).encode() + b"\n" for i in range(count))


def animals() -> bytes:
    """Images in a parquet file, which has their features and the names of their classes."""
    import datasets
    from PIL import Image

    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["zebra", "ape"])})
    pixels = [np.full((4, 5), 50 * i, np.uint8) for i in range(3)]
    found = io.BytesIO()
    datasets.Dataset.from_dict({"image": [Image.fromarray(p) for p in pixels], "label": [0, 1, 0]}, features=features).to_parquet(found)
    return found.getvalue()


class Hub(ThreadingHTTPServer):
    """A hub with some repositories, each with one commit.

    Attributes:
        files: The contents of the files of each repository, by their paths.
        asked: The requests: the method, the path, and whether a part was enough.
    """

    daemon_threads = True

    def __init__(self, files: dict[str, dict[str, bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files, self.asked = files, list[tuple[str, str, bool]]()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """Return the status, the headers and the content of a path."""
        found = re.fullmatch(rf"(?:/api)?/datasets/(\w+/\w+)(?:/(resolve|revision|tree)/(?:main|{COMMIT})(?:/(.+))?)?", path)
        if found is None or found[1] not in self.files:
            return 404, {"X-Error-Code": "RepoNotFound"}, b""
        own, name = self.files[found[1]], found[3]
        if found[2] == "resolve":
            if name not in own:
                return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
            return 200, {"ETag": f'"{digest(own[name])}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}, own[name]
        about: Any = {"id": found[1], "sha": COMMIT, "siblings": [{"rfilename": file} for file in own], "private": False}
        if found[2] == "tree":  # the files in a folder, and the folders
            folder = f"{name}/" if name else ""
            inside = {file: file.removeprefix(folder).partition("/")[0] for file in own if file.startswith(folder)}
            about = [
                {"type": "file", "path": file, "size": len(own[file]), "oid": digest(own[file])}
                for file in inside
                if file == folder + inside[file]
            ]
            about += [{"type": "directory", "path": folder + one, "oid": COMMIT} for one in {*inside.values()} if folder + one not in own]
        return 200, {"Content-Type": "application/json"}, json.dumps(about).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, asked = unquote(urlsplit(self.path).path), re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        self.server.asked.append((self.command, path, asked is not None))
        status, headers, content = self.server.answer(path)
        if asked is not None and status == 200:
            first, size = int(asked[1]), len(content)
            content = content[first : int(asked[2]) + 1 if asked[2] else size]
            status, headers = 206, {**headers, "Content-Range": f"bytes {first}-{first + len(content) - 1}/{size}"}
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET

    @override
    def log_message(self, format: str, *args: object) -> None:
        """Say nothing about each request."""


def answered(hub: Hub, home: Path, questions: Mapping[str, str], *, offline: bool = False) -> dict[str, Any]:
    """Return what expressions are, evaluated in this order in a process whose hub this is; an error is its message."""
    program = """
import json, os, sys
from pathlib import Path
from attnkit import ConfigurationError, corpora
from attnkit.corpus.files import Files
from attnkit.corpus.image_reading import read_images
from attnkit.corpus.imdb import IMDB

def answer(question):
    try:
        return eval(question)
    except ConfigurationError as error:
        return str(error)

print(json.dumps({name: answer(question) for name, question in json.loads(sys.argv[1]).items()}))
"""
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy") and not name.startswith("HF_")}
    variables |= {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_HOME": str(home), "HF_HUB_OFFLINE": str(int(offline))}
    command = [sys.executable, "-c", program, json.dumps(questions)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    texts = {"lower/train.jsonl": rows("train", 9), "lower/test.jsonl": rows("test", 3), "upper/train.jsonl": rows("TRAIN", 2)}
    reviews = {f"{part}.jsonl": rows(part, 4) for part in ("train", "test")}
    repositories = {"someone/texts": {"README.md": CONFIGURATIONS, **texts}, "stanfordnlp/imdb": reviews}
    with Hub({**repositories, "someone/animals": {"data/train-00000-of-00001.parquet": animals()}}) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


STREAMED = {
    "parts": "[Files(hub='someone/texts', streaming=True).has(part) for part in ('train', 'validation', 'test')]",
    "first": "Files(hub='someone/texts', streaming=True, max_rows=2).labelled('train')",
    "upper, streamed": "Files(train='hub:someone/texts:upper:train', streaming=True).labelled('train')",
    "copies": "[str(path) for path in Path(os.environ['HF_HOME']).rglob('*') if path.suffix in ('.arrow', '.jsonl')]",
}
COPIED = {
    "test": "corpora.build('hub:someone/texts:lower').labelled('test')",
    "upper": "[''.join(document) for document in corpora.build('hub:someone/texts:upper').documents('train')]",
    "validation": "Files(train='hub:someone/texts:lower:train', validation_fraction=1 / 3).labelled('validation')",
    "labels": "read_images('hub:someone/animals:train', labelled=True).labels",
    "pixels": "read_images('hub:someone/animals:train', labelled=True).pixels[:, 0, 0, 0].tolist()",
    "reviews": "IMDB(source='hub').labelled('test')",
}
REFUSED = {
    "other reviews": "IMDB(folder='absent').labelled('train')",
    "absent": "Files(hub='someone/text').has('train')",
    "split": "Files(train='hub:someone/texts:dev').labelled('train')",
    "column": "Files(hub='someone/texts').pairs('train')",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def answers(hub: Hub, home: Path) -> dict[str, Any]:
    return answered(hub, home, STREAMED | COPIED | REFUSED)


def test_rows_are_streamed_without_a_copy(hub: Hub, answers: dict[str, Any]) -> None:
    assert answers["parts"] == [True, False, True]
    assert answers["first"] == [["train 0", "0"], ["train 1", "1"]]
    assert answers["upper, streamed"] == [["TRAIN 0", "0"], ["TRAIN 1", "1"]]
    assert answers["copies"] == []
    assert ("GET", f"/datasets/someone/texts/resolve/{COMMIT}/lower/train.jsonl", True) in hub.asked


def test_rows_are_copied(hub: Hub, answers: dict[str, Any]) -> None:
    assert answers["test"] == [[f"test {i}", str(i % 2)] for i in range(3)]
    assert answers["upper"] == ["TRAIN 0", "TRAIN 1"]
    assert len(answers["validation"]) == 3
    assert ("GET", f"/datasets/someone/texts/resolve/{COMMIT}/lower/test.jsonl", False) in hub.asked


def test_image_labels_are_class_names(answers: dict[str, Any]) -> None:
    assert (answers["labels"], answers["pixels"]) == (["zebra", "ape", "zebra"], [0, 50, 100])


def test_a_named_corpus_uses_changed_hub_rows_only_on_request(answers: dict[str, Any]) -> None:
    assert answers["reviews"] == [[f"test {i}", ("negative", "positive")[i % 2]] for i in range(4)]
    assert answers["other reviews"].startswith("hub:stanfordnlp/imdb:train has rows that differ from the documented ones: set source: hub")


def test_missing_repositories_splits_and_columns_are_named(answers: dict[str, Any]) -> None:
    absent = "hub:someone/text: cannot be loaded: DatasetNotFoundError: Dataset 'someone/text' doesn't exist on the Hub"
    assert answers["absent"].startswith(absent)
    known = "Should be one of ['train', 'test']."
    assert answers["split"] == f'hub:someone/texts:dev: cannot be loaded: ValueError: Unknown split "dev". {known}'
    assert answers["column"].startswith("hub:someone/texts:train, row 0: no column 'source'. Columns found: 'text', 'label'.")


def test_a_cached_copy_needs_no_network(hub: Hub, home: Path, answers: dict[str, Any]) -> None:
    before = len(hub.asked)
    assert answered(hub, home, COPIED, offline=True) == {name: answers[name] for name in COPIED}
    assert len(hub.asked) == before
