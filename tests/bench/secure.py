"""Cases about security: logins over TLS with SCRAM, and Produce requests that many ACLs are checked for."""

import base64
import functools
import hmac
import select
import socket
import ssl
import statistics
import struct
import sys
import time
import uuid
from pathlib import Path

import raw
import wire
from meter import Meter, percentiles

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
from tierlog.protocol.sasl.scram import keys_of, salted_password

USER, PASSWORD, MECHANISM, HASH, ITERATIONS = "bench", "bench-password", "SCRAM-SHA-512", "sha512", 4096
SASL_HANDSHAKE, SASL_AUTHENTICATE = 17, 36
LIMIT_S = 60.0
ACLS, ACLS_PER_REQUEST = 10_000, 1_000
PAIRS = 3
"""How often produce with ACLs is measured beside produce without."""
REST_S = 2.0
"""Time for a broker to finish what follows a change of all ACLs, such as a snapshot."""


def logins(options, topics, pids, warm):
    """Connections that end once they have logged in, options.at_once of them at a time."""
    address = prepared(options, topics)
    limit_s = options.warm_s if warm else options.seconds
    with Meter(pids) as meter:
        begin = time.perf_counter()
        durations = log_in(address, options.at_once, until=begin + limit_s)
        seconds = time.perf_counter() - begin
    return {
        "logins_s": round(len(durations) / seconds, 1),
        "cpu_ms_per_login": round(1e3 * meter.broker / len(durations), 3),
        **percentiles(durations),
        **meter.report(),
    }


def login_storm(options, topics, pids, warm):
    """options.at_once connections log in at the same time, and stay open until all have."""
    address = prepared(options, topics)
    with Meter(pids) as meter:
        durations = log_in(address, options.at_once, until=0)
    return {
        "cpu_ms_per_login": round(1e3 * meter.broker / len(durations), 3),
        **percentiles(durations),
        **meter.report(),
    }


def prepared(options, topics):
    """The address, once the broker knows the user."""
    from confluent_kafka.admin import ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, ITERATIONS)
    change = UserScramCredentialUpsertion(USER, info, PASSWORD.encode(), b"salt-of-the-bench")
    topics.admin.alter_user_scram_credentials([change])[USER].result(LIMIT_S)
    address = wire.tls_address(options.sasl, options.ca)
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            log_in(address, 1, until=0)
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return address


def log_in(address, at_once, until):
    """Seconds of each login. As soon as one is done the next begins, until the time `until`."""
    context = wire.tls_context(address.ca)
    poller, running, done, durations = select.epoll(), {}, [], []

    def begin():
        connection = socket.socket()
        connection.setblocking(False)
        steps = login(connection, address, context)
        running[connection.fileno()] = (steps, connection.fileno(), time.perf_counter())
        poller.register(connection.fileno(), next(steps))

    for _ in range(at_once):
        begin()
    while running:
        ready = poller.poll(LIMIT_S)
        if not ready:
            raise TimeoutError(f"{len(running)} logins do not end")
        for number, _ in ready:
            steps, _, start = running[number]
            try:
                poller.modify(number, next(steps))
            except StopIteration as end:
                now = time.perf_counter()
                durations.append(now - start)
                poller.unregister(number)
                del running[number]
                if now < until:
                    end.value.close()
                    begin()
                else:
                    done.append(end.value)
    for connection in done:
        connection.close()
    return durations


