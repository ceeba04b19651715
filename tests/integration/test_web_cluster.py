"""The web page of a local cluster of three processes: every link works, and nothing that a client chose is
markup."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from cli_inline import call, succeed
from confluent_kafka import Consumer, Producer, TopicPartition
from waiting import until
from web_page import WebPage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

EVIL = "<script>alert(1)</script>'\"&/?#"
RECORDS = 50


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Three nodes with a tiered topic and a group whose names are markup; all end with the module."""
    made = tmp_path_factory.mktemp("web")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(made / "state"))
        store = f"object.store.url=file://{made}/store"
        words = ("--data-dir", str(made / "c"), "--port", "0", "--set", store, "--detach", "--json")
        started: dict[str, Any] = json.loads(succeed("cluster", "up", "--nodes", "3", *words).stdout)
        tiered = ("--config", "remote.storage.enable=true")
        succeed("topic", "create", "orders", "-p", "3", "--replication-factor", "3", *tiered)
        succeed("topic", "create", "plain.events", "-p", "1", "--replication-factor", "2")
        consume_some(started["bootstrap"])
        yield started
        call("cluster", "down", "--data-dir", str(made / "c"), "--yes")


def consume_some(bootstrap: str) -> None:
    """RECORDS records in partition 0, of which the group EVIL has read ten."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for _ in range(RECORDS):
        producer.produce("orders", b"value", partition=0)
    producer.flush(60)
    settings = {"bootstrap.servers": bootstrap, "group.id": EVIL, "client.id": EVIL}
    consumer = Consumer({**settings, "enable.auto.commit": False, "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    assert consumer.consume(1, 60)
    consumer.commit(offsets=[TopicPartition("orders", 0, 10)], asynchronous=False)
    consumer.close()


def admin(cluster: dict[str, Any], node: int) -> str:
    return str(next(one["admin"] for one in cluster["nodes"] if one["node"] == node))


def get(url: str) -> WebPage:
    with urllib.request.urlopen(url, timeout=60) as response:
        assert response.status == 200
        page = WebPage(response.read().decode())
    page.check_escaped()
    return page


def test_every_link_of_every_page_leads_to_a_page(cluster: dict[str, Any]) -> None:
    start = admin(cluster, 1)
    pending, seen = [start + "/"], set[str]()
    while pending:
        url = pending.pop()
        if url not in seen:
            seen.add(url)
            pending += [one if "://" in one else start + one for one in get(url).links]
    paths = {url.removeprefix(start).partition("?")[0] for url in seen if url.startswith(start)}
    assert paths - {""} == {
        "/",
        "/ui/topics",
        "/ui/topic",
        "/ui/groups",
        "/ui/group",
        "/ui/tiering",
        "/ui/quorum",
    }
    assert {admin(cluster, 2), admin(cluster, 3)} <= seen


def test_files_of_the_page_are_served_and_no_others(cluster: dict[str, Any]) -> None:
    for name in ("app.js", "app.css", "icon.svg"):
        with urllib.request.urlopen(f"{admin(cluster, 1)}/ui/static/{name}", timeout=60) as response:
            assert response.read()
    for name in ("pages.py", "..%2Fpages.py", "%2e%2e/pages.py", "missing.css"):
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{admin(cluster, 1)}/ui/static/{name}", timeout=60)


@pytest.mark.parametrize("node", [1, 2, 3])
def test_each_node_shows_topics_and_groups_of_the_whole_cluster(cluster: dict[str, Any], node: int) -> None:
    """The leaders' offsets and the coordinator's lag, whichever node is asked."""
    url = admin(cluster, node)
    topic = get(url + "/ui/topic?name=orders")
    assert "the leader did not respond" not in topic.text
    assert f"offsets 0 to {RECORDS - 1}" in topic.text
    groups = get(url + "/ui/groups")
    assert EVIL in groups.text
    [link] = [one for one in groups.links if one.startswith("/ui/group?")]

    def shows_lag() -> bool:
        return f"Lag{RECORDS - 10}" in get(url + link).text

    until(shows_lag, "the lag of the group")
    assert f"Group {EVIL}" in get(url + link).text


def test_quorum_page_shows_all_voters(cluster: dict[str, Any]) -> None:
    page = get(admin(cluster, 2) + "/ui/quorum")
    assert page.text.count("voter") >= 3 and "this is the leader" in page.text


def test_search_of_topics(cluster: dict[str, Any]) -> None:
    page = get(admin(cluster, 1) + "/ui/topics?search=plain")
    assert "plain.events" in page.text and "orders" not in page.text
    assert "No topic matches." in get(admin(cluster, 1) + "/ui/topics?search=%3Cb%3E").text


@pytest.mark.parametrize(
    "path", ["/ui/topic?name=missing", "/ui/topic", "/ui/group?name=missing", "/ui/group"]
)
def test_missing_names_have_a_page(cluster: dict[str, Any], path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404") as raised:
        urllib.request.urlopen(admin(cluster, 1) + path, timeout=60)
    WebPage(raised.value.read().decode()).check_escaped()


def test_refresh_gets_only_the_live_part(cluster: dict[str, Any]) -> None:
    request = urllib.request.Request(admin(cluster, 1) + "/", headers={"X-Tierlog-Part": "1"})
    with urllib.request.urlopen(request, timeout=60) as response:
        text = response.read().decode()
    assert "<html" not in text and "Brokers" in text


def test_node_that_hangs_is_named_and_the_page_comes_all_the_same(cluster: dict[str, Any]) -> None:
    """Last, because it changes the cluster. A paused process accepts connections and never responds."""
    succeed("cluster", "pause", "3")
    try:

        def names_it() -> bool:
            text = get(admin(cluster, 1) + "/").text
            is_named_once = text.count("no response within 2 s") == 1
            return is_named_once and "node 3: no response" in text and "2 of 3 nodes respond" in text

        until(names_it, "the page names the node")
        for path in ("/ui/topic?name=orders", "/ui/groups", "/ui/tiering", "/ui/quorum"):
            get(admin(cluster, 1) + path)
    finally:
        succeed("cluster", "resume", "3")
