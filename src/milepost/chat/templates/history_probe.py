"""Learns how a template writes the messages of a conversation that goes on.

It decides where the next request will stop agreeing with this one: whether a reply is written as
history just after the generation prompt that it was sampled after, and whether its reasoning goes
when the user speaks again. What ends a reply, and what stands between two messages, tells where
messages end.
"""

from __future__ import annotations

from functools import cached_property

from milepost.chat.conversation.conversation import Conversation, Message
from milepost.chat.conversation.rendered_prompt import common_prefix
from milepost.chat.formats.probe_texts import (
    ANSWER,
    LATER_ANSWER,
    LATER_USER,
    REASONING,
    Probe,
    answer,
    call,
    calling,
    result,
    user,
)
from milepost.chat.templates.frame_probe import Frame, Pair, read_frames

REASONED = answer(reasoning_content=REASONING)
CALLED = (user(), calling(call(0), text=LATER_ANSWER), result())
STARTS: dict[str, tuple[Message, ...]] = {"user": (user(),), "tool": CALLED}  # by last role


class HistoryProfile:
    """What a template does with histories, given the same variables and tools or none every time.

    The probe renders as requests do, with what the tool fallback writes. What is learnt so far is
    read as it is; `learn_…` adds to it. Two threads may do so at once: they learn the same.
    """

    def __init__(self, probe: Probe, *, has_tools: bool) -> None:
        self._probe = probe
        self._has_tools = has_tools
        # By the role of the last message, and whether there is reasoning in the conversation.
        self.rewrites: dict[tuple[str, bool], bool] = {}
        self.frames: dict[Pair, tuple[Frame, ...]] = {}  # seen between two messages like these
        self.num_lessons: dict[Pair, int] = {}  # how often these were learnt

    @cached_property
    def drops_reasoning(self) -> bool:
        """Whether reasoning that was shown is left out once another user message follows."""
        shown = self._history(user(), REASONED)
        later = self._history(user(), REASONED, user(LATER_USER))
        if shown is None or later is None:
            return False
        return REASONING in shown and REASONING not in later

    @cached_property
    def reply_trailer(self) -> str | None:
        """What stands between the text of a reply and the end of its message; None: unknown."""
        shown = self._history(user(), answer())
        later = self._history(user(), answer(), user(LATER_USER))
        if shown is None or later is None:
            return None
        after = [text.partition(ANSWER)[2] for text in (shown, later)]
        return after[0][: common_prefix(after[0], after[1])] if after[1] else None

    def learn_rewrites(self, last_role: str, *, has_reasoning: bool) -> bool:
        """Learn whether some reply to such a message is written differently after the prompt's end.

        True means that a later request may agree with this prompt up to its generation prompt, but
        not up to its last token. With `has_reasoning` the client is known to send reasoning back;
        without, it may do either.
        """
        start = STARTS.get(last_role, STARTS["user"])
        replies = [REASONED] if has_reasoning else [REASONED, answer()]
        found = self._rewrites_any(start, replies)
        self.rewrites[last_role, has_reasoning] = found
        return found

    def learn_frames(self, pair: Pair, window: Conversation, num_before: int) -> None:
        """Learn what stands after the first `num_before` messages of a real conversation."""
        self.num_lessons[pair] = self.num_lessons.get(pair, 0) + 1
        seen = read_frames(self._probe, window, num_before)
        self.frames[pair] = (*self.frames.get(pair, ()), *seen)

    def _rewrites_any(self, start: tuple[Message, ...], replies: list[Message]) -> bool:
        prompt = self._probe.prompt(*start, tools=self._has_tools)
        without = self._history(*start)
        if prompt is None or without is None:
            return False
        end = common_prefix(prompt, without)
        for reply in replies:
            for later_messages in ([reply], [reply, user(LATER_USER)]):
                later = self._history(*start, *later_messages)
                if later is not None and end <= _num_kept(prompt, later) < len(prompt):
                    return True
        return False

    def _history(self, *messages: Message) -> str | None:
        return self._probe.history(*messages, tools=self._has_tools)


def _num_kept(prompt: str, later: str) -> int:
    """Return how many characters will be the same tokens: white space may be merged."""
    end = common_prefix(prompt, later)
    if end == len(prompt) and prompt[-1:].isspace() and later[end : end + 1].isspace():
        return len(prompt.rstrip())
    return end
