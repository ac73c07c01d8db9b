"""The rendezvous: strangers, wrong secrets, busy addresses, and where ranks meet."""

from __future__ import annotations

import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from meeting import free_port, new_address, settings_for, together

from gin.config import Config
from gin.errors import BootstrapError, ConfigError
from gin.launch.spawn import spawn
from gin.ranks import Ranks
from gin.rendezvous import endpoint as endpoints
from gin.rendezvous import join
from gin.rendezvous import secret as secret_module
from gin.rendezvous.endpoint import Endpoint
from gin.rendezvous.frames import MEMBER, Decoder, encode
from gin.rendezvous.server import VERSION, Server
from gin.rendezvous.store import Store

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("bare_environment")]

# Strangers


def hello(**changes: Any) -> dict[str, Any]:
    return {
        "op": "hello",
        "job": "given",
        "size": 2,
        "generation": 0,
        "rank": 1,
        "process": 1,
        "host": "x",
    } | changes


def raw_connection(address: str) -> socket.socket:
    return endpoints.connect(endpoints.parse(address), 5)


def until_closed(connection: socket.socket, seconds: float = 15) -> bytes:
    """What the other side still sends; raises when it does not close."""
    connection.settimeout(seconds)
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def frames_in(data: bytes) -> list[dict[str, Any]]:
    decoder = Decoder(MEMBER)
    decoder.feed(data)
    return [frame.header for frame in decoder]


