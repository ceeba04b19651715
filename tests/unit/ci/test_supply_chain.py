"""The step of CI about vulnerabilities never claims to have checked what it has not."""

from typing import Any

from supply_chain import verdict

CHECKED: dict[str, Any] = {"name": "aiohttp", "version": "3.14.5", "vulns": []}
SKIPPED = {"name": "zstandard", "skip_reason": "Dependency not found and could not be audited"}
FIXED = {"id": "GHSA-1", "fix_versions": ["3.15"], "aliases": [], "description": ""}


def test_report_without_any_data_says_so_loudly() -> None:
    passes, said = verdict({"dependencies": [SKIPPED, SKIPPED]})
    assert passes
    assert "NOT CHECKED" in said and "2 of 2 packages" in said
    assert "no known vulnerability" not in said


def test_empty_report_says_so_loudly() -> None:
    assert "NOT CHECKED" in verdict({"dependencies": []})[1]


def test_data_for_a_part_of_the_packages_is_reported_as_such() -> None:
    passes, said = verdict({"dependencies": [CHECKED, SKIPPED]})
    assert passes
    assert "1 of 2 packages were checked" in said and "NOT CHECKED" in said


def test_vulnerability_fails_the_step() -> None:
    passes, said = verdict({"dependencies": [CHECKED | {"vulns": [FIXED]}]})
    assert not passes
    assert "aiohttp 3.14.5: GHSA-1, fixed in 3.15" in said


def test_checked_packages_without_vulnerabilities_pass_quietly() -> None:
    passes, said = verdict({"dependencies": [CHECKED]})
    assert passes
    assert said == "1 of 1 packages were checked\nno known vulnerability in what was checked"
