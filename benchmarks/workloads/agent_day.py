"""A day of a developer with coding agents: everything that makes a cache lose what it had.

    python -m benchmarks.workloads.agent_day FILE [--seed N]

writes it as a trace. The same seed gives the same bytes.

Morning: one session in one project, everything stays as it was sent, then two sub-agents side by
side, a corrected message, a side branch and the return from it, and a compaction. At noon the
server is restarted. Afternoon: the client strips old reasoning and moves a reminder along; a
second project joins with a long first prompt that is cancelled and sent again; both sessions take
turns; a screenshot is looked at in a branch of its own, which servers without images skip.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.workloads.agent import Agent
from benchmarks.workloads.conversation import Conversation, TraceBuilder
from benchmarks.workloads.material import Language, Material, read_text, read_tools
from benchmarks.workloads.pictures import draw_screenshot
from milepost.traces.trace import Trace, write_trace

NAME = "agent_day"
STARTED = "2026-03-02T08:00:00+00:00"
NOON_S = 4 * 3600.0
REMINDER = (
    "\n\n<system-reminder>\nThe to-do list is not empty. Go on with the step that is in progress, "
    "and do not mention this reminder to the developer.\n</system-reminder>"
)


def main() -> None:
    """Write the trace to the file that is named."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    arguments = parser.parse_args()
    trace = make_agent_day(arguments.seed)
    write_trace(arguments.file, trace)
    print(f"{arguments.file}: {len(trace.lines)} requests")


def make_agent_day(seed: int = 1) -> Trace:
    """Return the trace of a day."""
    day = _Day(TraceBuilder(read_tools()), seed)
    harbour = day.open_session("harbour", "python")
    _spend_morning(day, harbour)
    day.builder.now_s = max(day.builder.now_s, NOON_S)
    harbour.markers["restart_before"] = True
    harbour.conversation.strips_reasoning = True
    harbour.conversation.reminder = REMINDER
    _spend_afternoon(day, harbour)
    return day.builder.build(NAME, STARTED, {"seed": seed, "generator": NAME})


@dataclass(frozen=True, slots=True)
class _Day:
    builder: TraceBuilder
    seed: int

    def open_session(self, project: str, language: Language) -> Agent:
        """Return an agent that has just been started in a project."""
        material = Material(project, language, self.seed)
        notes = read_text("project_notes.txt").split("\n")
        environment = material.whole(
            "environment.txt",
            project=project,
            branch=f"{project}-{material.draw(100, 999)}",
            language=language,
            notes="\n".join(f"- {note}" for note in notes),
            listing=material.listing(40),
        )
        conversation = Conversation(self.builder, project)
        system = read_text("system_prompt.txt") + environment
        conversation.say({"role": "system", "content": system})
        return Agent(material, conversation, material.choose_place())

    def ask_title(self, agent: Agent, question: str) -> None:
        """Let the client ask for a title, on the side and without tools."""
        session = f"{agent.conversation.session}/title"
        asking = Conversation(self.builder, session, has_tools=False)
        asking.say({"role": "system", "content": read_text("title_prompt.txt")})
        asking.say({"role": "user", "content": question})
        words = agent.material.choose_place().words
        title = f"{words['Verb']} {words['adjective']} {words['noun']}s"
        asking.ask("title", {"role": "assistant", "content": title})


def _spend_morning(day: _Day, agent: Agent) -> None:
    question = agent.material.sentence("questions.txt")
    day.ask_title(agent, question)
    _finish(agent.turn(question, 8))
    _finish(_use_helpers(agent))
    _finish(_correct(agent))
    _finish(_branch_off(agent))
    for num_steps in (9, 8, 7):
        question = agent.material.sentence("questions.txt")
        _finish(agent.turn(question, num_steps))


