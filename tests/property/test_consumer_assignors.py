"""Properties of the assignors of consumer groups, for groups that change."""

from collections import Counter, defaultdict
from dataclasses import replace
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tierlog.broker.groups.core.consumer.assignors import ASSIGNORS, MemberSpec, TopicSpec

TOPIC_IDS = [UUID(int=number) for number in range(1, 6)]
RACKS = ["r1", "r2", "r3"]


@st.composite
def topic_maps(draw) -> dict[UUID, TopicSpec]:
    """Partitions have replicas in one to three racks, or no racks are known."""

    def racks(partition: int) -> frozenset[str]:
        return frozenset(RACKS[(partition + each) % 3] for each in range(partition % 3 + 1))

    chosen = draw(st.sets(st.sampled_from(TOPIC_IDS), min_size=1))
    return {
        topic_id: TopicSpec(
            name=f"topic-{topic_id.int}",
            partitions=draw(st.integers(0, 9)),
            racks=draw(st.sampled_from([None, racks])),
        )
        for topic_id in sorted(chosen)
    }


@st.composite
def member_maps(draw, equal: bool | None = None) -> dict[str, MemberSpec]:
    """Members that may have anything at present: partitions of others, and of topics that are gone."""
    names = draw(st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True, min_size=1, max_size=8))
    subscriptions = st.frozensets(st.sampled_from(TOPIC_IDS))
    common = draw(subscriptions)
    has_equal = draw(st.booleans()) if equal is None else equal
    current = st.dictionaries(st.sampled_from(TOPIC_IDS), st.frozensets(st.integers(0, 12)), max_size=3)
    return {
        name: MemberSpec(
            instance_id=draw(st.sampled_from([None, f"i-{name[::-1]}"])),
            rack_id=draw(st.sampled_from([None, *RACKS])),
            topic_ids=common if has_equal else draw(subscriptions),
            current=draw(current),
        )
        for name in names
    }


def load(partitions) -> int:
    return sum(map(len, partitions.values()))


def subscribe_to_the_same(members, topics) -> bool:
    return len({frozenset(spec.topic_ids & topics.keys()) for spec in members.values()}) == 1


def assigned_again(members, assignment) -> dict[str, MemberSpec]:
    """The members after they have taken up an assignment."""
    return {each: replace(spec, current=assignment[each]) for each, spec in members.items()}


def moved(members, assignment) -> int:
    return sum(
        len(numbers - assignment[each].get(topic_id, frozenset()))
        for each, spec in members.items()
        if each in assignment
        for topic_id, numbers in spec.current.items()
    )


@given(member_maps(), topic_maps(), st.sampled_from(sorted(ASSIGNORS)))
def test_each_partition_has_exactly_one_subscriber(members, topics, name):
    assignment = ASSIGNORS[name].assign(members, topics)
    assert assignment.keys() == members.keys()
    owners = Counter()
    for each, partitions in assignment.items():
        assert partitions.keys() <= members[each].topic_ids
        assert all(partitions.values())
        owners.update((topic_id, number) for topic_id in partitions for number in partitions[topic_id])
    subscribed = frozenset().union(*(each.topic_ids for each in members.values()))
    expected = {(t, number) for t in subscribed & topics.keys() for number in range(topics[t].partitions)}
    assert owners == dict.fromkeys(expected, 1)


@given(member_maps(), topic_maps(), st.sampled_from(sorted(ASSIGNORS)), st.randoms(use_true_random=False))
def test_assignment_does_not_depend_on_the_order_of_its_arguments(members, topics, name, chance):
    def shuffled(mapping):
        keys = list(mapping)
        chance.shuffle(keys)
        return {key: mapping[key] for key in keys}

    mixed = {each: replace(spec, current=shuffled(spec.current)) for each, spec in shuffled(members).items()}
    assert ASSIGNORS[name].assign(mixed, shuffled(topics)) == ASSIGNORS[name].assign(members, topics)


@given(member_maps(), topic_maps())
def test_uniform_leaves_no_move_that_balances(members, topics):
    assignment = ASSIGNORS["uniform"].assign(members, topics)
    for partitions in assignment.values():
        for receiver, spec in members.items():
            if partitions.keys() & spec.topic_ids:
                assert load(partitions) - load(assignment[receiver]) <= 1


@given(member_maps(equal=True), topic_maps())
def test_uniform_moves_as_few_as_possible_with_equal_subscriptions(members, topics):
    """If no partition has two owners, the most that each member can keep of its present ones is known."""
    first = ASSIGNORS["uniform"].assign(members, topics)
    *rest, _ = sorted(members)
    members = {each: spec for each, spec in assigned_again(members, first).items() if each in rest} | {
        "new": replace(members[max(members)], current={})
    }
    assignment = ASSIGNORS["uniform"].assign(members, topics)
    total = sum(map(load, assignment.values()))
    quota, extra = divmod(total, len(members))
    present = sorted((load(each.current) for each in members.values()), reverse=True)
    most = sum(min(has, quota + (place < extra)) for place, has in enumerate(present))
    kept = sum(load(each.current) for each in members.values()) - moved(members, assignment)
    assert kept == most


@given(member_maps(), topic_maps(), st.sampled_from(sorted(ASSIGNORS)))
def test_unchanged_group_keeps_its_assignment(members, topics, name):
    """With different subscriptions, `uniform` may still improve the balance the next time."""
    if name == "uniform" and not subscribe_to_the_same(members, topics):
        return
    assignment = ASSIGNORS[name].assign(members, topics)
    assert ASSIGNORS[name].assign(assigned_again(members, assignment), topics) == assignment


@given(member_maps(), topic_maps())
def test_uniform_never_exchanges_partitions_of_a_topic(members, topics):
    """A member that loses partitions of a topic gets no others of it."""
    valid: dict[UUID, set[int]] = defaultdict(set)
    for each in members.values():
        for topic_id, numbers in each.current.items():
            if valid[topic_id] & numbers:
                return  # two owners: one of them must lose it
            valid[topic_id] |= numbers
    assignment = ASSIGNORS["uniform"].assign(members, topics)
    for each, spec in members.items():
        for topic_id in spec.topic_ids & topics.keys():
            had = spec.current.get(topic_id, frozenset()) & set(range(topics[topic_id].partitions))
            has = assignment[each].get(topic_id, frozenset())
            assert not (had - has and has - had)


@given(member_maps(), topic_maps())
def test_racks_change_no_balance_and_no_moves_among_equal_subscriptions(members, topics):
    """With different subscriptions the partition that a rack prefers may spare or cost a later move."""
    without = {topic_id: replace(each, racks=None) for topic_id, each in topics.items()}
    assignment = ASSIGNORS["uniform"].assign(members, topics)
    plain = ASSIGNORS["uniform"].assign(members, without)
    assert {each: load(found) for each, found in assignment.items()} == {
        each: load(found) for each, found in plain.items()
    }
    if subscribe_to_the_same(members, topics):
        assert moved(members, assignment) == moved(members, plain)


@given(member_maps(), topic_maps())
def test_range_co_partitions_topics_with_equal_subscribers(members, topics):
    assignment = ASSIGNORS["range"].assign(members, topics)
    groups = defaultdict(list)
    for topic_id, topic in topics.items():
        served = frozenset(each for each, spec in members.items() if topic_id in spec.topic_ids)
        groups[served, topic.partitions].append(topic_id)
    for (served, _), alike in groups.items():
        for each in served:
            assert len({assignment[each].get(topic_id, frozenset()) for topic_id in alike}) == 1
