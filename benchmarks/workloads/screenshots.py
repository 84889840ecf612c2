"""An agent that works on a web page and looks at it after every change.

    python -m benchmarks.workloads.screenshots FILE [--seed N]

Screenshots come as results of tools, between calls that return text. After six of them one is
looked at again, the same image as before; the client takes one out of the middle and puts a newer
one in its place; it goes back to what was; and the developer sends two images among words.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.workloads.agent import Agent
from benchmarks.workloads.conversation import Conversation, TraceBuilder
from benchmarks.workloads.material import Material, read_text, read_tools
from benchmarks.workloads.pictures import draw_screenshot
from milepost.traces.trace import Message, Trace, write_trace

NAME = "screenshots"
STARTED = "2026-03-03T08:00:00+00:00"
SIZE = (480, 320)  # pixels
NUM_LOOKS = 6
REPLACED = 2  # which look is replaced


def main() -> None:
    """Write the trace to the file that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    trace = make_screenshots(arguments.seed)
    write_trace(arguments.file, trace)
    print(f"{arguments.file}: {len(trace.lines)} requests")


def make_screenshots(seed: int = 1) -> Trace:
    """Return the trace."""
    builder = TraceBuilder(read_tools())
    page = _Page(_open_session(builder, seed))
    page.hear("Look at the page, and make its chart fit.")
    for number in range(NUM_LOOKS):
        page.change()
        page.look(number)
    page.look(1, kind="repeated")
    page.answer("user_turn")
    page.replace(REPLACED, NUM_LOOKS)
    page.hear_of([NUM_LOOKS + 1, 0])
    page.change()
    page.look(NUM_LOOKS + 2)
    page.answer("user_turn")
    return builder.build(NAME, STARTED, {"seed": seed, "generator": NAME})


def _open_session(builder: TraceBuilder, seed: int) -> Agent:
    material = Material("harbour", "typescript", seed)
    conversation = Conversation(builder, "harbour")
    conversation.say({"role": "system", "content": read_text("system_prompt.txt")})
    return Agent(material, conversation, material.choose_place())


@dataclass(slots=True)
class _Page:
    """The agent, and where in its conversation the screenshots are."""

    agent: Agent

    def hear(self, text: str) -> None:
        self.agent.conversation.say({"role": "user", "content": text})

    def hear_of(self, numbers: list[int]) -> None:
        """Get two images among words of the developer."""
        first, second = (_image(number) for number in numbers)
        parts = [
            _text("This is how it should be:"),
            first,
            _text("and this is how it was:"),
            second,
        ]
        self.agent.conversation.say({"role": "user", "content": parts})

    def change(self) -> None:
        """Change something, which returns text."""
        self._note_need()
        self.agent.step("tool_step")

    def look(self, number: int, kind: str = "image") -> None:
        """Take a screenshot: a call, and an image as its result."""
        self._note_need()
        self.agent.call(kind, [("bash", {"command": f"screenshot --page chart-{number}"})])
        call = self.agent.conversation.messages[-1]["tool_calls"][0]
        content = [_text(f"The page after change {number}:"), _image(number)]
        self.agent.conversation.say(
            {"role": "tool", "tool_call_id": call["id"], "content": content}
        )

    def answer(self, kind: str) -> None:
        """Close with words."""
        self._note_need()
        self.agent.answer(kind)

    def replace(self, look: int, number: int) -> None:
        """Send everything with another image in the place of one, and once more as it was."""
        main = self.agent.conversation
        at = [i for i, message in enumerate(main.messages) if _has_image(message)][look]
        replaced = main.rebuilt(main.take(0, at))
        replaced.say({**main.messages[at], "content": [_text("Taken again:"), _image(number)]})
        rest = main.take(at + 1, len(main.messages))
        self.agent.conversation = replaced.rebuilt(replaced.take(0, at + 1) + rest)
        self.hear("The third screenshot was old; this is a newer one. What now?")
        self.answer("replaced")
        self.agent.conversation = main
        self.hear("No, leave it as it was. What now?")
        self.answer("restored")

    def _note_need(self) -> None:
        if any(map(_has_image, self.agent.conversation.messages)):
            self.agent.markers["needs"] = "images"


def _has_image(message: Message) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part["type"] == "image_url" for part in content)


def _image(number: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": draw_screenshot(*SIZE, number)}}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


if __name__ == "__main__":
    main()
