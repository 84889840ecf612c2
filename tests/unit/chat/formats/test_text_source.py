"""Reading text that is still coming."""

from __future__ import annotations

import pytest

from milepost.chat.formats.text_source import Malformed, OutOfText, Steps, Stops, T, TextSource


class Reading:
    """A reader at work on a source that is fed by hand."""

    def __init__(self, source: TextSource, steps: Steps[T]) -> None:
        self._source = source
        self._steps = steps
        self.result: object = None
        self.is_done = False
        self._advance()

    def feed(self, text: str) -> Reading:
        self._source.feed(text)
        self._advance()
        return self

    def _advance(self) -> None:
        try:
            next(self._steps)
        except StopIteration as stop:
            self.result, self.is_done = stop.value, True


def test_a_stop_that_may_become_a_longer_one_is_waited_for() -> None:
    source, written = TextSource(), list[str]()
    reading = Reading(source, source.copy_until(Stops(["<a", "<a>"]), written.append))

    assert not reading.feed("x<a").is_done
    assert written == ["x"]
    assert reading.feed(">y").result == "<a>"
    assert source.rest() == "y"


def test_a_stop_inside_what_may_become_another_is_waited_for() -> None:
    source, written = TextSource(), list[str]()
    reading = Reading(source, source.copy_until(Stops(["abcd", "bc"]), written.append))

    assert not reading.feed("abc").is_done
    assert reading.feed("x").result == "bc"
    assert written == ["a"]


def test_text_that_cannot_become_a_stop_is_written_at_once() -> None:
    source, written = TextSource(), list[str]()
    reading = Reading(source, source.copy_until(Stops(["</think>"]), written.append))

    reading.feed("a</thi").feed("s> b")

    assert written == ["a", "</this> b"]


def test_looking_ahead_reads_nothing() -> None:
    source = TextSource()
    reading = Reading(source, source.match_after_space(["ab", "abc"]))

    assert not reading.feed(" \nab").is_done
    assert reading.feed("d").result == "ab"
    assert source.rest() == "d"
    assert Reading(source, source.match_after_space(["x"])).result == ""
    assert source.rest() == "d"


def test_what_is_marked_is_kept_over_increments() -> None:
    source = TextSource()
    source.feed("abc")
    Reading(source, source.take(1))
    source.mark()
    Reading(source, source.take(3)).feed("de")

    assert source.since_mark() == "bcd"
    assert source.rest() == "bcde"
    source.unmark()
    assert (source.since_mark(), source.rest()) == ("", "e")


def test_a_reader_that_needs_more_than_there_is_says_so() -> None:
    source = TextSource()
    source.feed(" a")
    source.end()

    with pytest.raises(OutOfText):
        Reading(source, source.match_after_space(["ab"]))
    assert Reading(source, source.match_after_space(["b"])).result == ""
    assert Reading(source, source.match_after_space(["a", "ab"])).result == "a"


def test_what_is_too_long_is_malformed() -> None:
    source = TextSource()
    source.feed("abcdef")

    with pytest.raises(Malformed, match="no end within 5 characters"):
        Reading(source, source.read_until(Stops([">"]), 5))
