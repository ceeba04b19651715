"""YAML for files and output of commands: writes JSON documents, and reads mappings of strings.

The reader takes the part of YAML that settings files need: mappings by indentation, comments, plain and
quoted scalars. Everything else is an error with its line, so that no file is half understood.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

Mappings = dict[str, "str | Mappings"]

_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./-]*")
_WORDS_WITH_A_MEANING = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})
_KEY = re.compile(
    r"""(?P<indent>\ *)(?P<key>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s#:"'\[\]{}&*!|>%@`-][^:]*?)"""
    r"""\s*:(?:\s+(?P<rest>.*))?"""
)
_SCALAR = re.compile(
    r"""(?P<text>"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|\{\}"""
    r"""|(?:[^\s"'\[\]{}&*!|>%@`#-]|-(?!\s))(?:(?!:\s)(?:[^#]|(?<=\S)\#))*?)?\s*(?:(?<!\S)\#.*)?"""
)
"""The text of a plain scalar has no `: `, and ends at a # after a space."""


_ESCAPE = re.compile(r"\\(?:U([0-9a-fA-F]{8})|.)")


class InvalidYaml(ValueError):
    """The message names the line."""


def yaml_text(document: Any) -> str:
    """A document of mappings, lists, strings, numbers, booleans and None as YAML."""
    return "".join(f"{line}\n" for line in _lines(document))


def read_mappings(text: str) -> Mappings:
    """Mappings of strings and mappings. Raises InvalidYaml."""
    top: Mappings = {}
    open_mappings: list[tuple[int, Mappings]] = [(0, top)]
    expected: Mappings | None = None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#") or line.strip() == "---":
            continue
        found = _KEY.fullmatch(line)
        value = None if found is None else _SCALAR.fullmatch((found["rest"] or "").strip())
        if found is None or value is None:
            raise InvalidYaml(f"line {number}: expected `key: value`, with spaces for indentation")
        indent = len(found["indent"])
        if expected is not None and indent > open_mappings[-1][0]:
            open_mappings.append((indent, expected))
        while indent < open_mappings[-1][0]:
            open_mappings.pop()
        if indent != open_mappings[-1][0]:
            raise InvalidYaml(f"line {number}: its indentation is that of no mapping above")
        mapping, key = open_mappings[-1][1], _scalar(found["key"], number)
        if key in mapping:
            raise InvalidYaml(f"line {number}: {key} is there twice")
        expected = None if value["text"] else {}
        mapping[key] = _scalar(value["text"], number) if expected is None else expected
    return top


def _lines(document: Any, indent: str = "") -> Iterator[str]:
    if isinstance(document, Mapping) and document:
        for key, value in document.items():
            yield from _entry(f"{indent}{_text(str(key))}:", value, indent + "  ")
    elif isinstance(document, list | tuple) and document:
        for value in document:
            yield from _item(indent, value)
    else:
        yield indent + _leaf(document)


def _entry(start: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, Mapping | list | tuple) and value:
        yield start
        yield from _lines(value, indent)
    else:
        yield f"{start} {_leaf(value)}"


def _item(indent: str, value: Any) -> Iterator[str]:
    """The first line of a mapping follows the dash."""
    first, *more = _lines(value, indent + "  ")
    yield f"{indent}- {first.removeprefix(indent + '  ')}"
    yield from more


def _leaf(value: Any) -> str:
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, Mapping):
        return "{}"
    if isinstance(value, list | tuple):
        return "[]"
    return json.dumps(value) if isinstance(value, bool | int | float | None) else _text(str(value))


def _text(value: str) -> str:
    """Plain only if no reader of YAML takes it for anything but a string."""
    is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS_WITH_A_MEANING
    return value if is_plain else "".join(map(_escaped, json.dumps(value, ensure_ascii=False)))


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    return json.dumps(character)[1:-1] if character <= "\uffff" else f"\\U{ord(character):08x}"


def _scalar(text: str, number: int) -> str:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if not text.startswith('"'):
        return text
    try:
        return str(json.loads(_ESCAPE.sub(_as_in_json, text)))
    except ValueError:
        raise InvalidYaml(f"line {number}: unknown escape sequence in {text}") from None


def _as_in_json(escape: re.Match[str]) -> str:
    """JSON writes a character beyond 16 bits as two escapes."""
    if escape[1] is None:
        return escape[0]
    try:
        return json.dumps(chr(int(escape[1], 16)))[1:-1]
    except (ValueError, OverflowError):
        return escape[0]
