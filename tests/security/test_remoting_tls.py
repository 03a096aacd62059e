"""TLS of the remoting port: old versions, silence, floods of handshakes, and certificates that are not trusted."""

import contextlib
import functools
import socket
import ssl
import time
from pathlib import Path

import pytest

from latermq.config import ServerConfig
from latermq.protocol.remoting.frames import encode_frame
from latermq.server.remoting.turns import Worker
from latermq.tls.certificates import CertificateFiles
from latermq.tls.transport import MAX_HANDSHAKE_BYTES
from tests.interop.waiting import wait_until
from tests.security.test_http2_tls import ALERT, PROTOCOL_VERSION, hello, old_hello
from tests.support.tls_scene import (
    ECHO,
    HOST,
    RunningTls,
    TlsClient,
    connected,
    issued_certificate,
    own_certificate,
    running_tls,
    trusting,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    return own_certificate(tmp_path_factory.mktemp("tls"))


def answer_to(server: RunningTls, *pieces: bytes) -> bytes:
    """Everything that the server sends before it closes."""
    with socket.create_connection((HOST, server.port), timeout=60) as sock:
        received = b""
        try:
            for piece in pieces:
                sock.sendall(piece)
            while data := sock.recv(65_536):
                received += data
        except ConnectionError:
            pass
        return received


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_tls_and_plaintext_share_the_port(files: CertificateFiles, version: ssl.TLSVersion) -> None:
    context = trusting(files)
    context.minimum_version = context.maximum_version = version
    with running_tls(files) as server, connected(server.port, context) as client, connected(server.port, None) as plain:
        assert (client.echo(b"private"), plain.echo(b"open")) == (b"private", b"open")
        assert isinstance(client.sock, ssl.SSLSocket)
        assert client.sock.version() == version.name.replace("_", ".")
        assert sorted(one.is_encrypted for one in server.service.connections) == [False, True]
        assert server.statistics()["tls_handshakes"] == 1


@pytest.mark.parametrize("body_bytes", [16_000, 1_000_000])
def test_frames_of_any_size_pass_in_both_directions(files: CertificateFiles, body_bytes: int) -> None:
    bodies = [bytes([number]) * body_bytes for number in range(10)]
    with running_tls(files) as server, connected(server.port, trusting(files)) as client:
        requests = memoryview(b"".join(encode_frame(ECHO, 1, body=body) for body in bodies))
        assert [reply.body for reply in client.exchange(requests, len(bodies))] == bodies


def test_a_reader_that_stops_is_served_again_when_it_reads(files: CertificateFiles) -> None:
    """The bound on unread replies holds with TLS, and nothing is lost."""
    config = ServerConfig(write_buffer=ServerConfig().write_buffer.__class__(64 << 10))
    count, body = 300, bytes(60_000)
    with running_tls(files, config=config) as server, connected(server.port, trusting(files)) as client:
        waiting = memoryview(encode_frame(ECHO, 1, body=body) * count)

        def is_paused() -> bool:
            nonlocal waiting
            waiting = client.send_some(waiting)
            return server.statistics()["paused"] == 1

        wait_until(is_paused, 60.0, "the connection to be paused")
        assert len(waiting) > 0
        assert sum(reply.body == body for reply in client.exchange(waiting, count)) == count


def test_enforcing_refuses_plaintext_and_takes_tls(files: CertificateFiles) -> None:
    with running_tls(files, mode="enforcing") as server:
        assert answer_to(server, encode_frame(ECHO, 1)) == b""
        assert server.statistics()["tls_failures"] == 1
        with connected(server.port, trusting(files)) as client:
            assert client.echo() == b"hello"


def test_disabled_refuses_tls_and_takes_plaintext(files: CertificateFiles) -> None:
    with running_tls(files, mode="disabled") as server:
        assert answer_to(server, hello()) == b""
        assert server.statistics()["tls_failures"] == 1
        with connected(server.port, None) as client:
            assert client.echo() == b"hello"


@pytest.mark.parametrize("version", [0x0301, 0x0302])
def test_versions_before_tls_1_2_are_refused(files: CertificateFiles, version: int) -> None:
    with running_tls(files) as server:
        answer = answer_to(server, old_hello(version))
        assert (answer[0], answer[5:]) == (ALERT, bytes((2, PROTOCOL_VERSION)))
        assert server.statistics()["tls_failures"] == 1


@pytest.mark.parametrize("bytes_before_silence", [1, 100])
def test_a_handshake_that_stops_is_cut_off(files: CertificateFiles, bytes_before_silence: int) -> None:
    with running_tls(files, handshake_timeout_s=0.5) as server:
        began_s = time.monotonic()
        assert answer_to(server, hello()[:bytes_before_silence]) == b""
        assert time.monotonic() - began_s >= 0.4
        wait_until(lambda: server.statistics()["connections"] == 0, 20.0, "the connection to be gone")
        assert server.statistics()["tls_failures"] == 1


def test_a_client_that_was_served_is_not_cut_off_by_the_deadline(files: CertificateFiles) -> None:
    with running_tls(files, handshake_timeout_s=0.5) as server, connected(server.port, trusting(files)) as client:
        time.sleep(1.0)
        assert client.echo() == b"hello"


def test_a_handshake_has_a_bounded_size(files: CertificateFiles) -> None:
    """A hello may say that it has 16 MiB, and arrive in records for ever."""
    record = b"\x16\x03\x01\x40\x00" + b"\1\xff\xff\xff" + bytes(16_380)
    with running_tls(files) as server:
        answer_to(server, *[record] * (2 * MAX_HANDSHAKE_BYTES // len(record)))
        wait_until(lambda: server.statistics()["connections"] == 0, 20.0, "the connection to be gone")
        assert server.statistics()["tls_failures"] == 1
        assert server.statistics()["held_bytes"] == 0


@pytest.mark.parametrize("cut", [1, 5, 6, 100])
def test_a_damaged_hello_is_refused(files: CertificateFiles, cut: int) -> None:
    start = hello()
    damaged = start[:cut] + bytes(byte ^ 0xFF for byte in start[cut:])
    with running_tls(files) as server:
        answer_to(server, damaged[:cut], damaged[cut:] + bytes(70_000))
        wait_until(lambda: server.statistics()["connections"] == 0, 20.0, "the connection to be gone")
        assert server.statistics()["tls_failures"] == 1


def test_a_damaged_record_ends_the_connection_and_nothing_of_it_is_served(files: CertificateFiles) -> None:
    with running_tls(files) as server, connected(server.port, trusting(files)) as client:
        assert client.echo() == b"hello"
        served = server.statistics()["received_frames"]
        forged = b"\x17\x03\x03" + (200).to_bytes(2, "big") + bytes(200)
        with socket.socket(fileno=client.sock.detach()) as plain:
            plain.sendall(forged)
            wait_until(lambda: server.statistics()["tls_failures"] == 1, 20.0, "the record to be refused")
        assert server.statistics()["received_frames"] == served


def test_many_handshakes_at_once_take_turns_with_the_requests_of_others(files: CertificateFiles) -> None:
    count, start = 200, hello()
    waiting = 0
    with running_tls(files) as server, connected(server.port, trusting(files)) as client:
        client.echo()
        turns = server.listener.turns
        join_new = turns.join_new

        def count_waiting(worker: Worker) -> None:
            nonlocal waiting
            waiting += 1
            join_new(worker)

        turns.join_new = count_waiting  # type: ignore[method-assign]
        with contextlib.ExitStack() as stack:
            connect = functools.partial(socket.create_connection, (HOST, server.port), 60)
            crowd = [stack.enter_context(connect()) for _ in range(count)]
            wait_until(lambda: server.statistics()["connections"] == count + 1, 60.0, "the crowd to be accepted")

            def send_all() -> None:  # while the loop is held, so that all are there when it reads
                for sock in crowd:
                    sock.sendall(start)

            server.on_loop(send_all)
            assert client.echo() == b"hello"
            assert [sock.recv(1)[0] for sock in crowd] == [0x16] * count
            assert waiting > 0
            held_bytes = server.statistics()["held_bytes"]
        wait_until(lambda: server.statistics()["connections"] == 1, 60.0, "the crowd to be gone")
        assert (client.echo(), held_bytes, server.statistics()["held_bytes"]) == (b"hello", 0, 0)


def test_connections_with_tls_count_towards_the_limit_before_their_first_byte(files: CertificateFiles) -> None:
    config = ServerConfig(max_connections=2)
    with running_tls(files, config=config) as server, connected(server.port, trusting(files)) as client:
        client.echo()
        with socket.create_connection((HOST, server.port), timeout=60) as silent:
            wait_until(lambda: server.statistics()["connections"] == 2, 20.0, "the silent one to be accepted")
            assert answer_to(server, hello()) == b""
            assert server.statistics()["refused"] == 1
            assert silent.fileno() >= 0


def test_a_client_certificate_names_the_connections_user(files: CertificateFiles, tmp_path: Path) -> None:
    alice = issued_certificate(tmp_path, "alice", files)
    with running_tls(files, client_ca=str(files.certificate)) as server:
        with connected(server.port, trusting(files, alice)) as client:
            assert client.echo() == b"hello"
            assert [one.certificate_user for one in server.service.connections] == ["alice"]
        wait_until(lambda: server.statistics()["connections"] == 0, 20.0, "the first to be gone")
        with connected(server.port, trusting(files)) as client:
            assert client.echo() == b"hello"
            assert [one.certificate_user for one in server.service.connections] == [""]


def refused(server: RunningTls, context: ssl.SSLContext) -> None:
    """With TLS 1.3 a client learns of the refusal when it reads."""
    with pytest.raises((ssl.SSLError, ConnectionError)), connected(server.port, context) as client:
        client.echo()


def test_a_client_certificate_of_another_authority_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    stranger = own_certificate(tmp_path / "stranger")
    mallory = issued_certificate(tmp_path, "mallory", stranger)
    with running_tls(files, client_ca=str(files.certificate)) as server:
        refused(server, trusting(files, mallory))
        wait_until(lambda: server.statistics()["tls_failures"] == 1, 20.0, "the refusal to be counted")
        assert server.statistics()["received_frames"] == 0


def test_an_expired_client_certificate_is_refused(files: CertificateFiles, tmp_path: Path) -> None:
    late = issued_certificate(tmp_path, "late", files, valid_days=-1)
    with running_tls(files, client_ca=str(files.certificate)) as server:
        refused(server, trusting(files, late))
        assert server.statistics()["received_frames"] == 0


def test_a_client_without_a_certificate_is_refused_if_one_is_required(files: CertificateFiles, tmp_path: Path) -> None:
    with running_tls(files, client_ca=str(files.certificate), requires_client=True) as server:
        refused(server, trusting(files))
        with connected(server.port, trusting(files, issued_certificate(tmp_path, "bob", files))) as client:
            assert client.echo() == b"hello"


def test_a_client_that_verifies_refuses_a_server_of_another_authority(files: CertificateFiles, tmp_path: Path) -> None:
    with running_tls(files) as server:
        with pytest.raises(ssl.SSLCertVerificationError), connected(server.port, trusting(own_certificate(tmp_path))):
            pass
        wait_until(lambda: server.statistics()["connections"] == 0, 20.0, "the connection to be gone")


def test_a_peer_that_closes_within_the_handshake_leaves_nothing(files: CertificateFiles) -> None:
    with running_tls(files) as server:
        for cut in (1, 100, len(hello())):
            with socket.create_connection((HOST, server.port), timeout=60) as sock:
                sock.sendall(hello()[:cut])
        wait_until(lambda: server.statistics()["connections"] == 0, 20.0, "the connections to be gone")
        with connected(server.port, trusting(files)) as client:
            assert isinstance(client, TlsClient)
            assert client.echo() == b"hello"
