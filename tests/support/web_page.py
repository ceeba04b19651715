"""A page of the admin server as a test reads it: links, buttons, elements and text."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any


@dataclass
class WebPage(HTMLParser):
    """`buttons`: data-post of those that change something."""

    source: str
    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def every(self, tag: str, attribute: str) -> list[str]:
        """The values of an attribute of all such elements."""
        return [value for name, found in self.elements if name == tag and (value := found.get(attribute))]

    @property
    def links(self) -> list[str]:
        return [one for one in self.every("a", "href") if not one.startswith("#")]

    @property
    def buttons(self) -> list[str]:
        return self.every("button", "data-post")

    def check_escaped(self) -> None:
        """No element and no attribute that these pages do not have."""
        known: set[Any] = {
            "html", "head", "meta", "title", "link", "script", "body", "a", "header", "nav", "main", "h1",
            "h2", "p", "div", "section", "table", "caption", "thead", "tbody", "tr", "th", "td", "span",
            "strong", "code", "ul", "li", "dl", "dt", "dd", "svg", "rect", "line", "polyline", "form",
            "label", "input", "button", "footer", "dialog", "del",
        }  # fmt: skip
        assert {name for name, _ in self.elements} <= known
        for name, attributes in self.elements:
            assert not [one for one in attributes if one.startswith("on") or one == "style"], (
                name,
                attributes,
            )
        assert self.every("script", "src") in ([], ["/ui/static/app.js"])
        assert not [one for one in self.every("a", "href") if one.lower().startswith(("javascript", "data"))]
