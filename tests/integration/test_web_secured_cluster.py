"""The web page of a secured cluster of three processes: one login shows what all nodes know."""

import json
import re
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cli_process import run
from waiting import until
from web_page import WebPage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

PATHS = ("/", "/ui/topics", "/ui/groups", "/ui/tiering", "/ui/quorum", "/ui/static/app.js")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    made = tmp_path_factory.mktemp("secured-web")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(made / "state"))
        words = ("--nodes", "3", "--data-dir", made / "c", "--port", "0", "--secure", "--detach", "--json")
        ended = run("cluster", "up", *words)
        assert ended.returncode == 0, ended.stderr
        yield json.loads(ended.stdout)
        run("cluster", "down", "--data-dir", made / "c", "--yes")


def password_of(cluster: dict[str, Any]) -> str:
    found = re.search(r'password="([^"]*)"', Path(cluster["client_config"]).read_text())
    assert found is not None
    return found[1]


def get(cluster: dict[str, Any], path: str, password: str = "") -> tuple[int, str]:
    pair = b64encode(f"admin:{password}".encode()).decode()
    request = urllib.request.Request(cluster["nodes"][0]["admin"] + path)
    if password:
        request.add_header("Authorization", f"Basic {pair}")
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_a_login(cluster: dict[str, Any], path: str) -> None:
    assert get(cluster, path)[0] == 401
    assert get(cluster, path, "wrong")[0] == 401


def test_login_shows_what_all_nodes_know_and_no_secret(cluster: dict[str, Any]) -> None:
    password = password_of(cluster)

    def all_respond() -> bool:
        status, text = get(cluster, "/", password)
        return status == 200 and "3 of 3 nodes respond" in WebPage(text).text

    until(all_respond, "all nodes accept the login")
    for path in PATHS[:-1]:
        status, text = get(cluster, path, password)
        assert status == 200 and "User:admin (admin)" in text
        assert password not in text and "Authorization" not in text
        WebPage(text).check_escaped()
    assert len(WebPage(get(cluster, "/", password)[1]).buttons) == 3
