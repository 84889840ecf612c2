"""The media of a request are decoded once, on a thread, and again only when asked for."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from PIL import Image
from tests.fakes.file_server import file_server
from tests.unit.media.pictures import picture, saved

from milepost.chat.conversation.media_parts import MediaPart
from milepost.config import MediaInputSettings
from milepost.errors import InvalidRequest
from milepost.media.loader import MediaFiles, MediaLoader

Test = Callable[[MediaLoader], Coroutine[Any, Any, None]]


def part(image: Image.Image, index: int = 0, kind: str = "PNG") -> MediaPart:
    """Return an image as a part of a request."""
    url = f"data:image/png;base64,{base64.b64encode(saved(image, kind)).decode()}"
    return MediaPart("image", f"messages[0].content[{index}]", url)


def run(test: Test, max_fetched_bytes: int = 1 << 20, **settings: Any) -> None:
    """Run a test with a loader of its own, which holds 100 decoded bytes."""

    async def with_loader() -> None:
        here = ipaddress.ip_address("127.0.0.1")
        loader = MediaLoader(
            MediaInputSettings(**settings), max_fetched_bytes, lambda each: each == here, 100
        )
        try:
            await test(loader)
        finally:
            loader.close()

    asyncio.run(with_loader())


async def read_all(files: MediaFiles) -> list[bytes]:
    """Return the decoded bytes of all media."""
    return [await files.read_content(facts.key) for facts in files.facts]


def test_parts_keep_their_order_and_equal_content_has_one_key() -> None:
    async def test(loader: MediaLoader) -> None:
        red, blue = Image.new("RGB", (2, 1), "red"), Image.new("RGB", (1, 2), "blue")
        files = await loader.load([part(red), part(blue), part(red, kind="BMP")], 0)
        assert [(each.width, each.height) for each in files.facts] == [(2, 1), (1, 2), (2, 1)]
        assert files.facts[0].key == files.facts[2].key != files.facts[1].key
        assert await read_all(files) == [b"\xff\0\0" * 2, b"\0\0\xff" * 2, b"\xff\0\0" * 2]

    run(test)


def test_a_known_source_is_decoded_again_only_when_it_is_asked_for() -> None:
    async def test(loader: MediaLoader) -> None:
        first = await loader.load([part(picture())], 0)
        again = await loader.load([part(picture())], 0)
        assert again.facts == first.facts
        (key,) = {facts.key for facts in again.facts}
        assert list(first.held) == [key]
        assert again.held == {}
        assert await read_all(again) == await read_all(first)

    run(test)


def test_a_key_of_another_request_is_not_given_away() -> None:
    async def test(loader: MediaLoader) -> None:
        other = await loader.load([part(picture())], 0)
        files = await loader.load([part(picture(size=(1, 1)))], 0)
        with pytest.raises(KeyError):
            await files.read_content(other.facts[0].key)

    run(test)


def test_the_bad_part_is_named() -> None:
    async def test(loader: MediaLoader) -> None:
        bad = MediaPart("image", "messages[4].content[2]", "data:image/png;base64,AAAA")
        with pytest.raises(InvalidRequest, match=r"^messages\[4\]\.content\[2\] cannot be"):
            await loader.load([part(picture()), bad, part(picture())], 0)

    run(test)


def test_too_many_are_refused() -> None:
    async def test(loader: MediaLoader) -> None:
        with pytest.raises(InvalidRequest, match="has 3 images and audios, over the limit of 2"):
            await loader.load([part(picture())] * 3, 0)

    run(test, max_count=2)


def test_urls_are_fetched_side_by_side_and_where_allowed_only() -> None:
    async def test(loader: MediaLoader) -> None:
        with file_server() as server:
            server.bodies = {"/a": saved(picture()), "/b": saved(picture(size=(1, 1)))}
            urls = [f"{server.url}/{name}" for name in "ab"]
            parts = [MediaPart("image", f"p{i}", url) for i, url in enumerate(urls)]
            files = await loader.load(parts, 0)
            assert [facts.width for facts in files.facts] == [4, 1]
            assert sorted(server.asked) == ["/a", "/b"]
            server.bodies["/a"] = saved(picture(size=(6, 6)))
            changed = await loader.load(parts[:1], 0)
            assert changed.facts[0].width == 6

    run(test, allow_remote=True)


def test_an_url_that_comes_twice_is_fetched_once() -> None:
    async def test(loader: MediaLoader) -> None:
        with file_server() as server:
            server.bodies = {"/a": saved(picture())}
            parts = [MediaPart("image", f"p{i}", f"{server.url}/a") for i in range(3)]
            files = await loader.load([parts[0], part(picture()), *parts[1:]], 0)
            assert len({facts.key for facts in files.facts}) == 1
            assert server.asked == ["/a"]

    run(test, allow_remote=True)


def test_files_that_are_too_large_together_are_refused() -> None:
    file = saved(picture())

    async def test(loader: MediaLoader) -> None:
        with file_server() as server:
            server.bodies = dict.fromkeys(("/a", "/b", "/c"), file)
            urls = [server.url + path for path in server.bodies]
            parts = [MediaPart("image", f"p{i}", url) for i, url in enumerate(urls)]
            assert len((await loader.load(parts[:2], 0)).facts) == 2
            with pytest.raises(InvalidRequest, match=r"^p\d is one too many: .* --max-body-mib"):
                await loader.load(parts, 0)

    run(test, allow_remote=True, max_fetched_bytes=2 * len(file))


def test_decoded_bytes_of_all_requests_together_are_limited() -> None:
    async def test(loader: MediaLoader) -> None:
        colors = ("red", "lime", "blue")
        parts = [part(Image.new("RGB", (5, 4), color)) for color in colors]  # 60 bytes each
        first = await loader.load(parts[:1], 0)
        second = await loader.load(parts[1:2], 0)
        assert (len(first.held), len(second.held)) == (1, 0)
        assert await read_all(second) == [b"\0\xff\0" * 20]
        del first
        assert len((await loader.load(parts[2:], 0)).held) == 1

    run(test)


def test_the_loop_runs_on_while_an_image_is_decoded() -> None:
    async def test(loader: MediaLoader) -> None:
        large = part(Image.new("RGB", (3000, 3000)))
        loading = asyncio.create_task(loader.load([large], 0))
        num_turns = 0
        while not loading.done():
            await asyncio.sleep(0)
            num_turns += 1
        assert num_turns > 10
        assert (await loading).facts[0].height == 3000

    run(test)
