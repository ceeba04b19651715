"""HTML by functions that escape by construction.

`tag` escapes every text and attribute; only values of the type Html pass as they are, and only `tag` and
`join` make them. Names of topics, groups, clients and hosts are chosen by others: characters that a browser
obeys or hides (controls, marks of direction) are shown as escape sequences.
"""

from collections.abc import Iterable
from html import escape
from typing import NewType, TypeAlias
from urllib.parse import quote, urlencode, urlsplit

from tierlog.base.text import printable

Html = NewType("Html", str)
"""Text that is HTML already."""

Child: TypeAlias = "Html | str | int | Iterable[Child] | None"

EMPTY = Html("")
VOID = frozenset({"meta", "link", "input", "br"})
"""HTML elements without content. Those of SVG are closed like any other."""


class _Markup(str):
    """The class of Html at run time: a plain text is escaped."""

    __slots__ = ()


def tag(name: str, /, *children: Child, **attributes: str | int | bool | None) -> Html:
    """An element. `class_` is the attribute class, and `data_label` is data-label. True: an attribute without
    a value; False and None: no attribute."""
    shown = "".join(map(_attribute, attributes.items()))
    if name in VOID:
        return _markup(f"<{name}{shown}>")
    return _markup(f"<{name}{shown}>{join(*children)}</{name}>")


def join(*children: Child) -> Html:
    """The children one after the other, texts among them escaped."""
    return _markup("".join(map(_text, children)))


def link(label: Child, path: str, **query: object) -> Html:
    return tag("a", label, href=path_of(path, **query))


def path_of(path: str, **query: object) -> str:
    """A path of this server with a query; values that are None or empty are left out."""
    given = {name: str(value) for name, value in query.items() if value is not None and value != ""}
    return path + ("?" + urlencode(given, quote_via=quote) if given else "")


def is_web_address(url: str) -> bool:
    """Whether a link to this URL, which another node has registered, can only lead to a web page."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isprintable()


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, _Markup):
        return child
    if isinstance(child, str):
        return escape(printable(child))
    if isinstance(child, int):
        return f"{child:,}"
    return "".join(map(_text, child))


def _attribute(item: tuple[str, str | int | bool | None]) -> str:
    name, value = item[0].rstrip("_").replace("_", "-"), item[1]
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(printable(str(value)))}"'


def _markup(text: str) -> Html:
    return Html(_Markup(text))