def _spend_afternoon(day: _Day, harbour: Agent) -> None:
    _finish(harbour.turn(harbour.material.sentence("questions.txt"), 5))
    tidewatch = day.open_session("tidewatch", "typescript")
    _finish(_give_up_and_retry(day, tidewatch))
    for num_steps in (5, 7, 4):
        questions = [agent.material.sentence("questions.txt") for agent in (harbour, tidewatch)]
        _take_turns(
            harbour.turn(questions[0], num_steps),
            tidewatch.turn(questions[1], num_steps + 1),
        )
    _finish(_look_at_screenshot(harbour))
    _finish(_use_helpers(tidewatch))
    question = harbour.material.sentence("questions.txt")
    day.ask_title(harbour, question)
    _finish(harbour.turn(question, 8))
    _finish(_correct(tidewatch))


def _use_helpers(agent: Agent) -> Iterator[None]:
    """Hand two questions to sub-agents, which work side by side."""
    agent.hear(agent.material.sentence("questions.txt"))
    agent.step("user_turn")
    yield
    questions = [agent.material.whole("sub_task.txt") for _ in range(2)]
    tasks = [("task", {"title": "Find dependencies", "question": text}) for text in questions]
    agent.call("tool_step", tasks)
    yield
    helpers = [agent.helper(f"helper{number}") for number in (1, 2)]
    for helper, question in zip(helpers, questions, strict=True):
        helper.hear(question)
    _take_turns(helpers[0].work("subagent", 7), helpers[1].work("subagent", 9))
    reports = [str(helper.conversation.messages[-1]["content"]) for helper in helpers]
    agent.return_results(reports)
    yield from agent.work("tool_step", 4)


def _correct(agent: Agent) -> Iterator[None]:
    """Send a message, stop after some steps, and send another in its place."""
    before = agent.conversation
    num_kept = len(before.messages)
    agent.hear(agent.material.sentence("questions.txt"))
    yield from itertools.islice(agent.work("user_turn", 4), 3)
    agent.conversation = before.fork(num_kept)
    agent.hear(agent.material.sentence("corrections.txt"))
    yield from agent.work("corrected", 6)


def _branch_off(agent: Agent) -> Iterator[None]:
    """Ask something ten messages back, then go on where the session was."""
    main = agent.conversation
    start = len(main.messages) - 10
    while main.messages[start]["role"] != "assistant":
        start -= 1
    agent.conversation = main.fork(start)
    agent.hear(agent.material.sentence("side_questions.txt"))
    yield from agent.work("side_branch", 3)
    agent.conversation = main
    agent.markers["returned"] = True
    yield from agent.turn(agent.material.sentence("questions.txt"), 3)


def _give_up_and_retry(day: _Day, agent: Agent) -> Iterator[None]:
    """Paste a long log, lose patience during its prefill, and send the same again."""
    question = agent.material.sentence("questions.txt")
    day.ask_title(agent, question)
    log = agent.material.log(200)
    agent.hear(f"{question}\n\nThis is the log of last night:\n\n{log}")
    agent.conversation.ask_in_vain("cancelled", cancel_after_fraction=0.6, stop="aborted")
    day.builder.now_s += 20
    yield from agent.work("retry", 4)


def _look_at_screenshot(agent: Agent) -> Iterator[None]:
    """Show an image in a branch of its own, so that everything else works without images."""
    main = agent.conversation
    agent.conversation = main.fork(len(main.messages))
    agent.conversation.reminder = ""  # goes into plain text only
    text = {"type": "text", "text": agent.material.sentence("side_questions.txt")}
    image = {"type": "image_url", "image_url": {"url": draw_screenshot()}}
    agent.conversation.say({"role": "user", "content": [text, image]})
    for kind in ("image", "tool_step"):
        agent.markers["needs"] = "images"
        if kind == "image":
            agent.step(kind)
        else:
            agent.answer(kind)
        yield
    agent.conversation = main


def _finish(work: Iterator[None]) -> None:
    for _ in work:
        pass


def _take_turns(*works: Iterator[None]) -> None:
    """Do one request of each in turn, until all are done."""
    for _ in itertools.zip_longest(*works):
        pass


if __name__ == "__main__":
    main()
