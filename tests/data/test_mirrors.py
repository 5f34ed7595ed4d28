"""What the mirrors send, whole and damaged; the only server is one of this test's own."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import subprocess
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from cifar_toys import FACTS, archive_contents, npm_contents, to_png, write_tar

from clustermim.data import cifar, download
from clustermim.data.download import read_archive, read_npm_package, verify
from clustermim.errors import DataError


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (subprocess.TimeoutExpired("npm", 900), "timed out after 900 seconds"),
        (
            subprocess.CalledProcessError(1, "npm", stderr=b"npm notice x\nnpm error 404 gone\n"),
            "error 404 gone",
        ),
        (subprocess.CalledProcessError(1, "npm", stderr=b""), "non-zero exit status 1"),
    ],
)
def test_npm_failures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, reason: str) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(download.shutil, "which", lambda name: name)
    monkeypatch.setattr(download.subprocess, "run", fail)
    with pytest.raises(DataError, match=reason):
        download.from_npm(FACTS, tmp_path)


def test_npm_absent_or_without_the_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download.shutil, "which", lambda name: None)
    with pytest.raises(DataError, match="npm is not installed"):
        download.from_npm(FACTS, tmp_path)
    with pytest.raises(DataError, match="has no cifar100"):
        download.from_npm(cifar.DATASETS["cifar100"], tmp_path)


def test_archive_of_another_md5(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "toy.tar.gz", archive_contents())
    true = hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    read_archive(dataclasses.replace(FACTS, archive_md5=true), path)
    with pytest.raises(DataError, match=f"md5 {true} instead of 0000"):
        read_archive(dataclasses.replace(FACTS, archive_md5="0000"), path)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_truncated_archive(tmp_path: Path, keep: float) -> None:
    path = write_tar(tmp_path / "toy.tar.gz", archive_contents())
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data) if keep < 1 else keep)])
    with pytest.raises(DataError, match=r"damaged|has no"):
        read_archive(FACTS, path)


def test_archive_without_a_member_or_with_half_a_record(tmp_path: Path) -> None:
    contents = archive_contents()
    half = {**contents, "toy/test_batch.bin": contents["toy/test_batch.bin"][:-1]}
    with pytest.raises(DataError, match="12,291 bytes of test images, not 12,292"):
        read_archive(FACTS, write_tar(tmp_path / "half.tar.gz", half))
    del contents["toy/test_batch.bin"]
    with pytest.raises(DataError, match=r"has no toy/test_batch\.bin"):
        read_archive(FACTS, write_tar(tmp_path / "none.tar.gz", contents))


def test_links_are_not_followed(tmp_path: Path) -> None:
    contents = archive_contents()
    link = tarfile.TarInfo("toy/test_batch.bin")
    link.type, link.linkname = tarfile.SYMTYPE, "data_batch_1.bin"
    del contents["toy/test_batch.bin"]
    with pytest.raises(DataError, match=r"has no toy/test_batch\.bin"):
        read_archive(FACTS, write_tar(tmp_path / "toy.tar.gz", contents, link))


def test_huge_archives_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tar(tmp_path / "toy.tar.gz", archive_contents())
    monkeypatch.setattr(download, "MOST_BYTES", 10_000)
    with pytest.raises(DataError, match="far more than expected"):
        read_archive(FACTS, path)


def test_damaged_npm_package(tmp_path: Path) -> None:
    good = npm_contents()
    for name, data, reason in [
        ("package/test_batch.png", b"\x89PNG nothing", "damaged"),
        ("package/test_batch.png", to_png(np.zeros((3, 1024, 3), np.uint8)), "3 test images and 4 labels, not 4"),
        ("package/test_batch.png", to_png(np.zeros((4, 1024), np.uint8)), "damaged"),
        ("package/test_lables.json", b"[1, 0", "is damaged"),
        ("package/test_lables.json", b'{"a": 1}', "is damaged"),
        ("package/test_lables.json", b"[1, 1, 1, 0]", "the test labels have another sha256"),
    ]:
        path = write_tar(tmp_path / "bad.tgz", {**good, name: data})
        with pytest.raises(DataError, match=reason):
            verify(FACTS, read_npm_package(FACTS, path))


class Handler(http.server.BaseHTTPRequestHandler):
    """/whole sends 1,000 bytes, /short fewer than it promises, /huge promises too many, /endless does not say."""

    def do_GET(self) -> None:
        if self.path == "/none":
            self.send_error(404)
            return
        self.send_response(200)
        if self.path != "/endless":
            self.send_header("Content-Length", "9999999999" if self.path == "/huge" else "1000")
        self.end_headers()
        self.wfile.write(b"x" * (400 if self.path == "/short" else 1000))

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("no_proxy", "*")
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as web:
        thread = threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{web.server_port}"
        web.shutdown()
        thread.join()


def test_fetch(tmp_path: Path, server: str) -> None:
    assert download.fetch(f"{server}/whole", tmp_path / "file") == tmp_path / "file"
    assert (tmp_path / "file").read_bytes() == b"x" * 1000


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/short", "ended after 400 of 1,000 bytes"),
        ("/none", "Not Found"),
        ("/huge", "far more than expected"),
    ],
)
def test_fetch_failures(tmp_path: Path, server: str, path: str, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        download.fetch(server + path, tmp_path / "file")


def test_fetch_never_ends(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "MOST_BYTES", 999)
    with pytest.raises(DataError, match="more than 999 bytes"):
        download.fetch(f"{server}/endless", tmp_path / "file")


def test_fetch_without_a_server(tmp_path: Path, server: str) -> None:
    with pytest.raises(DataError, match=r"http://127\.0\.0\.1:1/"):
        download.fetch("http://127.0.0.1:1/x", tmp_path / "file")
