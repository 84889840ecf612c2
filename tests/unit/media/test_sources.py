"""Where the bytes of media come from, and what is said of the places they may not come from."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from milepost.chat.conversation.media_parts import MediaPart
from milepost.config import MediaInputSettings
from milepost.errors import InvalidRequest
from milepost.media.remote import RemoteFetcher
from milepost.media.sources import MediaSources

WHERE = "messages[0].content[1]"
BYTES = bytes(range(250, 256)) + b"abc?>"
TEXT = base64.b64encode(BYTES).decode()


def read(source: str, **settings: object) -> bytes:
    """Read a source with settings."""
    known = MediaInputSettings(**settings)  # type: ignore[arg-type]
    fetcher = RemoteFetcher(max_bytes=known.max_bytes, timeout_s=1)
    return MediaSources(known, fetcher).read_file(MediaPart("image", WHERE, source))


@pytest.mark.parametrize(
    "source",
    [
        f"data:image/png;base64,{TEXT}",
        f"DATA:IMAGE/PNG;charset=utf-8;BASE64,{TEXT}",
        f"data:;base64,{TEXT}",
        TEXT,
        TEXT.rstrip("="),
        f"{TEXT[:6]}\r\n {TEXT[6:]}\n",
        base64.urlsafe_b64encode(BYTES).decode(),
        f"data:image/png;base64,{TEXT.replace('+', '%2B').replace('/', '%2F')}",
    ],
)
def test_base64_is_read_in_all_its_forms(source: str) -> None:
    assert read(source) == BYTES


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("data:,", "is no data URL in base64"),
        ("data:image/png,abc", "is no data URL in base64"),
        ("data:text/html;base64,PGI+", "has the media type text/html; send an image or audio"),
        ("data:image/png;base64,", "is an empty file; leave it out"),
        ("data:image/png;base64,a", "is neither a URL nor valid base64"),
        ("data:image/png;base64,é", "is neither a URL nor valid base64"),
        ("ftp://host/a.png", "is neither a URL nor valid base64"),
        ("http://example.com/a.png", "is a URL, and this server fetches none; send a data URL"),
        ("file://a.png", "is a file URL, and this server reads no files; send a data URL"),
    ],
)
def test_bad_sources_get_one_sentence(source: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        read(source)
    assert str(raised.value).startswith(f"{WHERE} {said}")
    assert raised.value.param == "messages"


def test_files_over_the_limit_are_refused_with_both_sizes() -> None:
    with pytest.raises(InvalidRequest, match="has 11 bytes, over the limit of 10; send a smaller"):
        read(TEXT, max_bytes=10)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for media beside a secret."""
    media = tmp_path / "media"
    (media / "sub").mkdir(parents=True)
    (media / "sub" / "a b.png").write_bytes(b"png")
    (tmp_path / "secret").write_bytes(b"secret")
    (tmp_path / "media-too").mkdir()
    (tmp_path / "media-too" / "x").write_bytes(b"secret")
    (media / "out").symlink_to(tmp_path)
    (media / "link").symlink_to(tmp_path / "secret")
    (media / "inner").symlink_to(media / "sub" / "a b.png")
    (media / "loop").symlink_to(media / "loop")
    os.mkfifo(media / "pipe")
    return media


@pytest.mark.parametrize(
    "source",
    ["file://sub/a%20b.png", "file:sub/a b.png", "file://sub/../sub/a b.png", "file://inner"],
)
def test_files_below_the_folder_are_read(folder: Path, source: str) -> None:
    assert read(source, media_path=str(folder)) == b"png"


def test_files_may_be_named_by_their_whole_path(folder: Path) -> None:
    assert read(f"file://{folder}/sub/a b.png", media_path=str(folder)) == b"png"


@pytest.mark.parametrize(
    "name",
    [
        *("../secret", "%2e%2e/secret", "sub/../../secret", "../media-too/x", "/etc/passwd"),
        *("link", "out/secret", "loop", "pipe", "sub", "", "missing", "a%00b", "~/x"),
    ],
)
def test_nothing_else_is(folder: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match="is no file below --media-path"):
        read(f"file://{name}", media_path=str(folder))


def test_large_files_are_refused_unread(folder: Path) -> None:
    with pytest.raises(InvalidRequest, match="has 3 bytes, over the limit of 2"):
        read("file://inner", media_path=str(folder), max_bytes=2)
