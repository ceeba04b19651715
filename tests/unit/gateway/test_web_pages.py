"""Pages of the web server, rendered from documents that hostile clients and nodes have shaped."""

import json
from typing import Any

import pytest
from inline_controller import InlineController
from msgspec.structs import replace
from web_page import WebPage

from tierlog.broker.diagnosis.evidence import BROKERS, DIRECTORIES, QUORUM, Answers, Evidence
from tierlog.broker.gateway.web.cluster_page import cluster_page
from tierlog.broker.gateway.web.group_pages import GROUPS_PER_PAGE, group_page, groups_page
from tierlog.broker.gateway.web.layout import Page
from tierlog.broker.gateway.web.tiering_page import BUCKET, DAMAGED, STORE, UPLOADS, tiering_page
from tierlog.broker.gateway.web.topic_pages import (
    PARTITIONS_PER_PAGE,
    TOPICS_PER_PAGE,
    TopicView,
    find_topics,
    topic_page,
    topics_page,
)

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(1)>\u202e'
QUORUM_OF_ONE = {
    "node_id": 1,
    "cluster_id": EVIL,
    "role": "leader",
    "term": 1,
    "applied_index": 9,
    "voters": {"1": "http://10.0.0.1:1"},
}


def rendered(page: Page) -> WebPage:
    found = WebPage(page.live + (page.fixed or ""))
    found.check_escaped()
    assert "\u202e" not in found.source
    return found


def evidence(**broker: Any) -> Evidence:
    row = {
        "id": 1, "host": EVIL, "port": 9092, "admin_url": "http://10.0.0.1:9644", "rack": EVIL, "epoch": 1,
        "fenced": False, "stopping": False, "leads": 1, "replicas": 1, "out_of_sync": 0,
    }  # fmt: skip
    counts = {"total": 1, "offline": 0, "below-min-in-sync": 0, "under-replicated": 0, "moving": 0}
    disk = {"directory": EVIL, "failure": None, "full": False, "total_bytes": 100, "usable_bytes": 5}
    documents = {
        QUORUM: QUORUM_OF_ONE,
        BROKERS: {"brokers": [{**row, **broker}, {**row, "id": 2}], "partitions": counts},
        DIRECTORIES: {"directories": [disk, {**disk, "failure": EVIL}]},
    }
    answers = Answers(urls={1: "", 2: "http://10.0.0.2:1"}, documents={1: documents}, unread=[EVIL])
    return Evidence(taken_at_ms=0, answers=answers)


def test_cluster_page_escapes_what_nodes_say_and_offers_its_action() -> None:
    page = rendered(cluster_page(evidence(), lambda path: True))
    assert page.buttons == ["/v1/brokers/1/stop", "/v1/brokers/2/stop"]
    assert "<script>" in page.text  # as text
    assert "1 of 2 nodes respond" in page.text
    assert rendered(cluster_page(evidence(), lambda path: False)).buttons == []


@pytest.mark.parametrize("url", ["javascript:alert(1)", "data:text/html,x", "http://", EVIL])
def test_address_that_a_node_registered_is_linked_only_if_it_is_one_of_the_web(url: str) -> None:
    links = rendered(cluster_page(evidence(admin_url=url), lambda path: True)).links
    assert [one for one in links if one.startswith("http")] == ["http://10.0.0.1:9644"]


def test_cluster_page_has_the_remedies_of_the_diagnosis() -> None:
    text = rendered(cluster_page(evidence(), lambda path: True)).text
    assert "is offline" in text and "Replace the disk, and start broker 1 again." in text
    assert "docs/runbooks/full-disk.md" in text


def test_page_of_a_node_that_knows_nothing_yet() -> None:
    nothing = Evidence(taken_at_ms=0, answers=Answers(urls={1: ""}))
    assert "unavailable" in rendered(cluster_page(nothing, lambda path: True)).text


# ---- topics -----------------------------------------------------------------------------------------


def test_ten_thousand_topics_are_paged_and_searched() -> None:
    controller = InlineController(1)
    controller.create("needle.orders", (1,), **{"remote.storage.enable": "true"})
    image = controller.image
    topic = image.topics[image.topic_ids["needle.orders"]]
    ids = {f"topic-{one:05d}": topic.topic_id for one in range(10_000)}
    image = image.__class__(
        cluster_id="c", brokers=image.brokers, topics=image.topics, topic_ids=image.topic_ids.update(ids)
    )
    first = find_topics(image, "", 1, unhealthy=False)
    assert (first.total, first.pages, len(first.rows)) == (10_001, 201, TOPICS_PER_PAGE)
    last = find_topics(image, "", 10**9, unhealthy=False)
    assert (last.page, [row.name for row in last.rows]) == (201, ["topic-09999"])
    [found] = find_topics(image, "needle", 3, unhealthy=False).rows
    page = rendered(topics_page(first, "", unhealthy=False))
    assert len(page.source) < 40_000
    assert found.name == "needle.orders"
    assert find_topics(image, EVIL, 1, unhealthy=False).rows == []
    assert "No topic matches." in rendered(topics_page(find_topics(image, EVIL, 1, unhealthy=False), EVIL,
                                                       unhealthy=False)).text  # fmt: skip


def test_unhealthy_topics_are_found() -> None:
    controller = InlineController(1, 2)
    controller.create("sound", (1,))
    controller.create("lagging", (1, 2))
    controller.fence(2)
    found = find_topics(controller.image, "", 1, unhealthy=True)
    assert [row.name for row in found.rows] == ["lagging"]
    assert "1 under-replicated" in rendered(topics_page(found, "", unhealthy=True)).text


