"""Passwords of commands: from a file, standard input or the terminal, never from the command line, which
every user of the machine can read. Turns them into SCRAM credentials."""

import base64
import binascii
import re
import secrets
import sys
from pathlib import Path

import typer

from tierlog.cli.errors import usage
from tierlog.metadata.scram import ScramMechanism, ScramVerifier
from tierlog.protocol.sasl.scram import (
    DEFAULT_ITERATIONS,
    HASHES,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    SALT_BITS,
    keys_of,
    salt_text,
    salted_password,
)

STDIN = "-"
MECHANISMS = {"SCRAM-SHA-256": ScramMechanism.SHA_256, "SCRAM-SHA-512": ScramMechanism.SHA_512}
PASSWORD_MAX_BYTES = 1024
_ADD_SCRAM = re.compile(r"(SCRAM-SHA-(?:256|512))=\[(.*)\]", re.IGNORECASE | re.DOTALL)
_HINT = "For example: --add-scram 'SCRAM-SHA-512=[name=admin,password-file=admin.password]'"


def read_password(file: str | None, *, user: str) -> str:
    """The first line of the file, or of standard input for `-`; without a file the terminal is asked. Raises
    CliError."""
    if file is None:
        if not sys.stdin.isatty():
            raise usage(
                f"no password for {user}", hint="Give it with --password-file FILE, or - for standard input."
            )
        return _checked(
            typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True, err=True)
        )
    try:
        if file == STDIN:
            text = sys.stdin.buffer.readline(PASSWORD_MAX_BYTES + 2).decode()
        else:
            with Path(file).open("rb") as opened:
                text = opened.readline(PASSWORD_MAX_BYTES + 2).decode()
    except OSError as failure:
        raise usage(f"cannot read {file}: {failure.strerror}", hint="Check --password-file.") from None
    except UnicodeDecodeError:
        raise usage(f"the password in {file} is not UTF-8", hint="Check --password-file.") from None
    return _checked(text.removesuffix("\n").removesuffix("\r"))


def _checked(password: str) -> str:
    if not password:
        raise usage("the password is empty", hint="Put it into the first line of the file.")
    if len(password.encode()) > PASSWORD_MAX_BYTES:
        raise usage(f"the password has more than {PASSWORD_MAX_BYTES} bytes", hint="Choose a shorter one.")
    return password


def new_salt() -> bytes:
    return salt_text(secrets.randbits(SALT_BITS))


def new_verifier(mechanism: str, password: str, iterations: int) -> ScramVerifier:
    """Credential of a new user, with a random salt."""
    salt, hash_name = new_salt(), HASHES[mechanism]
    return _verifier(hash_name, salted_password(hash_name, password, salt, iterations), salt, iterations)


def _verifier(hash_name: str, salted: bytes, salt: bytes, iterations: int) -> ScramVerifier:
    keys = keys_of(hash_name, salted)
    return ScramVerifier(
        salt=salt, stored_key=keys.stored_key, server_key=keys.server_key, iterations=iterations
    )


def parse_add_scram(text: str) -> tuple[str, ScramMechanism, ScramVerifier]:
    """The user and the credential of Kafka's `SCRAM-SHA-256=[name=…,password=…,iterations=…]`. `salt` and
    `saltedpassword` are base64, as in Kafka; `password-file` is in addition. Raises CliError."""
    found = _ADD_SCRAM.fullmatch(text.strip())
    if found is None:
        raise usage("invalid --add-scram: expected SCRAM-SHA-256=[...] or SCRAM-SHA-512=[...]", hint=_HINT)
    name = found[1].upper()
    options: dict[str, str] = {}
    for pair in found[2].split(","):
        key, separator, value = pair.strip().partition("=")
        if not separator or key in options or key not in _KEYS:
            raise usage(f"invalid --add-scram: {', '.join(_KEYS)} are accepted, each once", hint=_HINT)
        options[key] = value.strip().strip('"')
    if not options.get("name"):
        raise usage("invalid --add-scram: it needs name=", hint=_HINT)
    if len(options.keys() & {"password", "password-file", "saltedpassword"}) != 1:
        raise usage(
            "invalid --add-scram: it needs one of password-file, password, saltedpassword", hint=_HINT
        )
    if "saltedpassword" in options and "salt" not in options:
        raise usage("invalid --add-scram: saltedpassword needs salt=", hint=_HINT)
    iterations = _iterations(options.get("iterations", str(DEFAULT_ITERATIONS)))
    salt = _base64("salt", options["salt"]) if "salt" in options else new_salt()
    hash_name = HASHES[name]
    if "saltedpassword" in options:
        salted = _base64("saltedpassword", options["saltedpassword"])
        if len(salted) != MECHANISMS[name].key_size:
            raise usage(
                f"invalid --add-scram: saltedpassword has {len(salted)} bytes, and {name} needs "
                f"{MECHANISMS[name].key_size}",
                hint=_HINT,
            )
    else:
        password = options.get("password")
        if password is None:
            password = read_password(options["password-file"], user=options["name"])
        salted = salted_password(hash_name, _checked(password), salt, iterations)
    return options["name"], MECHANISMS[name], _verifier(hash_name, salted, salt, iterations)


_KEYS = ("name", "password-file", "password", "iterations", "salt", "saltedpassword")


def _iterations(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not MIN_ITERATIONS <= int(text) <= MAX_ITERATIONS:
        raise usage(
            f"invalid --add-scram: iterations must be {MIN_ITERATIONS} to {MAX_ITERATIONS}", hint=_HINT
        )
    return int(text)


def _base64(key: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise usage(f"invalid --add-scram: {key} is not base64", hint=_HINT) from None
