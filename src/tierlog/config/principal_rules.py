"""Rules that map the distinguished name of a client certificate to a principal's name, as Kafka's
SslPrincipalMapper (KIP-371, KIP-1257)."""

import re
from dataclasses import dataclass

from tierlog.config.definitions import InvalidSetting

SETTING = "ssl.principal.mapping.rules"
RULES_CHARACTERS_MAX = 10_000

_RULE = (
    r"(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?)"
)
_NEXT = re.compile(rf"\s*(?:{_RULE})\s*(?:,|$)", re.DOTALL)
_REFERENCE = re.compile(r"\\(.)|\$(\d)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class PrincipalRule:
    """`pattern` must match the whole name. None: the name stays as it is (DEFAULT)."""

    pattern: re.Pattern[str] | None
    replacement: str = ""
    case: str = ""

    def apply(self, name: str) -> str | None:
        """None: the rule does not match."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        mapped = self.pattern.sub(self._expand, name)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped

    def _expand(self, match: re.Match[str]) -> str:
        def value_of(reference: re.Match[str]) -> str:
            if reference[2] is None:
                return reference[1]
            number = int(reference[2])
            # a reference to a group that the pattern does not have is text, as in Kafka
            return match[number] or "" if number <= match.re.groups else reference[0]

        return _REFERENCE.sub(value_of, self.replacement)


def parse_principal_rules(text: str) -> tuple[PrincipalRule, ...]:
    """`RULE:pattern/replacement/[LU]` and `DEFAULT`, separated by commas. Raises InvalidSetting."""
    if len(text) > RULES_CHARACTERS_MAX:
        raise InvalidSetting(f"{SETTING}: more than {RULES_CHARACTERS_MAX} characters")
    rules: list[PrincipalRule] = []
    at = 0
    while at < len(text):
        found = _NEXT.match(text, at)
        if found is None or found.end() == at:
            raise InvalidSetting(
                f"{SETTING}: {text[at:]!r} does not begin with DEFAULT or RULE:pattern/replacement/[LU]"
            )
        at = found.end()
        if found["default"]:
            rules.append(PrincipalRule(None))
            continue
        try:
            pattern = re.compile(found["pattern"])
        except re.error as failure:
            raise InvalidSetting(f"{SETTING}: {found['pattern']!r} is not a pattern: {failure}") from None
        rules.append(PrincipalRule(pattern, found["replacement"], found["case"]))
    return tuple(rules) or (PrincipalRule(None),)


def principal_name(rules: tuple[PrincipalRule, ...], distinguished_name: str) -> str | None:
    """The name by the first rule that matches; None: no rule matches."""
    mapped = (rule.apply(distinguished_name) for rule in rules)
    return next((name for name in mapped if name is not None), None)
