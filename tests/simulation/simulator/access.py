"""Access: an administrator grants and revokes rights while guests write.

All other clients, and the brokers, are a super user. Each guest has a principal of its own, and may write to
one topic for a while. Once the revocation is acknowledged, no broker may accept a record of that guest if it
has applied the change, or has registered after it. None of the refused records may be in the log at the end.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any

from simulator.broker import SimBroker
from simulator.loop import Process
from simulator.network import Network
from simulator.operators import call_any, create_topic
from simulator.witness import Violation
from simulator.workload import RETRY_S, Client, History, values_of
from tierlog.base.network import Unreachable
from tierlog.config.authorization import STANDARD_AUTHORIZER
from tierlog.metadata.acls import (
    AccessControlEntry,
    AclOperation,
    PatternType,
    Permission,
    ResourceType,
)
from tierlog.protocol.api import BY_NAME, PRODUCE_KEY
from tierlog.protocol.errors import ErrorCode
from tierlog.protocol.messages.create_acls import AclCreation, CreateAclsRequest
from tierlog.protocol.messages.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from tierlog.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tierlog.records.writer import NewRecord, encode_batch

ACCESS = 0.12
"""Share of the runs with guests."""

TOPIC = "guests"
SETTINGS = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
STAYS_S = (0.1, 1.0)
WRITES_AFTER = 8
"""Requests of a guest after its revocation."""

PAUSE_S = (0.005, 0.1)
CREATE_ACLS, DELETE_ACLS = BY_NAME["CreateAcls"].key, BY_NAME["DeleteAcls"].key


class Guests:
    def __init__(
        self,
        seed: int,
        network: Network,
        brokers: dict[int, SimBroker],
        history: History,
        done: Counter[str],
    ) -> None:
        self._network, self._brokers, self._history, self._done = network, brokers, history, done
        self.share = float(random.Random(f"access {seed}").random() < ACCESS)  # a generator of its own
        """1.0 if the run has guests, else 0.0."""
        self.settings = SETTINGS if self.share else {}
        self._refused: set[bytes] = set()
        """Values that no broker may have accepted."""

    async def play(self, admin: Client, clients: Process, configs: Sequence[tuple[str, str]]) -> None:
        """Runs until cancelled. `admin`: a client whose topic is TOPIC. `clients`: their process. `configs`:
        those of all topics, without which a loss of power may take more than the run allows."""
        await create_topic(admin, configs)
        for number in count(1):
            name = f"guest-{number}"
            self._network.listen(name, clients)
            draws = random.Random(admin.rng.random())
            guest = Client(name, self._network, self._brokers, self._history, draws, TOPIC)
            await self._play_one(admin, guest)

    async def _play_one(self, admin: Client, guest: Client) -> None:
        entry = AccessControlEntry(
            resource=ResourceType.TOPIC,
            pattern=PatternType.LITERAL,
            name=TOPIC,
            principal=f"User:{guest.name}",
            host="*",
            operation=AclOperation.WRITE,
            permission=Permission.ALLOW,
        )
        requests = await _repeat(admin, CREATE_ACLS, 3, _creation(entry))
        revoking = asyncio.ensure_future(self._revoke(admin, entry))
        numbers = count()
        try:
            while not revoking.done():
                await self._write(guest, b"%s %d" % (guest.name.encode(), next(numbers)), None, entry)
            revoked_at = revoking.result()
        finally:
            revoking.cancel()
        if requests > 1:  # one without a response may be carried out later
            return
        for _ in range(WRITES_AFTER):
            await self._write(guest, b"%s %d" % (guest.name.encode(), next(numbers)), revoked_at, entry)

    async def _revoke(self, admin: Client, entry: AccessControlEntry) -> int:
        """Returns an index of the metadata log from which on the entry is gone."""
        await asyncio.sleep(admin.rng.uniform(*STAYS_S))
        await _repeat(admin, DELETE_ACLS, 3, _deletion(entry))
        self._done["rights revoked"] += 1
        images = [broker.metadata.image for broker in self._brokers.values() if broker.metadata is not None]
        return max(image.index for image in images)

    async def _write(
        self, guest: Client, value: bytes, revoked_at: int | None, entry: AccessControlEntry
    ) -> None:
        """Send a record to the leader, if the guest knows it. `revoked_at`: None as long as it may write."""
        batch = bytes(encode_batch([NewRecord(1_750_000_000_000, None, value, ())]))
        topic = TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])
        request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
        leader = guest.leader_of(0)
        must_refuse = revoked_at is not None and _knows(self._brokers[leader], revoked_at, entry)
        if must_refuse:
            self._refused.add(value)
        try:
            answer: Any = await guest.ask(leader, PRODUCE_KEY, 12, request)
        except Unreachable:
            await guest.lost(0)
            return
        error = answer.responses[0].partition_responses[0].error_code
        if error == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            self._done["writes of guests refused"] += must_refuse
        elif must_refuse and error == ErrorCode.NONE:
            raise Violation(f"{self._brokers[leader].name} accepts {value!r} although the right is revoked")
        elif error:
            await guest.lost(0)
        else:
            self._done["writes of guests"] += 1
        await asyncio.sleep(guest.rng.uniform(*PAUSE_S))

    def check_end(self, logs_of: Callable[[str, int], Iterable[bytes]]) -> None:
        """No replica has a record that had to be refused. Raises Violation."""
        for log in logs_of(TOPIC, 0):
            found = {value for _, value in values_of(log)} & self._refused
            if found:
                raise Violation(f"a log has {sorted(found)} of guests whose right was revoked")


def _knows(broker: SimBroker, revoked_at: int, entry: AccessControlEntry) -> bool:
    """Whether the broker has applied the revocation, or must have, because it registered later."""
    node, lifecycle = broker.metadata, broker.lifecycle
    if node is None or lifecycle is None:
        return False
    has_applied = node.image.index >= revoked_at and entry not in node.image.acls
    return has_applied or lifecycle.broker_epoch > revoked_at


async def _repeat(admin: Client, api_key: int, version: int, request: Any) -> int:
    """Send the request until it is acknowledged. Returns how often."""
    for attempt in count(1):
        answer: Any = await call_any(admin, api_key, version, request)
        results = () if answer is None else getattr(answer, "results", None) or answer.filter_results
        if results and not results[0].error_code:
            return attempt
        await asyncio.sleep(admin.rng.uniform(*RETRY_S))
    raise AssertionError


def _creation(entry: AccessControlEntry) -> CreateAclsRequest:
    creation = AclCreation(
        resource_type=entry.resource,
        resource_name=entry.name,
        resource_pattern_type=entry.pattern,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
    return CreateAclsRequest(creations=[creation])


def _deletion(entry: AccessControlEntry) -> DeleteAclsRequest:
    wanted = DeleteAclsFilter(
        resource_type_filter=entry.resource,
        resource_name_filter=entry.name,
        pattern_type_filter=entry.pattern,
        principal_filter=entry.principal,
        host_filter=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
    return DeleteAclsRequest(filters=[wanted])
