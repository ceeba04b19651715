"""Creation, growth and deletion of topics. Each topic of a command succeeds or fails by itself, in order."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar
from uuid import UUID

from msgspec.structs import replace

from tierlog.base.types import Rng, random_uuid
from tierlog.metadata import records as r
from tierlog.metadata.controller import commands as c
from tierlog.metadata.controller.configs import check_size, check_topic_settings
from tierlog.metadata.controller.decision import Decision, Refusal
from tierlog.metadata.controller.placement import Placement
from tierlog.metadata.evolve import evolve_all
from tierlog.metadata.image import ClusterImage, TopicImage
from tierlog.protocol.errors import ErrorCode

MAX_NAME_LENGTH = 249  # "<name>-<partition>" plus a suffix must stay a legal file name
MAX_PARTITIONS_PER_TOPIC = 10_000  # one command is one log entry, which must stay small
MAX_RECORDS_PER_COMMAND = 50_000
_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")

T = TypeVar("T")
Replicas = tuple[int, ...]
Change = tuple[tuple[r.AnyRecord, ...], c.TopicOutcome]


def create_topics(image: ClusterImage, command: c.CreateTopics, rng: Rng) -> Decision[c.TopicsChanged]:
    duplicates = _duplicates(topic.name for topic in command.topics)
    placement, folded = Placement(image), _folded_names(image, command)

    def create(draft: ClusterImage, topic: c.NewTopic) -> Change:
        _refuse_duplicate(topic.name, duplicates)
        check_topic_name(topic.name)
        _check_new(draft, topic.name, folded)
        change = _create(draft, placement, command, topic, rng)
        folded[_folded(topic.name)] = topic.name
        return change

    return _each(image, command.topics, _by_name, create, command.validate_only)


def create_partitions(image: ClusterImage, command: c.CreatePartitions) -> Decision[c.TopicsChanged]:
    duplicates = _duplicates(topic.name for topic in command.topics)
    placement = Placement(image)

    def grow(draft: ClusterImage, topic: c.MorePartitions) -> Change:
        _refuse_duplicate(topic.name, duplicates)
        return _grow(draft, placement, topic)

    return _each(image, command.topics, _by_name, grow, command.validate_only)


def delete_topics(image: ClusterImage, command: c.DeleteTopics, now_ms: int) -> Decision[c.TopicsChanged]:
    """Topics are named by name or id (KIP-516). A topic that is named twice is an error for both mentions."""
    duplicates = _duplicates(_resolved(image, ref) for ref in command.topics)

    def delete(draft: ClusterImage, ref: c.TopicRef) -> Change:
        _refuse_duplicate(_resolved(image, ref), duplicates)
        topic = _find(draft, ref)
        outcome = c.TopicOutcome(name=topic.name, topic_id=topic.topic_id)
        return (r.TopicDeleted(topic_id=topic.topic_id, at_ms=now_ms, whole=True),), outcome

    return _each(image, command.topics, _by_ref, delete, validate_only=False)


def check_topic_name(name: str) -> None:
    """Check the name by Kafka's rules. Raises Refusal."""
    if not name or name in (".", ".."):
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, f"a topic cannot be named {name!r}")
    if len(name) > MAX_NAME_LENGTH:
        message = f"the topic's name has {len(name)} characters; {MAX_NAME_LENGTH} are allowed"
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, message)
    if not _LEGAL.issuperset(name):
        message = f"topic {name!r}: only ASCII letters, digits, '.', '_' and '-' are allowed"
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _create(
    draft: ClusterImage, placement: Placement, command: c.CreateTopics, topic: c.NewTopic, rng: Rng
) -> Change:
    if unset := [key for key, value in topic.configs if value is None]:
        raise Refusal(ErrorCode.INVALID_CONFIG, f"a value is needed for {', '.join(unset)}")
    settings = {key: value for key, value in topic.configs if value is not None}
    for value in settings.values():
        check_size(value)
    check_topic_settings(topic.name, settings)
    replicas = _assigned(draft, topic) if topic.assignments else _placed(placement, command, topic)
    topic_id = random_uuid(rng)
    records: list[r.AnyRecord] = [r.TopicCreated(topic_id=topic_id, name=topic.name)]
    records += [_new_partition(draft, topic_id, number, ids) for number, ids in enumerate(replicas)]
    records += [
        r.ConfigRecord(scope=r.ConfigScope.TOPIC, name=topic.name, key=key, value=settings[key])
        for key in sorted(settings)
    ]
    return tuple(records), c.TopicOutcome(
        name=topic.name, topic_id=topic_id, partitions=len(replicas), replication_factor=len(replicas[0])
    )


