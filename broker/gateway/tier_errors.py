"""Errors of tiering as HTTP responses, the same for all admin routes of the tier.

404: there is nothing of that name here. 409: the request does not fit the present state, and may not be
repeated as it is. 503: the same request may succeed later.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from aiohttp import web

from tierlog.broker.gateway.requests import http_error
from tierlog.broker.remote.remote_log_manager import CommandRejected
from tierlog.broker.remote.replacements import TierBusy
from tierlog.broker.remote.tier_views import TierConflict, TierRefused
from tierlog.metadata.quorum.peers import MetadataUnavailable
from tierlog.tiering.format.keys import InvalidKey
from tierlog.tiering.object_store import CorruptObject, ObjectStoreError
from tierlog.tiering.snapshots import SnapshotError, SnapshotNotFound


@contextmanager
def tier_errors_as_http() -> Iterator[None]:
    try:
        yield
    except (TierBusy, MetadataUnavailable) as why:
        raise http_error(web.HTTPServiceUnavailable, str(why)) from None
    except (TierConflict, CommandRejected, CorruptObject, InvalidKey) as why:
        raise http_error(web.HTTPConflict, str(why)) from None
    except (TierRefused, SnapshotNotFound) as why:
        raise http_error(web.HTTPNotFound, str(why)) from None
    except SnapshotError as why:
        raise http_error(web.HTTPConflict, str(why)) from None
    except (ObjectStoreError, OSError) as failure:
        raise http_error(web.HTTPServiceUnavailable, str(failure)) from None
