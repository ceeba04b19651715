"""OpenAPI 3.1 document and reference page of the gateway, from its table of routes.

The gateway serves the document at /openapi.json. `make docs` writes both to docs/reference.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tierlog.base import build
from tierlog.rest import models
from tierlog.rest.errors import JSON, MEANINGS, ErrorBody
from tierlog.rest.metrics import CATALOGUE
from tierlog.rest.routes import Route

REFERENCE = "#/components/schemas/{name}"
LISTED = (
    models.Broker,
    models.Topic,
    models.Partition,
    models.TopicConfig,
    models.ConsumerGroup,
    models.Consumer,
    models.Lag,
    models.Cluster,
)
"""Resources of lists."""

TITLE = "tierlog REST gateway"
INTRODUCTION = """\
Produce, consume, and manage topics and groups over HTTP. Paths under `/v3` are a subset of Confluent's REST
Proxy API v3. How to use it: [docs/howto/rest.md](../howto/rest.md)."""


def document(routes: Sequence[Route]) -> bytes:
    """The document as JSON."""
    kinds: list[Any] = [ErrorBody, *LISTED]
    for route in routes:
        kinds += [one for one in (route.body, route.result, *route.lines) if one is not None]
    _, schemas = msgspec.json.schema_components(list(dict.fromkeys(kinds)), ref_template=REFERENCE)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    found = {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": build.VERSION, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "security": [{"basic": []}, {"bearer": []}, {}],
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "basic": {"type": "http", "scheme": "basic", "description": "SCRAM or PLAIN at the broker"},
                "bearer": {"type": "http", "scheme": "bearer", "description": "OAUTHBEARER at the broker"},
            },
        },
    }
    return (json.dumps(found, indent=1) + "\n").encode()


def _operation(route: Route) -> dict[str, Any]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ] + [
        {"name": one.name, "in": "query", "description": one.doc, "schema": one.schema} for one in route.query
    ]
    found: dict[str, Any] = {
        "operationId": route.operation,
        "tags": [route.tag],
        "summary": route.summary,
        "parameters": parameters,
        "responses": {
            str(route.status): _success(route),
            "default": {
                "description": "An error. Its code begins with the status.",
                "content": {JSON: {"schema": _reference(ErrorBody)}},
            },
        },
    }
    if route.body is not None:
        what = "One or more such objects, one after the other" if route.streams_in else "The request"
        content = {JSON: {"schema": _reference(route.body)}}
        found["requestBody"] = {"required": True, "description": what, "content": content}
    return found


def _success(route: Route) -> dict[str, Any]:
    if route.result is None:
        return {"description": "Done."}
    kinds = [_reference(one) for one in (route.result, *route.lines)]
    schema = {"anyOf": kinds} if len(kinds) > 1 else kinds[0]
    what = "Such an object in each line." if len(kinds) > 1 else "The result."
    return {"description": what, "content": {route.media: {"schema": schema}}}


def _reference(kind: type[Any]) -> dict[str, str]:
    return {"$ref": REFERENCE.format(name=kind.__name__)}


def reference_page(routes: Sequence[Route]) -> str:
    """The routes, parameters, errors and metrics as tables."""
    lines = ["# REST gateway", "", INTRODUCTION, "", "[OpenAPI 3.1 document](rest-openapi.json), which the"]
    lines += ["gateway serves at `/openapi.json`.", "", "## Routes", ""]
    lines += ["| route | meaning |", "| --- | --- |"]
    lines += [f"| `{route.method} {route.path}` | {route.summary} |" for route in routes]
    lines += ["| `GET /` | The OpenAPI document as a page for people, without a login. |"]
    lines += ["| `GET /health` | 200 while the gateway serves, without a login. |"]
    lines += ["| `GET /metrics` | Metrics for Prometheus, without a login. |"]
    lines += ["| `GET /openapi.json` | The OpenAPI document, without a login. |", ""]
    for route in routes:
        if route.query:
            lines += [f"## Parameters of `{route.method} {route.path}`", ""]
            lines += ["| parameter | meaning |", "| --- | --- |"]
            lines += [f"| `{one.name}` | {one.doc} |" for one in route.query]
            lines += [""]
    lines += [
        "## Errors",
        "",
        'Each error is `{"error_code": …, "message": …}`. A code begins with the status',
    ]
    lines += ["of the response.", "", "| code | meaning |", "| --- | --- |"]
    lines += [f"| {code} | {meaning} |" for code, meaning in sorted(MEANINGS.items(), key=_by_text)]
    lines += ["", "## Metrics", "", "| metric | type | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{metric.name}` | {metric.kind} | {metric.doc} |" for metric in CATALOGUE]
    return "\n".join([*lines, ""])


def _by_text(item: tuple[int, str]) -> str:
    return str(item[0])
