"""Bill of materials of the lock file's packages (CycloneDX), and a search for their known vulnerabilities.

pip-audit says "No known vulnerabilities found" and succeeds even if it could reach no data at all, so its
report is read here. A vulnerability fails `make supply-chain`, each night too; with --report it is only
reported, because no change is refused for what was published overnight. If packages could not be checked, the
step says so in capitals, and passes: a machine without access to the data must be able to build.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 240.0
REQUEST_TIMEOUT_S = 15
NOT_CHECKED = """\
########################################################################
  NOT CHECKED: no data about known vulnerabilities could be reached for
  {skipped} of {total} packages. {why}
  Run `make supply-chain` on a machine that reaches it.
########################################################################"""


def verdict(report: dict[str, Any]) -> tuple[bool, str]:
    """Whether the step passes, and what it says, by pip-audit's report in JSON."""
    packages = report["dependencies"]
    skipped = [one["skip_reason"] for one in packages if "skip_reason" in one]
    found = [
        f"{one['name']} {one['version']}: {each['id']}, fixed in {', '.join(each['fix_versions']) or 'none'}"
        for one in packages
        for each in one.get("vulns", ())
    ]
    said = [f"{len(packages) - len(skipped)} of {len(packages)} packages were checked"]
    if skipped or not packages:
        why = skipped[0] if skipped else "The report is empty."
        said.append(NOT_CHECKED.format(skipped=len(skipped), total=len(packages), why=why))
    if found:
        said += ["known vulnerabilities:", *found]
    elif len(skipped) < len(packages):
        said.append("no known vulnerability in what was checked")
    return not found, "\n".join(said)


def make_bill(tools: Path, python: Path, target: Path) -> int:
    """Write the packages of an environment, with versions and licences. Returns their number."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [
        tools / "cyclonedx-py",
        "environment",
        "--pyproject",
        ROOT / "pyproject.toml",
    ]
    command += ["--output-reproducible", "--of", "JSON", "-o", target, python]
    subprocess.run(command, check=True, timeout=TIMEOUT_S)
    return len(json.loads(target.read_text(encoding="utf-8"))["components"])


def audit(tools: Path) -> tuple[bool, str]:
    """The verdict about requirements.lock."""
    command: list[str | Path] = [
        tools / "pip-audit",
        "--requirement",
        ROOT / "requirements.lock",
        "--require-hashes",
    ]
    command += ["--disable-pip", "--timeout", str(REQUEST_TIMEOUT_S), "--progress-spinner", "off"]
    command += ["--format", "json"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        report = json.loads(ended.stdout)
    except subprocess.TimeoutExpired:
        return True, NOT_CHECKED.format(skipped="all", total="all", why=f"No answer in {TIMEOUT_S:.0f} s.")
    except ValueError:  # it ended before it had a report
        lines = ended.stderr.strip().splitlines() or [f"pip-audit exited with {ended.returncode}"]
        return True, NOT_CHECKED.format(skipped="all", total="all", why=lines[-1])
    return verdict(report)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tools", type=Path, required=True, help="directory with cyclonedx-py and pip-audit")
    parser.add_argument("--python", type=Path, required=True, help="Python of the environment")
    parser.add_argument("--sbom", type=Path, default=ROOT / "build" / "sbom.cdx.json")
    parser.add_argument("--report", action="store_true", help="exit with 0 whatever is found")
    chosen = parser.parse_args()
    count = make_bill(chosen.tools, chosen.python, chosen.sbom)
    print(f"{chosen.sbom}: {count} packages")
    passes, said = audit(chosen.tools)
    print(said)
    return 0 if passes or chosen.report else 1


if __name__ == "__main__":
    sys.exit(main())
