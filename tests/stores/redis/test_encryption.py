"""With rediss:// psched connects to the server that the certificate names, and to no other."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from faultlab.certificate import make_certificate
from faultlab.laboratory import Lab
from faultlab.ports import free_port
from faultlab.redis import Redis
from faultlab.servers import PASSWORD
from psched.backends import open_stores
from psched.backends.common.connection_options import encryption_finding
from psched.backends.redis.client import located
from psched.errors import ConfigError
from psched.store import Finding, ScheduleStore, StoreSettings

pytestmark = pytest.mark.needs("openssl")


@pytest.fixture
def place(lab: Lab) -> Iterator[tuple[int, Path]]:
    """The encrypted port of a server, and the file of its certificate, which names `localhost`."""
    with lab.private(Redis) as server:
        assert isinstance(server, Redis)
        server.stop()
        made = make_certificate(server.folder)
        port = free_port()
        files = (
            "--tls-cert-file",
            str(made.file),
            "--tls-key-file",
            str(made.key),
            "--tls-ca-cert-file",
            str(made.file),
        )
        server.options = ("--tls-port", str(port), *files, "--tls-auth-clients", "no")
        server.start()
        yield port, made.file


def opened(url: str, **tls: Any) -> ScheduleStore:
    store = open_stores("redis", StoreSettings(url=url, holder="h", schedules="schedules", tls=tls)).schedules
    assert store is not None
    return store


def test_a_server_is_trusted_by_its_certificate_and_its_name(place: tuple[int, Path], tmp_path: Path) -> None:
    port, certificate = place
    ca = str(shutil.copy(certificate, tmp_path / "ca.pem"))
    named, unnamed = (f"rediss://:{PASSWORD}@{host}:{port}/0" for host in ("localhost", "127.0.0.1"))
    for url, tls in [(named, {"ca": ca}), (unnamed, {"ca": ca, "verify": "ca"}), (unnamed, {"verify": "none"})]:
        store = opened(url, **tls)
        store.create_tables()
        assert store.now() > 0
        wakeup = store.open_wakeup()
        assert wakeup is not None
        wakeup.listen(1)
        assert not wakeup.is_notified()
        wakeup.close()
        [finding] = [finding for finding in store.diagnose() if finding.subject == "encryption"]
        assert finding == encryption_finding(True, tls.get("verify", "full"), "", None)
        store.close()
    for url, tls in [(named, {}), (unnamed, {"ca": ca})]:
        store = opened(url, **tls)
        with pytest.raises(Exception, match=r"(?i)certificate") as caught:
            store.now()
        assert PASSWORD not in str(caught.value)
        store.close()


def test_doctor_warns_of_a_network_that_can_read_along() -> None:
    remote = located("redis://redis.example.com/0", {}).encryption()
    assert (remote.text, remote.warning) == ("not encrypted; write rediss:// in `url:`", True)
    for local in ("redis://localhost/0", "unix:///run/redis/redis.sock"):
        assert located(local, {}).encryption() == Finding("encryption", True, "not encrypted")


def test_files_without_encryption_are_refused(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    with pytest.raises(ConfigError, match="write rediss://"):
        opened("redis://h/0", ca=str(ca))
