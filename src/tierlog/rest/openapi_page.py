"""The OpenAPI document as a page for people: one file without scripts, so that it also works offline.

The gateway serves it at /. All of its text is tierlog's own.
"""

import json
from base64 import b64encode
from collections.abc import Iterator
from hashlib import sha256
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.45 system-ui, sans-serif; max-width: 1100px; margin: 0 auto; padding: 8px 20px; }
h1 { font-size: 24px; } h2 { font-size: 19px; margin: 28px 0 8px; } h3 { font-size: 15px; margin: 0; }
article { border-top: 1px solid GrayText; padding: 10px 0; }
code { font: 13px/1.4 ui-monospace, monospace; overflow-wrap: anywhere; }
p { margin: 4px 0; } ul { margin: 4px 0; padding-left: 22px; }
"""
_STYLE_HASH = b64encode(sha256(STYLE.encode()).digest()).decode()
HEADERS = {
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
}


def page(document: bytes) -> bytes:
    """`document`: OpenAPI as JSON, as `openapi.document` makes it."""
    found = json.loads(document)
    info, schemas = found["info"], found["components"]["schemas"]
    tags: dict[str, list[str]] = {}
    for path, operations in found["paths"].items():
        for method, one in operations.items():
            tags.setdefault(one["tags"][0], []).append(_operation(method.upper(), path, one))
    parts = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        '<p>As a document for programs: <a href="/openapi.json">OpenAPI 3.1</a>. A login is sent with HTTP '
        "Basic, or as a Bearer token; clusters without logins need none.</p>",
    ]
    for tag, operations in tags.items():
        parts += [f"<h2>{escape(tag)}</h2>", *operations]
    parts += ["<h2>types</h2>", *(_schema(name, schemas[name]) for name in sorted(schemas))]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    ).encode()


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    return "".join(
        (
            f'<article id="{escape(operation["operationId"])}"><h3><code>{method} {escape(path)}</code></h3>',
            f"<p>{_text(operation['summary'])}</p>",
            _listed(_parameter(one) for one in operation["parameters"] if one["in"] == "query"),
            *_bodies(operation),
            "</article>",
        )
    )


def _parameter(parameter: dict[str, Any]) -> str:
    return f"<code>{escape(parameter['name'])}</code>: {_text(parameter['description'])}"


def _bodies(operation: dict[str, Any]) -> Iterator[str]:
    """The types of the request, and of the response that is no error."""
    if "requestBody" in operation:
        request = operation["requestBody"]
        yield f"<p>Request: {_content(request)}. {escape(request['description'])}.</p>"
    status, response = next(iter(operation["responses"].items()))
    what = f"{_content(response)}. " if "content" in response else ""
    yield f"<p>Response {status}: {what}{escape(response['description'])}</p>"


def _content(body: dict[str, Any]) -> str:
    [schema] = (one["schema"] for one in body["content"].values())
    return _type(schema)


def _schema(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    fields = (
        f"<code>{escape(field)}</code>: {_type(one)}{'' if field in required else ', optional'}"
        for field, one in schema["properties"].items()
    )
    about = f"<p>{_text(schema['description'])}</p>" if "description" in schema else ""
    return f'<article id="{escape(name)}"><h3>{escape(name)}</h3>{about}{_listed(fields)}</article>'


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(map(_type, schema["anyOf"]))
    if "items" in schema:
        return f"list of {_type(schema['items'])}"
    return escape(schema.get("type", "any JSON"))


def _listed(items: Iterator[str]) -> str:
    made = "".join(f"<li>{item}</li>" for item in items)
    return f"<ul>{made}</ul>" if made else ""


def _text(text: str) -> str:
    """A text with `code` in it."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
