"""Pages of topics: the list with its search, and one topic with its partitions drawn by tier."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tierlog.base.text import counted, size
from tierlog.base.types import NO_LEADER
from tierlog.broker.gateway.cluster_views import UNHEALTHY, Condition, conditions
from tierlog.broker.gateway.web import layout
from tierlog.broker.gateway.web.drawings import Tiers, legend, tier_bar
from tierlog.broker.gateway.web.html import Child, Html, join, link, tag
from tierlog.broker.gateway.web.layout import action, badge, facts, pager, section, table
from tierlog.config.topic import TOPIC_SETTINGS
from tierlog.metadata.controller.rules import election_rules
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.metadata.records import PartitionRecord

TOPICS_PER_PAGE = 50
PARTITIONS_PER_PAGE = 50
ELECTIONS_MAX = 500
"""Partitions of one election: a topic with more needs several."""

TIERING = "remote.storage.enable"
KINDS = {
    Condition.OFFLINE: "bad",
    Condition.BELOW_MIN: "bad",
    Condition.UNDER_REPLICATED: "warn",
    Condition.MOVING: "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    name: str
    partitions: int
    replicas: int
    tiered: bool
    states: Counter[Condition]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicList:
    rows: list[TopicRow]
    total: int
    page: int
    pages: int


def find_topics(image: ClusterImage, search: str, page: int, *, unhealthy: bool) -> TopicList:
    """The topics of one page. A pure function of the image, called in a thread."""
    rules = election_rules(image)
    names = [name for name in sorted(image.topic_ids) if search in name]
    if unhealthy:
        names = [name for name in names if UNHEALTHY & _states(image, rules(name).min_in_sync, name).keys()]
    pages = max(1, -(-len(names) // TOPICS_PER_PAGE))
    page = min(max(page, 1), pages)
    shown = names[(page - 1) * TOPICS_PER_PAGE : page * TOPICS_PER_PAGE]
    rows = [
        TopicRow(
            name=name,
            partitions=len(topic.partitions),
            replicas=max((len(one.replicas) for one in topic.partitions), default=0),
            tiered=_is_tiered(image, name),
            states=_states(image, rules(name).min_in_sync, name),
        )
        for name in shown
        if (topic := image.topic(name)) is not None
    ]
    return TopicList(rows=rows, total=len(names), page=page, pages=pages)


def _is_tiered(image: ClusterImage, name: str) -> bool:
    text = image.topic_overrides(name).get(TIERING, "false")
    return bool(TOPIC_SETTINGS[TIERING].parse(text))


def _states(image: ClusterImage, min_in_sync: int, name: str) -> Counter[Condition]:
    topic = image.topic(name)
    found: Counter[Condition] = Counter()
    for partition in () if topic is None else topic.partitions:
        found.update(conditions(partition, min_in_sync))
    return found


def topics_page(found: TopicList, search: str, *, unhealthy: bool) -> layout.Page:
    rows: list[Sequence[Child]] = [
        (
            link(row.name, layout.TOPIC, name=row.name),
            row.partitions,
            row.replicas,
            badge("tiered") if row.tiered else "-",
            _badges(row.states),
        )
        for row in found.rows
    ]
    show = "unhealthy" if unhealthy else None
    choice = tag(
        "p",
        link("All topics", layout.TOPICS, search=search),
        " · ",
        link("With an unhealthy partition", layout.TOPICS, search=search, show="unhealthy"),
    )
    caption = counted(found.total, "topic") + (" with an unhealthy partition" if unhealthy else "")
    headings = ("Topic", "#Partitions", "#Replicas", "Tiering", "Condition")
    live = join(
        table(headings, rows, caption=caption, empty="No topic matches."),
        pager(layout.TOPICS, found.page, found.pages, search=search, show=show),
    )
    form = layout.search_form(layout.TOPICS, "Part of the name", search)
    return layout.Page(title="Topics", section="Topics", fixed=join(form, choice), live=live)


def _badges(states: Mapping[Condition, int]) -> Html:
    found = [badge(f"{states[one]:,} {one.value}", KINDS[one]) for one in Condition if states.get(one)]
    return join(found) if found else badge("healthy", "good")


# ---- one topic --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicView:
    """One page of a topic's partitions. `offsets`: rows of GET /v1/offsets by partition; a partition whose
    leader did not respond is missing."""

    topic: TopicImage
    first: int
    page: int
    pages: int
    offsets: Mapping[int, Mapping[str, Any]]
    unread: Sequence[str]
    may_elect: bool


def partitions_of_page(topic: TopicImage, page: int) -> range:
    first = (page - 1) * PARTITIONS_PER_PAGE
    return range(first, min(first + PARTITIONS_PER_PAGE, len(topic.partitions)))


def topic_page(image: ClusterImage, view: TopicView) -> layout.Page:
    topic, numbers = view.topic, partitions_of_page(view.topic, view.page)
    minimum = election_rules(image)(topic.name).min_in_sync
    rows = [_partition_row(image, view, number, minimum) for number in numbers]
    headings = (
        "Partition",
        "Leader",
        "Replicas",
        "Tiers",
        "#Start",
        "#End",
        "#Local",
        "#Remote",
        "Condition",
    )
    live = join(
        facts(
            {
                "Partitions": len(topic.partitions),
                "Condition": _badges(_states(image, minimum, topic.name)),
                "Id": str(topic.topic_id),
            }
        ),
        _elect(view),
        section(
            "Partitions",
            legend(),
            table(headings, rows, caption="Offsets are of the leader", empty="There is no partition."),
            pager(layout.TOPIC, view.page, view.pages, name=topic.name),
            [tag("p", text, class_="note") for text in view.unread[:5]],
        ),
        section("Settings", _settings(image, topic.name)),
    )
    return layout.Page(title=f"Topic {topic.name}", section="Topics", live=live)


def _partition_row(image: ClusterImage, view: TopicView, number: int, minimum: int) -> Sequence[Child]:
    partition = view.topic.partitions[number]
    row = view.offsets.get(number)
    found = conditions(partition, minimum)
    states: list[Child] = [badge(one.value, KINDS[one]) for one in found] or [badge("healthy", "good")]
    if row is not None and row.get("last_error"):
        states.append(tag("span", f"the upload fails: {row['last_error']}", class_="bad"))
    leader: Child = "none" if partition.leader == NO_LEADER else str(partition.leader)
    return (
        str(number),
        join(tag("strong", leader), tag("span", f" epoch {partition.leader_epoch}", class_="faint word")),
        _replicas(partition),
        _tiers(image, view, number, row),
        row["log_start_offset"] if row else "-",
        row["log_end_offset"] if row else "-",
        size(row["local_bytes"]) if row else "-",
        size(row["remote_bytes"]) if row else "-",
        join(states),
    )


def _replicas(partition: PartitionRecord) -> Html:
    """Replicas that are not in sync are struck through; words say so for those that do not see it."""
    shown: list[Child] = []
    for one in partition.replicas:
        is_in_sync = one in partition.in_sync
        shown.append(str(one) if is_in_sync else tag("del", str(one), title="not in sync"))
        shown.append(" ")
    lagging = len(partition.replicas) - len(set(partition.replicas) & set(partition.in_sync))
    return join(shown, tag("span", f"{lagging} not in sync", class_="faint") if lagging else None)


def _tiers(image: ClusterImage, view: TopicView, number: int, row: Mapping[str, Any] | None) -> Html:
    if row is not None:
        return tier_bar(
            Tiers(
                row["log_start_offset"],
                row["remote_end_offset"],
                row["local_log_start_offset"],
                row["log_end_offset"],
            )
        )
    remote = image.remote_partition(view.topic.topic_id, number)
    if remote.end_offset is None or remote.first_offset is None:
        return tag("span", "the leader did not respond", class_="faint")
    bar = tier_bar(Tiers(remote.first_offset, remote.end_offset, None, remote.end_offset))
    return join(bar, tag("span", "only the object store is known", class_="faint"))


def _elect(view: TopicView) -> Html | None:
    """Partitions that another in-sync replica than the preferred one leads."""
    name = view.topic.name
    wanted = [
        [name, number]
        for number, one in enumerate(view.topic.partitions)
        if one.replicas and one.leader != one.replicas[0] and one.replicas[0] in one.in_sync
    ][:ELECTIONS_MAX]
    if not wanted:
        return None
    text = f"{counted(len(wanted), 'partition')} not led by the preferred replica. "
    if not view.may_elect:
        return tag("p", text)
    body = json.dumps({"partitions": wanted, "kind": "preferred"})
    question = f"Elect the preferred leaders of {counted(len(wanted), 'partition')} of {name}?"
    return tag("p", text, action("Elect preferred leaders", question, "/v1/partitions/elect", body))


def _settings(image: ClusterImage, name: str) -> Html:
    rows: list[Sequence[Child]] = [
        (tag("code", key), value) for key, value in sorted(image.topic_overrides(name).items())
    ]
    empty = "The topic has no settings of its own: those of the cluster apply."
    return table(("Setting", "Value"), rows, caption="Settings of this topic", empty=empty)
