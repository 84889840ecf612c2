"""Text that arrives in increments, for readers that are written as if all of it were there.

A reader is a generator that yields where it needs more text and looks only at what it has been
given for sure. So what it makes of a text does not depend on where the text is cut: it waits
whenever more text could change a decision, and no longer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")
Steps = Generator[None, None, T]  # a reader; its result is T
Write = Callable[[str], None]

SPACE = re.compile(r"\s*")


class OutOfText(Exception):
    """The text has ended where a reader needs more of it to decide; caught by `stream_parser`."""


class Malformed(Exception):
    """The text is not what a reader is there for; caught by `stream_parser`."""


class Stops:
    """Texts that end a run of other text; empty ones do not count."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.texts = tuple(sorted({text for text in texts if text}, key=len, reverse=True))
        self._pattern = re.compile("|".join(map(re.escape, self.texts))) if self.texts else None
        self._max_held_chars = max((len(text) for text in self.texts), default=1) - 1

    def find(self, text: str, pos: int) -> re.Match[str] | None:
        """Return the first stop at or after `pos`, the longest where several begin."""
        return self._pattern.search(text, pos) if self._pattern is not None else None

    def held_from(self, text: str, pos: int) -> int:
        """Return where the end of the text begins that may become a stop, or the text's length."""
        for start in range(max(pos, len(text) - self._max_held_chars), len(text)):
            tail = text[start:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self.texts):
                return start
        return len(text)


class TextSource:
    """The text that has arrived and is not read yet.

    Every method that returns `Steps` raises OutOfText when the text has ended too early. All that
    look ahead read nothing until they have decided.
    """

    def __init__(self) -> None:
        self._text = ""
        self._pos = 0
        self._mark = -1  # text from here on is kept; -1: from `_pos` on
        self._hold = -1  # the same for what may yet be read in another way
        self._is_ended = False

    def feed(self, text: str) -> None:
        """Add text."""
        kept = min(pos for pos in (self._pos, self._mark, self._hold) if pos >= 0)
        self._text = self._text[kept:] + text
        self._pos -= kept
        self._mark = max(self._mark - kept, -1)
        self._hold = max(self._hold - kept, -1)

    def end(self) -> None:
        """No more text will come."""
        self._is_ended = True

    def mark(self, num_chars_back: int = 0) -> None:
        """Remember a place, at or before this one, that `since_mark` and `rest` go back to."""
        self._mark = self._pos - num_chars_back

    def unmark(self) -> None:
        """Forget the marked place."""
        self._mark = -1

    def hold(self, num_chars_back: int) -> None:
        """Remember another place, before this one, that `release` goes back to."""
        self._hold = self._pos - num_chars_back

    def release(self) -> str:
        """Forget that place; return what was read since."""
        start, self._hold = self._hold, -1
        return self._text[start : self._pos]

    def since_mark(self) -> str:
        """Return what was read since the marked place; nothing where none is marked."""
        return self._text[self._mark : self._pos] if self._mark >= 0 else ""

    def rest(self) -> str:
        """Return all that is there, from the marked place on where there is one."""
        return self._text[self._pos if self._mark < 0 else self._mark :]

    def back(self, num_chars: int) -> None:
        """Unread what has just been read, also while it is written.

        Only before the reader waits for more text: what was read before is gone.
        """
        self._pos -= num_chars

    def peek(self) -> Steps[str]:
        """Return the next character."""
        return (yield from self.peek_text(1))

    def peek_text(self, num_chars: int) -> Steps[str]:
        """Return so many of the next characters."""
        while self._pos + num_chars > len(self._text):
            yield from self._wait()
        return self._text[self._pos : self._pos + num_chars]

    def peek_after_space(self) -> Steps[str]:
        """Read white space and return the character after it."""
        yield from self.skip_space()
        return self._text[self._pos]

    def skip_space(self) -> Steps[None]:
        """Read white space up to the next other character."""
        while True:
            self._pos = self._space_end()
            if self._pos < len(self._text):
                return
            yield from self._wait()

    def take(self, num_chars: int) -> Steps[str]:
        """Read so many characters."""
        text = yield from self.peek_text(num_chars)
        self._pos += num_chars
        return text

    def copy_while(self, pattern: re.Pattern[str], write: Write) -> Steps[None]:
        """Write out text while a pattern for runs of single characters goes on."""
        while True:
            found = pattern.match(self._text, self._pos)
            if found is not None and found.end() > self._pos:
                self._write_to(found.end(), write)
            if self._pos < len(self._text):
                return
            yield from self._wait()

    def read_while(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Return the text of such a run."""
        pieces: list[str] = []
        yield from self.copy_while(pattern, pieces.append)
        return "".join(pieces)

    def copy_until(self, stops: Stops, write: Write) -> Steps[str]:
        """Write out text up to a stop; read and return the stop."""
        while True:
            found = stops.find(self._text, self._pos)
            held = stops.held_from(self._text, self._pos)
            if found is not None and (found.start() < held or self._is_ended):
                self._write_to(found.start(), write)
                self._pos = found.end()
                return found[0]
            self._write_to(min(held, found.start()) if found is not None else held, write)
            yield from self._wait()

    def read_until(self, stops: Stops, max_chars: int) -> Steps[tuple[str, str]]:
        """Return the text before a stop, and the stop; raises Malformed if it is longer."""
        pieces: list[str] = []
        num_chars = 0

        def write(text: str) -> None:
            nonlocal num_chars
            num_chars += len(text)
            pieces.append(text)
            if num_chars > max_chars:
                raise Malformed(f"no end within {max_chars} characters")

        stop = yield from self.copy_until(stops, write)
        return "".join(pieces), stop

    def peek_any_after_space(self, options: Sequence[str]) -> Steps[str]:
        """Return which option follows, white space aside, the longest of several; "" for none."""
        found, _ = yield from self._look(options)
        return found

    def match_after_space(self, options: Sequence[str]) -> Steps[str]:
        """Do the same and read it with the white space before it; nothing is read for ""."""
        found, num_spaces = yield from self._look(options)
        if found:
            self._pos += num_spaces + len(found)
        return found

    def expect_after_space(self, text: str) -> Steps[None]:
        """Read white space and this text; raises Malformed if something else follows."""
        if text and not (yield from self.match_after_space((text,))):
            raise Malformed(f"{text!r} is missing")

    def _look(self, options: Sequence[str]) -> Steps[tuple[str, int]]:
        wanted = sorted((text for text in options if text), key=len, reverse=True)
        if not wanted:
            return "", 0
        while True:
            start = self._space_end()
            rest = self._text[start : start + len(wanted[0])]
            may_grow = any(len(text) > len(rest) and text.startswith(rest) for text in wanted)
            if not may_grow or (self._is_ended and rest):
                found = next((text for text in wanted if rest.startswith(text)), "")
                if found or not may_grow:
                    return found, start - self._pos
            yield from self._wait()

    def _space_end(self) -> int:
        found = SPACE.match(self._text, self._pos)
        assert found is not None, "the pattern matches the empty text"
        return found.end()

    def _write_to(self, end: int, write: Write) -> None:
        if end > self._pos:
            start, self._pos = self._pos, end
            write(self._text[start:end])

    def _wait(self) -> Steps[None]:
        if self._is_ended:
            raise OutOfText
        yield
