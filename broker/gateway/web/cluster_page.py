"""Page of the cluster: what is wrong and what mends it, brokers with their disks, partitions by condition."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tierlog.base.text import counted, size
from tierlog.broker.diagnosis.evidence import DIRECTORIES, QUORUM, Evidence, observation_of
from tierlog.broker.diagnosis.findings import Finding, diagnose
from tierlog.broker.diagnosis.metric_rules import Urgency
from tierlog.broker.gateway.web import layout
from tierlog.broker.gateway.web.html import Child, Html, is_web_address, join, link, tag
from tierlog.broker.gateway.web.layout import action, badge, facts, section, table

FINDINGS_MAX = 50
BROKERS_MAX = 200
UNREAD_MAX = 20
DISKS_MAX = 20
"""Log directories of a broker that its row shows."""

KINDS = {Urgency.UNAVAILABLE: "bad", Urgency.DEGRADED: "warn", Urgency.RISK: "warn", Urgency.ADVICE: ""}
STOP_QUESTION = (
    "Move all leaderships of broker {} to other brokers? It leads nothing again until its process restarts."
)


def cluster_page(evidence: Evidence, may: Callable[[str], bool]) -> layout.Page:
    """`may`: whether the user may send this change (a path of the admin API)."""
    findings = diagnose(evidence)
    seen = observation_of(evidence.answers)
    view = seen.brokers or {"brokers": [], "partitions": {}}
    live = join(
        _verdict(findings, evidence),
        section("Findings", _findings(findings)),
        _unread(evidence.answers.unread),
        section("Brokers", _brokers(view["brokers"], evidence, may)),
        section("Partitions", _partitions(view["partitions"])),
    )
    return layout.Page(title="Cluster", section="Cluster", live=live)


def _verdict(findings: Sequence[Finding], evidence: Evidence) -> Html:
    urgencies = {finding.urgency for finding in findings}
    worst = next((one for one in (Urgency.UNAVAILABLE, Urgency.DEGRADED) if one in urgencies), None)
    word = "healthy" if worst is None else str(worst)
    nodes, urls = evidence.answers.of(QUORUM), evidence.answers.urls
    return tag(
        "p",
        badge(word, "good" if worst is None else KINDS[worst]),
        f" {len(nodes)} of {counted(len(urls), 'node')} respond, {counted(len(findings), 'finding')}",
        class_="verdict",
    )


def _findings(findings: Sequence[Finding]) -> Html:
    if not findings:
        return tag("p", "Nothing is wrong. ", tag("code", "tierlog doctor"), " checks more.", class_="note")
    shown = [
        tag(
            "li",
            tag("p", badge(str(one.urgency), KINDS[one.urgency]), " ", tag("strong", one.what)),
            tag("p", one.why, class_="faint"),
            tag("p", tag("strong", "Next: "), _with_commands(one.next)),
            tag("p", "See ", tag("code", one.runbook)) if one.runbook else None,
        )
        for one in findings[:FINDINGS_MAX]
    ]
    more = len(findings) - len(shown)
    return join(
        tag("ul", shown, class_="findings"),
        tag("p", f"and {more} more: `tierlog doctor`", class_="note") if more > 0 else None,
    )


def _with_commands(text: str) -> list[Child]:
    """The text with the parts between backquotes as code."""
    return [tag("code", part) if at % 2 else part for at, part in enumerate(text.split("`"))]


def _unread(missing: Sequence[str]) -> Html:
    if not missing:
        return join()
    rows = [tag("li", text) for text in missing[:UNREAD_MAX]]
    rows += [tag("li", f"and {len(missing) - UNREAD_MAX} more")] if len(missing) > UNREAD_MAX else []
    return section("Not read", tag("ul", rows, class_="note"))


def _brokers(brokers: Sequence[Mapping[str, Any]], evidence: Evidence, may: Callable[[str], bool]) -> Html:
    disks = evidence.answers.of(DIRECTORIES)
    rows: list[Sequence[Child]] = [
        (
            tag("strong", str(one["id"])),
            _address(one),
            one["rack"] or "-",
            _state(one),
            one["leads"],
            one["replicas"],
            one["out_of_sync"],
            _disks(disks.get(one["id"], {})),
            _drain(one, may) if len(brokers) > 1 else None,
        )
        for one in brokers[:BROKERS_MAX]
    ]
    headings = ("Broker", "Address", "Rack", "State", "#Leads", "#Replicas", "#Out of sync", "Disks", "")
    caption = f"{len(rows)} of {counted(len(brokers), 'broker')}"
    return table(headings, rows, caption=caption, empty="No broker has registered.")


def _address(broker: Mapping[str, Any]) -> Html:
    """Another node's page is linked only if its address is one of a web server."""
    url, text = broker["admin_url"], f"{broker['host']}:{broker['port']}"
    if not is_web_address(url):
        return join(text)
    return join(text, " ", tag("a", "its page", href=url, rel="noreferrer"))


def _state(broker: Mapping[str, Any]) -> Html:
    if broker["fenced"]:
        return badge("fenced", "bad")
    return badge("stopping", "warn") if broker["stopping"] else badge("serving", "good")


def _disks(document: Mapping[str, Any]) -> Html:
    return join([_disk(one) for one in document.get("directories", ())[:DISKS_MAX]]) or join("-")


def _disk(directory: Mapping[str, Any]) -> Html:
    name = tag("span", directory["directory"], class_="path")
    if directory["failure"]:
        return tag("div", name, " ", badge("offline", "bad"))
    full = badge("full", "bad") if directory["full"] else None
    total, usable = directory["total_bytes"], directory["usable_bytes"]
    if not total:
        return tag("div", name, " ", full)
    words = f"{size(usable)} of {size(total)} free"
    return tag("div", name, " ", full, layout.meter(1 - usable / total, words))


def _drain(broker: Mapping[str, Any], may: Callable[[str], bool]) -> Html | None:
    if broker["fenced"] or broker["stopping"] or not may("/v1/brokers/{id}/stop"):
        return None
    question = STOP_QUESTION.format(broker["id"])
    return action("Move leaderships away", question, f"/v1/brokers/{broker['id']}/stop")


def _partitions(counts: Mapping[str, int]) -> Html:
    shown: dict[str, Child] = {}
    for name, count in counts.items():
        unhealthy = name not in ("total", "moving") and count
        text: Child = badge(f"{count:,}", "bad") if unhealthy else count
        words = name.replace("-", " ").capitalize()
        shown[words] = link(text, layout.TOPICS, show="unhealthy") if unhealthy else text
    return facts(shown)
