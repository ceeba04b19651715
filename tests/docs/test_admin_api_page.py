"""The page of the admin API lists its routes, and no others."""

import re
from types import SimpleNamespace
from typing import Any

from docs_pages import ROOT

from tierlog.base.clock import SystemClock
from tierlog.broker.gateway.admin import admin_routes
from tierlog.broker.gateway.web.pages import web_routes
from tierlog.metadata.quorum.api import quorum_routes

PAGE = (ROOT / "docs/reference/admin-api.md").read_text(encoding="utf-8")


def test_page_lists_the_routes_of_a_node() -> None:
    unused: Any = SimpleNamespace(metadata=None, clock=SystemClock(), is_broker=True)
    api = [*admin_routes(unused), *quorum_routes(unused)]
    routes: list[Any] = [*api, *web_routes(unused, api, None)]
    served = {
        f"{route.method} {route.path.replace('{id}', 'ID').replace('{file}', 'FILE')}" for route in routes
    }
    reported = re.findall(r"^\| `(\w+ /[^`?]*)", PAGE, re.MULTILINE)
    assert sorted(reported) == sorted(served)
