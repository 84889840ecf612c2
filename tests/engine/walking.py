"""Random walks over conversations: what clients do to their histories, as tokens and boundaries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests import models

from milepost.protocol.messages import Boundary, BoundaryKind

LETTERS = range(models.token_id("a"), models.token_id("z") + 1)
ROLES = {"system": "s", "user": "u", "tool": "t", "assistant": "a"}  # a token each
BEGIN, END = models.token_id(models.TURN_START), models.token_id(models.TURN_END)
NEWLINE = models.token_id("Ċ")  # how the vocabulary spells it
MAX_PROMPT_TOKENS = 320
MAX_CONVERSATIONS = 6


@dataclass(frozen=True, slots=True)
class Message:
    """One message; its text is tokens."""

    role: str
    text: tuple[int, ...]

    def encode(self) -> list[int]:
        """Return its tokens in a prompt."""
        return [*begin(self.role), *self.text, END, NEWLINE]


Conversation = list[Message]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What is sent."""

    tokens: list[int]
    boundaries: tuple[Boundary, ...]
    keeps_prompt_end: bool

    @property
    def fields(self) -> dict[str, Any]:
        """What a request is made of."""
        return {
            "prompt": self.tokens,
            "boundaries": self.boundaries,
            "keeps_prompt_end": self.keeps_prompt_end,
        }


def begin(role: str) -> list[int]:
    return [BEGIN, models.token_id(ROLES[role])]


def encode(conversation: Conversation, *, keeps_prompt_end: bool = False) -> Prompt:
    """Return the prompt of a conversation, with the boundaries that the front end would find."""
    tokens: list[int] = []
    boundaries: list[Boundary] = []
    last_user = max((i for i, m in enumerate(conversation) if m.role == "user"), default=-1)
    for index, message in enumerate(conversation):
        if index == last_user:
            boundaries.append(Boundary(len(tokens), "last_user", index, message.role))
        tokens += message.encode()
        kind: BoundaryKind = "system_end" if message.role == "system" else "message_end"
        boundaries.append(Boundary(len(tokens), kind, index, message.role))
    boundaries.append(Boundary(len(tokens), "prompt_end"))
    return Prompt(tokens + begin("assistant"), tuple(boundaries), keeps_prompt_end)


@dataclass
class Walk:
    """Conversations that are gone on with, changed and left at random."""

    randoms: random.Random
    keeps_prompt_end: bool
    systems: list[Message] = field(init=False)
    conversations: list[Conversation] = field(default_factory=list)
    current: int = 0
    done: list[str] = field(default_factory=list)  # what was done so far, for people

    def __post_init__(self) -> None:
        self.systems = [Message("system", self._text(40, 90)) for _ in range(2)]

    def __str__(self) -> str:
        return "\n".join(f"{number:3} {line}" for number, line in enumerate(self.done))

    def next_prompt(self) -> Prompt:
        """Do something to a conversation and return the prompt that it has now."""
        if len(self.conversations) < 3:
            return self._settle("open", self._open)
        actions: dict[str, Callable[[], None]] = {
            "append": self._append,
            "tool": self._append_tool,
            "edit": self._edit,
            "branch": self._branch,
            "return": self._return,
            "strip": self._strip,
            "compact": self._compact,
            "open": self._open,
        }
        name = self.randoms.choices(list(actions), (4, 3, 2, 2, 3, 3, 1, 1))[0]
        if self._num_tokens() > MAX_PROMPT_TOKENS:
            name = self.randoms.choice(["strip", "compact", "return", "branch"])
        return self._settle(name, actions[name])

    def hear(self, tokens: list[int]) -> None:
        """Add the reply to the conversation that was asked."""
        self.conversation.append(Message("assistant", tuple(tokens)))

    @property
    def conversation(self) -> Conversation:
        return self.conversations[self.current]

    def _settle(self, name: str, act: Callable[[], None]) -> Prompt:
        act()
        while len(prompt := encode(self.conversation).tokens) > MAX_PROMPT_TOKENS:
            name += "+compact" if len(self.conversation) > 3 else "+cut"
            self._shorten()
        self.done.append(f"{name} of {self.current}: {len(prompt)} tokens")
        return encode(self.conversation, keeps_prompt_end=self.keeps_prompt_end)

    def _shorten(self) -> None:
        if len(self.conversation) > 3:
            self._compact()
        else:
            index = max(range(len(self.conversation)), key=lambda i: len(self.conversation[i].text))
            message = self.conversation[index]
            self.conversation[index] = Message(message.role, message.text[: len(message.text) // 2])

    def _open(self) -> None:
        message = Message("user", self._text(5, 80))
        self._add([self.randoms.choice(self.systems), message])

    def _append(self) -> None:
        self.conversation.append(Message("user", self._text(3, 60)))

    def _append_tool(self) -> None:
        for _ in range(self.randoms.randint(1, 2)):
            self.conversation.append(Message("tool", self._text(10, 90)))

    def _edit(self) -> None:
        """Change a message; what follows stays or goes."""
        index = self.randoms.randrange(len(self.conversation))
        message = self.conversation[index]
        kept = message.text[: self.randoms.randint(0, len(message.text))]
        self.conversation[index] = Message(message.role, kept + self._text(1, 30))
        if self.randoms.random() < 0.5:
            del self.conversation[index + 1 :]

    def _branch(self) -> None:
        end = self.randoms.randint(1, len(self.conversation))
        self._add([*self.conversation[:end], Message("user", self._text(3, 50))])

    def _return(self) -> None:
        """Go back to another conversation: send it again as it is, or go on with it."""
        self.current = self.randoms.randrange(len(self.conversations))
        if self.randoms.random() < 0.7:
            self._append()

    def _strip(self) -> None:
        """Take a stretch out of the middle, as clients do with reasoning and old tool results."""
        self._append()
        index = self.randoms.randrange(1, len(self.conversation))
        message = self.conversation[index]
        start = self.randoms.randint(0, len(message.text))
        end = self.randoms.randint(start, len(message.text))
        self.conversation[index] = Message(message.role, message.text[:start] + message.text[end:])

    def _compact(self) -> None:
        """Let a summary and the last messages stand for all of them."""
        old = self.conversation
        kept = [m for m in old[-self.randoms.randint(1, 2) :] if m.role != "system"]
        summary = Message("user", self._text(10, 40))
        self.conversations[self.current] = [old[0], summary, *kept]

    def _add(self, conversation: Conversation) -> None:
        if len(self.conversations) < MAX_CONVERSATIONS:
            self.conversations.append(conversation)
            self.current = len(self.conversations) - 1
        else:
            self.current = self.randoms.randrange(MAX_CONVERSATIONS)
            self.conversations[self.current] = conversation

    def _num_tokens(self) -> int:
        return len(encode(self.conversation).tokens)

    def _text(self, least: int, most: int) -> tuple[int, ...]:
        return tuple(self.randoms.choices(LETTERS, k=self.randoms.randint(least, most)))
