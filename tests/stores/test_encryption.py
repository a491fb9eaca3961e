"""With `tls` psched trusts a SQL server by its certificate and name, or says why not. Redis has tests of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from faultlab import prerequisites
from faultlab.certificate import Certificate, make_certificate
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.ports import HOST
from faultlab.servers import PASSWORD, Server
from psched.backends import open_stores
from psched.backends.common.connection_options import Tls, encryption_finding
from psched.backends.sql import open_database
from psched.store import StoreSettings
from tests.few_descriptors import few_descriptors
from tests.stores.databases import KINDS

pytestmark = pytest.mark.needs("openssl")


@pytest.fixture(scope="module", params=list(KINDS))
def certified(request: pytest.FixtureRequest, lab: Lab) -> Iterator[tuple[Server, Certificate]]:
    """Each kind of SQL server, with the certificate that it shows."""
    with lab.private(KINDS[request.param]) as server:
        yield server, certify(server)


on_mariadb = pytest.mark.parametrize("certified", ["mariadb"], indirect=True)


def certify(server: Server) -> Certificate:
    """Restart the server with a new certificate. Return the certificate."""
    server.stop()
    made = make_certificate(server.folder)
    if isinstance(server, MariaDB):
        server.options = (f"--ssl-cert={made.file}", f"--ssl-key={made.key}", f"--ssl-ca={made.file}")
    else:
        server.options = ("--ssl=on", f"--ssl_cert_file={made.file}", f"--ssl_key_file={made.key}")
    server.start()
    return made


def cipher(url: str, tls: dict[str, str]) -> str | None:
    """Return the cipher of a connection with these settings; None or empty if it is not encrypted."""
    database = open_database(url, tls)
    question = {
        "mysql": "SELECT variable_value FROM information_schema.session_status WHERE variable_name = 'Ssl_cipher'",
        "postgresql": "SELECT cipher FROM pg_stat_ssl WHERE pid = pg_backend_pid()",
    }[database.dialect.name]
    try:
        found: str | None = database.scalar(sa.text(question), {})
        return found
    finally:
        database.close()


def told(url: str, tls: dict[str, str]) -> str:
    """Return the finding of `psched doctor` about the encryption of a connection."""
    schedules = open_stores("rdb", StoreSettings(url=url, holder="h", schedules="schedules", tls=tls)).schedules
    assert schedules is not None
    with contextlib.closing(schedules):
        schedules.create_tables()
        return next(finding.text for finding in schedules.diagnose() if finding.subject == "encryption")


def test_doctor_says_whether_a_connection_is_encrypted_and_verified(own_server: Server) -> None:
    unnamed = own_server.url(own_server.create_database())
    assert told(unnamed, {}) == "not encrypted"
    assert not cipher(unnamed, {})
    ca = str(certify(own_server).file)
    assert cipher(unnamed, {})  # without `tls`, too
    named = unnamed.replace(HOST, "localhost")
    own = f"?sslmode=verify-full&sslrootcert={ca}" if named.startswith("postgresql") else f"?ssl_ca={ca}"
    for url, tls, verify in [
        (unnamed, {}, "none"),
        (unnamed, {"verify": "none"}, "none"),
        (unnamed, {"ca": ca, "verify": "ca"}, "ca"),
        (named, {"ca": ca}, "full"),
        (named + own, {}, "full"),
    ]:
        assert told(url, tls) == encryption_finding(True, verify, "", None).message


@on_mariadb
def test_doctor_asks_mysqlclient_as_well(certified: tuple[Server, Certificate]) -> None:
    prerequisites.require_mysqlclient()
    server, _ = certified
    url = server.url(server.create_database()).replace("mysql:", "mysql+mysqldb:")
    assert told(url, {"verify": "none"}).startswith("encrypted, but the server's certificate is not verified")


@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_shortage_of_descriptors_is_an_outage_and_no_unreadable_certificate(
    certified: tuple[Server, Certificate], free: int
) -> None:
    server, certificate = certified
    name = "ssl_ca" if isinstance(server, MariaDB) else "sslrootcert"
    url = f"{server.url(server.create_database()).replace(HOST, 'localhost')}?{name}={certificate.file}"
    with contextlib.closing(open_database(url, {})) as database:
        with few_descriptors(free):
            try:
                database.scalar(sa.text("SELECT 1"))
            except Exception as error:  # noqa: BLE001 – not every driver needs three descriptors
                assert database.retry_reason(error) is not None, repr(error)
        assert database.scalar(sa.text("SELECT 1")) == 1


REMEDY = "set `tls:` with `ca`, the file of the authority that signed the certificate"


@pytest.mark.parametrize(
    ("encrypted", "verify", "host", "tls", "words"),
    [
        (False, "none", "db.example.com", None, f"not encrypted; {REMEDY}"),
        (True, "none", "db.example.com", None, f"another machine could pose as the server; {REMEDY}"),
        (True, "ca", "db.example.com", None, None),
        (True, "none", "db.example.com", Tls(verify="none"), None),
        (False, "none", "/run/postgresql", None, None),
        (False, "none", "127.0.0.1", None, None),
    ],
)
def test_what_a_network_can_read_or_forge_is_a_warning_unless_it_is_asked_for(
    encrypted: bool, verify: str, host: str, tls: Tls | None, words: str | None
) -> None:
    finding = encryption_finding(encrypted, verify, host, tls)
    assert finding.warning == (words is not None)
    assert finding.text.endswith(words or "") and (REMEDY in finding.text) == finding.warning


def test_a_server_is_trusted_by_its_certificate_and_its_name(certified: tuple[Server, Certificate]) -> None:
    server, certificate = certified
    unnamed = server.url(server.create_database())
    named = unnamed.replace(HOST, "localhost")
    ca = str(certificate.file)
    for url, tls in [(named, {"ca": ca}), (unnamed, {"ca": ca, "verify": "ca"}), (unnamed, {"verify": "none"})]:
        assert cipher(url, tls)
    for url, tls, reason in [
        (named, {"verify": "full"}, "certificate verify failed"),
        (unnamed, {"ca": ca}, "does not match host name|IP address mismatch"),
    ]:
        with pytest.raises(sa.exc.OperationalError, match=reason) as caught:
            cipher(url, tls)
        assert PASSWORD not in str(caught.value)


@on_mariadb
def test_mysqlclient_refuses_a_certificate_of_another_name_or_authority(certified: tuple[Server, Certificate]) -> None:
    prerequisites.require_mysqlclient()
    server, made = certified
    url = server.url(server.create_database()).replace("mysql:", "mysql+mysqldb:")
    assert cipher(url, {"verify": "none"})
    for tls in ({"verify": "full"}, {"ca": str(made.file)}):
        with pytest.raises(sa.exc.OperationalError, match="TLS/SSL error|certificate") as caught:
            cipher(url, tls)
        assert PASSWORD not in str(caught.value)
