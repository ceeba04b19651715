"""Regular expressions and the topics hash of consumer groups."""

from dataclasses import dataclass, replace
from itertools import combinations
from uuid import UUID

import pytest

from tierlog.broker.groups.computations import resolve
from tierlog.broker.groups.core.consumer.subscriptions import (
    REGEX_LENGTH_MAX,
    regex_error,
    topics_hash,
)
from tierlog.broker.groups.core.events import ResolveRegexes


def resolve_regexes(patterns, names):
    return resolve(ResolveRegexes(group_id="g", version=1, patterns=frozenset(patterns), names=names)).topics


@dataclass(frozen=True)
class Topic:
    topic_id: UUID
    partitions: int
    racks: tuple[frozenset[str], ...] = ()


class Topics(dict):
    """A TopicView of a dictionary by name."""

    def id_of(self, name):
        return self[name].topic_id if name in self else None

    def partitions_of(self, name):
        return self[name].partitions if name in self else 0

    def racks_of(self, name):
        racks = self[name].racks
        return [racks[each] if each < len(racks) else frozenset() for each in range(self[name].partitions)]


ORDERS = Topic(UUID(int=1), 2, (frozenset({"a", "b"}), frozenset({"c"})))
AUDIT = Topic(UUID(int=2), 1)
TOPICS = Topics(orders=ORDERS, audit=AUDIT, other=Topic(UUID(int=3), 9))


def test_expression_matches_whole_names():
    names = ["orders", "orders-eu", "my-orders", "ORDERS"]
    assert resolve_regexes(["orders", "orders.*", "(?i)orders"], names) == {
        "orders": {"orders"},
        "orders.*": {"orders", "orders-eu"},
        "(?i)orders": {"orders", "ORDERS"},
    }


@pytest.mark.parametrize("pattern", ["(", "a**", r"(a)\1", "(?=a)b"])
def test_bad_expression_is_explained_and_matches_nothing(pattern):
    assert regex_error(pattern)
    assert resolve_regexes([pattern, "b"], ["a", "b"]) == {pattern: set(), "b": {"b"}}


def test_valid_expression_has_no_error():
    assert regex_error("(^ord.*)") is None
    assert regex_error("") is None


def test_length_of_an_expression_is_bounded():
    assert regex_error("a" * 1000) is None
    message = regex_error("a" * (REGEX_LENGTH_MAX + 1))
    assert message == "It has 10001 characters, and 10000 are the most"


def test_expression_that_takes_exponential_time_elsewhere_is_matched_in_linear_time():
    assert resolve_regexes(["(a+)+b"], ["a" * 249]) == {"(a+)+b": set()}


def test_hash_changes_with_each_property_of_a_subscribed_topic():
    variants = [
        TOPICS,
        Topics(TOPICS, orders=replace(ORDERS, topic_id=UUID(int=9))),
        Topics(TOPICS, orders=replace(ORDERS, partitions=3)),
        Topics(TOPICS, orders=replace(ORDERS, racks=(frozenset({"a"}), frozenset({"b", "c"})))),
        Topics(TOPICS, orders=replace(ORDERS, racks=ORDERS.racks[::-1])),
        Topics(TOPICS, orders=AUDIT, audit=ORDERS),
        Topics(audit=AUDIT),
    ]
    hashes = [topics_hash(["orders", "audit"], each) for each in variants]
    hashes += [topics_hash(["orders"], TOPICS), topics_hash(["orders", "other"], TOPICS)]
    assert all(one != other for one, other in combinations(hashes, 2))
    assert all(-(2**63) <= each < 2**63 for each in hashes)


def test_hash_depends_on_nothing_else():
    known = topics_hash(["orders", "audit"], TOPICS)
    assert topics_hash(("audit", "orders", "audit"), TOPICS) == known
    assert topics_hash(["orders", "audit", "unknown"], TOPICS) == known
    changed = Topics(TOPICS, other=Topic(UUID(int=4), 1))
    assert topics_hash(["orders", "audit"], changed) == known


def test_hash_without_racks_ignores_them():
    moved = Topics(TOPICS, orders=replace(ORDERS, racks=()))
    assert topics_hash(["orders"], moved) != topics_hash(["orders"], TOPICS)
    assert topics_hash(["orders"], moved, with_racks=False) == topics_hash(
        ["orders"], TOPICS, with_racks=False
    )


def test_hash_without_topics_is_zero():
    assert topics_hash([], TOPICS) == topics_hash(["unknown"], TOPICS) == 0


def test_hash_is_the_same_on_every_broker():
    """It is stored, and compared by the next coordinator."""
    assert topics_hash(["orders", "audit"], TOPICS) == 8234534666000103415
