"""Remote media come from where they may, in time and in size; nothing else is even connected to."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterator

import pytest
from tests.fakes.file_server import Files, file_server

from milepost.errors import InvalidRequest
from milepost.media.remote import Address, RemoteFetcher, is_public

HERE = ipaddress.ip_address("127.0.0.1")


@pytest.fixture
def files() -> Iterator[Files]:
    """A server at the one address that tests allow."""
    with file_server() as serving:
        serving.bodies["/a.png"] = b"png"
        yield serving


def is_here(address: Address) -> bool:
    """Allow the test server, which is at no public address."""
    return address == HERE


def fetcher(max_bytes: int = 1 << 20, timeout_s: float = 30) -> RemoteFetcher:
    """Return a fetcher that may go to the test server only."""
    return RemoteFetcher(max_bytes=max_bytes, timeout_s=timeout_s, is_allowed=is_here)


@pytest.mark.parametrize(
    "text",
    [
        *("127.0.0.1", "127.8.8.8", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("0.0.0.0", "100.64.0.1", "192.0.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "::", "::1", "fe80::1", "fe80::1%1", "fc00::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a9fe:a9fe", "2002:7f00:1::"),
        *("2001::1", "2001:db8::1", "::127.0.0.1"),
    ],
)
def test_these_addresses_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text", ["1.1.1.1", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"]
)
def test_these_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


def test_a_file_is_fetched_and_redirects_are_followed(files: Files) -> None:
    files.redirects = {"/1": "/2", "/2": f"{files.url}/a.png"}
    assert fetcher().fetch(f"{files.url}/a.png", "w") == b"png"
    assert fetcher().fetch(f"{files.url}/1", "w") == b"png"
    assert files.asked == ["/a.png", "/1", "/2", "/a.png"]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "2130706433", "0x7f000001", "0"])
def test_however_the_own_machine_is_written_it_is_not_connected_to(files: Files, host: str) -> None:
    url = files.url.replace("127.0.0.1", host) + "/a.png"
    public_only = RemoteFetcher(max_bytes=100, timeout_s=30)
    with pytest.raises(InvalidRequest, match="is no public address|there is no host"):
        public_only.fetch(url, "messages[0].content[1]")
    assert files.asked == []


def test_a_redirect_to_an_address_that_is_not_allowed_is_not_followed(files: Files) -> None:
    with file_server("127.0.0.2") as inner:
        files.redirects["/a"] = f"{inner.url}/secret"
        with pytest.raises(InvalidRequest, match=r"'127\.0\.0\.2' is no public address"):
            fetcher().fetch(f"{files.url}/a", "messages[0].content[1]")
    assert (files.asked, inner.asked) == (["/a"], [])


@pytest.mark.parametrize("target", ["file:///etc/passwd", "gopher://127.0.0.1/x", "ftp://host/x"])
def test_a_redirect_to_another_scheme_is_not_followed(files: Files, target: str) -> None:
    files.redirects["/a"] = target
    with pytest.raises(InvalidRequest, match="redirects to a URL of scheme"):
        fetcher().fetch(f"{files.url}/a", "w")


@pytest.mark.parametrize("target", ["http://[::1", "//[x]/a"])
def test_a_redirect_to_what_is_no_url_is_refused(files: Files, target: str) -> None:
    files.redirects["/a"] = target
    with pytest.raises(InvalidRequest, match="w redirects to .* no valid URL"):
        fetcher().fetch(f"{files.url}/a", "w")


def test_redirects_end_somewhere(files: Files) -> None:
    files.redirects["/a"] = "/a"
    with pytest.raises(InvalidRequest, match="w has more than 3 redirects"):
        fetcher().fetch(f"{files.url}/a", "w")
    assert len(files.asked) == 4


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/missing", "cannot be fetched: the answer has status 404"),
        ("/large", "is larger than 1 MiB, the limit of --media-max-mib"),
        ("/endless", "is larger than 1 MiB"),
        ("/breaks-off", "cannot be fetched: the answer breaks off"),
    ],
)
def test_what_goes_wrong_is_said(files: Files, path: str, said: str) -> None:
    files.bodies["/large"] = bytes((1 << 20) + 1)
    with pytest.raises(InvalidRequest) as raised:
        fetcher().fetch(files.url + path, "messages[0].content[1]")
    assert str(raised.value).startswith(f"messages[0].content[1] {said}")


def test_a_server_that_does_not_get_done_is_left_at_the_deadline(files: Files) -> None:
    with pytest.raises(InvalidRequest, match=r"cannot be fetched: it took over 0\.2 s"):
        fetcher(timeout_s=0.2).fetch(f"{files.url}/stalls", "w")


def test_a_server_that_never_shakes_hands_is_left_too() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}/"
        with pytest.raises(InvalidRequest, match=r"cannot be fetched: it took over 0\.2 s"):
            fetcher(timeout_s=0.2).fetch(url, "w")


def test_https_is_not_spoken_in_the_clear(files: Files) -> None:
    with pytest.raises(InvalidRequest, match="w cannot be fetched: "):
        fetcher().fetch(files.url.replace("http:", "https:") + "/a.png", "w")
    assert files.asked == []


@pytest.mark.parametrize(
    "url",
    [
        *("http://", "http:///a", "http://user:word@127.0.0.1/", "http://127.0.0.1:x/"),
        *("http://127.0.0.1:99999/", "http://[::1/", "http://127.0.0.1/a b", "http://é/"),
        *("http://127.0.0.1/\r\nHost: x", "http://127.0.0.1:1/", f"http://{'a' * 70}.test/"),
    ],
)
def test_odd_urls_are_refused_with_a_sentence(url: str) -> None:
    with pytest.raises(InvalidRequest, match="^w .*; send the file itself as a data URL$"):
        fetcher().fetch(url, "w")
