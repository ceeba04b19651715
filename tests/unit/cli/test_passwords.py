"""Passwords of commands, and first users as Kafka's `--add-scram` names them."""

import base64
from pathlib import Path

import pytest

from tierlog.cli.errors import CliError
from tierlog.cli.passwords import parse_add_scram, read_password
from tierlog.protocol.sasl.scram import keys_of, salted_password


def test_password_is_the_first_line_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    for content, expected in ((b"a b\n", "a b"), (b"x\r\ny", "x"), ("zoë".encode(), "zoë")):
        file.write_bytes(content)
        assert read_password(str(file), user="ada") == expected
    for content in (b"", b"\n", b"\xff\n", b"x" * 2000):
        file.write_bytes(content)
        with pytest.raises(CliError):
            read_password(str(file), user="ada")


def test_first_users_have_the_keys_of_their_password(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    salt = base64.b64encode(b"some salt").decode()
    salted = salted_password("sha256", "secret", b"some salt", 8192)
    keys = keys_of("sha256", salted)
    texts = (
        f"SCRAM-SHA-256=[name=ada,password-file={file},iterations=8192,salt={salt}]",
        f'SCRAM-SHA-256=[name="ada", password="secret", iterations=8192, salt="{salt}"]',
        f"SCRAM-SHA-256=[name=ada,saltedpassword={base64.b64encode(salted).decode()},"
        f"iterations=8192,salt={salt}]",
    )
    for text in texts:
        user, mechanism, verifier = parse_add_scram(text)
        assert (user, mechanism.sasl_name, verifier.iterations) == ("ada", "SCRAM-SHA-256", 8192)
        assert (verifier.salt, verifier.stored_key, verifier.server_key) == (b"some salt", *keys[1:])


@pytest.mark.parametrize("salted", ["", "AAAA"])
def test_salted_password_has_the_length_of_the_hash(salted: str) -> None:
    """An empty one, as of a shell variable that is not set, would let everybody log in."""
    with pytest.raises(CliError, match="needs 32"):
        parse_add_scram(f"SCRAM-SHA-256=[name=ada,saltedpassword={salted},salt=AAAA]")


def test_each_credential_has_a_salt_of_its_own() -> None:
    made = [parse_add_scram("SCRAM-SHA-512=[name=ada,password=x]")[2].salt for _ in range(2)]
    assert made[0] != made[1]
    assert min(map(len, made)) >= 20


def test_errors_do_not_repeat_passwords() -> None:
    for text in (
        "SCRAM-SHA-256=[name=a,password=canary,role=b]",
        "PLAIN=[name=a,password=canary]",
        "SCRAM-SHA-256=[name=a,password=canary,iterations=1]",
        "canary",
    ):
        with pytest.raises(CliError) as raised:
            parse_add_scram(text)
        assert "canary" not in f"{raised.value.message} {raised.value.hint}"
