"""How a model writes its replies: where reasoning stands, and what tool calls look like.

Learnt from a template by `call_formats`, read by `stream_parser`, written by `grammar`.

    reasoning.start  …  reasoning.end   text   section.start
      call.start  body  call.end   separator   call.start  body  call.end
    section.end

What a body looks like, and all that is done with it, is the matter of its format: a subclass of
`CallBody` in a module of its own.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from milepost.chat.formats.call_schemas import CallableTool
from milepost.chat.formats.grammar_writer import GrammarWriter, Schema
from milepost.chat.formats.probe_texts import CallTexts, Probe
from milepost.chat.formats.reply_writer import ReplyWriter
from milepost.chat.formats.text_source import Steps, TextSource

# What becomes of the reasoning of earlier replies when they are history.
EarlierReasoning = Literal["kept", "dropped_before_last_user", "dropped", "unknown"]
# "open": the prompt ends inside it; "possible": the model may begin it; "none": it must not.
ReasoningState = Literal["open", "possible", "none"]

JSON_MARKS = re.compile(r'[\s{}\[\]",:]*')


@dataclass(frozen=True, slots=True)
class Affix:
    """What stands before and after something; each may be empty."""

    start: str = ""
    end: str = ""


@dataclass(frozen=True, slots=True)
class ReasoningFormat:
    """Where reasoning stands in a reply; a prompt may already hold its start."""

    start: str  # "<think>", without the white space around it
    end: str  # "</think>"
    earlier: EarlierReasoning = "unknown"


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call of a history, or of an example, as it is to be written."""

    name: str
    arguments: Mapping[str, Any]
    arguments_text: str  # their JSON text as it arrived: the model's own spacing, mostly
    call_id: str = ""


class CallBody(ABC):
    """A format of tool calls: how a call is written between its markers.

    A format is a frozen dataclass of what its models do differently, and is listed in
    `call_formats.CALL_FORMATS`. Nothing else tells formats apart: what is done with calls goes
    through these methods.

    Most formats read and write one call, or one list of calls, wherever the markers of a
    `ToolCallFormat` say that one stands. One that `reads_whole_reply` says itself where text,
    reasoning and calls stand: it reads replies from their first character, and writes the grammar
    of all of them; its calls cannot be written into other text.
    """

    __slots__ = ()

    name: ClassVar[str]  # in the reports of `milepost probe`
    reads_whole_reply: ClassVar[bool] = False
    stands_in_lines: ClassVar[bool] = False  # line breaks are written between it and its markers

    # --- what a call is known by -------------------------------------------------------------

    @property
    @abstractmethod
    def markers(self) -> tuple[str, ...]:
        """Texts that are looked for in a body; their control tokens must be spelled out."""

    @property
    def is_list(self) -> bool:
        """Whether all calls of a reply stand in one list, between one pair of markers."""
        return False

    @property
    def head(self) -> str:
        """The marker that every body begins with, such as "<function="; "" for none."""
        return ""

    @property
    def lone_head(self) -> str:
        """The head where it tells of a call even if the markers before it are forgotten."""
        return ""

    @property
    def bare_start(self) -> str:
        """What calls begin with that have no marker at all; "" where they cannot be known then."""
        return ""

    # --- replies -----------------------------------------------------------------------------

    @abstractmethod
    def read_calls(self, reading: CallReading) -> Steps[None]:
        """Read one call, or a list of calls, from where its body begins; raises Malformed.

        With `reads_whole_reply`, read the reply until OutOfText is raised at its end.
        """

    @abstractmethod
    def write_call_grammar(
        self, tool: CallableTool, form: ToolCallFormat, writer: GrammarWriter
    ) -> str:
        """Return an expression for a call of one tool; `form` is what this body is a part of."""

    @property
    def holds_call_end(self) -> bool:
        """Whether that expression holds the marker at the end of the call as well."""
        return False

    def write_whole_grammar(self, spec: GrammarSpec, writer: GrammarWriter) -> str:
        """Return an expression for whole replies; asked for with `reads_whole_reply` only."""
        raise NotImplementedError(f"{self.name} stands in replies, which are not its own")

    def can_write_name(self, name: str) -> bool:
        """Say whether a call of a tool of this name would be read as one."""
        return True

    # --- histories ---------------------------------------------------------------------------

    @abstractmethod
    def write_call_text(self, call: WrittenCall) -> str:
        """Return a call as the model would have written it, without the markers around it."""

    # --- templates, each asked in the order of the table -------------------------------------

    @classmethod
    def recognise_reply(cls, probe: Probe, reasoning: ReasoningFormat | None) -> ReplyFormat | None:
        """Return the format of whole replies where a template writes this one."""
        return None

    @classmethod
    def recognise_calls(cls, texts: CallTexts) -> ToolCallFormat | None:
        """Return the format if calls of a history are written like this."""
        return None

    @classmethod
    def recognise_explained(cls, probe: Probe) -> ToolCallFormat | None:
        """Return the format if a prompt only tells of it, and no history shows a call."""
        return None

    def probe_pattern(self, number: int) -> str:
        """Return a regular expression of what a probed call must read like, without white space.

        What does not match was not understood. "" where `recognise_calls` is sure.
        """
        return ""


