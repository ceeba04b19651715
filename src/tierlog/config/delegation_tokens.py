"""Settings of delegation tokens (KIP-48). Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.config.admin_api import AdminSettings
from tierlog.config.definitions import InvalidSetting, SettingType, long_, setting_field

KEY_BYTES_MIN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings(AdminSettings):
    # Delegation tokens
    delegation_token_secret_key: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Secret from which brokers derive the HMACs of delegation tokens, which are their passwords: its "
        f"holder can log in as the owner of each token. At least {KEY_BYTES_MIN} random bytes, the same on "
        "all brokers. If empty, there are no delegation tokens. Set it, as ${file:…} or ${directory:…}, so "
        "that jobs log in by tokens that expire. A new key makes all tokens useless.",
    )
    delegation_token_max_lifetime_ms: int = long_(
        7 * 24 * 3_600_000,
        "How long, in milliseconds, a delegation token can be renewed. Lower it to bound what a stolen token "
        "is good for; raise it for jobs that run longer.",
        minimum=1,
    )
    delegation_token_expiry_time_ms: int = long_(
        24 * 3_600_000,
        "How long, in milliseconds, a delegation token is valid before it must be renewed. Lower it so that "
        "tokens of jobs that have ended expire sooner.",
        minimum=1,
    )
    delegation_token_expiry_check_interval_ms: int = long_(
        3_600_000,
        "How often, in milliseconds, the controller removes expired delegation tokens. Logins by an expired "
        "one are refused before that, too. Lower it if many short tokens are created.",
        minimum=1,
    )

    def check_delegation_tokens(self) -> None:
        """Raises InvalidSetting."""
        size = len(self.delegation_token_secret_key.encode())
        if 0 < size < KEY_BYTES_MIN:
            raise InvalidSetting(
                f"delegation.token.secret.key: has {size} bytes; at least {KEY_BYTES_MIN} are needed, such "
                "as from `openssl rand -base64 32`"
            )
