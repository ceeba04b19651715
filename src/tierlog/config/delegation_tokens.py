"""Settings of delegation tokens (KIP-48). Part of `NodeSettings`."""

from dataclasses import dataclass

from tierlog.config.admin_api import AdminSettings
from tierlog.config.definitions import InvalidSetting, SettingType, long_, setting_field

KEY_BYTES_MIN = 16
OTHER_KEYS_MAX = 3
"""Each key makes a first login by a token some 3 ms longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings(AdminSettings):
    # Delegation tokens
    delegation_token_secret_key: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Secret from which brokers derive the HMACs of delegation tokens, which are their passwords: its "
        f"holder can log in as the owner of each token. At least {KEY_BYTES_MIN} random bytes, the same on "
        "all brokers. If empty, there are no delegation tokens. Set it, as ${file:…} or ${directory:…}, so "
        "that jobs log in by tokens that expire. A new key makes all tokens useless, unless "
        "delegation.token.secret.key.previous has the old one.",
    )
    delegation_token_secret_key_previous: str = setting_field(
        SettingType.PASSWORD,
        "",
        "Other keys, separated by commas, whose delegation tokens are accepted, too. Set it on all brokers "
        "to the next key, then exchange it and delegation.token.secret.key, then remove it when the old "
        "tokens have expired, so that a new key makes no token useless.",
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

    @property
    def other_token_keys(self) -> tuple[str, ...]:
        """Without the current key and without repeats: each key is a password to derive."""
        listed = (key.strip() for key in self.delegation_token_secret_key_previous.split(","))
        return tuple(
            key for key in dict.fromkeys(listed) if key not in ("", self.delegation_token_secret_key)
        )

    def check_delegation_tokens(self) -> None:
        """Raises InvalidSetting."""
        name = "delegation.token.secret.key"
        if self.other_token_keys and not self.delegation_token_secret_key:
            raise InvalidSetting(f"{name}.previous: needs {name}, by which new tokens are made")
        if len(self.other_token_keys) > OTHER_KEYS_MAX:
            raise InvalidSetting(f"{name}.previous: at most {OTHER_KEYS_MAX} keys are accepted")
        keys = {name: (self.delegation_token_secret_key,), f"{name}.previous": self.other_token_keys}
        for setting, values in keys.items():
            sizes = [len(key.encode()) for key in values if key]
            if sizes and min(sizes) < KEY_BYTES_MIN:
                raise InvalidSetting(
                    f"{setting}: has {min(sizes)} bytes; at least {KEY_BYTES_MIN} are needed, such as from "
                    "`openssl rand -base64 32`"
                )