def login(connection, address, context):
    """Yields the events that it waits for; returns the connection."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.connect_ex(address[:2])
    yield select.EPOLLOUT
    tls = context.wrap_socket(connection, server_hostname=address.host, do_handshake_on_connect=False)
    yield from waiting(tls.do_handshake)
    handshake = struct.pack(">h", len(MECHANISM)) + MECHANISM.encode()
    yield from ask(tls, SASL_HANDSHAKE, handshake)
    nonce = uuid.uuid4().hex
    bare = f"n={USER},r={nonce}"
    first = (yield from authenticate(tls, f"n,,{bare}")).decode()
    fields = dict(field.split("=", 1) for field in first.split(","))
    keys = client_keys(fields["s"], int(fields["i"]))
    without_proof = f"c=biws,r={fields['r']}"
    signature = hmac.digest(keys.stored_key, f"{bare},{first},{without_proof}".encode(), HASH)
    proof = bytes(a ^ b for a, b in zip(keys.client_key, signature, strict=True))
    yield from authenticate(tls, f"{without_proof},p={base64.b64encode(proof).decode()}")
    return tls


@functools.cache
def client_keys(salt, iterations):
    """Computed once, so that the load generator leaves the cores to the broker."""
    return keys_of(HASH, salted_password(HASH, PASSWORD, base64.b64decode(salt), iterations))


def authenticate(tls, message):
    body = yield from ask(tls, SASL_AUTHENTICATE, struct.pack(">i", len(message)) + message.encode())
    error, length = struct.unpack_from(">hh", body, 4)
    if error:
        raise ConnectionError(f"SaslAuthenticate error code {error}")
    at = 8 + max(length, 0)
    (size,) = struct.unpack_from(">i", body, at)
    return bytes(body[at + 4 : at + 4 + size])


def ask(tls, key, body):
    """The response from its correlation id on."""
    yield from waiting(lambda: tls.sendall(wire.request(key, 1, body, False)))
    received = bytearray()
    while len(received) < 4 or len(received) < 4 + int.from_bytes(received[:4], "big"):
        more = yield from waiting(lambda: tls.recv(4096))
        if not more:
            raise ConnectionError("the broker closed the connection")
        received += more
    return received[4:]


def waiting(step):
    """The result of a step of TLS, which is tried again after each event that it waits for."""
    while True:
        try:
            return step()
        except ssl.SSLWantReadError:
            yield select.EPOLLIN
        except ssl.SSLWantWriteError:
            yield select.EPOLLOUT


def acls(options, topics, pids, warm):
    """raw-produce without ACLs and with ACLS of them, in turn on the same broker."""
    if warm:
        return raw.raw_produce(options, topics, pids, True)
    without, beside, shares = [], [], []
    for number in range(PAIRS):
        found = {}
        for has_acls in (False, True) if number % 2 else (True, False):
            (add_acls if has_acls else remove_acls)(topics.admin)
            time.sleep(REST_S)
            found[has_acls] = raw.raw_produce(options, topics, pids, False)
        remove_acls(topics.admin)
        without.append(found[False])
        beside.append(found[True])
        shares.append(found[True]["broker_cpu_s_per_gb"] / found[False]["broker_cpu_s_per_gb"])
    middle = sorted(beside, key=lambda each: each["broker_cpu_s_per_gb"])[PAIRS // 2]
    times = {name: sum(each[name] for each in without + beside) for name in ("other_cpu_s", "wall_s")}
    return {**middle, **times, "cpu_of_none": round(statistics.median(shares), 3)}


def add_acls(admin):
    """One that the producer needs, for the prefix of the topics, among ACLs of others."""
    from confluent_kafka.admin import (
        AclBinding,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    allow, literal, prefixed = (
        AclPermissionType.ALLOW,
        ResourcePatternType.LITERAL,
        ResourcePatternType.PREFIXED,
    )
    own = ("bench-", prefixed, "User:ANONYMOUS", "*", AclOperation.ALL, allow)
    others = [
        (
            f"topic-{n // 2}",
            prefixed if n % 10 == 0 else literal,
            f"User:user-{n % 500}",
            "*",
            operation,
            allow,
        )
        for n, operation in zip(range(1, ACLS), [AclOperation.READ, AclOperation.WRITE] * ACLS, strict=False)
    ]
    bindings = [AclBinding(ResourceType.TOPIC, *fields) for fields in (own, *others)]
    for at in range(0, len(bindings), ACLS_PER_REQUEST):
        for created in admin.create_acls(bindings[at : at + ACLS_PER_REQUEST], request_timeout=60).values():
            created.result(60)


def remove_acls(admin):
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        ResourcePatternType,
        ResourceType,
    )

    anything = (None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY)
    [removed] = admin.delete_acls(
        [AclBindingFilter(ResourceType.TOPIC, *anything)], request_timeout=60
    ).values()
    removed.result(60)
