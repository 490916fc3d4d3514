"""Binding, capabilities, stopping, and clients that stop reading."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r, p4r_grpc
from p4rt_rig import TIMEOUT_S, Rig

from ringstep.softswitch.engine import Switch
from ringstep.softswitch.p4rt import serve
from ringstep.softswitch.p4rt.errors import Code, P4RuntimeError
from ringstep.softswitch.p4rt.stream import Outbox


def test_port_zero_picks_a_free_port(rig: Rig) -> None:
    assert rig.server.port > 0
    assert rig.server.address == f"127.0.0.1:{rig.server.port}"


def test_port_in_use_is_an_os_error_that_names_it(rig: Rig) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {rig.server.address}"):
        serve(Switch(), rig.server.address)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=address):
            serve(Switch(), address)


def test_capabilities_name_the_version(rig: Rig) -> None:
    reply = rig.client().stub.Capabilities(p4r.CapabilitiesRequest())
    assert reply.p4runtime_api_version == "1.5.0"
    again = rig.client().stub.Capabilities(p4r.CapabilitiesRequest(device_id=1))
    assert again == reply
    with pytest.raises(grpc.RpcError) as caught:
        rig.client().stub.Capabilities(p4r.CapabilitiesRequest(device_id=2))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_stopping_ends_streams_with_unavailable(rig: Rig) -> None:
    stream = rig.primary(1).streams[0]
    rig.server.stop(grace_s=5)
    error = stream.end()
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert "stopping" in error.details()


def test_port_is_free_after_stop() -> None:
    rig = Rig()
    rig.close()
    again = serve(Switch(), rig.server.address)
    again.stop(grace_s=0)


def test_device_id_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="device id 0"):
        serve(Switch(device_id=0), "127.0.0.1:0")


CLIENT = """
import sys
from finsy.proto import p4r, p4r_grpc
import grpc, queue
requests = queue.SimpleQueue()
update = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=9))
requests.put(p4r.StreamMessageRequest(arbitration=update))
channel = grpc.insecure_channel(sys.argv[1])
for reply in p4r_grpc.P4RuntimeStub(channel).StreamChannel(iter(requests.get, None)):
    print(reply.arbitration.status.code, flush=True)
"""


@pytest.mark.slow
def test_primary_that_stops_answering_is_no_longer_primary() -> None:
    rig = Rig(keepalive_s=1.0)
    command = [sys.executable, "-c", CLIENT, rig.server.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as frozen:
        try:
            assert frozen.stdout is not None
            assert frozen.stdout.readline().strip() == "0"
            backup = rig.client().stream()
            backup.arbitrate(1)
            assert backup.advisory() == (Code.ALREADY_EXISTS, 9)
            frozen.send_signal(signal.SIGSTOP)
            assert backup.advisory() == (Code.NOT_FOUND, 9)
            backup.arbitrate(9)
            assert backup.advisory() == (Code.OK, 9)
        finally:
            frozen.kill()
            rig.close()


def make_certificates(folder: Path) -> None:
    """A CA and, signed by it, a certificate for `localhost` and one for a client."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl command (Debian package openssl) to make certificates")

    def run(*arguments: str) -> None:
        subprocess.run([openssl, *arguments], cwd=folder, check=True, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-keyout")
    run(*new, "ca.key", "-x509", "-subj", "/CN=ca", "-out", "ca.crt", "-days", "2")
    (folder / "names").write_text("subjectAltName=DNS:localhost")
    for name in ("server", "client"):
        run(*new, f"{name}.key", "-subj", f"/CN={name}", "-out", f"{name}.csr")
        run(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key"),
            *("-CAcreateserial", "-out", f"{name}.crt", "-days", "2", "-extfile", "names"),
        )


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca = (tmp_path / "ca.crt").read_bytes()
    pairs = {
        name: ((tmp_path / f"{name}.key").read_bytes(), (tmp_path / f"{name}.crt").read_bytes())
        for name in ("server", "client")
    }
    credentials = grpc.ssl_server_credentials([pairs["server"]], ca, require_client_auth=True)
    rig = Rig(credentials=credentials)
    try:
        target = f"localhost:{rig.server.port}"
        known = grpc.ssl_channel_credentials(ca, *pairs["client"])
        with grpc.secure_channel(target, known) as channel:
            stub = p4r_grpc.P4RuntimeStub(channel)
            reply = stub.Capabilities(p4r.CapabilitiesRequest(), timeout=TIMEOUT_S)
            assert reply.p4runtime_api_version
        with grpc.secure_channel(target, grpc.ssl_channel_credentials(ca)) as channel:
            stub = p4r_grpc.P4RuntimeStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Capabilities(p4r.CapabilitiesRequest(), timeout=TIMEOUT_S)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        rig.close()


# --------------------------------------------------------------------------------------- outboxes


def packet(number: int) -> p4r.StreamMessageResponse:
    return p4r.StreamMessageResponse(packet=p4r.PacketIn(payload=bytes([number])))


def advisory(election_id: int) -> p4r.StreamMessageResponse:
    update = p4r.MasterArbitrationUpdate(election_id=p4r.Uint128(low=election_id))
    return p4r.StreamMessageResponse(arbitration=update)


def test_full_outbox_drops_and_counts_packets() -> None:
    outbox = Outbox(max_packets=2)
    assert [outbox.put_packet(packet(n)) for n in range(4)] == [True, True, False, False]
    assert outbox.dropped == 2


def test_arbitration_overtakes_packets_and_is_not_dropped_for_them() -> None:
    outbox = Outbox(max_packets=1)
    outbox.put_packet(packet(1))
    outbox.put_packet(packet(2))
    outbox.put_control(advisory(3))
    assert outbox.get() == advisory(3)
    assert outbox.get() == packet(1)


def test_closed_outbox_delivers_control_then_ends() -> None:
    outbox = Outbox()
    outbox.put_packet(packet(1))
    outbox.put_control(advisory(3))
    outbox.close()
    assert outbox.get() == advisory(3)
    assert outbox.get() is None
    assert not outbox.put_packet(packet(2))


def test_client_that_lets_advisories_pile_up_is_cut_off() -> None:
    outbox = Outbox(max_control=2)
    for number in range(3):
        outbox.put_control(advisory(number))
    assert isinstance(outbox.error, P4RuntimeError)
    assert [outbox.get(), outbox.get(), outbox.get()] == [advisory(0), advisory(1), None]
