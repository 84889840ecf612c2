"""The bytes of the file that a media part names: in the request, below a folder, or elsewhere."""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from milepost.chat.conversation.media_parts import MediaPart
from milepost.config import MediaInputSettings
from milepost.errors import InvalidRequest
from milepost.media.remote import RemoteFetcher

DATA_HEAD = re.compile(r"data:([\w.+/-]*)((?:;[\w.+=\"-]*)*?)(;base64)?,", re.IGNORECASE)
MEDIA_TYPES = ("image/", "audio/", "application/octet-stream")


@dataclass(frozen=True, slots=True)
class MediaSources:
    """Reads the files of media parts, as far as the settings allow."""

    settings: MediaInputSettings
    fetcher: RemoteFetcher

    def is_inside(self, part: MediaPart) -> bool:
        """Say whether the file is in the request itself."""
        return not part.source.startswith(("http://", "https://", "file:"))

    def read_file(self, part: MediaPart) -> bytes:
        """Return the bytes of the file; blocks while it is fetched.

        Raises InvalidRequest for what is not allowed, too large, or cannot be read.
        """
        if part.source.startswith(("http://", "https://")):
            data = self._fetch(part)
        elif part.source.startswith("file:"):
            data = self._read_local(part)
        elif part.source[:5].lower() == "data:":
            data = self._decode_url(part)
        else:
            data = self._decode_base64(part, part.source)
        if not data:
            raise _refusal(part, "is an empty file; leave it out")
        return data

    def _fetch(self, part: MediaPart) -> bytes:
        if not self.settings.allow_remote:
            raise _refusal(
                part,
                "is a URL, and this server fetches none; send a data URL, or start the server "
                "with --allow-remote-media",
            )
        return self.fetcher.fetch(part.source, part.where)

    def _decode_url(self, part: MediaPart) -> bytes:
        head = DATA_HEAD.match(part.source[:200])
        if head is None or head[3] is None:
            raise _refusal(part, "is no data URL in base64, as data:image/png;base64,… is")
        media_type = head[1].lower()
        if media_type and not media_type.startswith(MEDIA_TYPES):
            raise _refusal(part, f"has the media type {head[1][:60]}; send an image or audio")
        return self._decode_base64(part, part.source[head.end() :])

    def _decode_base64(self, part: MediaPart, text: str) -> bytes:
        self._check_size(part, len(text) * 3 // 4 - 2)
        try:
            data = text.encode("ascii")
            if b"%" in data:
                data = unquote(text).encode("ascii")
            if b"-" in data or b"_" in data:  # the alphabet for URLs
                data = data.replace(b"-", b"+").replace(b"_", b"/")
            data = b"".join(data.split())
            data += b"=" * (-len(data) % 4)
            decoded = base64.b64decode(data, validate=True)
        except (UnicodeEncodeError, binascii.Error) as error:
            raise _refusal(
                part, "is neither a URL nor valid base64; send a data URL with the whole file"
            ) from error
        self._check_size(part, len(decoded))
        return decoded

    def _read_local(self, part: MediaPart) -> bytes:
        """Read a file below the folder, wherever links lead: what counts is where it really is."""
        if not self.settings.media_path:
            raise _refusal(
                part,
                "is a file URL, and this server reads no files; send a data URL, or start the "
                "server with --media-path FOLDER",
            )
        folder = Path(self.settings.media_path).expanduser().resolve()
        name = unquote(part.source.removeprefix("file:").removeprefix("//"))
        try:
            path = (folder / name).resolve(strict=True)
            if not path.is_relative_to(folder):
                raise FileNotFoundError  # the same answer: what exists elsewhere is not told
            with os.fdopen(os.open(path, os.O_RDONLY | _NO_TRICKS), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise FileNotFoundError
                self._check_size(part, status.st_size)
                return file.read(self.settings.max_bytes)
        except (OSError, ValueError, RuntimeError) as error:  # also: a null byte, a loop of links
            raise _refusal(
                part, f"names {name[:100]!r}, which is no file below --media-path"
            ) from error

    def _check_size(self, part: MediaPart, num_bytes: int) -> None:
        if num_bytes > self.settings.max_bytes:
            raise _refusal(
                part,
                f"has {num_bytes} bytes, over the limit of {self.settings.max_bytes}; send a "
                "smaller file, or start the server with a larger --media-max-mib",
            )


# A link put there after the check is not followed, and a named pipe not waited for.
_NO_TRICKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def _refusal(part: MediaPart, what: str) -> InvalidRequest:
    return InvalidRequest(f"{part.where} {what}", param="messages")
