"""A coding agent at work: questions, reasoning, tool calls and what the tools return."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from benchmarks.workloads.conversation import Conversation
from benchmarks.workloads.material import Material, Place, read_text
from milepost.traces.trace import Message

# 24,000 to 27,000 of SmolLM2's tokens, as logs need more than prose. With one more tool output and
# what the tools' definitions take, a prompt stays well below 36,000.
COMPACT_AT_CHARS = 72_000
NUM_KEPT_MESSAGES = 6
READING_S = (60, 1200)  # of a developer, before the next message
STEP_S = (2, 25)


@dataclass(slots=True)
class Agent:
    """One client with one conversation, which a compaction or a fork replaces."""

    material: Material
    conversation: Conversation
    place: Place
    step_kind: str = "tool_step"  # of requests that go on after a tool's result
    markers: dict[str, Any] = field(default_factory=dict)  # of the next request
    num_calls: int = 0

    def turn(self, question: str, num_steps: int) -> Iterator[None]:
        """Answer a question after so many tool calls; pauses after each request."""
        self.hear(question)
        yield from self.work("user_turn", num_steps)

    def hear(self, question: str) -> None:
        """Get a message of the developer, about another file than the one before."""
        self._wait(READING_S)
        self.place = self.material.choose_place()
        self.conversation.say({"role": "user", "content": question})

    def work(self, kind: str, num_steps: int) -> Iterator[None]:
        """Make tool calls and close with an answer; the first request is of that kind."""
        for number in range(num_steps):
            self.step(kind if number == 0 else self.step_kind)
            yield
        self.answer(self.step_kind)
        yield

    def step(self, kind: str) -> None:
        """Send a request that is answered by one tool call, and add its result."""
        name, arguments, result = self._draw_call()
        self.call(kind, [(name, arguments)])
        self.return_results([result])

    def call(self, kind: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
        """Send a request that is answered by tool calls."""
        reply = self._think()
        reply["tool_calls"] = [self._encode_call(*call) for call in calls]
        self._ask(kind, reply)

    def return_results(self, results: list[str]) -> None:
        """Add the results of the calls of the last reply."""
        calls = self.conversation.messages[-1]["tool_calls"]
        for call, result in zip(calls, results, strict=True):
            message = {"role": "tool", "tool_call_id": call["id"], "content": result}
            self.conversation.say(message)

    def answer(self, kind: str) -> None:
        """Send a request that is answered in words."""
        reply = self._think()
        reply["content"] = self.material.sentence("closings.txt", self.place)
        self._ask(kind, reply)

    def compact(self) -> None:
        """Replace the history by a summary and the last messages."""
        old = self.conversation
        old_messages = old.messages
        asking = old.fork(len(old_messages))
        asking.say({"role": "user", "content": read_text("compaction_prompt.txt")})
        self._wait(STEP_S)
        summary = self._summarise()
        asking.ask("compaction", {"role": "assistant", "content": summary})
        start = len(old_messages) - NUM_KEPT_MESSAGES
        while old_messages[start]["role"] == "tool":  # never without its call
            start -= 1
        new = old.rebuilt(old.take(0, 1))
        new.say({"role": "user", "content": f"Summary of the work so far:\n\n{summary}"})
        # The own thread ends here; what follows goes to another, after the kept messages.
        self.conversation = new.rebuilt(new.take(0, 2) + old.take(start, len(old_messages)))

    def helper(self, name: str) -> Agent:
        """Return a sub-agent with the same system prompt and tools and an empty history."""
        session = f"{self.conversation.session}/{name}"
        conversation = self.conversation.fork(1, session=session)
        return replace(self, conversation=conversation, step_kind="subagent", markers={})

    def _ask(self, kind: str, reply: Message) -> None:
        self._wait(STEP_S)
        size = sum(map(count_chars, self.conversation.messages))
        if size > COMPACT_AT_CHARS:
            self.compact()
        markers, self.markers = self.markers, {}
        self.conversation.ask(kind, reply, **markers)

    def _wait(self, bounds_s: tuple[int, int]) -> None:
        self.conversation.builder.now_s += self.material.draw(*bounds_s)

    def _think(self) -> Message:
        material = self.material
        return {
            "role": "assistant",
            "reasoning_content": material.prose(material.draw(2, 6), self.place),
            "content": material.prose(material.draw(0, 2), self.place),
        }

    def _encode_call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        self.num_calls += 1
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"id": f"call_{self.num_calls:04}", "type": "function", "function": function}

    def _draw_call(self) -> tuple[str, dict[str, Any], str]:
        draw = CALLS[self.material.draw(0, len(CALLS) - 1)]
        return draw(self.material, self.place)

    def _summarise(self) -> str:
        paths = "\n".join(f"- {self.material.choose_place().path}" for _ in range(8))
        findings = "\n".join(f"- {self.material.prose(2, self.place)}" for _ in range(10))
        steps = "\n".join(f"{i}. {self.material.sentence('prose.txt')}" for i in range(1, 5))
        return f"Files:\n{paths}\n\nFindings:\n{findings}\n\nNext:\n{steps}"


def count_chars(message: Message) -> int:
    """Return about how much text a message brings into the prompt."""
    calls = message.get("tool_calls", ())
    return (
        len(message["content"])
        + len(message.get("reasoning_content", ""))
        + sum(len(call["function"]["arguments"]) for call in calls)
    )


def _read(material: Material, place: Place) -> tuple[str, dict[str, Any], str]:
    return "read", {"path": place.path}, material.source_file(place, material.draw(2, 8))


def _read_other(material: Material, _: Place) -> tuple[str, dict[str, Any], str]:
    return _read(material, material.choose_place())


def _search(material: Material, place: Place) -> tuple[str, dict[str, Any], str]:
    arguments = {"pattern": place.words["noun"], "folder": material.project}
    return "grep", arguments, material.matches(place, material.draw(6, 30))


def _edit(material: Material, place: Place) -> tuple[str, dict[str, Any], str]:
    arguments = {
        "path": place.path,
        "old": material.function(place).split("\n\n")[0],
        "new": material.function(place),
    }
    return "edit", arguments, f"{place.path} was changed in one place."


def _test(material: Material, place: Place) -> tuple[str, dict[str, Any], str]:
    command = f"make test TESTS=tests/{place.words['package']}"
    return "bash", {"command": command}, material.test_report(material.draw(12, 45))


def _show_log(material: Material, place: Place) -> tuple[str, dict[str, Any], str]:
    command = f"tail -n 400 var/{place.words['package']}.log"
    return "bash", {"command": command}, material.log(material.draw(25, 80))


def _show_diff(material: Material, place: Place) -> tuple[str, dict[str, Any], str]:
    command = f"git diff -- {place.path}"
    return "bash", {"command": command}, material.diff(place, material.draw(1, 3))


def _list(material: Material, _: Place) -> tuple[str, dict[str, Any], str]:
    command = f"du -ab {material.project} | sort -k 2"
    return "bash", {"command": command}, material.listing(material.draw(15, 60))


# As often as agents make them: more reading than anything else.
CALLS: tuple[Callable[[Material, Place], tuple[str, dict[str, Any], str]], ...] = (
    *(_read, _read, _read_other, _read_other, _search, _search),
    *(_edit, _edit, _test, _test, _show_log, _show_diff, _list),
)