def view_of(controller: InlineController, name: str, **changes: Any) -> TopicView:
    topic = controller.image.topic(name)
    assert topic is not None
    given: dict[str, Any] = {
        "topic": topic, "first": 0, "page": 1, "pages": 1, "offsets": {}, "unread": (), "may_elect": True,
    }  # fmt: skip
    return TopicView(**{**given, **changes})


def test_topic_page_draws_tiers_and_names_replicas_that_are_not_in_sync() -> None:
    controller = InlineController(1, 2)
    controller.create("orders", (1, 2), (2, 1), **{"retention.ms": "77"})
    controller.fence(2)
    row = {
        "log_start_offset": 0, "local_log_start_offset": 5, "log_end_offset": 10, "remote_end_offset": 8,
        "local_bytes": 10, "remote_bytes": 2048, "last_error": EVIL,
    }  # fmt: skip
    page = rendered(topic_page(controller.image, view_of(controller, "orders", offsets={0: row})))
    assert page.every("rect", "class") == ["remote", "both", "local"]
    assert page.text.count("1 not in sync") == 2
    assert "the leader did not respond" in page.text and "2.0 KiB" in page.text
    assert "77" in page.text
    assert page.buttons == []  # the preferred leader of partition 1 is not in sync


def test_topic_whose_preferred_leader_does_not_lead_offers_an_election() -> None:
    controller = InlineController(1, 2)
    controller.create("orders", (1, 2))
    view = view_of(controller, "orders")
    assert rendered(topic_page(controller.image, view)).buttons == []
    led_by_other = tuple(replace(one, leader=2) for one in view.topic.partitions)
    moved = replace(view.topic, partitions=led_by_other)
    page = rendered(topic_page(controller.image, view_of(controller, "orders", topic=moved)))
    assert page.buttons == ["/v1/partitions/elect"]
    [body] = page.every("button", "data-body")
    assert json.loads(body) == {"partitions": [["orders", 0]], "kind": "preferred"}
    read_only = view_of(controller, "orders", topic=moved, may_elect=False)
    assert rendered(topic_page(controller.image, read_only)).buttons == []


def test_partitions_are_paged() -> None:
    controller = InlineController(1)
    controller.create("wide", *[(1,)] * (2 * PARTITIONS_PER_PAGE + 1))
    page = rendered(topic_page(controller.image, view_of(controller, "wide", page=3, pages=3)))
    assert page.source.count("<tr>") - 1 == 1
    assert "/ui/topic?name=wide&page=2" in page.links


# ---- groups and tiering -----------------------------------------------------------------------------


def listed(*names: str) -> Answers:
    rows = [{"group": name, "type": EVIL, "state": EVIL, "lag": 7, "trend": [120_000, 5]} for name in names]
    document = {"total": len(rows), "left_out_partitions": 0, "error": None, "groups": rows}
    return Answers(documents={1: {"/v1/groups": document}}, unread=[EVIL])


def test_groups_are_escaped_linked_and_paged() -> None:
    page = rendered(groups_page(listed(EVIL, "a/b?c#d"), "", 1))
    assert "/ui/group?name=a%2Fb%3Fc%23d" in page.links
    assert "+2 in 2 min" in page.text
    many = listed(*(f"g{one:04d}" for one in range(GROUPS_PER_PAGE + 1)))
    page = rendered(groups_page(many, "g", 2))
    assert "g0050" in page.text and "g0049" not in page.text
    assert "/ui/groups?search=g&page=1" in page.links


def test_group_page_shows_lag_members_and_how_far_back() -> None:
    member = {"member_id": EVIL, "client_id": EVIL, "host": EVIL}
    partition = {"topic": "orders", "partition": 0, "committed_offset": 3, "lag": 4}
    view = {
        "group": EVIL, "type": "consumer", "state": "Stable", "members": [member], "member_count": 1,
        "partitions": [partition], "partition_count": 1, "history": [[0, 9], [60_000, 4]],
    }  # fmt: skip
    page = rendered(group_page(EVIL, view, 2))
    assert page.every("polyline", "points") and "120 samples" in page.text
    assert "1 of 1 member" in page.text


def test_tiering_page_shows_failures_first() -> None:
    row = {
        "topic": "orders", "partition": 0, "pending_bytes": 5, "pending_age_ms": 1, "last_error": None,
        "uploading": True,
    }  # fmt: skip
    scrub = {"progress": 1.0, "passes": 2, "damaged": 0}
    documents = {
        STORE: {"available": False, "state": "open", "error": EVIL},
        UPLOADS: {
            "partitions": 2, "uploading": 1, "pending_bytes": 5, "oldest_ms": 1, "failing": 1,
            "rows": [row, {**row, "partition": 1, "last_error": EVIL}],
        },
        BUCKET: scrub,
        DAMAGED: {"damaged": [{"topic": "orders", "partition": 2, "first_offset": 0, "end_offset": 9,
                               "object": EVIL, "error": "", "missing": True}]},
    }  # fmt: skip
    page = rendered(tiering_page(Answers(documents={1: documents}), 1, lambda path: True))
    assert page.text.index("orders-1") < page.text.index("orders-0")
    assert "missing" in page.text and page.buttons == ["/v1/tier/scrub", "/v1/scrub"]
    assert rendered(tiering_page(Answers(documents={1: documents}), 2, lambda path: True)).buttons == []
