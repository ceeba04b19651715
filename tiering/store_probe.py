"""Store probe: checks that a store has conditional puts, reads after writes, ranges and checksums.

A store that ignores the condition of a put would let a deposed leader overwrite a manifest. Run by
`store_health` before the first call; it leaves no object unless the process ends or the store fails.
"""

import secrets
from contextlib import suppress

import structlog
from crc32c import crc32c

from tierlog.tiering.object_store import (
    Absent,
    CorruptObject,
    ObjectStore,
    ObjectStoreError,
    PreconditionFailed,
    deadline,
)

_log = structlog.get_logger("tierlog.tiering")

_FIRST, _SECOND, _THIRD = b"tierlog probes this store", b"the second version", b"is never written"
_CLEANUP_S = 5.0


class UnsuitableStore(ObjectStoreError):
    """The store does not do what tiering needs. Another attempt does not help."""


async def probe_store(store: ObjectStore, key: str) -> None:
    """Check a store with an object whose key begins with this one. Raises UnsuitableStore, or another
    ObjectStoreError if the store fails."""
    key = f"{key}-{secrets.token_hex(8)}"  # an object that an earlier check has left does not matter
    try:
        await _probe(store, key)
    finally:
        try:
            async with deadline(_CLEANUP_S, "delete of the probe's object"):
                await store.delete([key])
        except ObjectStoreError as failure:
            _log.warning("store.check.undeleted", key=key, error=str(failure))


async def _probe(store: ObjectStore, key: str) -> None:
    with suppress(PreconditionFailed):  # an attempt before has succeeded, and its response was lost
        await store.put(key, _FIRST, condition=Absent())
    await _expect_refusal(store, key, Absent(), "If-None-Match")
    content, etag = await store.get_with_etag(key)
    if content != _FIRST:
        raise UnsuitableStore("a read after a write returns other bytes")
    part = bytearray(6)
    await store.get_into(key, 8, memoryview(part))
    if part != _FIRST[8:14]:
        raise UnsuitableStore("the store returns another range than was requested")
    with suppress(PreconditionFailed):
        await store.put(key, _SECOND, condition=etag)
    if await store.get(key) != _SECOND:
        raise UnsuitableStore("a read after an overwrite returns the former bytes")
    await _expect_refusal(store, key, etag, "If-Match")
    await _check_checksums(store, key)


async def _expect_refusal(store: ObjectStore, key: str, condition: Absent | str, header: str) -> None:
    try:
        await store.put(key, _THIRD, condition=condition)
    except PreconditionFailed:
        return
    raise UnsuitableStore(
        f"the store ignores conditional puts ({header}), so an old leader could overwrite manifests; a proxy "
        "before it may drop the header"
    )


async def _check_checksums(store: ObjectStore, key: str) -> None:
    """A store without checksums is slower, since uploads are read back; one with wrong ones is refused."""
    try:
        await store.put(key, _THIRD, crc32c=0)
    except CorruptObject:
        return
    if (await store.head(key)).crc32c not in (None, crc32c(_THIRD)):
        raise UnsuitableStore("the store accepts a wrong CRC-32C and returns it: damage would not be found")
    _log.warning("store.no_checksum")
