"""SASL exchanges of both ends: the examples of the RFCs, and what each end refuses."""

import random

import pytest

from tierlog.config.jaas import InvalidJaas, parse_jaas, users_of
from tierlog.metadata.scram import ScramVerifier
from tierlog.protocol.sasl import oauthbearer, plain
from tierlog.protocol.sasl.scram import (
    HASHES,
    ScramClient,
    ScramFailed,
    ScramServer,
    keys_of,
    salt_text,
    salted_password,
)


def verifier(mechanism: str, password: str, salt: bytes = b"salt", iterations: int = 4096) -> ScramVerifier:
    name = HASHES[mechanism]
    keys = keys_of(name, salted_password(name, password, salt, iterations))
    return ScramVerifier(
        salt=salt, stored_key=keys.stored_key, server_key=keys.server_key, iterations=iterations
    )


def test_example_of_rfc_7677() -> None:
    mechanism, nonce = "SCRAM-SHA-256", "rOprNGfwEbeRWgbNEkqO"
    client = ScramClient(mechanism, "user", "pencil", nonce)
    salt = b"\x5b\x6d\x99\x68\x9d\x12\x35\x8e\xec\xa0\x4b\x14\x12\x36\xfa\x81"
    known = verifier(mechanism, "pencil", salt)
    server = ScramServer(mechanism, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0", lambda _: known)
    first = client.start()
    assert first == b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
    challenge = server.respond(first)
    assert challenge == (
        b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    )
    final = client.respond(challenge)
    assert final == (
        b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
        b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    )
    signature = server.respond(final)
    assert signature == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert client.respond(signature) == b""
    assert client.is_done
    assert server.user == "user"


@pytest.mark.parametrize("mechanism", HASHES)
@pytest.mark.parametrize("user", ["ada", "a,b=c", "=2C", "Zoë", "two words"])
def test_names_with_odd_characters_log_in(mechanism: str, user: str) -> None:
    names: list[str] = []
    known = verifier(mechanism, "pässword,=")

    def find(name: str) -> ScramVerifier:
        names.append(name)
        return known

    client = ScramClient(mechanism, user, "pässword,=", "abc")
    server = ScramServer(mechanism, "def", find)
    client.respond(server.respond(client.respond(server.respond(client.start()))))
    assert client.is_done
    assert names == [user] == [server.user]


def test_wrong_password_fails() -> None:
    known = verifier("SCRAM-SHA-256", "right")
    client = ScramClient("SCRAM-SHA-256", "ada", "wrong", "abc")
    server = ScramServer("SCRAM-SHA-256", "def", lambda _: known)
    final = client.respond(server.respond(client.start()))
    with pytest.raises(ScramFailed, match="Invalid client credentials"):
        server.respond(final)
    assert server.user is None


@pytest.mark.parametrize(
    "message",
    [
        b"", b"n", b"n,,", b"n,,n=ada", b"n,,r=abc", b"n,,n=,r=abc", b"p=tls-unique,,n=ada,r=abc", b"\xff",
        b"n,a=eve,n=ada,r=abc", b"n,,n=a=da,r=abc", b"n,,n=ada,r=", b"n,,m=ext,n=ada,r=abc",
        b"n,,n=ada,r=a c",
    ],
)  # fmt: skip
def test_invalid_first_messages_are_refused(message: bytes) -> None:
    server = ScramServer("SCRAM-SHA-256", "def", lambda _: verifier("SCRAM-SHA-256", "x"))
    with pytest.raises(ScramFailed):
        server.respond(message)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(b"c=biws", b"c=eSws"),  # the header of another client
        lambda text: text.replace(b"r=abcdef", b"r=abcdeg"),
        lambda text: text[:-4],
        lambda text: text.partition(b"p=")[0] + b"p=AAAA",
        lambda text: text + b",x=1",
        lambda text: b"",
    ],
)
def test_changed_final_messages_are_refused(change: "object") -> None:
    known = verifier("SCRAM-SHA-256", "x")
    client = ScramClient("SCRAM-SHA-256", "ada", "x", "abc")
    server = ScramServer("SCRAM-SHA-256", "def", lambda _: known)
    final = client.respond(server.respond(client.start()))
    with pytest.raises(ScramFailed):
        server.respond(change(final))  # type: ignore[operator]