def _grow(draft: ClusterImage, placement: Placement, request: c.MorePartitions) -> Change:
    topic = draft.topic(request.name)
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {request.name}")
    before, added = len(topic.partitions), request.count - len(topic.partitions)
    if added <= 0:
        message = f"topic {topic.name} has {before} partitions; it can only grow, not become {request.count}"
        raise Refusal(ErrorCode.INVALID_PARTITIONS, message)
    _check_partition_count(request.count)
    replication_factor = len(topic.partitions[0].replicas) - len(topic.partitions[0].removing)
    if request.assignments:
        if len(request.assignments) != added:
            message = f"{len(request.assignments)} assignments for {added} new partitions"
            raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
        for number, ids in enumerate(request.assignments):
            _check_assignment(draft, before + number, ids, replication_factor)
        replicas = list(request.assignments)
    else:
        _check_replication_factor(placement, replication_factor)
        replicas = placement.place(added, replication_factor)
    records = tuple(_new_partition(draft, topic.topic_id, before + n, ids) for n, ids in enumerate(replicas))
    return records, c.TopicOutcome(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=request.count,
        replication_factor=replication_factor,
    )


def _folded_names(image: ClusterImage, command: c.CreateTopics) -> dict[str, str]:
    """All topic names as `_check_new` compares them, if the command needs them."""
    if not any("." in topic.name or "_" in topic.name for topic in command.topics):
        return {}
    return {_folded(name): name for name in image.topic_ids}


def _folded(name: str) -> str:
    return name.replace(".", "_")


def _check_new(draft: ClusterImage, name: str, folded: dict[str, str]) -> None:
    """Names that differ only in '.' and '_' are refused, as in Kafka, because their metrics would collide."""
    if name in draft.topic_ids:
        raise Refusal(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
    other = folded.get(_folded(name))
    if other is not None:
        message = f"topic {name} collides with {other}: '.' and '_' count as the same"
        raise Refusal(ErrorCode.INVALID_TOPIC_EXCEPTION, message)


def _assigned(draft: ClusterImage, topic: c.NewTopic) -> list[Replicas]:
    if topic.partitions != c.USE_DEFAULT or topic.replication_factor != c.USE_DEFAULT:
        message = "give either assignments, or partitions and a replication factor"
        raise Refusal(ErrorCode.INVALID_REQUEST, message)
    numbers = [number for number, _ in topic.assignments]
    if sorted(numbers) != list(range(len(numbers))):
        message = "assignments must name each partition once, from 0 on without a gap"
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    _check_partition_count(len(numbers))
    replicas = [ids for _, ids in sorted(topic.assignments)]
    for number, ids in enumerate(replicas):
        _check_assignment(draft, number, ids, len(replicas[0]))
    return replicas


def _placed(placement: Placement, command: c.CreateTopics, topic: c.NewTopic) -> list[Replicas]:
    count = command.default_partitions if topic.partitions == c.USE_DEFAULT else topic.partitions
    factor = topic.replication_factor
    factor = command.default_replication_factor if factor == c.USE_DEFAULT else factor
    _check_partition_count(count)
    _check_replication_factor(placement, factor)
    return placement.place(count, factor)


def _check_partition_count(count: int) -> None:
    if not 0 < count <= MAX_PARTITIONS_PER_TOPIC:
        message = f"a topic has 1 to {MAX_PARTITIONS_PER_TOPIC} partitions, not {count}"
        raise Refusal(ErrorCode.INVALID_PARTITIONS, message)


def _check_replication_factor(placement: Placement, factor: int) -> None:
    known = len(placement.brokers)
    if factor <= 0:
        raise Refusal(
            ErrorCode.INVALID_REPLICATION_FACTOR, f"the replication factor must be 1 or more, not {factor}"
        )
    if factor > known or not placement.active_count:
        message = f"replication factor {factor}: {placement.active_count} of {known} brokers are active"
        raise Refusal(ErrorCode.INVALID_REPLICATION_FACTOR, message)


def _check_assignment(draft: ClusterImage, number: int, ids: Replicas, factor: int) -> None:
    if not ids or len(set(ids)) != len(ids) or len(ids) != factor:
        message = f"partition {number}: replicas {list(ids)} must be distinct and as many as of partition 0"
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    unknown = [broker_id for broker_id in ids if broker_id not in draft.brokers]
    if unknown:
        message = f"partition {number}: brokers {unknown} are not registered"
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)
    if not any(draft.brokers[broker_id].may_lead for broker_id in ids):
        message = f"partition {number}: all of {list(ids)} are fenced or shutting down"
        raise Refusal(ErrorCode.INVALID_REPLICA_ASSIGNMENT, message)


