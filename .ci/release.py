"""Files of a release, made from the last commit: `.ci/release`, which publishes nothing.

The directory gets the plain wheel, the sdist, a wheel with compiled hot modules if there is a C compiler (ADR
0007), the bill of materials, a container file with the versions that were tested, and SHA256SUMS. A tree with
uncommitted changes is refused, and a version without a dated section in CHANGELOG.md. Plain wheel, sdist and
container file have the same bytes each time: their times are those of the commit.
"""

import argparse
import ast
import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUMS = "SHA256SUMS"
OWN_FILES = re.compile(r"SHA256SUMS|Dockerfile|constraints\.txt|tierlog-.*")
COMPILERS = ("cc", "gcc", "clang")
BUILD_TIMEOUT_S = 1800.0


class Refused(Exception):
    """No release can be made from this tree; the message says why."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the files of a release.")
    parser.add_argument("--target", type=Path, default=ROOT / "dist")
    parser.add_argument("--pure", action="store_true", help="no compiled wheel, even with a C compiler")
    parser.add_argument("--no-bill", action="store_true", help="no bill of materials")
    parser.add_argument(
        "--tools", type=Path, default=ROOT / "build" / "supply-chain" / "bin", help="cyclonedx-py"
    )
    chosen = parser.parse_args()
    try:
        version, commit = checked_version(), checked_commit()
        made = make(chosen.target.absolute(), version, commit, pure=chosen.pure)
    except Refused as why:
        print(f"no release: {why}", file=sys.stderr)
        return 1
    if not chosen.no_bill:
        made.append(bill_of_materials(chosen.target, version, chosen.tools))
    write_sums(chosen.target, made)
    print(f"tierlog {version}, commit {commit}")
    print((chosen.target / SUMS).read_text(encoding="utf-8"), end="")
    return 0


def checked_version() -> str:
    """The version of the package. Raises Refused if CHANGELOG.md has no section with its date."""
    tree = ast.parse((ROOT / "src/tierlog/__init__.py").read_text(encoding="utf-8"))
    values = [
        node.value.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    ]
    version = str(values[0])
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", changes, re.MULTILINE):
        raise Refused(f"CHANGELOG.md has no section `## {version} (YYYY-MM-DD)`")
    return version


def checked_commit() -> str:
    """The last commit. Raises Refused if the tree has other content."""
    if changed := git("status", "--porcelain").splitlines():
        raise Refused(f"uncommitted changes, such as {changed[0][3:]}: commit or stash them")
    return git("rev-parse", "HEAD").strip()


def make(target: Path, version: str, commit: str, *, pure: bool) -> list[str]:
    """Names of the files that were made. Files of earlier runs are removed; a directory with others is
    refused."""
    if other := [
        file.name for file in target.glob("*") if not (file.is_file() and OWN_FILES.fullmatch(file.name))
    ]:
        raise Refused(f"{target} has files that are not of a release, such as {other[0]}")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct").strip()}
    with tempfile.TemporaryDirectory(prefix="tierlog-release-") as scratch:
        source = exported(Path(scratch), commit)
        build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target), str(source)]
        run(build, environment)
        normalize(next(target.glob("*.tar.gz")), int(environment["SOURCE_DATE_EPOCH"]))
        if not pure and any(map(shutil.which, COMPILERS)):
            compiler = source / ".ci" / "compile_hot.py"
            run([sys.executable, str(compiler), "--wheel", str(target)], environment)
        lock = (source / "requirements.lock").read_text(encoding="utf-8")
        container = (source / "Dockerfile").read_text(encoding="utf-8")
    (target / "constraints.txt").write_text(constraints(lock), encoding="utf-8")
    (target / "Dockerfile").write_text(of_wheel(container, version), encoding="utf-8")
    return sorted(file.name for file in target.iterdir())


def exported(scratch: Path, commit: str) -> Path:
    """A copy of the commit, whose package knows it."""
    source, archive = scratch / "tierlog", scratch / "source.tar"
    git("archive", "--format=tar", f"--output={archive}", commit)
    with tarfile.open(archive) as packed:
        packed.extractall(source, filter="tar")
    text = json.dumps({"commit": commit}) + "\n"
    (source / "src" / "tierlog" / "build.json").write_text(text, encoding="utf-8")
    return source


def normalize(sdist: Path, time_s: int) -> None:
    """Give all members the time of the commit and no owner, so that equal sources make equal bytes."""
    with tarfile.open(sdist) as packed:
        members = [(one, packed.extractfile(one)) for one in packed.getmembers()]
        contents = [(one, None if file is None else file.read()) for one, file in members]
    scratch = sdist.with_suffix(".tmp")
    with (
        scratch.open("wb") as raw,
        gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=time_s) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.GNU_FORMAT) as packed,
    ):
        for member, content in sorted(contents, key=lambda one: one[0].name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = time_s, 0, 0, "", ""
            member.pax_headers = {}
            packed.addfile(member, None if content is None else io.BytesIO(content))
    scratch.replace(sdist)


def constraints(lock: str) -> str:
    """The versions of a lock file, without hashes."""
    return "".join(line.rstrip(" \\\n") + "\n" for line in lock.splitlines() if line[:1].isalnum())


def of_wheel(container: str, version: str) -> str:
    """The repository's container file, which then installs the wheel beside it instead of the sources."""
    first = container.index("COPY pyproject.toml")
    last = container.index("RUN python -m venv")
    wheel = f"tierlog-{version}-py3-none-any.whl"
    copied = f"COPY {wheel} constraints.txt ./\n"
    text = container[:first] + copied + container[last:]
    changed = text.replace("--constraint constraints.txt .", f"--constraint constraints.txt ./{wheel}")
    return changed.replace("From the root of the checkout", "From the directory of the release's files")


def bill_of_materials(target: Path, version: str, tools: Path) -> str:
    sys.path.insert(0, str(ROOT / ".ci"))
    from supply_chain import make_bill

    file = target / f"tierlog-{version}.cdx.json"
    make_bill(tools, Path(sys.executable), file)
    return file.name


def write_sums(target: Path, names: list[str]) -> None:
    """As `sha256sum --check SHA256SUMS` reads them."""
    sums = [f"{hashlib.sha256((target / name).read_bytes()).hexdigest()}  {name}\n" for name in sorted(names)]
    (target / SUMS).write_text("".join(sums), encoding="utf-8")


def git(*words: str) -> str:
    ended = subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True)
    return ended.stdout


def run(command: list[str], environment: dict[str, str]) -> None:
    """Show the output only if the command fails."""
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S
    )
    if ended.returncode:
        raise Refused(f"{' '.join(command)} failed:\n{ended.stdout}{ended.stderr}")


if __name__ == "__main__":
    sys.exit(main())
