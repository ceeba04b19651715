"""The roles of the admin API, as the settings of the running brokers give them to principals."""

from typing import Any, NamedTuple

from tierlog.cli.security_facts import settings_of
from tierlog.config.admin_api import principals


class Role(NamedTuple):
    settings: tuple[str, ...]
    """Those that name its principals; the first one is its own."""
    may: str


ROLES = {
    "viewer": Role(("admin.viewers",), "read the admin API and the metrics"),
    "operator": Role(("admin.operators",), "also move, balance, drain, check and upload"),
    "admin": Role(("admin.admins", "super.users"), "everything"),
}
"""As in broker.gateway.roles; each includes those before it."""


class Assignments(NamedTuple):
    rows: list[dict[str, object]]
    """One for each role and set of principals. Brokers with other settings have rows of their own."""
    open_brokers: list[str]
    """Those without admin.authentication."""


def assignments(client: Any) -> Assignments:
    """Raises CliError."""
    running = [broker.node_id for broker in client.metadata([]).brokers]
    client.require(running)
    brokers = {broker: settings_of(client, broker) for broker in running}
    rows: list[dict[str, object]] = []
    for name, role in ROLES.items():
        brokers_of: dict[tuple[str, ...], list[int]] = {}
        for broker, settings in sorted(brokers.items()):
            texts = [getattr(settings, setting.replace(".", "_")) for setting in role.settings]
            holders = {principal for text in texts for principal in principals(text)}
            brokers_of.setdefault(tuple(sorted(holders)), []).append(broker)
        rows += [
            {
                "role": name,
                "principals": list(holders),
                "brokers": same,
                "settings": list(role.settings),
                "may": role.may,
            }
            for holders, same in brokers_of.items()
        ]
    open_brokers = [
        str(broker) for broker, settings in sorted(brokers.items()) if not settings.admin_authentication
    ]
    return Assignments(rows, open_brokers)
