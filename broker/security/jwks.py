"""The issuer's keys (RFC 7517), read from a file or a URL and refreshed, as in KIP-768.

A token with an unknown key is refused, and the keys are read again soon: an issuer that has changed its keys
is noticed at the next try. While reading fails, the keys that are known stay. Called by app.py.
"""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import structlog

from tierlog.config.sasl import SaslSettings

if TYPE_CHECKING:
    from jwt import PyJWK

KEY_SET_MAX_BYTES = 1 << 20
READ_TIMEOUT_S = 10.0
_log = structlog.get_logger("tierlog.security")


class KeySetUnavailable(Exception):
    """The key set cannot be read, or has no key."""


class KeySet:
    """Keys by id. Times in milliseconds: `refresh_ms` between two reads; after a failure, and at an unknown
    key, from `backoff_ms` on, twice as long each time, up to `backoff_max_ms`."""

    def __init__(self, url: str, refresh_ms: int, backoff_ms: int, backoff_max_ms: int) -> None:
        self._url = url
        self._refresh_ms = refresh_ms
        self._backoff_ms = backoff_ms
        self._backoff_max_ms = backoff_max_ms
        self._keys: Mapping[str | None, PyJWK] = {}
        self._wanted = asyncio.Event()
        self.reads = self.failures = 0

    def find(self, key_id: str | None) -> "PyJWK | None":
        found = self._keys.get(key_id)
        if found is None and key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        if found is None:
            self._wanted.set()
        return found

    async def keep_fresh(self) -> None:
        """Read the key set again and again, until cancelled. A key set that cannot be used is logged."""
        backoff_ms = self._backoff_ms
        while True:
            self._wanted.clear()
            known = self._keys
            try:
                await self.read()
            except KeySetUnavailable as failure:
                _log.warning("oauth.keys.unreadable", url=self._url, error=str(failure))
                await asyncio.sleep(backoff_ms / 1000)
                backoff_ms = min(2 * backoff_ms, self._backoff_max_ms)
                continue
            backoff_ms = self._backoff_ms if self._keys.keys() != known.keys() else backoff_ms
            try:
                async with asyncio.timeout(self._refresh_ms / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            await asyncio.sleep(backoff_ms / 1000)  # forged key ids do not make it read more often
            backoff_ms = min(2 * backoff_ms, self._backoff_max_ms)

    async def read(self) -> None:
        """Raises KeySetUnavailable."""
        try:
            text = await asyncio.get_running_loop().run_in_executor(None, read_url, self._url)
            self._keys = keys_of(text)
        except KeySetUnavailable:
            self.failures += 1
            raise
        self.reads += 1


def key_set_of(settings: SaslSettings) -> KeySet:
    return KeySet(
        settings.sasl_oauthbearer_jwks_endpoint_url,
        settings.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
        settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
    )


def keys_of(text: bytes) -> "Mapping[str | None, PyJWK]":
    """The usable keys of a key set by id. Raises KeySetUnavailable."""
    from jwt import PyJWKSet
    from jwt.exceptions import PyJWTError

    try:
        found = PyJWKSet.from_dict(json.loads(text)).keys
    except (PyJWTError, ValueError, TypeError, AttributeError) as failure:
        raise KeySetUnavailable(f"no key set: {failure}") from None
    return {key.key_id: key for key in found if key.public_key_use in (None, "sig")}


def read_url(url: str) -> bytes:
    """The bytes at an http, https or file URL. Raises KeySetUnavailable."""
    if urlsplit(url).scheme not in ("http", "https", "file"):
        raise KeySetUnavailable(f"{url} is no http, https or file URL")
    try:
        with urllib.request.urlopen(url, timeout=READ_TIMEOUT_S) as response:
            text: bytes = response.read(KEY_SET_MAX_BYTES + 1)
    except (OSError, ValueError, HTTPException) as failure:
        raise KeySetUnavailable(str(failure) or type(failure).__name__) from None
    if len(text) > KEY_SET_MAX_BYTES:
        raise KeySetUnavailable(f"more than {KEY_SET_MAX_BYTES} bytes")
    return text
