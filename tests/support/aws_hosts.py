"""Hosts of terraform/aws on this machine, each in a network namespace and an overlay of the machine's files.

A host runs the user data of its launch template as root, as an instance of AWS does. These are real: the
script, its commands, disks (loop devices), file systems, users, virtual environments, nodes. The rest is
replaced: there are moto for APIs, a server of instance metadata at 169.254.169.254, links to disks, a
`systemctl` that runs the command of a unit, and a file of names that is made from the records that hosts
wrote. `aws` is real, gets the address of moto, and attaches a volume by making its link.

/opt is one directory for all hosts, so that the package is installed once.
"""

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

NETWORK = "10.73.0"
GATEWAY = f"{NETWORK}.1"
BRIDGE = "tierlog-aws"
DISK_BYTES = 1 << 30
HERE = Path(__file__).parent

SYSTEMCTL = """\
#!/bin/sh
# systemctl of a test: `start tierlog@ID` runs the command of the unit in the background.
set -eu
for last; do :; done
case "$1 $last" in
  "start tierlog@"*)
    id=${last#tierlog@}
    pid=/var/lib/tierlog/$id.pid
    if [ -e "$pid" ] && kill -0 "$(cat "$pid")" 2> /dev/null; then exit; fi
    command=$(sed -n "s/^ExecStart=//p" /etc/systemd/system/tierlog@.service | sed "s/%i/$id/g")
    setsid runuser -u tierlog -- $command > "/var/log/tierlog-$id.log" 2>&1 < /dev/null &
    echo $! > "$pid"
    ;;
  "start "*.timer | "daemon-reload "* | "enable "*) ;;
  *) echo "unexpected: systemctl $*" >&2; exit 1 ;;
esac
"""

AWS = """\
#!/bin/sh
set -eu
{aws} --endpoint-url "$AWS_ENDPOINT_URL" "$@"
case "$*" in
  *attach-volume*)
    volume=$(echo "$*" | sed 's/.*--volume-id \\([^ ]*\\).*/\\1/' | tr -d -)
    ln -s {disk} /dev/disk/by-id/nvme-Amazon_Elastic_Block_Store_$volume ;;
esac
"""

SETUP = """\
set -eu
mount --make-rprivate /
mount -t overlay overlay -o lowerdir=/,upperdir={work}/upper,workdir={work}/workdir {root}
mount -t proc proc {root}/proc
mount --bind {work}/dev {root}/dev
mount -t tmpfs tmpfs {root}/run
mkdir -p {root}/opt
mount --bind {opt} {root}/opt
mount --bind {hosts} {root}/etc/hosts
chmod 755 {root}/root {root}/tmp
echo ready
exec sleep infinity
"""


