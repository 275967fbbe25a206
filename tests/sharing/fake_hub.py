"""A Hugging Face hub on the loopback interface: what its client asks for to make a repository, commit to
it and read it again.
"""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

MAX_BODY = 1 << 24


class FakeHub(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.revisions: dict[str, dict[str, bytes]] = {}  # commit -> files; the last one is `main`
        self.repos: list[dict[str, Any]] = []
        self.authorizations: set[str | None] = set()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, files: dict[str, bytes]) -> str:
        whole = (list(self.revisions.values())[-1] if self.revisions else {}) | files
        commit = hashlib.sha1(repr(sorted(whole.items())).encode()).hexdigest()
        self.revisions[commit] = whole
        return commit

    def resolve(self, revision: str) -> str | None:
        if revision == "main" and self.revisions:
            return list(self.revisions)[-1]
        return revision if revision in self.revisions else None


class Handler(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(data))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def body(self) -> bytes:
        size = int(self.headers.get("Content-Length") or 0)
        assert size <= MAX_BODY
        return self.rfile.read(size)

    def do_POST(self) -> None:
        self.server.authorizations.add(self.headers.get("Authorization"))
        body, path = self.body(), urlsplit(self.path).path
        if path == "/api/repos/create":
            wanted = json.loads(body)
            self.server.repos.append(wanted)
            self.answer({"url": f"{self.server.endpoint}/{wanted['organization']}/{wanted['name']}"})
        elif path == "/api/validate-yaml":
            self.answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif "/commit/" in path:
            items = [json.loads(line) for line in body.splitlines()]
            files = {
                item["value"]["path"]: base64.b64decode(item["value"]["content"])
                for item in items
                if item["key"] == "file"
            }
            commit = self.server.commit(files)
            repo = path.removeprefix("/api/models/").partition("/commit/")[0]
            self.answer({"commitUrl": f"{self.server.endpoint}/{repo}/commit/{commit}", "commitOid": commit})
        else:
            self.answer({"error": path}, 404)

    def do_GET(self) -> None:
        self.server.authorizations.add(self.headers.get("Authorization"))
        path = urlsplit(self.path).path
        if "/resolve/" in path:
            revision, _, name = path.partition("/resolve/")[2].partition("/")
            commit = self.server.resolve(revision)
            if commit is None or name not in self.server.revisions[commit]:
                return self.answer({"error": "missing"}, 404, {"X-Error-Code": "EntryNotFound"})
            data = self.server.revisions[commit][name]
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            return self.answer(data, 200, {"ETag": etag, "X-Repo-Commit": commit})
        repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        commit = self.server.resolve(revision or "main")
        if not path.startswith("/api/models/") or commit is None:
            return self.answer({"error": "missing"}, 404, {"X-Error-Code": "RevisionNotFound"})
        siblings = [
            {"rfilename": name, "size": len(data)} for name, data in self.server.revisions[commit].items()
        ]
        return self.answer(
            {"id": repo, "modelId": repo, "sha": commit, "siblings": siblings, "tags": [], "private": False}
        )

    do_HEAD = do_GET


@contextlib.contextmanager
def fake_hub() -> Iterator[FakeHub]:
    with FakeHub() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join(5)
