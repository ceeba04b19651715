"""Settings of the authorizer. Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.config.coordinators import CoordinatorSettings
from tierlog.config.definitions import InvalidSetting, boolean_, string_

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizerSettings(CoordinatorSettings):
    # Access
    authorizer_class_name: str = string_(
        "",
        f"With {STANDARD_AUTHORIZER}, ACLs decide what a client may do; tierlog has its own implementation. "
        "If empty, every client may do everything. Set it, with super.users, on all nodes of a cluster that "
        "several teams share.",
        choices=("", STANDARD_AUTHORIZER),
    )
    super_users: str = string_(
        "",
        "Principals that may do everything, separated by semicolons, such as User:admin;User:CN=broker. Set "
        "it to the administrators and to the principals with which brokers connect to each other.",
    )
    allow_everyone_if_no_acl_found: bool = boolean_(
        False,
        "Whether everybody may use a resource that no ACL names. Turn it on while you add ACLs to a cluster "
        "that was open.",
    )

    @property
    def super_user_names(self) -> frozenset[str]:
        """Raises InvalidSetting."""
        names = frozenset(name.strip() for name in self.super_users.split(";") if name.strip())
        for name in names:
            kind, colon, _ = name.partition(":")
            if not (kind and colon):
                raise InvalidSetting(f"super.users: {name!r} must be Type:name, such as User:admin")
        return names
