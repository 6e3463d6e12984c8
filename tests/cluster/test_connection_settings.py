"""Settings of a connection: from arguments, options' defaults and the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_servers import (
    SECRET,
)

from opensearch_neural.cluster.addresses import DEFAULT_URL
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import InputError

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_without_any_setting_the_local_node_is_meant() -> None:
    assert ConnectionSettings.from_env().urls == (DEFAULT_URL,)


def test_every_setting_can_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.touch()
    for name, value in {
        "URL": "https://a.example:9200, https://b.example:9200",
        "USER": "reader",
        "PASSWORD": SECRET,
        "CA": str(ca),
        "VERIFY": "no",
        "TIMEOUT": "2.5",
        "PATIENCE": "7",
    }.items():
        monkeypatch.setenv(f"OSN_{name}", value)
    assert ConnectionSettings.from_env() == ConnectionSettings(
        urls=("https://a.example:9200", "https://b.example:9200"),
        user="reader",
        password=SECRET,
        ca=ca,
        verify=False,
        timeout=2.5,
        patience=7.0,
    )


def test_an_override_takes_the_place_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSN_URL", "http://a.example:9200")
    monkeypatch.setenv("OSN_TIMEOUT", "9")
    settings = ConnectionSettings.from_env(urls="http://b.example:9200", timeout=None)
    assert (settings.urls, settings.timeout) == (("http://b.example:9200",), 9.0)


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("http://localhost", "http://localhost:9200"),
        ("https://search.example", "https://search.example:443"),
        ("https://search.example/prefix/", "https://search.example:443/prefix"),
        ("http://[::1]:9201", "http://[::1]:9201"),
    ],
)
def test_the_port_that_a_url_leaves_out_is_that_of_opensearch_py(url: str, meant: str) -> None:
    assert ConnectionSettings(urls=(url,)).urls == (meant,)


@pytest.mark.parametrize("url", ["localhost:9200", "ftp://a:1", "http://", "http://a:9200/?q=1", "http://a b:9200", ""])
def test_what_is_no_url_is_refused_by_name(url: str) -> None:
    with pytest.raises(InputError, match="not a URL") as caught:
        ConnectionSettings(urls=(url,))
    assert repr(url) in caught.value.message


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://bob:s3cret", "https://***"),
        ("https://bob:s3cret#1@a:9200", "https://***@a:9200"),
        ("https://bob:1234/s3cret@a:9200", "https://***@a:9200"),
    ],
)
def test_what_may_be_a_password_in_a_url_that_is_none_is_not_shown(url: str, shown: str) -> None:
    with pytest.raises(InputError, match="not a URL") as caught:
        ConnectionSettings(urls=(url,))
    assert repr(shown) in caught.value.message


def test_a_password_in_a_url_of_the_environment_may_hold_commas_and_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, the URL was cut there, and the message that it is none showed the first part of the password."""
    monkeypatch.setenv("OSN_URL", " https://bob:s3,cr et@a.example:1,\nHTTPS://bob:s3,cr et@b.example:2, ")
    settings = ConnectionSettings.from_env()
    assert settings.urls == ("https://a.example:1", "https://b.example:2")
    assert (settings.user, settings.password) == ("bob", "s3,cr et")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("OSN_TIMEOUT", "soon", "number of seconds"),
        ("OSN_TIMEOUT", "0", "above 0"),
        ("OSN_TIMEOUT", "nan", "above 0"),
        ("OSN_TIMEOUT", "inf", "at most 86,400"),
        ("OSN_PATIENCE", "1e10", "from 0 to 86,400"),
        ("OSN_PATIENCE", "long", "number of seconds"),
        ("OSN_PATIENCE", "-1", "from 0 to 86,400"),
        ("OSN_VERIFY", "maybe", "true or false"),
        ("OSN_CA", "/nowhere/ca.pem", "/nowhere/ca.pem"),
        ("OSN_AWS_SERVICE", "aoss", "without a region"),
        ("OSN_PASSWORD", "alone", "no user"),
        ("OSN_USER", "alone", "no password"),
        ("OSN_TOKEN", "two words", "token"),
    ],
)
def test_a_variable_that_cannot_be_meant_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, expected: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=expected):
        ConnectionSettings.from_env()


def test_credentials_of_two_kinds_are_refused() -> None:
    with pytest.raises(InputError, match="two kinds"):
        ConnectionSettings(user="reader", password="x", token="y")
    with pytest.raises(InputError, match="two kinds"):
        ConnectionSettings(token="y", aws_region="eu-west-1")


def test_a_user_of_the_caller_does_not_get_the_password_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSN_USER", "admin")
    monkeypatch.setenv("OSN_PASSWORD", "of-admin")
    with pytest.raises(InputError, match="no password for the user 'reader'"):
        ConnectionSettings.from_env(user="reader")
    assert ConnectionSettings.from_env(user="admin").password == "of-admin"
