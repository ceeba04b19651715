"""The open and the secure half of a chaos run, and their common result."""

from typing import Any

from havoc.halves import _in_time, is_secure, merged


def result(**changes: Any) -> dict[str, Any]:
    return {
        "rounds": 1,
        "acknowledged": 1_500,
        "lost": 0,
        "unavailable_s": {},
        "regained_95_within_30_s": True,
        "secure_rounds": 0,
        "shape": ["apart"],
        "seed": 7,
        "network": "loopback",
        "left_out": {},
        "invalid": [],
        "problems": [],
        "passed": True,
        "kept": None,
        "remote": None,
        **changes,
    }


def test_every_second_round_is_secure_and_another_seed_swaps_them() -> None:
    rounds = range(1, 9)
    for seed in rounds:
        assert sum(is_secure(number, seed) for number in rounds) == 4
        assert all(is_secure(number, seed) is not is_secure(number, seed + 1) for number in rounds)


def test_result_has_the_sums_and_the_worst_of_both() -> None:
    first = result(unavailable_s={"wipe": 0.5, "loss": 1.0}, remote=5)
    second = result(
        secure_rounds=1, lost=1, unavailable_s={"wipe": 0.7, "loss": None, "twin": 0.1},
        problems=["wipe: slow"], passed=False, kept="there", regained_95_within_30_s=False,
    )  # fmt: skip
    whole = merged([first, second])
    assert whole["rounds"] == 2 and whole["acknowledged"] == 3_000 and whole["lost"] == 1
    assert whole["secure_rounds"] == 1 and whole["seed"] == 7 and whole["shape"] == ["apart"]
    assert whole["unavailable_s"] == {"wipe": 0.7, "loss": None, "twin": 0.1}
    assert whole["problems"] == ["wipe: slow"] and whole["kept"] == "there" and whole["remote"] == 5
    assert whole["passed"] is False and whole["regained_95_within_30_s"] is False
    assert merged([first]) == first


def test_a_run_of_two_hours_has_parts_of_equal_length_and_half_of_them_secure() -> None:
    parts = _in_time(120, 7, "half")
    assert len(parts) == 6 and {part[part.index("--minutes") + 1] for part in parts} == {"20.0"}
    assert [part[part.index("--seed") + 1] for part in parts] == ["7", "8", "9", "10", "11", "12"]
    security = [part[part.index("--security") + 1] for part in parts]
    assert security == ["all", "none"] * 3
    assert {part[part.index("--security") + 1] for part in _in_time(15, 7, "none")} == {"none"}
