"""Definition of a setting: Kafka's name, type, default, bounds and documentation; parses and validates
values."""

import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

Value = bool | int | float | str | tuple[str, ...]


class SettingType(IntEnum):
    """Kafka's ConfigDef types, numbered as DescribeConfigs v3 reports them (KIP-569)."""

    UNKNOWN = 0  # for names that are no settings: the value may be a secret
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class InvalidSetting(ValueError):
    """A setting's name or value is invalid; the message says what is accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    name: str
    type: SettingType
    default: Value
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = field(default=())
    form: str = ""
    """Regular expression that each item of a list must match."""
    form_in_words: str = ""

    def parse(self, text: str) -> Value:
        """The typed value of a setting's text. Raises InvalidSetting."""
        try:
            value = _PARSERS[self.type](text.strip())
        except ValueError:
            raise InvalidSetting(f"{self.name}: {text!r} is not {_VALUES_OF[self.type]}") from None
        self._check(value)
        return value

    def accept(self, text: str) -> Value:
        """Parse a new value, which must also have Kafka's form and fit its type (32 bits for an INT). Raises
        InvalidSetting.

        `parse` accepts wider numbers, and Python's forms such as `1_000`, because earlier versions stored
        them.
        """
        value = self.parse(text)
        if (form := _FORMS.get(self.type)) is not None and not form.fullmatch(text.strip()):
            raise InvalidSetting(f"{self.name}: {text!r} is not {_VALUES_OF[self.type]}")
        bits = _BITS.get(self.type)
        if bits is not None and isinstance(value, int) and not -(1 << bits - 1) <= value < 1 << bits - 1:
            maximum = (1 << bits - 1) - 1
            raise InvalidSetting(
                f"{self.name}: {value} does not fit the type {self.type.name}, at most {maximum}"
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidSetting(f"{self.name}: {text!r} is not a number")
        return value

    def text(self, value: Value) -> str:
        """The value as Kafka writes it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, tuple) else str(value)

    @property
    def readable_choices(self) -> str:
        """The accepted values, for messages and pages."""
        return ", ".join(choice or "(empty)" for choice in self.choices)

    @property
    def has_no_limit(self) -> bool:
        """Whether the default is the largest value of the type, which stands for no limit."""
        return not isinstance(self.default, bool) and self.default == _LARGEST.get(self.type)

    def _check(self, value: Value) -> None:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                raise InvalidSetting(f"{self.name}: {value} is below the minimum, {self.minimum}")
            if self.maximum is not None and value > self.maximum:
                raise InvalidSetting(f"{self.name}: {value} is above the maximum, {self.maximum}")
        if self.form and isinstance(value, tuple):
            odd = next((item for item in value if not re.fullmatch(self.form, item)), None)
            if odd is not None:
                raise InvalidSetting(f"{self.name}: {odd!r} is not {self.form_in_words}")
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if str(item) not in self.choices:
                    raise InvalidSetting(f"{self.name}: {item!r} is not one of {self.readable_choices}")


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


def _double(text: str) -> float:
    if not _DOUBLE.fullmatch(text):
        return float(text)
    number = text.rstrip("dDfF")
    try:
        return float.fromhex(number) if _HEX_PREFIX.match(number) else float(number)
    except OverflowError:
        return math.inf  # as Double.parseDouble does


def _list(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))


_LARGEST: dict[SettingType, float] = {
    SettingType.INT: 2**31 - 1,
    SettingType.LONG: 2**63 - 1,
    SettingType.DOUBLE: sys.float_info.max,
}

_VALUES_OF = {
    SettingType.BOOLEAN: "true or false",
    SettingType.SHORT: "an integer",
    SettingType.INT: "an integer",
    SettingType.LONG: "an integer",
    SettingType.DOUBLE: "a number",
}
"""Name of a value of the type, for error messages. Any text is a value of the other types."""

_BITS = {SettingType.SHORT: 16, SettingType.INT: 32, SettingType.LONG: 64}

_INTEGER = re.compile(r"[+-]?[0-9]+")
"""What Integer.parseInt accepts, which also takes the digits of other scripts."""

_HEX_PREFIX = re.compile(r"[+-]?0[xX]")
_DOUBLE = re.compile(
    r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[dDfF]?"
    rf"|{_HEX_PREFIX.pattern}(?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[dDfF]?"
)
"""The finite numbers that Double.parseDouble accepts."""

_FORMS = {
    SettingType.SHORT: _INTEGER,
    SettingType.INT: _INTEGER,
    SettingType.LONG: _INTEGER,
    SettingType.DOUBLE: _DOUBLE,
}

_PARSERS: dict[SettingType, Callable[[str], Value]] = {
    SettingType.BOOLEAN: _boolean,
    SettingType.STRING: str,
    SettingType.INT: int,
    SettingType.SHORT: int,
    SettingType.LONG: int,
    SettingType.DOUBLE: _double,
    SettingType.LIST: _list,
    SettingType.PASSWORD: str,
    SettingType.UNKNOWN: str,
}


# --- settings as fields of a dataclass, whose names have `_` for `.`


def setting_field(type: SettingType, default: Value, doc: str, **bounds: Any) -> Any:
    setting = Setting(name="", type=type, default=default, doc=doc, **bounds)
    is_secret = type == SettingType.PASSWORD
    return field(default=default, repr=not is_secret, metadata={"setting": setting})


def boolean_(default: bool, doc: str) -> Any:
    return setting_field(SettingType.BOOLEAN, default, doc)


def int_(default: int, doc: str, **bounds: Any) -> Any:
    return setting_field(SettingType.INT, default, doc, **bounds)


def long_(default: int, doc: str, **bounds: Any) -> Any:
    return setting_field(SettingType.LONG, default, doc, **bounds)


def double_(default: float, doc: str, **bounds: Any) -> Any:
    return setting_field(SettingType.DOUBLE, default, doc, **bounds)


def string_(default: str, doc: str, **bounds: Any) -> Any:
    return setting_field(SettingType.STRING, default, doc, **bounds)


def list_(default: tuple[str, ...], doc: str, **bounds: Any) -> Any:
    return setting_field(SettingType.LIST, default, doc, **bounds)


def settings_of(declared: type) -> dict[str, Setting]:
    """The settings that the fields of a dataclass declare, by name."""
    return {
        name: replace(item.metadata["setting"], name=name)
        for item in fields(declared)
        if item.metadata
        for name in [item.name.replace("_", ".")]
    }


def find_setting(settings: dict[str, Setting], name: str) -> Setting:
    """The definition of a name. Raises InvalidSetting, with the most similar name as a suggestion."""
    if name in settings:
        return settings[name]
    import difflib

    near = difflib.get_close_matches(name, settings, 1)
    raise InvalidSetting(f"unknown setting {name!r}" + (f": did you mean {near[0]!r}?" if near else ""))
