"""JSON views of brokers and partitions."""

from inline_controller import InlineController

from tierlog.broker.gateway.cluster_views import UNHEALTHY, Condition, brokers_view, partitions_view
from tierlog.metadata.controller.commands import Reassign

FLAG = "min.insync.replicas"


def three() -> InlineController:
    """Two partitions of three replicas, one of one."""
    controller = InlineController(1, 2, 3)
    controller.create("orders", (1, 2, 3), (2, 3, 1), **{FLAG: "2"})
    controller.create("single", (3,))
    return controller


def test_brokers_view_counts_leaderships_and_replicas() -> None:
    view = brokers_view(three().image)
    counted = [(row["id"], row["leads"], row["replicas"], row["out_of_sync"]) for row in view["brokers"]]
    assert counted == [(1, 1, 2, 0), (2, 1, 2, 0), (3, 1, 3, 0)]
    assert not any(row["fenced"] or row["stopping"] for row in view["brokers"])
    assert view["partitions"] == {
        "total": 3,
        "offline": 0,
        "below-min-in-sync": 0,
        "under-replicated": 0,
        "moving": 0,
    }


def test_conditions_after_the_loss_of_a_broker() -> None:
    controller = three()
    controller.fence(3)
    view = brokers_view(controller.image)
    assert view["partitions"] == {
        "total": 3,
        "offline": 1,
        "below-min-in-sync": 0,
        "under-replicated": 2,
        "moving": 0,
    }
    lost = view["brokers"][2]
    assert (lost["fenced"], lost["leads"], lost["replicas"], lost["out_of_sync"]) == (True, 0, 3, 2)
    controller.fence(2)
    rows = partitions_view(controller.image, wanted=frozenset({Condition.BELOW_MIN}))["partitions"]
    assert {row["min_in_sync"] for row in rows} == {2}
    assert [(row["topic"], row["partition"], row["in_sync"]) for row in rows] == [
        ("orders", 0, [1]),
        ("orders", 1, [1]),
    ]
    assert rows[0]["conditions"] == ["below-min-in-sync", "under-replicated"]


def test_unregistered_broker_is_still_listed_as_assigned() -> None:
    controller = three()
    controller.fence(3)
    from tierlog.metadata.controller.commands import UnregisterBroker

    controller.do(UnregisterBroker(broker_id=3))
    view = brokers_view(controller.image)
    assert [row["id"] for row in view["brokers"]] == [1, 2]
    assert view["assigned"] == [1, 2, 3]


def test_joining_replicas_do_not_count_as_missing() -> None:
    controller = InlineController(1, 2, 3)
    controller.create("orders", (1, 2))
    controller.do(Reassign(changes=(("orders", 0, (1, 3)),)))
    row = partitions_view(controller.image)["partitions"][0]
    assert (row["adding"], row["removing"], row["conditions"]) == ([3], [2], ["moving"])


def test_partitions_are_filtered_and_counted() -> None:
    controller = three()
    controller.fence(3)
    view = partitions_view(controller.image, wanted=UNHEALTHY, limit=1)
    assert (view["total"], len(view["partitions"])) == (3, 1)
    assert partitions_view(controller.image, topic="single")["total"] == 1
    assert partitions_view(controller.image, topic="nowhere")["partitions"] == []
