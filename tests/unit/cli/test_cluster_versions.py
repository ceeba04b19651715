"""Whether an upgrade can be finalised, from what the nodes announce."""

import pytest

from tierlog.cli.versions import OLD, NodeBuild, assess


def node(node_id: int, highest: int = 4, *, format: int = 3, version: str = "0.2.0") -> NodeBuild:
    return NodeBuild(
        node_id=node_id, url="http://h", version=version, formats=(1, highest), wire=(1, 2), format=format
    )


def test_a_cluster_with_the_highest_format_is_finalised() -> None:
    upgrade = assess([node(one, format=4) for one in (1, 2, 3)])
    assert upgrade.is_finalized
    assert (upgrade.format, upgrade.target, upgrade.enables) == (4, 4, ())


def test_an_upgraded_cluster_may_be_finalised_and_says_what_that_makes_possible() -> None:
    upgrade = assess([node(one, highest=3, format=1) for one in (1, 2, 3)])
    assert not upgrade.is_finalized and not upgrade.obstacles
    assert (upgrade.format, upgrade.target) == (1, 3)
    assert [line[:3] for line in upgrade.enables] == ["2: ", "3: "]
    assert "ACLs" in upgrade.enables[1]


@pytest.mark.parametrize(
    ("obstacle", "why"),
    [
        (
            node(3, 3, version="0.1.0"),
            "node 3 is older: it runs tierlog 0.1.0, which supports tierlog.format 1 to 3",
        ),
        (NodeBuild(node_id=3, url="http://h", version=OLD), "node 3 runs a version before 0.1.0"),
        (NodeBuild(node_id=3, url="http://h", error="refused"), "node 3 does not respond: refused"),
    ],
)
def test_a_node_that_is_older_or_silent_is_an_obstacle(obstacle: NodeBuild, why: str) -> None:
    upgrade = assess([node(1), node(2), obstacle])
    assert len(upgrade.obstacles) == 1 and upgrade.obstacles[0].startswith(why)
    assert not upgrade.is_finalized


def test_a_row_names_the_build_and_what_the_node_does_not_understand() -> None:
    problems = ({"node_id": 2, "why": "no common wire version"},)
    row = NodeBuild(
        node_id=1, url="u", version="0.2.0", commit="46ccc503", wire=(1, 2), problems=problems
    ).row
    assert (row["build"], row["wire"], row["formats"]) == ("0.2.0 (46ccc503)", "1 to 2", None)
    assert row["state"] == "node 2: no common wire version"
    assert node(1).row["state"] == "ok"