def _new_partition(draft: ClusterImage, topic_id: UUID, number: int, ids: Replicas) -> r.PartitionRecord:
    """All active replicas start in sync, because the partition is empty. Kafka would begin in epoch 0."""
    live = tuple(broker_id for broker_id in ids if draft.brokers[broker_id].may_lead)
    return r.PartitionRecord(
        topic_id=topic_id,
        partition=number,
        replicas=ids,
        in_sync=live,
        leader=live[0],
        leader_epoch=draft.first_leader_epoch,
        partition_epoch=0,
    )


def _find(draft: ClusterImage, ref: c.TopicRef) -> TopicImage:
    if (ref.name is None) == (ref.topic_id is None):
        raise Refusal(ErrorCode.INVALID_REQUEST, "name the topic either by name or by id")
    topic = draft.topics.get(ref.topic_id) if ref.topic_id is not None else draft.topic(ref.name or "")
    if topic is None and ref.topic_id is not None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_ID, f"there is no topic with the id {ref.topic_id}")
    if topic is None:
        raise Refusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {ref.name}")
    return topic


def _resolved(image: ClusterImage, ref: c.TopicRef) -> str:
    """The same text for a topic's name and its id."""
    if ref.name is not None:
        return str(image.topic_ids.get(ref.name, ref.name))
    return str(ref.topic_id)


def _each(
    image: ClusterImage,
    items: Sequence[T],
    unchanged: Callable[[T], c.TopicOutcome],
    change: Callable[[ClusterImage, T], Change],
    validate_only: bool,
) -> Decision[c.TopicsChanged]:
    """Change one topic after the other, each on the draft that the ones before it left. Once a topic exceeds
    MAX_RECORDS_PER_COMMAND, all later ones are refused without placing their partitions, which takes long."""
    records: list[r.AnyRecord] = []
    outcomes: list[c.TopicOutcome] = []
    is_full = False
    for item in items:
        try:
            new, outcome = ((), unchanged(item)) if is_full else change(image, item)
            is_full = is_full or len(records) + len(new) > MAX_RECORDS_PER_COMMAND
            if is_full:
                raise Refusal(
                    ErrorCode.POLICY_VIOLATION,
                    "too many partitions for one request: create fewer topics at a time",
                )
        except Refusal as refusal:
            outcomes.append(replace(unchanged(item), error=refusal.error, message=refusal.message))
            continue
        image = evolve_all(image, new)
        records += new
        outcomes.append(outcome)
    return Decision(() if validate_only else tuple(records), c.TopicsChanged(topics=tuple(outcomes)))


def _by_name(item: c.NewTopic | c.MorePartitions) -> c.TopicOutcome:
    return c.TopicOutcome(name=item.name)


def _by_ref(ref: c.TopicRef) -> c.TopicOutcome:
    return c.TopicOutcome(name=ref.name or "", topic_id=ref.topic_id or UUID(int=0))


def _duplicates(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _refuse_duplicate(name: str, duplicates: set[str]) -> None:
    if name in duplicates:
        raise Refusal(ErrorCode.INVALID_REQUEST, f"topic {name} is named twice in the request")