def require_hosts() -> None:
    """Skips where hosts cannot be made."""
    missing = [
        name for name in ("aws", "ip", "losetup", "mkfs.ext4", "openssl") if shutil.which(name) is None
    ]
    if os.getuid() != 0 or missing:
        pytest.skip(f"NOT RUN: hosts need root and these commands: {', '.join(missing) or 'none is missing'}")
    tried = subprocess.run(["unshare", "--mount", "--net", "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip("NOT RUN: hosts need namespaces")


def run(*command: str | Path, check: bool = True, **options: object) -> "subprocess.CompletedProcess[str]":
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if check and done.returncode:
        raise AssertionError(f"{command}: {done.returncode}\n{done.stdout[-5000:]}\n{done.stderr[-5000:]}")
    return done  # type: ignore[no-any-return]


class Host:
    """One instance. `stop` ends it; its disk is the file `image`."""

    def __init__(self, name: str, number: int, network: "Network", image: Path) -> None:
        self.name = name
        self.address = f"{NETWORK}.{number}"
        self.instance_id = ""
        self._namespace = f"tl-aws-{number}"
        self._network = network
        self._work = network.directory / self._namespace
        self._root = self._work / "root"
        self._image = image
        self._loop = ""
        self._holder: subprocess.Popen[str] | None = None
        self._metadata: subprocess.Popen[bytes] | None = None

    def start(self, instance_id: str) -> None:
        """Prepare the machine; `boot` runs its user data."""
        self.instance_id = instance_id
        for part in ("upper/usr/local/sbin", "upper/usr/local/bin", "workdir", "root", "dev/disk/by-id"):
            (self._work / part).mkdir(parents=True, exist_ok=True)
        self._loop = run("losetup", "--find", "--show", self._image).stdout.strip()
        self._make_files()
        self._connect()
        setup = SETUP.format(
            work=self._work, root=self._root, opt=self._network.opt, hosts=self._network.names
        )
        self._holder = subprocess.Popen(
            ["ip", "netns", "exec", self._namespace, "unshare", "--mount", "sh", "-c", setup],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == "ready\n"
        self._metadata = subprocess.Popen(
            [
                *("ip", "netns", "exec", self._namespace, sys.executable),
                *(HERE / "instance_metadata.py", self.address, instance_id),
            ]
        )

    def _make_files(self) -> None:
        for device in ("null", "zero", "random", "urandom", "tty", "full"):
            if not (self._work / "dev" / device).exists():
                run("cp", "-a", f"/dev/{device}", self._work / "dev")
        (self._work / "dev" / "fd").symlink_to("/proc/self/fd")
        disk = self._work / "dev" / "nvme1n1"
        run("cp", "-a", self._loop, disk)
        if self.name.startswith("broker"):
            link = self._work / "dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_AWS0123"
            link.symlink_to("/dev/nvme1n1")
            link.with_name(f"{link.name}_1").symlink_to("/dev/nvme1n1")
        scripts = {"sbin/systemctl": SYSTEMCTL, "bin/aws": AWS.format(aws=real_aws(), disk="/dev/nvme1n1")}
        for name, text in scripts.items():
            script = self._work / "upper/usr/local" / name
            script.write_text(text)
            script.chmod(0o755)

    def _connect(self) -> None:
        inside, outside = "eth0", self._namespace
        run("ip", "netns", "add", self._namespace)
        run("ip", "link", "add", outside, "type", "veth", "peer", "name", inside, "netns", self._namespace)
        run("ip", "link", "set", outside, "master", BRIDGE, "up")
        within = ["ip", "-n", self._namespace]
        run(*within, "addr", "add", "169.254.169.254/32", "dev", "lo")
        run(*within, "link", "set", "lo", "up")
        run(*within, "addr", "add", f"{self.address}/24", "dev", inside)
        run(*within, "link", "set", inside, "up")

    def boot(self, script: str) -> str:
        """Run a script as cloud-init runs user data. Returns its output."""
        text = f"cat > /user-data << 'END OF USER DATA'\n{script}\nEND OF USER DATA\nchmod 755 /user-data"
        self.command("sh", "-c", text)
        self.command("sh", "-c", "/user-data > /var/log/cloud-init-output.log 2>&1", check=False)
        output = self.boot_log()
        assert "tierlog-boot: started node" in output, output
        return output

    def boot_log(self) -> str:
        return self.command("cat", "/var/log/cloud-init-output.log", check=False)

    def command(self, *command: str, check: bool = True) -> str:
        """Run a command on the host. Returns its output, with errors."""
        assert self._holder is not None
        path = f"/usr/local/sbin:/usr/local/bin:{Path(sys.base_prefix) / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
        env = {"PATH": path, "AWS_ENDPOINT_URL": self._network.endpoint, "LANG": "C.UTF-8"}
        enter = ["nsenter", "--target", str(self._holder.pid), "--mount", "--net", "chroot", str(self._root)]
        done = run(*enter, *command, env=env, check=False)
        if check and done.returncode:
            raise AssertionError(f"{self.name}: {command}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def runs(self) -> bool:
        return self._metadata is not None

    def log(self, node: str) -> str:
        return self.command("cat", f"/var/log/tierlog-{node}.log", check=False)

    def process(self, node: str) -> int:
        """Process id of a node."""
        return int(self.command("cat", f"/var/lib/tierlog/{node}.pid"))

    def stop(self) -> None:
        """End the machine at once: its processes, then its disks."""
        listed = run("ip", "netns", "pids", self._namespace, check=False).stdout.split()
        for pid in listed:
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in (self._holder, self._metadata):
            if process is not None:
                process.wait()
        self._holder = self._metadata = None
        run("ip", "netns", "del", self._namespace, check=False)
        if self._loop:
            _detach(self._loop)
            self._loop = ""
        shutil.rmtree(self._work, ignore_errors=True)


def _detach(loop: str) -> None:
    """The kernel detaches a device once the mounts of the ended namespace are gone."""
    for _ in range(50):
        run("losetup", "--detach", loop, check=False)
        if run("losetup", loop, check=False).returncode:
            return
        time.sleep(0.1)


def real_aws() -> str:
    """The command itself, not a shim of pyenv, which needs the environment of this machine's user."""
    beside = Path(sys.base_prefix) / "bin" / "aws"
    return str(beside) if beside.exists() else str(shutil.which("aws"))


class Network:
    """A bridge for hosts, and the names that they wrote into a zone of Route 53."""

    def __init__(self, directory: Path, endpoint: str) -> None:
        self.directory = directory
        self.endpoint = endpoint
        self.opt = directory / "opt"
        self.opt.mkdir()
        self.opt.chmod(0o755)
        self.names = directory / "hosts"
        self.names.write_text("127.0.0.1 localhost\n")
        self.hosts: dict[str, Host] = {}
        self._numbers = itertools.count(11)

    def image(self, name: str) -> Path:
        """An empty disk."""
        file = self.directory / f"{name}.img"
        with open(file, "wb") as opened:
            opened.truncate(DISK_BYTES)
        return file

    def add(self, name: str, instance_id: str, image: Path) -> Host:
        host = Host(name, next(self._numbers), self, image)
        self.hosts[name] = host
        host.start(instance_id)
        return host

    def resolve(self, records: Mapping[str, str]) -> None:
        """Names -> addresses, for all hosts at once."""
        lines = [f"{address} {name}\n" for name, address in records.items()]
        self.names.write_text("127.0.0.1 localhost\n" + "".join(lines))


@contextmanager
def network(directory: Path, port: int) -> Iterator[Network]:
    with ExitStack() as stack:
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        stack.callback(run, "ip", "link", "del", BRIDGE, check=False)
        run("ip", "addr", "add", f"{GATEWAY}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        made = Network(directory, f"http://{GATEWAY}:{port}")
        stack.callback(lambda: [host.stop() for host in made.hosts.values()])
        yield made
