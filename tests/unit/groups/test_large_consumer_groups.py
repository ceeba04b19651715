"""Large consumer groups: the cost of a turn of the coordinator, and memory that is counted first."""

from tierlog.broker.groups.computations import assign
from tierlog.broker.groups.core.consumer.targets import RESUMED_PER_TURN
from tierlog.broker.groups.core.events import AssignmentComputed
from tierlog.protocol.errors import ErrorCode as E


def test_records_of_a_target_are_those_which_the_computation_encoded(bench):
    b = bench()
    b.hold_computations = True
    b.consume("m1")
    (request,) = b.computations
    computed = assign(request)
    b.send(computed)
    assert list(computed.records) == ["m1"]
    assert any(record is computed.records["m1"] for record in b.log)


def test_target_that_is_unchanged_has_no_record(bench):
    b = bench()
    b.consume("m1")
    b.hold_computations = True
    b.consume("m2", topics="s")
    (request,) = b.computations
    assert request.members.keys() == {"m1", "m2"}
    assert list(assign(request).records) == ["m2"]


def test_record_of_a_target_that_has_changed_since_is_not_appended(bench):
    b = bench()
    b.hold_computations = True
    b.consume("m1", instance_id="i")
    (request,) = b.computations
    b.consume("m1", -2, instance_id="i")
    b.consume("m2", instance_id="i")  # takes the place of m1 while the target is computed
    computed = assign(request)
    b.send(computed)
    assert not any(record is computed.records["m1"] for record in b.log)
    b.restart()


def test_many_members_that_wait_for_a_target_continue_in_later_turns(bench):
    b = bench()
    b.partitions["t"] = RESUMED_PER_TURN + 1
    b.hold_computations = True
    tokens = [b.consume(f"m{number}") for number in range(RESUMED_PER_TURN + 1)]
    while b.computations:
        request = b.computations.popleft()
        b.send(AssignmentComputed(request=request, assignment=assign(request).assignment))
        b.advance(0)
    assert b.waiting == tokens[1:], "the first did not have to wait for others"
    b.advance(10)
    assert b.waiting == []
    assert {b.error(token) for token in tokens} == {E.NONE}


def test_topics_of_a_subscription_are_looked_up_once(bench):
    b = bench()
    b.topics |= {f"topic-{number}": b.new_id() for number in range(100)}
    b.partitions |= dict.fromkeys(b.topics, 1)
    looked_up = []
    view = b.view()
    view.id_of = lambda name, found=view.id_of: (looked_up.append(name), found(name))[1]
    b.view = lambda: view
    b.send_topics()
    first = b.consume("m1", subscribed_regex="topic-.*")
    epoch = b.response(first).member_epoch
    b.advance(20_000)
    b.consume("m1", epoch, owned="")
    b.consume("m1", b.response(b.tokens[-1]).member_epoch, owned="")
    looked_up.clear()
    b.consume("m2", subscribed_regex="topic-.*")
    assert len(looked_up) == 100, "for the assignor; neither for the hash nor for the member"


def test_deleted_topic_is_no_longer_among_those_of_a_subscription(bench):
    b = bench()
    epoch = b.response(b.consume("m1", topics="tu")).member_epoch
    b.recreate("u")
    b.consume("m1", epoch, owned="t0 t1 t2")
    epoch = b.response(b.tokens[-1]).member_epoch
    b.consume("m1", epoch, owned="t0 t1 t2")
    (member,) = b.core.describe_consumer("g").members
    now = {each.topic_id for each in member.assignment.topic_partitions}
    assert now == {b.topics["t"], b.topics["u"]}


def test_regular_expression_that_may_need_more_memory_than_is_left_is_refused(bench):
    b = bench()
    b.topics |= {f"{number:0200}": b.new_id() for number in range(1_000)}
    b.partitions |= dict.fromkeys(b.topics, 1)
    b.send_topics()
    refused = b.consume("m1", subscribed_regex=".*", free_bytes=100_000)
    assert b.error(refused) == E.COORDINATOR_NOT_AVAILABLE
    assert b.core.member_bytes == 0
    accepted = b.consume("m1", subscribed_regex=".*", free_bytes=1_000_000)
    assert b.error(accepted) == E.NONE
    assert b.error(b.consume("m2", subscribed_regex=".*", free_bytes=100_000)) == E.NONE
