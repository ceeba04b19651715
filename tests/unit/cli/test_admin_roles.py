"""Roles that `tierlog security roles` shows: those that the nodes give to principals."""

from tierlog.broker.gateway.roles import Role, roles_of
from tierlog.cli.admin_roles import ROLES
from tierlog.config.sources import settings_from


def test_command_shows_all_roles_in_their_order() -> None:
    assert list(ROLES) == [role.name.lower() for role in Role if role is not Role.NONE]


def test_settings_of_a_role_give_it_to_the_principals_that_they_name() -> None:
    named = [(name, setting) for name, role in ROLES.items() for setting in role.settings]
    for name, setting in named:
        principal = f"User:of-{setting}"
        given = roles_of(settings_from({"node.id": "1", setting: principal})).of(principal)
        assert given.name.lower() == name, setting
