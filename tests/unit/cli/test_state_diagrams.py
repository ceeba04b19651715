"""What must hold of the code shows in the diagrams that are drawn from it."""

from tierlog.cli.state_diagrams import broker_states, raft_roles, replica_states


def test_nobody_leads_without_a_majority() -> None:
    arrows = raft_roles()
    into = {causes for (_, after), found in arrows.items() if after == "leader" for causes in found}
    assert into == {"a majority grants its vote"}
    assert all("a message of a newer term" in arrows[one, "follower"] for one in ("candidate", "leader"))


def test_a_broker_serves_only_after_it_was_let_in() -> None:
    into = {before for before, after in broker_states() if after == "serving"}
    assert into == {"fenced"}


def test_a_replica_that_is_out_of_sync_is_elected_only_after_it_has_caught_up() -> None:
    arrows = replica_states()
    assert {after for before, after in arrows if before == "out of sync"} == {"in sync"}
    assert arrows["out of sync", "in sync"] == {"it has caught up"}
    assert ("eligible", "leader") in arrows
