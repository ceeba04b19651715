"""Parts that all pages share: the frame with its navigation, tables, paging, and the headers of responses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aiohttp import web

from tierlog.broker.gateway.web.html import Child, Html, join, link, tag

CLUSTER, TOPICS, TOPIC = "/", "/ui/topics", "/ui/topic"
GROUPS, GROUP, TIERING, QUORUM = "/ui/groups", "/ui/group", "/ui/tiering", "/ui/quorum"
NAVIGATION = {
    "Cluster": CLUSTER,
    "Topics": TOPICS,
    "Groups": GROUPS,
    "Tiering": TIERING,
    "Quorum": QUORUM,
}
REFRESH_MS = 5_000
PART_HEADER = "X-Tierlog-Part"
"""Header of the script's requests, which need only the part of the page that changes."""

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """`section`: its name in NAVIGATION. `fixed`: forms, which a refresh does not touch. `live`: the part
    that is requested again every REFRESH_MS."""

    title: str
    section: str
    live: Html
    fixed: Html | None = None
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """The node and the user, in the footer of each page. `user`: "" without a login."""

    node_id: int
    cluster_id: str
    version: str
    user: str
    role: str


def respond(request: web.Request, page: Page, frame: Frame) -> web.Response:
    is_part = PART_HEADER in request.headers
    body = page.live if is_part else "<!doctype html>\n" + _document(page, frame)
    return web.Response(
        text=body, status=page.status, content_type="text/html", charset="utf-8", headers=HEADERS
    )


def _document(page: Page, frame: Frame) -> Html:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{page.title} · tierlog"),
        tag("link", rel="icon", href="/ui/static/icon.svg", type="image/svg+xml"),
        tag("link", rel="stylesheet", href="/ui/static/app.css"),
        tag("script", src="/ui/static/app.js", defer=True),
    )
    links = [
        tag("a", name, href=path, aria_current="page" if name == page.section else None)
        for name, path in NAVIGATION.items()
    ]
    login = f"{frame.user} ({frame.role})" if frame.user else "no login: everyone may act"
    body = tag(
        "body",
        tag("a", "Skip to the content", href="#content", class_="skip"),
        tag("header", tag("a", "tierlog", href="/", class_="brand"), tag("nav", links, aria_label="Pages")),
        tag(
            "main",
            tag("h1", page.title),
            page.fixed,
            tag("p", "", id="message", role="status", hidden=True),
            tag("div", page.live, id="live", data_refresh=REFRESH_MS if page.status == 200 else None),
            id="content",
            tabindex=-1,
        ),
        tag(
            "footer",
            tag("span", f"node {frame.node_id} of {frame.cluster_id}, tierlog {frame.version}"),
            tag("span", login),
            tag("span", "", id="age"),
            tag("button", "Pause refresh", type="button", id="pause", hidden=True),
        ),
        _confirmation(),
    )
    return tag("html", head, body, lang="en")


def _confirmation() -> Html:
    """The script fills it in before it opens it."""
    return tag(
        "dialog",
        tag("h2", "Confirm"),
        tag("p", "", id="question"),
        tag(
            "div",
            tag("button", "Cancel", type="button", id="cancel"),
            tag("button", "Do it", type="button", id="go", class_="danger"),
            class_="buttons",
        ),
        id="confirm",
        aria_labelledby="question",
    )


def error_page(status: int, message: str, section: str = "") -> Page:
    return Page(title="Not found" if status == 404 else "Not now", section=section, status=status,
                live=tag("p", message, class_="note"))  # fmt: skip


# ---- parts of pages ---------------------------------------------------------------------------------


def table(headings: Sequence[str], rows: Sequence[Sequence[Child]], *, caption: str, empty: str) -> Html:
    """A table whose cells carry their heading, for narrow screens. A heading with # is of numbers."""
    if not rows:
        return tag("p", empty, class_="note")
    names = [heading.removeprefix("#") for heading in headings]
    classes = ["number" if heading.startswith("#") else None for heading in headings]
    head = [tag("th", name, scope="col", class_=kind) for name, kind in zip(names, classes, strict=True)]
    body = [
        tag(
            "tr",
            [
                tag("td", cell, data_label=name, class_=kind)
                for cell, name, kind in zip(row, names, classes, strict=True)
            ],
        )
        for row in rows
    ]
    return tag("table", tag("caption", caption), tag("thead", tag("tr", head)), tag("tbody", body))


def facts(pairs: Mapping[str, Child]) -> Html:
    """A short list of named values."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs.items()])


def section(heading: str, *content: Child) -> Html:
    return tag("section", tag("h2", heading), *content)


def badge(text: str, kind: str = "") -> Html:
    """`kind`: good, warn, bad, or "" for neutral."""
    return tag("span", text, class_=f"badge {kind}".strip())


def meter(share: float, label: str) -> Html:
    """A bar of a share between 0 and 1, red above nine tenths."""
    width = round(100 * min(max(share, 0.0), 1.0))
    bar = tag(
        "svg",
        tag("rect", x=0, y=0, width=100, height=8, class_="track"),
        tag("rect", x=0, y=0, width=width, height=8, class_="bad" if share > 0.9 else "fill"),
        viewBox="0 0 100 8",
        preserveAspectRatio="none",
        class_="meter",
        role="img",
        aria_label=label,
    )
    return join(bar, " ", label)


def action(label: str, question: str, path: str, body: str = "{}") -> Html:
    """A button that sends a change to the admin API after the user confirms it. `body`: JSON."""
    return tag("button", label, type="button", data_post=path, data_body=body, data_question=question)


def search_form(path: str, label: str, text: str) -> Html:
    return tag(
        "form",
        tag("label", label, for_="search"),
        tag("input", type="search", id="search", name="search", value=text, maxlength=249),
        tag("button", "Search", type="submit"),
        action=path,
        method="get",
        role="search",
    )


def pager(path: str, page: int, pages: int, **query: object) -> Html:
    """Links to the pages before and after `page`, which counts from 1."""
    if pages <= 1:
        return join()
    parts: list[Child] = []
    if page > 1:
        parts += [link("First", path, **query), link("Previous", path, **query, page=page - 1)]
    parts.append(tag("span", f"page {page:,} of {pages:,}"))
    if page < pages:
        parts += [link("Next", path, **query, page=page + 1), link("Last", path, **query, page=pages)]
    return tag("nav", *parts, class_="pager", aria_label="Pages of the list")


def page_number(request: web.Request, pages: int) -> int:
    """The page that a request names, within those that exist."""
    text = request.query.get("page", "1")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 1
    return min(max(number, 1), max(pages, 1))
