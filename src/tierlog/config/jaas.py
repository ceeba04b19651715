"""Kafka's `sasl.jaas.config`: a login module and its options, in the syntax of JAAS. Called by settings of
brokers and clients."""

import re

from tierlog.config.definitions import InvalidSetting

USER_PREFIX = "user_"
_HEAD = re.compile(r"\s*[\w.$]+\s+(?:required|requisite|sufficient|optional)\b", re.IGNORECASE)
_OPTION = re.compile(r"""\s+([\w.\-@]+)\s*=\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s;"'=]+)""", re.DOTALL)
_END = re.compile(r"\s*;\s*")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)


class InvalidJaas(InvalidSetting):
    """The text is no login module with options. It may hold passwords, so the message does not repeat it."""


def parse_jaas(text: str) -> dict[str, str]:
    """The options of the only login module. Raises InvalidJaas."""
    head = _HEAD.match(text)
    if head is None:
        raise InvalidJaas("expected a login module and `required`")
    options: dict[str, str] = {}
    at = head.end()
    while (found := _OPTION.match(text, at)) is not None:
        name, value = found.groups()
        if value[0] in "\"'":
            value = _ESCAPE.sub(r"\1", value[1:-1])
        if name in options:
            raise InvalidJaas(f"the option {len(options) + 1} is named twice")
        options[name] = value
        at = found.end()
    end = _END.match(text, at)
    if end is None or end.end() != len(text):
        raise InvalidJaas(f'expected name="value" or `;` after {len(options)} options')
    return options


def users_of(options: dict[str, str]) -> dict[str, str]:
    """Password by user, from the options `user_NAME` of Kafka's PlainLoginModule."""
    return {
        name.removeprefix(USER_PREFIX): value
        for name, value in options.items()
        if name.startswith(USER_PREFIX) and name != USER_PREFIX
    }
