"""Files of client settings in the format of Java's properties, as Kafka's tools read and write them."""

import re
from collections.abc import Mapping
from pathlib import Path

from tierlog.config.definitions import InvalidSetting

_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\$")
_KEY_END = re.compile(r"(?<!\\)[=:\s]")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_CONTROLS = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPED = {"\\": "\\\\"} | {character: f"\\{letter}" for letter, character in _CONTROLS.items()}


def read_properties(file: Path) -> dict[str, str]:
    """The settings of a file in UTF-8. Raises InvalidSetting."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as failure:
        raise InvalidSetting(f"{file}: {failure}") from None
    return parse_properties(text)


def parse_properties(text: str) -> dict[str, str]:
    """The settings of a file's text."""
    found: dict[str, str] = {}
    logical = ""
    for line in text.split("\n"):
        line = line.lstrip()
        if not logical and (not line or line[0] in "#!"):
            continue
        if _CONTINUED.search(line):
            logical += line[:-1]
            continue
        logical += line
        end = _KEY_END.search(logical)
        key, rest = (logical, "") if end is None else (logical[: end.start()], logical[end.start() :])
        found[_unescaped(key)] = _unescaped(re.sub(r"^\s*[=:]?\s*", "", rest)).strip()
        logical = ""
    return found


def properties_text(values: Mapping[str, str]) -> str:
    """A file with these settings. It is ASCII, because Java reads such files as ISO 8859-1."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in values.items())


def _unescaped(text: str) -> str:
    def character(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _CONTROLS.get(code, code)

    units = _ESCAPE.sub(character, text).encode("utf-16-le", "surrogatepass")
    return units.decode("utf-16-le", "surrogatepass")  # two escapes are one character beyond 16 bits


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(one) or (one if one.isascii() else _utf16(one)) for one in text)


def _utf16(character: str) -> str:
    encoded = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{encoded[at : at + 2].hex()}" for at in range(0, len(encoded), 2))
