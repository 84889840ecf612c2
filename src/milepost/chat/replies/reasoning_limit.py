"""Whether a reply may reason, and for how long: for the template, and for the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from milepost.chat.formats.reply_format import ReasoningFormat, ReasoningState
from milepost.chat.vocab import Vocab
from milepost.protocol.messages import ReasoningLimit

NO_LIMIT = -1
SWITCHES = ("enable_thinking", "thinking")  # as templates name them


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningOptions:
    """What the server and a request want of reasoning."""

    mode: str = "auto"  # "on", "off", or as the template does it
    max_tokens: int = NO_LIMIT
    message: str = ""  # written before the end marker when the tokens are used up

    @property
    def kwargs(self) -> dict[str, Any]:
        """Return variables for the template; none where it may do as it likes."""
        if self.mode == "off" or self.max_tokens == 0:
            return dict.fromkeys(SWITCHES, False)
        return dict.fromkeys(SWITCHES, True) if self.mode == "on" else {}


def make_limit(
    options: ReasoningOptions, reasoning: ReasoningFormat | None, vocab: Vocab, *, is_open: bool
) -> ReasoningLimit | None:
    """Return what the engine has to know, None where there is no limit."""
    if reasoning is None or options.max_tokens == NO_LIMIT:
        return None
    start, end = reasoning.start.strip(), reasoning.end.strip()
    message = vocab.tokenize(options.message, add_special=False, parse_special=False)
    return ReasoningLimit(
        start=start,
        end=end,
        is_open=is_open,
        max_tokens=options.max_tokens,
        ending=(*message, *vocab.tokenize(end, add_special=False, parse_special=True)),
    )


def reasoning_state(kwargs: Mapping[str, Any], *, is_open: bool) -> ReasoningState:
    """Return where reasoning may stand in a reply to a prompt that was rendered with `kwargs`."""
    if is_open:
        return "open"
    return "none" if kwargs.get("enable_thinking") is False else "possible"
