"""A schema registry in this process: what readers need of the REST API of Confluent's registry."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

USER = "reader:secret"
UNAVAILABLE = 503


class Registry:
    """`fail_next`: so many requests get 503. `requests`: paths that were asked for."""

    def __init__(self) -> None:
        self.schemas: dict[int, str] = {}
        self.subjects: dict[str, list[int]] = {}
        self.requests: list[str] = []
        self.fail_next = 0
        self.url = ""

    def register(self, subject: str, schema: str | bytes) -> int:
        """The id of the schema. Bytes are a Protobuf FileDescriptorProto."""
        text = base64.b64encode(schema).decode() if isinstance(schema, bytes) else schema
        number = len(self.schemas) + 100_000
        self.schemas[number] = text
        self.subjects.setdefault(subject, []).append(number)
        return number

    def respond(self, path: str, authorization: str | None) -> tuple[int, dict[str, Any]]:
        self.requests.append(path)
        if authorization != "Basic " + base64.b64encode(USER.encode()).decode():
            return 401, {"error_code": 401, "message": "Unauthorized"}
        if self.fail_next:
            self.fail_next -= 1
            return UNAVAILABLE, {"error_code": 50003, "message": "Error while forwarding the request"}
        match unquote(path.partition("?")[0]).strip("/").split("/"):
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, {"schema": self.schemas[int(number)]}
            case ["subjects", subject, "versions", "latest"] if subject in self.subjects:
                number = self.subjects[subject][-1]
                return 200, {"subject": subject, "id": number, "schema": self.schemas[number]}
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def running() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, document = registry.respond(self.path, self.headers.get("Authorization"))
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Tests print no access log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
