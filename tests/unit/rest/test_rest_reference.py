"""The OpenAPI document is generated from the routes, complete and without dangling references."""

import json
import re

from docs_pages import ROOT

from tierlog.rest.errors import MEANINGS
from tierlog.rest.openapi import document
from tierlog.rest.openapi_page import page
from tierlog.rest.server import all_routes

ROUTES = all_routes()
DOCUMENT = json.loads(document(ROUTES))


def test_document_has_every_route() -> None:
    found = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    assert found == {(route.method, route.path) for route in ROUTES}
    operations = [route.operation for route in ROUTES]
    assert len(set(operations)) == len(operations)


def test_document_refers_only_to_schemas_that_it_has() -> None:
    referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(DOCUMENT)))
    assert referred <= set(DOCUMENT["components"]["schemas"])
    assert DOCUMENT["openapi"].startswith("3.1")


def test_every_error_code_begins_with_a_status_and_is_explained() -> None:
    from tierlog.rest import errors

    codes = {
        value
        for name, value in vars(errors).items()
        if name.isupper() and isinstance(value, int) and value > 399 and not name.startswith("RETRY")
    }
    assert codes <= set(MEANINGS)
    assert all(400 <= int(str(code)[:3]) < 600 for code in codes)


def test_reference_page_lists_the_routes() -> None:
    page = (ROOT / "docs/reference/rest.md").read_text(encoding="utf-8")
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in page


def test_page_for_people_has_every_route_and_type_and_no_link_that_leads_nowhere() -> None:
    text = page(document(ROUTES)).decode()
    for route in ROUTES:
        assert f"<code>{route.method} {route.path}</code>" in text
    names = set(re.findall(r'id="([^"]+)"', text))
    assert set(DOCUMENT["components"]["schemas"]) <= names
    assert set(re.findall(r'href="#([^"]+)"', text)) <= names
    assert "<script" not in text and "`" not in text
