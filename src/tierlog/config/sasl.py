"""Settings of SASL: authentication of clients and brokers. Part of `NodeSettings`."""

from collections.abc import Collection
from dataclasses import dataclass

from tierlog.config.admin_api import BEARER
from tierlog.config.definitions import InvalidSetting, SettingType, int_, list_, long_, setting_field, string_
from tierlog.config.delegation_tokens import TokenSettings
from tierlog.config.jaas import parse_jaas, users_of

SCRAM_MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512")
SASL_MECHANISMS = (*SCRAM_MECHANISMS, "PLAIN", "OAUTHBEARER")
KIB = 1 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings(TokenSettings):
    sasl_enabled_mechanisms: tuple[str, ...] = list_(
        SCRAM_MECHANISMS,
        "Mechanisms that clients of SASL listeners can choose. Kafka's default, GSSAPI, is not supported. "
        "Set it to offer PLAIN or OAUTHBEARER.",
        choices=SASL_MECHANISMS,
    )
    sasl_mechanism_inter_broker_protocol: str = string_(
        "SCRAM-SHA-512",
        "Mechanism by which brokers log in to each other, if inter.broker.listener.name is a SASL listener. "
        "Set it together with sasl.jaas.config.",
        choices=(*SCRAM_MECHANISMS, "PLAIN"),
    )
    sasl_jaas_config: str = setting_field(
        SettingType.PASSWORD,
        "",
        "User and password by which this broker logs in to others, in Kafka's form: a login module and "
        'username="…" password="…";. Set it on each broker of a cluster whose inter.broker.listener.name is '
        "a SASL listener.",
    )
    plain_sasl_jaas_config: str = setting_field(
        SettingType.PASSWORD,
        "",
        'Users of PLAIN in Kafka\'s form: a login module, then user_NAME="password" for each user, and a '
        "semicolon at the end. Kafka accepts it only as listener.name.NAME.plain.sasl.jaas.config. Set it, "
        "as ${file:…} or ${directory:…}, to offer PLAIN.",
    )
    sasl_server_max_receive_size: int = int_(
        512 * KIB,
        "Maximum bytes of a request of a client that is not authenticated yet. Lower it to bound what "
        "strangers can make a broker keep in memory.",
        minimum=1 * KIB,
    )
    connection_failed_authentication_delay_ms: int = int_(
        100,
        "Delay in milliseconds of the answer to a failed login. The connection closes after the answer. "
        "Raise it to make guessing of passwords slower.",
        minimum=0,
        maximum=60_000,
    )
    connections_max_reauth_ms: int = long_(
        0,
        "How long, in milliseconds, a login is valid. Clients log in again on the same connection (KIP-368); "
        "the connections of those that do not are closed. With 0 logins are valid for as long as their "
        "connection, or as their token. Set it so that clients notice a removed user.",
        minimum=0,
    )
    sasl_oauthbearer_jwks_endpoint_url: str = string_(
        "",
        "URL of the keys of OAUTHBEARER tokens: https, http or file. Set it to offer OAUTHBEARER.",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = long_(
        3_600_000,
        "How often, in milliseconds, the keys of OAUTHBEARER tokens are read again. Lower it if removed "
        "keys must be noticed sooner; new keys are noticed at their first use.",
        minimum=1,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = long_(
        100,
        "How long, in milliseconds, to wait before the keys are read again after a failure. It doubles with "
        "each failure. Raise it if the issuer limits requests.",
        minimum=1,
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = long_(
        10_000,
        "Maximum of sasl.oauthbearer.jwks.endpoint.retry.backoff.ms as it doubles. Raise it together with "
        "that.",
        minimum=1,
    )
    sasl_oauthbearer_expected_issuer: str = string_(
        "",
        "The claim iss of OAUTHBEARER tokens. If empty, every issuer with a known key is accepted. Set it "
        "if the keys sign for several issuers.",
    )
    sasl_oauthbearer_expected_audience: tuple[str, ...] = list_(
        (),
        "Accepted values of the claim aud of OAUTHBEARER tokens. If empty, every audience is. Set it so "
        "that tokens for other services are refused.",
    )
    sasl_oauthbearer_clock_skew_seconds: int = int_(
        30,
        "Seconds by which the clocks of the issuer and this broker may differ. Raise it if new tokens are "
        "refused as not valid yet.",
        minimum=0,
    )
    sasl_oauthbearer_sub_claim_name: str = string_(
        "sub", "Claim with the name of the user. Set it if the issuer has it elsewhere, such as in client_id."
    )
    sasl_oauthbearer_scope_claim_name: str = string_(
        "scope", "Claim with the scopes of the token. Set it if the issuer has it elsewhere, such as in scp."
    )

    @property
    def plain_users(self) -> dict[str, str]:
        """Password by user, for PLAIN. Raises InvalidSetting."""
        try:
            users = users_of(parse_jaas(self.plain_sasl_jaas_config))
        except InvalidSetting as fault:
            raise InvalidSetting(f"plain.sasl.jaas.config: {fault}") from None
        if not users or not all(users.values()):
            raise InvalidSetting('plain.sasl.jaas.config: PLAIN needs users, as user_NAME="password"')
        return users

    @property
    def inter_broker_login(self) -> tuple[str, str]:
        """User and password by which this broker logs in to others. Raises InvalidSetting."""
        try:
            options = parse_jaas(self.sasl_jaas_config)
        except InvalidSetting as fault:
            raise InvalidSetting(f"sasl.jaas.config: {fault}") from None
        user, password = options.get("username", ""), options.get("password", "")
        if not user or not password:
            raise InvalidSetting('sasl.jaas.config: needs username="..." and password="..."')
        return user, password

    def check_sasl(self, listeners: Collection[str], between_brokers: str) -> None:
        """Check the settings of SASL listeners, which have these names. `between_brokers`: the listener on
        which brokers connect to each other. Raises InvalidSetting."""
        if between_brokers in listeners:
            _ = self.for_listener(between_brokers).inter_broker_login
        for name in listeners:
            self.for_listener(name)._check_mechanisms()
        if BEARER in self.admin_authentication:
            self._check_key_set("admin.authentication=bearer")

    def _check_mechanisms(self) -> None:
        if not self.sasl_enabled_mechanisms:
            raise InvalidSetting("sasl.enabled.mechanisms: a SASL listener needs at least one")
        if "PLAIN" in self.sasl_enabled_mechanisms:
            _ = self.plain_users
        if "OAUTHBEARER" in self.sasl_enabled_mechanisms:
            self._check_key_set("OAUTHBEARER")

    def _check_key_set(self, needed_by: str) -> None:
        if not self.sasl_oauthbearer_jwks_endpoint_url.startswith(("https:", "http:", "file:")):
            raise InvalidSetting(
                f"sasl.oauthbearer.jwks.endpoint.url: {needed_by} needs an https, http or file URL"
            )
