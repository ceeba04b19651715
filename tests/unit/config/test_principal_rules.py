"""Mapping rules of client certificates; most cases are those of Kafka's SslPrincipalMapperTest."""

import pytest

from tierlog.config.definitions import InvalidSetting
from tierlog.config.principal_rules import parse_principal_rules, principal_name

RULES = ", ".join(
    (
        r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L",
        r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
        r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U",
        r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U",
        "DEFAULT",
    )
)


@pytest.mark.parametrize(
    ("name", "mapped"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_first_matching_rule_maps_the_name(name: str, mapped: str) -> None:
    assert principal_name(parse_principal_rules(RULES), name) == mapped


def test_without_default_a_name_may_match_no_rule() -> None:
    rules = parse_principal_rules("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/")
    assert principal_name(rules, "CN=ada,OU=Others") is None


@pytest.mark.parametrize("text", ["", "  DEFAULT  ", "DEFAULT,"])
def test_default_keeps_the_name(text: str) -> None:
    assert principal_name(parse_principal_rules(text), "CN=Ada,O=x") == "CN=Ada,O=x"


@pytest.mark.parametrize(
    ("rule", "mapped"),
    [
        (r"RULE:^CN=(.*)$/a\/$1/", "a/ada"),
        (r"RULE:^CN=(.*)$/\$1/", "$1"),
        (r"RULE:^CN=(.*)$/$7$1/", "$7ada"),
        (r"RULE:^CN=(.*)$//", ""),
    ],
)
def test_replacements_are_java_s(rule: str, mapped: str) -> None:
    assert principal_name(parse_principal_rules(rule), "CN=ada") == mapped


@pytest.mark.parametrize(
    "text",
    [
        "NONE",
        "RULE:^CN=(.*)$",
        "RULE:^CN=(.*)$/$1",
        "RULE:^CN=(.*)$/$1/X",
        "DEFAULT,RULE:^CN=(.*)$/",
        "RULE:(/x/",
        "default",
        "DEFAULT" * 2_000,
    ],
)
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"mapping\.rules"):
        parse_principal_rules(text)
