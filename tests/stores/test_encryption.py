"""With `tls` a SQL server is trusted by its certificate and its name, and who is not is told why; Redis has its own."""

from __future__ import annotations

import pytest
import sqlalchemy as sa

from faultlab import prerequisites
from faultlab.certificate import Certificate, make_certificate
from faultlab.laboratory import Lab
from faultlab.mariadb import MariaDB
from faultlab.ports import HOST
from faultlab.servers import PASSWORD, Server
from psched.backends.sql import open_database

pytestmark = pytest.mark.needs("openssl")


@pytest.fixture
def certificate(own_server: Server) -> Certificate:
    """The certificate that the server shows from now on."""
    return certify(own_server)


def certify(server: Server) -> Certificate:
    """Restart the server with a certificate."""
    server.stop()
    made = make_certificate(server.folder)
    if isinstance(server, MariaDB):
        server.options = (f"--ssl-cert={made.file}", f"--ssl-key={made.key}", f"--ssl-ca={made.file}")
    else:
        server.options = ("--ssl=on", f"--ssl_cert_file={made.file}", f"--ssl_key_file={made.key}")
    server.start()
    return made


def cipher(url: str, tls: dict[str, str]) -> str | None:
    """Return how the connection of a client with these settings is encrypted."""
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


def test_a_server_is_trusted_by_its_certificate_and_its_name(own_server: Server, certificate: Certificate) -> None:
    unnamed = own_server.url(own_server.create_database())
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


def test_mysqlclient_refuses_a_certificate_of_another_name_or_authority(lab: Lab) -> None:
    prerequisites.require_mysqlclient()
    with lab.private(MariaDB) as server:
        made = certify(server)
        url = server.url(server.create_database()).replace("mysql:", "mysql+mysqldb:")
        assert cipher(url, {"verify": "none"})
        for tls in ({"verify": "full"}, {"ca": str(made.file)}):
            with pytest.raises(sa.exc.OperationalError, match="TLS/SSL error|certificate") as caught:
                cipher(url, tls)
            assert PASSWORD not in str(caught.value)


def test_without_tls_settings_pymysql_encrypts_where_the_server_offers_it(lab: Lab) -> None:
    with lab.private(MariaDB) as server:
        url = server.url(server.create_database())
        assert cipher(url, {}) == ""
        certify(server)
        assert cipher(url, {})
