"""Profiles: clusters by name, with addresses and logins, in a file of the user's configuration.

Secrets are never in the file. It has references, `env:VARIABLE` or `file:/path`, which are read when a
command connects. A profile is used as a whole or not at all, so that the login of one cluster never goes to
another: addresses or client settings of the command line or the environment leave it out.
"""

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tierlog.base.addresses import is_confidential
from tierlog.cli.errors import CliError, ExitCode, usage

if TYPE_CHECKING:
    from tierlog.cli.yaml_text import Mappings

VARIABLE = "TIERLOG_PROFILE"
SECRETS = ("password", "key-password", "admin-password", "admin-token")
FILES = ("ca", "certificate", "key", "admin-ca", "admin-certificate", "admin-key")
FIELDS = ("bootstrap", "admin", "protocol", "mechanism", "user", "admin-user", *SECRETS, *FILES)
_KAFKA = {
    "protocol": "security.protocol",
    "mechanism": "sasl.mechanism",
    "user": "sasl.username",
    "ca": "ssl.ca.location",
    "certificate": "ssl.certificate.location",
    "key": "ssl.key.location",
}
"""Field -> setting of Kafka's clients."""

_ADMIN = {
    "admin-ca": "TIERLOG_ADMIN_CA",
    "admin-certificate": "TIERLOG_ADMIN_CERTIFICATE",
    "admin-key": "TIERLOG_ADMIN_KEY",
}
_REFERENCE = re.compile(r"(env|file):.")
REFERENCE_HINT = "Give env:VARIABLE, or file:/path of a file that only you can read."
LIST_HINT = "List the profiles with `tierlog profile list`."