def test_authorization_id_must_be_the_user() -> None:
    server = ScramServer("SCRAM-SHA-256", "def", lambda _: verifier("SCRAM-SHA-256", "x"))
    assert server.respond(b"n,a=ada,n=ada,r=abc").startswith(b"r=abcdef,")


@pytest.mark.parametrize(
    "challenge",
    [
        b"r=abc,s=c2FsdA==,i=4096",  # no nonce of the broker
        b"r=xyz,s=c2FsdA==,i=4096",
        b"r=abcdef,s=c2FsdA==,i=1",  # cheap to guess from a recorded proof
        b"r=abcdef,s=c2FsdA==,i=999999999",
        b"e=other-error",
        b"\xff",
    ],
)
def test_client_refuses_a_false_broker(challenge: bytes) -> None:
    with pytest.raises(ScramFailed):
        ScramClient("SCRAM-SHA-256", "ada", "x", "abc").respond(challenge)


def test_client_refuses_a_broker_that_does_not_know_the_verifier() -> None:
    client = ScramClient("SCRAM-SHA-256", "ada", "x", "abc")
    client.respond(b"r=abcdef,s=c2FsdA==,i=4096")
    with pytest.raises(ScramFailed):
        client.respond(b"v=AAAA")
    assert not client.is_done


def test_server_survives_random_messages() -> None:
    rng = random.Random(1)
    known = verifier("SCRAM-SHA-256", "x")
    for _ in range(2_000):
        server = ScramServer("SCRAM-SHA-256", "def", lambda _: known)
        for start in (b"", b"n,,n=ada,r=abc", b"c=biws,r=abcdef,p=AAAA"):
            message = bytearray(start + rng.randbytes(rng.randrange(9)))
            for _ in range(rng.randrange(3)):
                if message:
                    message[rng.randrange(len(message))] = rng.randrange(256)
            try:
                server.respond(bytes(message))
            except ScramFailed:
                break
        assert server.user is None


def test_plain_messages() -> None:
    assert plain.decode(plain.encode("ada", "pw")) == ("ada", "pw")
    assert plain.decode(b"ada\0ada\0pw") == ("ada", "pw")
    assert "pw" not in repr(plain.decode(b"\0ada\0pw"))
    for message, text in (
        (b"ada\0pw", "expected 3 tokens, got 2"),
        (b"\0\0pw", "username not specified"),
        (b"\0ada\0", "password not specified"),
        (b"eve\0ada\0pw", "authorization id that is different"),
        (b"\0\xff\0pw", "not UTF-8"),
    ):
        with pytest.raises(plain.PlainFailed, match=text):
            plain.decode(message)


def test_oauthbearer_messages() -> None:
    assert oauthbearer.decode(oauthbearer.encode("a.b.c")) == ("a.b.c", "")
    extended = b"n,a=ada,\x01auth=Bearer a.b.c\x01traceId=12\x01\x01"
    assert oauthbearer.decode(extended) == ("a.b.c", "ada")
    for message in (b"", b"\x01", b"n,,\x01\x01", b"n,,\x01auth=Basic x\x01\x01", b"n,,\x01auth=Bearer x"):
        with pytest.raises(oauthbearer.OAuthBearerFailed):
            oauthbearer.decode(message)


def test_jaas_lines() -> None:
    options = parse_jaas(
        'org.apache.kafka.common.security.plain.PlainLoginModule required username="admin" '
        'password=\'a;b "c\' user_admin="a\\"b\\\\" user_ada=x;\n'
    )
    assert options["password"] == 'a;b "c'
    assert users_of(options) == {"admin": 'a"b\\', "ada": "x"}
    for text in (
        "",
        "Module",
        "Module required user_ada=x",
        'Module required a="b"; c',
        "Module required a=1 a=2;",
    ):
        with pytest.raises(InvalidJaas):
            parse_jaas(text)


def test_errors_of_jaas_lines_do_not_repeat_them() -> None:
    with pytest.raises(InvalidJaas) as raised:
        parse_jaas('Module required user_ada="canary-password" canary-rest')
    assert "canary" not in str(raised.value)


def test_salt_texts_are_in_base_36() -> None:
    assert salt_text(0) == b"0"
    assert int(salt_text(2**130 - 1), 36) == 2**130 - 1
