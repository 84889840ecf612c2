"""Reads the events of a streamed chat answer, and says what they tell about its cost.

Understands OpenAI's chunks and llama-server's additions to them: `timings` and `prompt_progress`.
Pure: lines and times come in, numbers go out. The client and the recorder feed it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from milepost.traces.trace import Message

DATA = "data:"
DONE = "[DONE]"

Event = dict[str, Any]
Status = Literal["ok", "cancelled", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatAnswer:
    """What came back for one request. None: the server did not report it."""

    status: Status
    took_s: float
    ttft_s: float | None = None
    num_prompt_tokens: int | None = None
    num_cached: int | None = None
    num_prefilled: int | None = None  # of a cancelled request: until it was cancelled
    prefill_ms: float | None = None
    num_decoded: int | None = None
    decode_tokens_per_s: float | None = None
    text: str = ""  # as far as it is known what the model wrote before any tool call
    reply: Message = field(default_factory=dict)
    error: str = ""


class AnswerReader:
    """Collects the events of one answer; of several choices, those of the first."""

    def __init__(self, sent_s: float) -> None:
        self._sent_s = sent_s
        self._first_s: float | None = None
        self._error = ""
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._tool_calls: dict[int, Event] = {}
        self._timings: Event = {}
        self._usage: Event = {}
        self._progress: Event = {}
        self.is_finished = False
        self.finish_reason = ""

    def read_line(self, line: str, now_s: float) -> None:
        """Take a line of the stream. Raises ValueError when it is no event of a chat answer."""
        if not line.startswith(DATA):
            return  # an empty line, or a comment that keeps the connection open
        data = line.removeprefix(DATA).strip()
        if data == DONE:
            self.is_finished = True
        elif data:
            self._read_event(json.loads(data), now_s)

    def has_begun(self) -> bool:
        """Whether the first token has come."""
        return self._first_s is not None

    def prefilled_fraction(self) -> float | None:
        """Return how much of its prefill is done; None where that is not reported."""
        if not self._progress:
            return None
        num_cached = self._progress["cache"]
        num_left = self._progress["total"] - num_cached
        return (self._progress["processed"] - num_cached) / num_left if num_left else 1.0

    def finish(self, status: Status, now_s: float) -> ChatAnswer:
        """Return the answer, which ended now."""
        if self._error:
            status = "failed"
        num_prompt_tokens, num_cached, num_prefilled = self._count_prompt()
        return ChatAnswer(
            status=status,
            took_s=now_s - self._sent_s,
            ttft_s=self._ttft_s(status, now_s),
            num_prompt_tokens=num_prompt_tokens,
            num_cached=num_cached,
            num_prefilled=num_prefilled,
            prefill_ms=self._prefill_ms(),
            num_decoded=self._timings.get("predicted_n", self._usage.get("completion_tokens")),
            decode_tokens_per_s=self._decode_rate(),
            text="".join(self._reasoning) or "".join(self._content),
            reply=self._make_reply(),
            error=self._error,
        )

    def _read_event(self, event: Event, now_s: float) -> None:
        if error := event.get("error"):
            self._error = str(error.get("message", error) if isinstance(error, dict) else error)
            return
        self._timings = event.get("timings") or self._timings
        self._usage = event.get("usage") or self._usage
        self._progress = event.get("prompt_progress") or self._progress
        for choice in event.get("choices") or ():
            if choice.get("index", 0) == 0:
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
                self._read_delta(choice.get("delta") or {}, now_s)

    def _read_delta(self, delta: Event, now_s: float) -> None:
        content = delta.get("content") or ""
        reasoning = delta.get("reasoning_content") or delta.get("reasoning") or ""
        calls = delta.get("tool_calls") or ()
        if content or reasoning or calls:
            self._first_s = now_s if self._first_s is None else self._first_s
        self._content.append(content)
        self._reasoning.append(reasoning)
        for call in calls:
            self._read_tool_call(call)

    def _read_tool_call(self, call: Event) -> None:
        known = self._tool_calls.setdefault(
            call.get("index", 0),
            {"id": "", "type": "function", "function": {"name": "", "arguments": ""}},
        )
        function = call.get("function") or {}
        known["id"] = call.get("id") or known["id"]
        known["function"]["name"] += function.get("name") or ""
        known["function"]["arguments"] += function.get("arguments") or ""

    def _count_prompt(self) -> tuple[int | None, int | None, int | None]:
        """Return the prompt tokens: all, cached, prefilled. `timings` are the most exact."""
        total, num_cached = self._usage.get("prompt_tokens"), self._cached_in_usage()
        if "prompt_n" in self._timings:
            num_prefilled = self._timings["prompt_n"]
            num_cached = self._timings.get("cache_n", num_cached)
            if num_cached is not None:
                return num_cached + num_prefilled, num_cached, num_prefilled
            return total, None if total is None else total - num_prefilled, num_prefilled
        if self._progress and not self._usage:  # cancelled
            num_cached = self._progress["cache"]
            return self._progress["total"], num_cached, self._progress["processed"] - num_cached
        if total is None or num_cached is None:
            return total, num_cached, None
        return total, num_cached, total - num_cached

    def _cached_in_usage(self) -> int | None:
        details = self._usage.get("prompt_tokens_details") or {}
        num_cached: int | None = details.get("cached_tokens")
        return num_cached

    def _ttft_s(self, status: Status, now_s: float) -> float | None:
        if self._first_s is not None:
            return self._first_s - self._sent_s
        # An answer without text: its first token ended it.
        return now_s - self._sent_s if status == "ok" else None

    def _prefill_ms(self) -> float | None:
        value = self._timings.get("prompt_ms", self._progress.get("time_ms"))
        return None if value is None else float(value)

    def _decode_rate(self) -> float | None:
        # Of fewer than two tokens, the time is not that of decoding.
        if self._timings.get("predicted_n", 0) < 2:
            return None
        rate = self._timings.get("predicted_per_second")
        return None if rate is None else float(rate)

    def _make_reply(self) -> Message:
        reply: Message = {"role": "assistant", "content": "".join(self._content)}
        if reasoning := "".join(self._reasoning):
            reply["reasoning_content"] = reasoning
        if self._tool_calls:
            reply["tool_calls"] = [call for _, call in sorted(self._tool_calls.items())]
        return reply