@dataclass(frozen=True, slots=True)
class Profile:
    """`values`: by FIELDS. Secrets are references."""

    name: str
    values: Mapping[str, str]

    @property
    def bootstrap(self) -> str | None:
        return self.values.get("bootstrap")

    @property
    def admin(self) -> str | None:
        return self.values.get("admin")

    @property
    def login(self) -> str:
        """How clients log in, for people."""
        user, mechanism = self.values.get("user"), self.values.get("mechanism")
        return f"{user} by {mechanism}" if user else "certificate" if "certificate" in self.values else "none"

    @property
    def is_of_this_machine(self) -> bool:
        """Whether all of its addresses are those of this machine."""
        given = (self.admin or self.bootstrap or "").split(",")
        addresses = [one.strip().rpartition("://")[2] for one in given]
        return all(is_confidential(f"http://{address}") for address in addresses)

    def client_properties(self, *, with_secrets: bool = True) -> dict[str, str]:
        """Settings of Kafka's clients. Raises CliError for a secret that cannot be read."""
        found = {name: self.values[field] for field, name in _KAFKA.items() if field in self.values}
        for field, name in (("password", "sasl.password"), ("key-password", "ssl.key.password")):
            if with_secrets and (text := self.secret(field)):
                found[name] = text
        return found

    def admin_variables(self) -> dict[str, str]:
        """Files for the admin API, by the environment variables that override them."""
        return {name: self.values[field] for field, name in _ADMIN.items() if field in self.values}

    def secret(self, field: str) -> str:
        """The value that a reference stands for; empty without one. Raises CliError."""
        reference = self.values.get(field, "")
        kind, _, where = reference.partition(":")
        if not reference:
            return ""
        if kind == "env":
            if where in os.environ:
                return os.environ[where]
            raise CliError(
                f"profile {self.name}: {field} is {reference}, and there is no such variable",
                hint=f"Set {where}, or change the profile with `tierlog profile create {self.name} "
                "--replace`.",
            )
        try:
            return Path(where).read_text(encoding="utf-8").removesuffix("\n")
        except (OSError, UnicodeDecodeError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else "it is not UTF-8"
            hint = "Restore the file, or replace the profile with `tierlog profile create --replace`."
            raise CliError(f"profile {self.name}: cannot read {where}: {reason}", hint=hint) from None


def checked(name: str, values: Mapping[str, str]) -> Profile:
    """A profile with absolute paths, and with the protocol that its login needs. Raises CliError."""
    from tierlog.client.security import PROTOCOLS
    from tierlog.protocol.sasl.client_login import CLIENT_MECHANISMS

    if not name or not all(one.isalnum() or one in "._-" for one in name) or not name.isascii():
        raise usage(f"invalid name {name!r}", hint="Use the characters a-z A-Z 0-9 . _ -")
    found = dict(values)
    if not found.keys() & {"bootstrap", "admin"}:
        raise usage(
            "a profile needs addresses", hint="Give --bootstrap HOST:PORT, and --admin URL if you can."
        )
    for field in SECRETS:
        if field in found:
            found[field] = _reference(field, found[field])
    for field in FILES:
        if field in found:
            found[field] = str(Path(found[field]).expanduser().absolute())
    if "user" in found:
        found.setdefault("mechanism", "SCRAM-SHA-512")
        if "password" not in found:
            raise usage("--user needs a password", hint=f"Give --password. {REFERENCE_HINT}")
    without_login = "SSL" if found.keys() & {"ca", "certificate"} else "PLAINTEXT"
    default = "SASL_SSL" if "user" in found else without_login
    found["protocol"] = found.get("protocol", default).upper()
    for option, known in (("protocol", PROTOCOLS), ("mechanism", CLIENT_MECHANISMS)):
        if option in found and found[option] not in known:
            raise usage(f"invalid --{option} {found[option]!r}", hint=f"Use one of {', '.join(known)}.")
    if found["protocol"].startswith("SASL") and "user" not in found:
        raise usage(f"{found['protocol']} needs a login", hint="Give --user and --password.")
    return Profile(name, {field: found[field] for field in FIELDS if field in found})


def _reference(field: str, text: str) -> str:
    if not _REFERENCE.match(text):
        raise usage(f"--{field} is not a reference: a profile keeps no secrets", hint=REFERENCE_HINT)
    kind, _, where = text.partition(":")
    return f"file:{Path(where).expanduser().absolute()}" if kind == "file" else text


# --- the file


@dataclass(frozen=True, slots=True)
class Profiles:
    """`current`: the profile in use; empty: none."""

    current: str
    by_name: Mapping[str, Profile]

    def named(self, name: str) -> Profile:
        if name not in self.by_name:
            raise CliError(f"there is no profile {name!r}", hint=LIST_HINT, code=ExitCode.NOT_FOUND)
        return self.by_name[name]


def file() -> Path:
    """In the user's configuration directory (XDG Base Directory Specification)."""
    home = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(home) / "tierlog" / "profiles.yaml"


def load() -> Profiles:
    """The profiles of the user. Raises CliError for a file that is damaged, or that others can change."""
    path = file()
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Profiles("", {})
    except (OSError, UnicodeDecodeError) as failure:
        raise usage(f"{path}: {failure}", hint="Correct the file, or remove it.") from None
    if mode & 0o022:
        raise usage(
            f"{path} can be changed by others, and with it the target of your commands",
            hint=f"Check it, then run: chmod 600 {path}",
        )
    from tierlog.cli.yaml_text import InvalidYaml, read_mappings  # 20 ms, for those that have profiles

    try:
        return _profiles(read_mappings(text))
    except (InvalidYaml, ValueError) as wrong:
        raise usage(f"{path}: {wrong}", hint="Correct the file, or remove it.") from None


def name_in_use() -> str:
    """The profile of commands that name none; empty without one, or if the file cannot be read."""
    try:
        return os.environ.get(VARIABLE) or load().current
    except CliError:
        return ""


@contextmanager
def changing() -> Iterator[Profiles]:
    """The profiles, for a change that `save` ends: another command that changes them waits, so that neither
    change is lost. Raises CliError as `load`."""
    lock = file().with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as failure:
        raise _not_writable(failure) from None
    try:
        _wait_for(descriptor)
        yield load()
    finally:
        os.close(descriptor)


def _wait_for(descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as failure:  # ENOLCK: some network file systems have no locks
        raise _not_writable(failure) from None


def save(profiles: Profiles) -> None:
    """Replace the file, or the one that a link of this name leads to. Only its owner can read it."""
    from tierlog.cli.yaml_text import yaml_text

    path = file().resolve()
    text = yaml_text(
        {
            "current": profiles.current,
            "profiles": {name: dict(one.values) for name, one in sorted(profiles.by_name.items())},
        }
    )
    new = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
            os.fsync(opened.fileno())
        new.replace(path)
    except OSError as failure:
        new.unlink(missing_ok=True)
        raise _not_writable(failure) from None


def _not_writable(failure: OSError) -> CliError:
    hint = "Set XDG_CONFIG_HOME to a directory that you can write to."
    return CliError(f"cannot write {file()}: {failure.strerror}", hint=hint)


def _profiles(top: "Mappings") -> Profiles:
    current, all_of_them = top.get("current", ""), top.get("profiles", {})
    found = {}
    for name, values in all_of_them.items() if isinstance(all_of_them, dict) else ():
        if not isinstance(values, dict):
            raise ValueError(f"profile {name} is not a mapping")
        texts = {field: text for field, text in values.items() if isinstance(text, str)}
        for field in values.keys() - set(FIELDS):
            raise ValueError(f"profile {name} has the unknown field {field!r}")
        for field in SECRETS:
            if field in texts and not _REFERENCE.match(texts[field]):
                raise ValueError(f"profile {name}: {field} is not a reference: {REFERENCE_HINT}")
        found[name] = Profile(name, texts)
    return Profiles(current if isinstance(current, str) else "", found)
