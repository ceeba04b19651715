"""Parts of terraform/aws/files/boot.sh on their own: which disk is formatted, one run at a time, when a name
is published, and when certificates are renewed.

test_aws_hosts.py runs the whole script.
"""

import fcntl
import os
import re
import subprocess
from pathlib import Path

import pytest
from terraform_cli import ROOT

from tierlog.broker.diagnosis.health import EXPIRES_SOON_DAYS

BOOT = (ROOT / "terraform/aws/files/boot.sh").read_text(encoding="utf-8")
SAY = 'set -eu\nsay() { echo "tierlog-boot: $*"; }\n'
LUKS = b"LUKS\xba\xbe\x00\x01"  # the beginning of an encrypted disk
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
NOTES = '#!/bin/sh\necho "$0 $*" >> "$NOTES"\n'


def part(begin: str, end: str) -> str:
    start = BOOT.index(begin)
    return BOOT[start : BOOT.index(end, start) + len(end)]


def run(script: str, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`mkfs.ext4` and `mount` only note that they were called, and nothing is mounted yet."""
    for name, text in {"mkfs.ext4": NOTES, "mount": NOTES, "mountpoint": "#!/bin/sh\nexit 1\n"}.items():
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    environment = {"PATH": f"{directory}:{PATH}", "NOTES": str(directory / "notes")}
    command = ["sh", "-c", SAY + script, "boot", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def mount(directory: Path, device: Path) -> tuple[int, str, list[str]]:
    """Exit code, output and the called programs of `disk` for this device."""
    script = f"state={directory}/state\n" + part("disk() {", "\n}\n") + 'disk 0 "$1"\n'
    ended = run(script, directory, str(device))
    notes = directory / "notes"
    called = notes.read_text().splitlines() if notes.exists() else []
    return ended.returncode, ended.stdout + ended.stderr, [Path(line.split()[0]).name for line in called]


def test_an_empty_disk_is_formatted_and_one_with_content_is_not(tmp_path: Path) -> None:
    empty, used = tmp_path / "empty", tmp_path / "used"
    for image, content in ((empty, b""), (used, LUKS)):
        with image.open("wb") as file:
            file.write(content)
            file.truncate(8 << 20)
    assert mount(tmp_path, used)[2] == ["mount"]
    assert mount(tmp_path, empty)[2] == ["mount", "mkfs.ext4", "mount"]


def test_a_disk_that_cannot_be_read_is_not_formatted(tmp_path: Path) -> None:
    """blkid gives it the same exit code as an empty one. It may be the only copy of a voter's metadata."""
    code, said, called = mount(tmp_path, tmp_path)  # a directory cannot be read as a disk
    assert (code, called) == (1, [])
    assert f"cannot read {tmp_path}, so it is not formatted" in said


@pytest.mark.parametrize("is_held", [False, True])
def test_a_second_run_does_not_begin(is_held: bool, tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    script = part("exec 9> ", "\n}\n").replace("/run/tierlog-boot.lock", str(lock)).replace("-w 600", "-w 0")
    with lock.open("w") as held:
        if is_held:
            fcntl.flock(held, fcntl.LOCK_EX)
        ended = run(script + "echo runs\n", tmp_path)
    assert (ended.returncode, ended.stdout == "runs\n") == ((1, False) if is_held else (0, True))
    assert ("another run has not ended" in ended.stderr) is is_held


@pytest.mark.parametrize(
    ("known", "calls"), [("", 1), ("10.40.0.9 STREAM\n10.40.0.9 DGRAM", 0), ("10.40.0.7 STREAM", 1)]
)
def test_the_name_is_published_once_for_an_address(known: str, calls: int, tmp_path: Path) -> None:
    getent = f"#!/bin/sh\n[ -n '{known}' ] || exit 2\necho '{known}'\n"
    for name, text in {"getent": getent, "aws": NOTES}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    names = "HOST=broker-1 DOMAIN=small.internal ZONE_ID=Z1\nmetadata() { echo 10.40.0.9; }\n"
    ended = run(names + part("publish_name() {", "\n}\n") + "publish_name\n", tmp_path)
    assert ended.returncode == 0, ended.stderr
    notes = tmp_path / "notes"
    found = notes.read_text() if notes.exists() else ""
    assert found.count("change-resource-record-sets") == calls
    assert ('"Value": "10.40.0.9"' in found) is bool(calls)


def test_certificates_are_renewed_before_they_are_reported() -> None:
    """Else a rollout, which needs a whole cluster, could not begin during a third of the time."""
    parameters = (ROOT / "terraform/aws/parameters.tf").read_text(encoding="utf-8")
    found = re.search(r"CERTIFICATE_DAYS = (\d+)", parameters)
    assert found is not None
    assert "-checkend $((CERTIFICATE_DAYS * 86400 / 3))" in BOOT
    assert int(found[1]) / 3 - 2 > EXPIRES_SOON_DAYS, "the timer runs daily, up to six hours late"