ATTACKS = {
    "nothing and gone": b"",
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a huge frame": struct.pack("!II", 0xFFFFFFFF, 0xFFFFFFFF),
    "a large frame": struct.pack("!II", 100, 1 << 20),
    "not json": struct.pack("!II", 4, 0) + b"{{{{",
    "deep json": struct.pack("!II", 4000, 0) + b"[" * 4000,
    "not an object": struct.pack("!II", 2, 0) + b"[]",
    "no operation": struct.pack("!II", 2, 0) + b"{}",
    "a call before hello": encode({"op": "call", "sequence": 0}),
    "hello without fields": encode({"op": "hello"}),
    "hello with wrong types": encode(hello(rank=[], size={}, proof=3)),
    "hello without proof": encode(hello()),
    "hello with a wrong proof": encode(hello(proof="0" * 64)),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_strangers_do_not_disturb(stores: Callable[..., list[Store]], address: str, attack: str) -> None:
    ranks = stores(2, address)
    with raw_connection(address) as connection:
        connection.settimeout(5)
        if ATTACKS[attack]:
            connection.sendall(ATTACKS[attack])
            answers = frames_in(until_closed(connection))
            assert [answer["op"] for answer in answers[:1]] == ["challenge"]
            assert all(answer["op"] == "refused" for answer in answers[1:])
    assert together(2, lambda rank: ranks[rank].allgather("x", b"1")) == [[b"1"] * 2] * 2
    server = next(iter(Server._servers.values()))
    assert server.refused == (1 if ATTACKS[attack] else 0)


def test_a_slow_stranger_is_dropped_and_holds_nobody_up(
    stores: Callable[..., list[Store]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gin.rendezvous.server._HANDSHAKE_SECONDS", 0.3)
    address = new_address("unix")
    with ExitStack() as opened:
        ranks = stores(3, address)
        connections = [opened.enter_context(raw_connection(address)) for _ in range(50)]
        for connection in connections:
            connection.send(b"\0")
        assert together(3, lambda rank: ranks[rank].allgather("x", b"1")) == [[b"1"] * 3] * 3
        for connection in connections:
            assert [answer["op"] for answer in frames_in(until_closed(connection))] == ["challenge"]


def test_wrong_secret(stores: Callable[..., list[Store]], address: str) -> None:
    ranks = stores(2, address)
    began = time.monotonic()

    def intrude(at: str) -> None:
        join(settings_for(at, job_secret="wrong"), rank=1, size=2)

    with pytest.raises(BootstrapError, match=r"secrets differ.*GIN_JOB_SECRET"):
        spawn(1, intrude, address, timeout=20)
    assert time.monotonic() - began < 5, "refused at once, not at the deadline"
    assert together(2, lambda rank: ranks[rank].allgather("x", b"1")) == [[b"1"] * 2] * 2


def fake_server(address: str, answer: Callable[[socket.socket], None]) -> threading.Thread:
    listener = endpoints.listen(endpoints.parse(address), single_host=True)[0]
    listener.setblocking(True)

    def serve() -> None:
        with listener:
            connection, _ = listener.accept()
            with connection:
                answer(connection)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_server_that_does_not_know_the_secret(nothing_left: None, address: str) -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(encode({"op": "challenge", "protocol": "gin", "version": VERSION, "nonce": "0"}))
        connection.recv(65536)
        connection.sendall(encode({"op": "welcome", "proof": "0" * 64}))

    thread = fake_server(address, answer)
    with pytest.raises(BootstrapError, match="does not know the job's secret"):
        join(settings_for(address), rank=1, size=2)
    thread.join()


@pytest.mark.parametrize(
    ("greeting", "words"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "not the rendezvous of a gin job"),
        (
            encode({"op": "challenge", "protocol": "gin", "version": 99, "nonce": ""}),
            f"version 99 .* version {VERSION}",
        ),
    ],
)
def test_something_else_listens(nothing_left: None, address: str, greeting: bytes, words: str) -> None:
    thread = fake_server(address, lambda connection: connection.sendall(greeting))
    with pytest.raises(BootstrapError, match=words):
        join(settings_for(address), rank=1, size=2)
    thread.join()


def test_a_silent_server(nothing_left: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gin.rendezvous.client._GREETING_SECONDS", 0.3)
    address = new_address("tcp")
    thread = fake_server(address, lambda connection: connection.recv(10) and None)
    with pytest.raises(BootstrapError, match=r"said nothing for 0.3 s.*GIN_PORT"):
        join(settings_for(address), rank=1, size=2)
    thread.join()


def test_another_users_processes(
    stores: Callable[..., list[Store]], monkeypatch: pytest.MonkeyPatch, nothing_left: None
) -> None:
    address = new_address("unix")
    ranks = stores(2, address)
    monkeypatch.setattr("gin.rendezvous.server.peer_identity", lambda connection: (1, os.geteuid() + 1))
    with raw_connection(address) as connection:
        assert until_closed(connection) == b""
    assert together(2, lambda rank: ranks[rank].allgather("x", b"1")) == [[b"1"] * 2] * 2
    monkeypatch.setattr(endpoints, "peer_identity", lambda connection: (1, 4711))
    with pytest.raises(BootstrapError, match="held by user 4711"):
        join(settings_for(address), rank=1, size=2)


@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_busy_address(nothing_left: None, kind: str) -> None:
    address = new_address(kind)
    listener = endpoints.listen(endpoints.parse(address), single_host=True)[0]
    with listener, pytest.raises(BootstrapError, match="in use") as caught:
        join(settings_for(address), rank=0, size=2)
    assert "GIN_RENDEZVOUS" in str(caught.value)
    if kind == "unix":
        assert f"process {os.getpid()}" in str(caught.value)


# Addresses and secrets


@pytest.mark.parametrize(
    ("text", "kind", "host", "port"),
    [
        ("unix:@name", "unix", "name", 0),
        ("node1:29500", "tcp", "node1", 29500),
        ("tcp://10.0.0.1:1", "tcp", "10.0.0.1", 1),
        ("[fd00::2]:80", "tcp", "fd00::2", 80),
        ("tcp://[::1]:65535", "tcp", "::1", 65535),
    ],
)
def test_addresses(text: str, kind: str, host: str, port: int) -> None:
    found = endpoints.parse(text)
    assert (found.kind, found.host, found.port) == (kind, host, port)
    assert endpoints.parse(str(found)) == found


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":1", "host:0", "host:65536", "unix:name", "unix:@", "http://x:1"]
)
def test_wrong_addresses(text: str) -> None:
    with pytest.raises(ConfigError):
        endpoints.parse(text, "GIN_RENDEZVOUS")


def ranks_of(**changes: Any) -> Ranks:
    values = {
        "rank": 0,
        "size": 4,
        "local_rank": 0,
        "local_size": 4,
        "source": "torchrun",
        "job": "j",
        "single_host": True,
    }
    return Ranks(**(values | changes))


def test_choice_of_address() -> None:
    config, master = Config.from_sources(), {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}
    first = endpoints.choose(ranks_of(), config, 0, master)
    assert first.kind == "unix"
    assert first == endpoints.choose(ranks_of(rank=3), config, 0, master)
    assert first != endpoints.choose(ranks_of(), config, 1, master)
    assert first != endpoints.choose(ranks_of(job="k"), config, 0, master)
    far = ranks_of(local_size=2, single_host=False)
    chosen = endpoints.choose(far, config, 0, master)
    assert (chosen.kind, chosen.host) == ("tcp", "node1")
    assert chosen.port not in (29500, 29501)
    assert 1024 <= endpoints.choose(far, config, 0, master | {"MASTER_PORT": "65535"}).port <= 65535
    assert endpoints.choose(far, Config.from_sources(port=7777), 0, master).port == 7777
    explicit = Config.from_sources(rendezvous="tcp://a:1")
    assert endpoints.choose(far, explicit, 0, master).host == "a"
    with pytest.raises(ConfigError, match="GIN_RENDEZVOUS=HOST:PORT"):
        endpoints.choose(far, config, 0, {})
    with pytest.raises(ConfigError, match="GIN_PORT"):
        endpoints.choose(far, config, 0, {"MASTER_ADDR": "node1"})


def test_listens_only_where_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    for listener in endpoints.listen(endpoints.parse(f"localhost:{port}"), single_host=False):
        with listener:
            assert listener.getsockname()[0] in ("127.0.0.1", "::1")
    with pytest.raises(BootstrapError, match="not an address of this host"):
        endpoints.listen(endpoints.parse("203.0.113.7:4000"), single_host=False)
    with pytest.raises(BootstrapError, match="cannot be resolved"):
        endpoints.listen(endpoints.parse("no-such-host.invalid:4000"), single_host=False)
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda *_, **__: [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.1.1", port))]
    )
    with pytest.raises(BootstrapError, match="only this host can reach it"):
        endpoints.listen(Endpoint("tcp", "node1", port), single_host=False)


def test_key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    keys = together(8, lambda _: secret_module.job_secret(None, same_user_proved=False))
    assert len(set(keys)) == 1
    assert len(keys[0]) >= 32
    path = secret_module.key_file()
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["key"]
    path.chmod(0o640)
    with pytest.raises(BootstrapError, match="chmod 600"):
        secret_module.job_secret(None, same_user_proved=True)
    assert secret_module.job_secret("given", same_user_proved=False) == b"given"
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(BootstrapError, match="GIN_JOB_SECRET"):
        secret_module.job_secret(None, same_user_proved=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/proc/nowhere")
    with pytest.raises(BootstrapError, match="GIN_JOB_SECRET"):
        secret_module.job_secret(None, same_user_proved=False)
    assert secret_module.job_secret(None, same_user_proved=True)
