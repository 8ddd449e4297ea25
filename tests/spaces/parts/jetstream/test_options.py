"""The forms of `backplane` in space.yaml, and their mistakes."""

import pytest
from mew_spaces.config.loading import parse_space
from mew_spaces.config.shared_storages import with_addresses
from mew_spaces.errors import SpaceConfigError
from mew_spaces.parts.jetstream.backplane_setting import JetStreamOptions


@pytest.mark.parametrize(
    ("written", "servers"),
    [
        ("nats://10.0.0.1:4222", ("nats://10.0.0.1:4222",)),
        ("nats://one,tls://two:5222/", ("nats://one:4222", "tls://two:5222")),
        ("nats://[::1]:4222", ("nats://[::1]:4222",)),
        ("embedded-nats", ("embedded-nats",)),
        ("{servers: [nats://one, 'nats://two'], replicas: 3}", ("nats://one:4222", "nats://two:4222")),
        ("{servers: 'nats://one, nats://two', user: ada, password_file: p}", ("nats://one:4222", "nats://two:4222")),
    ],
)
def test_addresses_are_read_as_text_or_list(written: str, servers: tuple[str, ...]) -> None:
    backplane = parse_space(f"space: {{id: a}}\nbackplane: {written}").backplane
    assert isinstance(backplane, JetStreamOptions)
    assert backplane.servers == servers
    assert backplane.is_embedded == (servers == ("embedded-nats",))


def test_an_option_replaces_the_servers_and_keeps_the_credentials() -> None:
    configured = parse_space("space: {id: a}\nbackplane: {servers: nats://one, token_file: t, replicas: 3}").backplane
    changed = with_addresses(configured, "nats://two,nats://three")
    servers = ("nats://two:4222", "nats://three:4222")
    assert changed == JetStreamOptions(servers=servers, token_file="t", replicas=3)
    assert with_addresses(configured, "embedded-nats") == JetStreamOptions(servers=("embedded-nats",))
    assert with_addresses(None, "nats://two") == JetStreamOptions(servers=("nats://two",))
    with pytest.raises(ValueError, match="must be nats://host:port"):
        with_addresses(configured, "http://two")


FORMS = "nats://host:port, tls://host:port, several of them with commas between, or embedded-nats"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        ("http://one", f"2:12: backplane: must be {FORMS}, not 'http://one'"),
        ("nats://one:70000", f"2:12: backplane: must be {FORMS}, not 'nats://one:70000'"),
        ("{servers: [nats://one, 'nats://'], prefix: x}", f"2:35: backplane.servers.1: must be {FORMS}, not 'nats://'"),
        (
            "nats://ada:secret@one",
            "2:12: backplane: an address must not contain a password; use 'user' and 'password_file', 'token_file'",
        ),
        ("{credentials: a.creds}", "2:12: 'servers' is missing under backplane"),
        ("{servers: nats://a, passwort: x}", "2:32: unknown key 'passwort' under backplane"),
        ("{servers: nats://a, replicas: 2}", "2:42: backplane.replicas: must be 1, 3 or 5, not 2"),
        ("{servers: nats://a, prefix: a.b}", "2:40: backplane.prefix"),
        ("{servers: nats://a, user: ada}", "2:12: backplane: set both 'user' and 'password_file', or neither"),
        ("{servers: nats://a, tls_key: k}", "2:12: backplane: set both 'tls_cert' and 'tls_key', or neither"),
        (
            "{servers: nats://a, token_file: t, credentials: c}",
            "2:12: backplane: has both 'credentials' and 'token_file'; remove one of them",
        ),
        (
            "{servers: embedded-nats, replicas: 3}",
            "2:12: backplane: 'embedded-nats' is one server without credentials; name the servers of a cluster instead",
        ),
    ],
)
def test_an_error_names_the_position_and_the_accepted_values(written: str, problem: str) -> None:
    with pytest.raises(SpaceConfigError) as caught:
        parse_space(f"space: {{id: a}}\nbackplane: {written}")
    assert str(caught.value).startswith(f"space.yaml:{problem}")


def test_a_password_in_an_address_is_not_repeated() -> None:
    with pytest.raises(SpaceConfigError) as caught:
        parse_space("space: {id: a}\nbackplane: nats://ada:secret@one")
    assert "secret" not in str(caught.value)
