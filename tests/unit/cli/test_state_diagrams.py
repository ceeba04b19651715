"""Invariants of the cores, checked in the generated state diagrams."""

from state_diagrams import broker_states, raft_roles, replica_states


def test_leader_needs_a_majority() -> None:
    arrows = raft_roles()
    into = {causes for (_, after), found in arrows.items() if after == "leader" for causes in found}
    assert into == {"a majority grants its vote"}
    assert all("a message of a newer term" in arrows[one, "follower"] for one in ("candidate", "leader"))


def test_broker_serves_only_after_it_is_unfenced() -> None:
    into = {before for before, after in broker_states() if after == "serving"}
    assert into == {"fenced"}


def test_out_of_sync_replica_must_catch_up_before_it_can_lead() -> None:
    arrows = replica_states()
    assert {after for before, after in arrows if before == "out of sync"} == {"in sync"}
    assert arrows["out of sync", "in sync"] == {"it catches up"}
    assert ("eligible", "leader") in arrows
