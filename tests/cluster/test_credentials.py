"""Where credentials come from, and that they are shown nowhere."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from cluster_servers import (
    SECRET,
    Answer,
    http_server,
    says_opensearch,
)

from opensearch_neural.cluster.connect import connect, connect_async
from opensearch_neural.cluster.settings import ConnectionSettings
from opensearch_neural.errors import ClusterError, InputError

pytestmark = pytest.mark.usefixtures("clean_environment")


def test_credentials_in_a_url_are_taken_out_of_it_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings = ConnectionSettings(urls=(f"http://reader:{quote(SECRET, safe='')}@search.example:9200",))
    assert settings.urls == ("http://search.example:9200",)
    assert (settings.user, settings.password) == ("reader", SECRET)
    assert "OSN_PASSWORD" in caplog.text
    assert SECRET not in caplog.text + repr(settings)


def test_a_url_of_the_caller_with_credentials_replaces_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OSN_USER", "admin")
    monkeypatch.setenv("OSN_PASSWORD", "of-admin")
    settings = ConnectionSettings.from_env(urls="http://reader:pw@search.example:9200")
    assert (settings.user, settings.password) == ("reader", "pw")


@pytest.mark.parametrize(
    "url",
    [
        "http://reader:s3cret@host:port",
        "http://reader:s3cret/x@host:9200",
        "http://reader:s3cret#x@host:9200",
        "reader:s3cret@host:9200",
        "http://reader:s3cret@host:9200/?q=1",
    ],
)
def test_a_url_that_is_refused_does_not_show_its_password(url: str) -> None:
    with pytest.raises(InputError) as caught:
        ConnectionSettings(urls=(url,))
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("credentials", [{"user": "reader", "password": SECRET}, {"token": "s3cret-token"}])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_secret_is_in_a_repr_a_log_line_or_an_error(
    credentials: dict[str, str], asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = ConnectionSettings(urls=("http://127.0.0.1:1",), **credentials)
    shown = [repr(settings), str(settings)]
    with http_server(lambda _: Answer.of_json({"error": "Unauthorized"}, 401)) as server:
        settings = dataclasses.replace(settings, urls=(server.url,))
        with pytest.raises(ClusterError) as caught:
            if asynchronous:
                asyncio.run(connect_async(settings=settings))
            else:
                connect(settings=settings)
        sent = server.requests[0].headers["authorization"]
    shown += ["".join(traceback.format_exception(caught.value)), caplog.text]
    client = connect(settings=settings, check=False)
    shown += [repr(client), str(client)]
    for secret in (SECRET, "s3cret", sent, sent.split()[1]):
        assert secret not in "\n".join(shown)


def test_a_password_outside_latin_1_arrives_as_utf_8() -> None:
    with http_server(says_opensearch) as server:
        connect(settings=ConnectionSettings(urls=(server.url,), user="réader", password="пароль")).close()
        kind, sent = server.requests[0].headers["authorization"].split()
    assert (kind, base64.b64decode(sent).decode()) == ("Basic", "réader:пароль")


@pytest.mark.parametrize("name", ["OSN_USER", "OSN_PASSWORD"])
def test_a_user_or_password_that_is_not_utf_8_is_named_and_not_shown(name: str) -> None:
    credentials = {"OSN_USER": "reader", "OSN_PASSWORD": "pw", name: b"latin-1-\xe9".decode("utf-8", "surrogateescape")}
    osn = [sys.executable, "-m", "opensearch_neural.cli", "doctor", "--url", "http://127.0.0.1:1"]
    environment = {**os.environ, "PYTHONUTF8": "1", **credentials}
    done = subprocess.run(osn, env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: the {'user name' if name == 'OSN_USER' else 'password'} is not in UTF-8")
    assert "latin-1" not in done.stderr


def test_a_url_whose_password_is_not_utf_8_is_refused_without_showing_it() -> None:
    with pytest.raises(InputError, match="is not in UTF-8") as caught:
        ConnectionSettings(urls=("https://reader:s3cret%e9@search.example",))
    assert "s3cret" not in str(caught.value)


def test_a_token_arrives_as_a_bearer_token() -> None:
    with http_server(says_opensearch) as server:
        connect(settings=ConnectionSettings(urls=(server.url,), token="abc.def")).close()
        assert server.requests[0].headers["authorization"] == "Bearer abc.def"


def test_credentials_over_plain_http_to_another_machine_are_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    credentials = {"user": "reader", "password": "x"}
    connect(settings=ConnectionSettings(urls=("http://127.0.0.1:9200",), **credentials), check=False).close()
    assert "clear text" not in caplog.text
    connect(settings=ConnectionSettings(urls=("http://search.example:9200",), **credentials), check=False).close()
    assert "clear text to http://search.example:9200" in caplog.text


def netrc_file(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o600)
    return path


def test_credentials_can_come_from_a_netrc_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OSN_URL", "https://search.example")
    netrc_file(
        tmp_path / ".netrc",
        "machine other.example login o password p\nmachine search.example login reader password pw\n",
    )
    settings = ConnectionSettings.from_env()
    assert (settings.user, settings.password) == ("reader", "pw")
    monkeypatch.setenv(
        "OSN_NETRC", str(netrc_file(tmp_path / "mine", "machine search.example login me password mine\n"))
    )
    settings = ConnectionSettings.from_env()
    assert (settings.user, settings.password) == ("me", "mine")


def test_the_default_entry_of_a_netrc_file_is_not_sent_to_whatever_host(tmp_path: Path) -> None:
    netrc_file(tmp_path / ".netrc", "default login reader password pw\n")
    assert ConnectionSettings.from_env().credentials == "none"


def test_a_netrc_entry_of_another_user_is_not_taken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    netrc_file(tmp_path / ".netrc", "machine 127.0.0.1 login reader password pw\n")
    monkeypatch.setenv("OSN_USER", "admin")
    with pytest.raises(InputError, match="no password for the user 'admin'"):
        ConnectionSettings.from_env()


def test_a_netrc_file_that_knows_only_some_hosts_sends_its_password_to_none(tmp_path: Path) -> None:
    netrc_file(tmp_path / ".netrc", "machine a.example login reader password s3cret\n")
    with pytest.raises(InputError, match=r"no entry for b\.example") as caught:
        ConnectionSettings.from_env(urls=("http://a.example", "http://b.example"))
    assert "s3cret" not in str(caught.value)


def test_a_broken_netrc_file_is_named_with_its_line_and_without_its_words(tmp_path: Path) -> None:
    path = netrc_file(tmp_path / ".netrc", "machine 127.0.0.1 login reader\n  secretword s3cret\n")
    with pytest.raises(InputError, match=f"{path}, line 2") as caught:
        ConnectionSettings.from_env()
    assert "s3cret" not in "".join(traceback.format_exception(caught.value))
    assert "secretword" not in "".join(traceback.format_exception(caught.value))


def test_a_netrc_file_that_others_can_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = netrc_file(tmp_path / ".netrc", "machine 127.0.0.1 login reader password pw\n")
    path.chmod(0o644)
    ConnectionSettings.from_env()
    assert "chmod 600" in caplog.text


def test_a_netrc_file_that_is_named_and_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSN_NETRC", "/nowhere/netrc")
    with pytest.raises(InputError, match="/nowhere/netrc"):
        ConnectionSettings.from_env()


@pytest.mark.parametrize("home", [None, f"/{'x' * 300}"], ids=["none", "unreadable"])
def test_a_user_whose_home_folder_cannot_be_read_has_no_netrc_file(
    monkeypatch: pytest.MonkeyPatch, home: str | None
) -> None:
    """Before: RuntimeError, and PermissionError in a service that gave up root's rights and kept HOME=/root. A name that is
    too long stands for that folder, because root may read all others."""
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    else:
        monkeypatch.setenv("HOME", home)
    assert ConnectionSettings.from_env().credentials == "none"