def tells_of_call(marker: str) -> bool:
    """Say whether a marker is more than what any JSON has, such as the `{"` of Apertus.

    Another one tells of a call only where a section of calls has begun.
    """
    return JSON_MARKS.fullmatch(marker) is None


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """What tool calls look like in a reply."""

    body: CallBody
    section: Affix = field(default_factory=Affix)  # around all calls of a reply
    call: Affix = field(default_factory=Affix)  # around each
    separator: str = ""  # between two calls, as far as it is not white space
    takes_several: bool = True  # the template renders more than one call in a message

    @property
    def start_marker(self) -> str:
        """The marker that a call begins with, "" where it has none."""
        return self.section.start.strip() or self.call.start.strip()

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts that calls are looked for by."""
        around = (self.section.start, self.section.end, self.call.start, self.call.end)
        return (*around, self.separator, *self.body.markers)

    def write_calls(self, calls: Sequence[WrittenCall]) -> str:
        """Return calls as the model would write them."""
        texts = map(self.body.write_call_text, calls)
        if self.body.is_list:
            listed = f"{self.call.start}[{', '.join(texts)}]{self.call.end}"
            return self.section.start + listed + self.section.end
        line = "\n" if self.body.stands_in_lines and self.call.start else ""
        written = (f"{self.call.start}{line}{text}{line}{self.call.end}" for text in texts)
        return self.section.start + (self.separator or line).join(written) + self.section.end


@dataclass(frozen=True, slots=True)
class ReplyFormat:
    """How a model writes its replies; all of it plain text where nothing is set."""

    reasoning: ReasoningFormat | None = None
    tool_calls: ToolCallFormat | None = None
    content: Affix = field(default_factory=Affix)  # around the text of a reply (Command R7B)

    @property
    def markers(self) -> tuple[str, ...]:
        """All texts that a parser looks for; their control tokens must be spelled out."""
        found = [self.content.start, self.content.end]
        if self.reasoning is not None:
            found += [self.reasoning.start, self.reasoning.end]
        if self.tool_calls is not None:
            found += self.tool_calls.markers
        return tuple(dict.fromkeys(text for text in found if text))


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReading:
    """What a format reads with."""

    source: TextSource
    form: ToolCallFormat
    writer: ReplyWriter
    parameters: Mapping[str, object]  # schema of the arguments by the name of a tool; {}: no calls
    # For formats that read whole replies:
    parses_reasoning: bool = True  # else it stays in the content as it was written
    starts_in_reasoning: bool = False  # the prompt ends inside of reasoning


@dataclass(frozen=True, slots=True, kw_only=True)
class GrammarSpec:
    """What a reply is to be."""

    reply_format: ReplyFormat
    reasoning: ReasoningState
    tools: Sequence[CallableTool] = ()  # that it may call
    must_call: bool = False
    takes_words: bool = False  # a call that must come may have a few words before it
    takes_several: bool = True  # calls
    is_narrowed: bool = False  # the prompt tells of more tools than may be called
    schema: Schema | None = None  # of its text; None: any text
