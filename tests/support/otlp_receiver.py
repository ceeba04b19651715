"""A collector of traces: a process that takes OTLP over HTTP and writes each span as a line of JSON.

Run as `python otlp_receiver.py FILE PORT`; the first line of its output is its URL.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class Collector:
    def __init__(self, file: Path, port: int = 0) -> None:
        self._file = file
        command = [sys.executable, __file__, str(file), str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def spans(self) -> list[dict[str, Any]]:
        text = self._file.read_text() if self._file.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def named(self, name: str) -> list[dict[str, Any]]:
        return [span for span in self.spans if span["name"] == name]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@contextmanager
def collector(directory: Path, port: int = 0) -> Iterator[Collector]:
    running = Collector(directory / "spans.jsonl", port)
    try:
        yield running
    finally:
        running.kill()


def serve(file: Path, port: int) -> None:
    from aiohttp import web
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
        ExportTraceServiceRequest,
        ExportTraceServiceResponse,
    )

    async def take(request: web.Request) -> web.Response:
        message = ExportTraceServiceRequest.FromString(await request.read())
        with file.open("a") as output:
            for resource in message.resource_spans:
                service = attributes(resource.resource.attributes)
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        output.write(json.dumps(as_dict(span) | {"resource": service}) + "\n")
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    application = web.Application(client_max_size=1 << 26)
    application.router.add_post("/v1/traces", take)
    run(application, port)


def run(application: Any, port: int) -> None:
    from aiohttp import web

    async def main() -> None:
        runner = web.AppRunner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(main())


def attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in pairs}


def as_dict(span: Any) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": span.trace_id.hex(),
        "id": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "links": [link.trace_id.hex() for link in span.links],
        "failed": span.status.message if span.status.code == 2 else "",
        "ns": span.end_time_unix_nano - span.start_time_unix_nano,
        **attributes(span.attributes),
    }


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
