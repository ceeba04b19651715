"""Settings of the admin HTTP API and its users. Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.base.addresses import is_loopback
from tierlog.config.background import BackgroundSettings
from tierlog.config.definitions import InvalidSetting, list_, string_

CERTIFICATE, BASIC, BEARER = "certificate", "basic", "bearer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings(BackgroundSettings):
    # The admin API
    admin_listener: str = string_(
        "127.0.0.1:9644",
        "Address of the admin HTTP server, as host:port. Port 0 picks a free port. Without mutual TLS or "
        "admin.authentication, every client that reaches it may do everything: choose an address that only "
        "operators and nodes can reach. Change it where other nodes or Prometheus must reach it.",
    )
    admin_allowed_hosts: tuple[str, ...] = list_(
        (),
        "Further host names in URLs of the admin HTTP server. IP addresses, localhost, this machine's name "
        "and the names of voters and brokers are always accepted; requests for any other name are refused. "
        "Set it if a metrics scraper uses another name.",
    )
    admin_authentication: tuple[str, ...] = list_(
        (),
        "Ways in which users of the admin API authenticate: certificate (needs controller.quorum.ssl.*), "
        "basic (name and password of a SCRAM user) or bearer (a token, as of OAUTHBEARER). basic and bearer "
        "need controller.quorum.ssl.* or a loopback address in admin.listener. If empty, "
        "everyone with a connection, and a certificate if it uses mutual TLS, may do everything. Set it, "
        "with admin.viewers, admin.operators and admin.admins, on all nodes.",
        choices=(CERTIFICATE, BASIC, BEARER),
    )
    admin_viewers: str = string_(
        "",
        "Principals that may read the admin API and its metrics, separated by semicolons, such as "
        "User:prometheus. User:* stands for all authenticated users. Set it for monitoring.",
    )
    admin_operators: str = string_(
        "",
        "Principals that may also move, balance, check and upload, separated by semicolons. Set it to "
        "the people on call.",
    )
    admin_admins: str = string_(
        "",
        "Principals that may do everything with the admin API, as super.users may, separated by semicolons. "
        "Set it to the administrators of the cluster.",
    )

    def check_admin_api(self, host: str, *, has_tls: bool) -> None:
        """`host`: of admin.listener. Raises InvalidSetting."""
        if CERTIFICATE in self.admin_authentication and not has_tls:
            raise InvalidSetting("admin.authentication: certificate needs controller.quorum.ssl.certificate")
        secrets = [way for way in (BASIC, BEARER) if way in self.admin_authentication]
        if secrets and not has_tls and not is_loopback(host):
            raise InvalidSetting(
                f"admin.authentication: {secrets[0]} would send secrets without encryption. Set "
                "controller.quorum.ssl.certificate, .key and .ca, or a loopback address in admin.listener, "
                "such as 127.0.0.1:9644"
            )
        for setting in ("admin_viewers", "admin_operators", "admin_admins"):
            for name in principals(getattr(self, setting)):
                if not name.startswith("User:"):
                    where = setting.replace("_", ".")
                    raise InvalidSetting(f"{where}: {name!r} must be User:name; semicolons separate names")


def principals(text: str) -> list[str]:
    return [name.strip() for name in text.split(";") if name.strip()]
