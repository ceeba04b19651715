"""HTML by functions that escape by construction."""

from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tierlog.broker.gateway.web.html import Html, is_web_address, join, link, path_of, tag

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "&lt;b&gt;",
    "a\u202eb",
    "a\x00\r\n\x1b[31mb",
]


class Parsed(HTMLParser):
    """Elements with their attributes, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text_in_content_and_attributes(text: str) -> None:
    found = Parsed(tag("p", text, title=text, data_body=text))
    shown = text if text.isprintable() else found.text
    assert found.elements == [("p", {"title": shown, "data-body": shown})]
    assert found.text == shown
    assert shown.isprintable()


def test_a_text_that_claims_to_be_html_is_escaped() -> None:
    """Only `tag` and `join` make HTML: the type alone lets nothing through."""
    assert tag("p", Html("<b>")) == "<p>&lt;b&gt;</p>"
    assert tag("p", "<b>" + tag("i", "x")) == "<p>&lt;b&gt;&lt;i&gt;x&lt;/i&gt;</p>"
    assert join(tag("i", "x"), ["<", None, 1234]) == "<i>x</i>&lt;1,234"


def test_attributes() -> None:
    assert tag("input", name="q", disabled=True, hidden=False, value=None) == '<input name="q" disabled>'
    assert tag("td", 1, class_="number", data_label="#") == '<td class="number" data-label="#">1</td>'


def test_queries_are_quoted() -> None:
    assert path_of("/ui/group", name="a&b=c #?/é", page=None, search="") == (
        "/ui/group?name=a%26b%3Dc%20%23%3F%2F%C3%A9"
    )
    assert link("x", "/ui/group", name='"><') == '<a href="/ui/group?name=%22%3E%3C">x</a>'


@pytest.mark.parametrize(
    ("url", "is_one"),
    [
        ("http://node-2:9644", True),
        ("https://10.0.0.1:9644/", True),
        ("javascript:alert(1)", False),
        ("data:text/html,x", False),
        ("//evil", False),
        ("http://", False),
        ("http://[", False),
        ("http://a\u202e.example", False),
        ("", False),
    ],
)
def test_addresses_of_web_pages(url: str, is_one: bool) -> None:
    assert is_web_address(url) is is_one


@given(st.text())
def test_no_text_adds_an_element(text: str) -> None:
    assert [name for name, _ in Parsed(tag("p", text, title=text)).elements] == ["p"]
