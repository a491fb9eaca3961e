"""Which visitors may see the pages, and which may change something."""

from __future__ import annotations

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient
from starlette.types import Receive, Scope, Send

from psched.errors import ConfigError
from psched.schedules.collection import ScheduleCollection
from psched.web import ACTIONS, Access
from psched.web.pages import ACTIONS as POSTS
from psched.web.server import serve
from tests.web.conftest import OWN, Visit, settings_of

PAUSE = {"key": "nightly", "action": "pause"}


@pytest.fixture(autouse=True)
def nightly(schedules: ScheduleCollection) -> None:
    schedules.add("nightly", "report", cron="0 3 * * *")


def is_paused(schedules: ScheduleCollection) -> bool:
    return schedules["nightly"].metadata().paused


@pytest.mark.parametrize("path", POSTS)
def test_nothing_can_be_changed_unless_it_is_configured(path: str, visit: Visit, schedules: ScheduleCollection) -> None:
    for client in (visit(), visit(access=lambda _: Access("alice", ACTIONS))):
        assert client.post(path, data=PAUSE, headers=OWN).status_code == 403
    assert not is_paused(schedules)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:9808"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:9809"},
        {"Origin": "http://127.0.0.1:9808.evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
    ],
)
def test_another_site_can_change_nothing(headers: dict[str, str], visit: Visit, schedules: ScheduleCollection) -> None:
    client = visit(actions=True)
    answer = client.post("/schedule/action", data=PAUSE, headers=headers)
    assert (answer.status_code, answer.text[:7]) == (403, "refused")
    assert not is_paused(schedules)


@pytest.mark.parametrize("headers", [OWN, {"Origin": "http://127.0.0.1:9808"}])
def test_a_form_of_these_pages_can(headers: dict[str, str], visit: Visit, schedules: ScheduleCollection) -> None:
    client = visit(actions=True)
    answer = client.post("/schedule/action", data=PAUSE, headers=headers)
    assert (answer.status_code, answer.headers["location"]) == (303, "/schedule?done=pause&key=nightly")
    assert is_paused(schedules)


@pytest.mark.parametrize(("peer", "host"), [("192.0.2.7", "127.0.0.1:9808"), ("127.0.0.1", "evil.example:9808")])
def test_without_authentication_only_this_host_by_its_own_name_is_let_in(peer: str, host: str, visit: Visit) -> None:
    client = visit(peer=peer, host=host)
    for path in ("/", "/changes", "/static/psched.css"):
        assert client.get(path).status_code == 403
    assert "nightly" not in client.get("/").text


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "192.0.2.7"},
        {"x-forwarded-proto": "https"},
        {"Forwarded": "for=192.0.2.7"},
        {"Via": "1.1 proxy"},
        {"X-Real-IP": "192.0.2.7"},
        {"Origin": "https://cron.example.com"},
        {"Sec-Fetch-Site": "same-origin", "Referer": "https://cron.example.com/schedules"},
    ],
)
def test_visitors_of_a_proxy_on_this_host_are_not_local(headers: dict[str, str], visit: Visit) -> None:
    """The proxy's own address is local, and many proxies send the name of the host to which they connect."""
    answer = visit(actions=True).get("/", headers=headers)
    assert (answer.status_code, "came through a proxy" in answer.text) == (403, True)


def test_the_old_version_of_http_that_proxies_speak_is_not_local(visit: Visit) -> None:
    client = visit()

    async def of_proxy(scope: Scope, receive: Receive, send: Send) -> None:
        await client.app({**scope, "http_version": "1.0"}, receive, send)

    proxied = TestClient(of_proxy, "http://127.0.0.1:9808", client=("127.0.0.1", 50000))
    assert (client.get("/").status_code, proxied.get("/").status_code) == (200, 403)


def test_a_link_of_another_site_leads_a_local_visitor_here(visit: Visit) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Referer": "https://wiki.example.com/"}
    assert visit().get("/", headers=headers).status_code == 200


def test_names_of_this_host_can_be_configured(visit: Visit) -> None:
    assert visit(host="cron.example.com", hosts="cron.example.com").get("/").status_code == 200


def test_another_address_is_refused_without_authentication(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PSCHED_WEB_AUTH", raising=False)
    with pytest.raises(ConfigError, match=r"web\.listen: other hosts can reach 192\.0\.2\.7"):
        serve(settings_of(url), ("192.0.2.7", 0), lambda _: pytest.fail("it listens"))


def test_passwords_come_from_the_environment(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSCHED_WEB_AUTH", "alice:pass:wörd")
    monkeypatch.setenv("PSCHED_WEB_READ_AUTH", "bob:looks")
    client = visit(actions=True, peer="192.0.2.7", host="cron.example.com")
    for known in (None, ("alice", "pass"), ("alice", "looks"), ("", ""), ("bob", "")):
        refused = client.get("/", auth=known)
        assert refused.status_code == 401
        assert refused.headers["www-authenticate"].startswith("Basic ")
    assert client.get("/", headers={"Authorization": "Basic ///"}).status_code == 401
    assert client.get("/", auth=("alice", "pass:wörd".encode())).status_code == 200
    assert client.get("/", auth=("bob", "looks")).status_code == 200
    may = [
        client.post("/schedule/action", data=PAUSE, headers=OWN, auth=known).status_code
        for known in (("bob", "looks"), ("alice", "pass:wörd".encode()))
    ]
    assert may == [403, 303]


def test_a_password_without_a_user_is_an_error(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSCHED_WEB_AUTH", "secret")
    with pytest.raises(ConfigError, match=r"PSCHED_WEB_AUTH: expected user:password$"):
        visit()


def test_a_trusted_proxy_names_the_user(visit: Visit) -> None:
    web = {"user_header": "X-Forwarded-User", "trusted_proxies": "10.0.0.0/8", "host": "cron.example.com"}
    named = {"X-Forwarded-User": "alice"}
    assert "You are alice" in visit(peer="10.1.2.3", **web).get("/", headers=named).text
    assert visit(peer="10.1.2.3", **web).get("/").status_code == 403
    assert visit(peer="127.0.0.1", **web).get("/", headers=named).status_code == 403


@pytest.mark.parametrize("is_asynchronous", [False, True])
def test_the_host_application_decides(is_asynchronous: bool, visit: Visit, schedules: ScheduleCollection) -> None:
    def access(request: Request) -> Access | None:
        known = {"alice": Access("alice", {"run-now"}), "bob": Access("bob", {"pause"})}
        return known.get(request.headers.get("x-who", ""))

    async def later(request: Request) -> Access | None:
        return access(request)

    client = visit(later if is_asynchronous else access, peer="192.0.2.7", host="shop.example.com", actions=True)
    assert client.get("/").status_code == 403
    assert "You are alice" in client.get("/", headers={"x-who": "alice"}).text
    page = client.get("/schedule?key=nightly", headers={"x-who": "alice"}).text
    assert "Run now" in page
    assert ">Pause<" not in page
    assert client.post("/schedule/action", data=PAUSE, headers=OWN | {"x-who": "alice"}).status_code == 403
    assert not is_paused(schedules)
    assert client.post("/schedule/action", data=PAUSE, headers=OWN | {"x-who": "bob"}).status_code == 303
