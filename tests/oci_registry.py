"""A registry of images and charts (OCI Distribution) for one test: what helm, Docker and containerd ask for."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs, urlparse

from http_server import serve_in_thread

_PATH = re.compile(r"/v2/(?P<name>.+)/(?P<kind>blobs/uploads|blobs|manifests|tags)/(?P<reference>[^/]*)$")
_CHUNK_BYTES = 1 << 20


@contextmanager
def serve_registry(folder: Path) -> Iterator[str]:
    """Serve a registry whose content is in a folder; yield its address, `localhost:PORT`, which speaks plain HTTP."""
    (folder / "blobs").mkdir(parents=True)
    (folder / "uploads").mkdir()
    manifests: dict[
        tuple[str, str], tuple[str, bytes]
    ] = {}  # (name, tag or digest) -> media type and content

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer_read()

        def do_HEAD(self) -> None:
            self._answer_read()

        def do_POST(self) -> None:
            self._read_body_into(folder / "uploads" / (upload := uuid.uuid4().hex))
            self._reply(202, {"Location": f"{urlparse(self.path).path.rstrip('/')}/{upload}", "Range": "0-0"})

        def do_PATCH(self) -> None:
            path = urlparse(self.path).path
            upload = folder / "uploads" / path.rpartition("/")[2]
            self._read_body_into(upload)
            self._reply(202, {"Location": path, "Range": f"0-{upload.stat().st_size - 1}"})

        def do_PUT(self) -> None:
            url = urlparse(self.path)
            match = _PATH.match(url.path)
            assert match is not None
            if match["kind"] == "manifests":
                content = self.rfile.read(int(self.headers["Content-Length"]))
                digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
                for reference in (match["reference"], digest):
                    manifests[match["name"], reference] = self.headers["Content-Type"], content
                self._reply(201, {"Docker-Content-Digest": digest, "Location": url.path})
                return
            upload = folder / "uploads" / match["reference"]
            self._read_body_into(upload)
            digest = parse_qs(url.query)["digest"][0]
            with upload.open("rb") as file:
                assert f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}" == digest
            upload.rename(folder / "blobs" / digest)
            self._reply(
                201, {"Docker-Content-Digest": digest, "Location": f"/v2/{match['name']}/blobs/{digest}"}
            )

        def _answer_read(self) -> None:
            path = urlparse(self.path).path
            match = _PATH.match(path)
            if match is None:
                self._reply(200 if path == "/v2/" else 404)
                return
            name, reference = match["name"], match["reference"]
            if match["kind"] == "tags":
                tags = [tag for key, tag in manifests if key == name and ":" not in tag]
                self._reply(
                    200,
                    {"Content-Type": "application/json"},
                    json.dumps({"name": name, "tags": tags}).encode(),
                )
            elif match["kind"] == "manifests" and (name, reference) in manifests:
                media_type, content = manifests[name, reference]
                digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
                self._reply(200, {"Content-Type": media_type, "Docker-Content-Digest": digest}, content)
            elif match["kind"] == "blobs" and (blob := folder / "blobs" / reference).is_file():
                self._reply(
                    200,
                    {"Content-Type": "application/octet-stream", "Docker-Content-Digest": reference},
                    blob,
                )
            else:
                self._reply(404)

        def _read_body_into(self, file: Path) -> None:
            """Append the request's body, which may come in chunks."""
            with file.open("ab") as stream:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    while size := int(self.rfile.readline().split(b";")[0], 16):
                        stream.write(self.rfile.read(size))
                        self.rfile.readline()
                    self.rfile.readline()
                    return
                remaining = int(self.headers.get("Content-Length") or 0)
                while remaining:
                    chunk = self.rfile.read(min(remaining, _CHUNK_BYTES))
                    stream.write(chunk)
                    remaining -= len(chunk)

        def _reply(
            self, status: int, headers: dict[str, str] | None = None, body: bytes | Path = b""
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            size = body.stat().st_size if isinstance(body, Path) else len(body)
            self.send_header("Content-Length", str(size))
            self.end_headers()
            if self.command == "HEAD":
                return
            if isinstance(body, bytes):
                self.wfile.write(body)
                return
            with body.open("rb") as stream:
                shutil.copyfileobj(stream, self.wfile, _CHUNK_BYTES)

        def log_message(self, *_: object) -> None:
            pass

    with serve_in_thread(Handler) as port:
        yield f"localhost:{port}"
