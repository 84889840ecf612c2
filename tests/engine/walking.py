"""Random walks over conversations: what clients do to their histories, as tokens and boundaries."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tests import models
from tests.media_content import Content

from milepost.kinds import BoundaryKind
from milepost.protocol.messages import Boundary, MediaRef

LETTERS = range(models.token_id("a"), models.token_id("z") + 1)
ROLES = {"system": "s", "user": "u", "tool": "t", "assistant": "a"}  # a token each
BEGIN, END = models.token_id(models.TURN_START), models.token_id(models.TURN_END)
NEWLINE = models.token_id("Ċ")  # how the vocabulary spells it
MAX_PROMPT_TOKENS = 320
MAX_CONVERSATIONS = 6
IMAGE_RATE = 0.35  # of texts that have an image, of these that have two, ...
IMAGE_COST = 50  # tokens, about; the large ones of the tests take twice as many


@dataclass(frozen=True, slots=True)
class Message:
    """One message; its text is tokens, and -1 - i for the i-th image of the walk."""

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
    images: tuple[tuple[int, int], ...] = ()  # position and number
    media: tuple[MediaRef, ...] = ()

    @property
    def cost(self) -> int:
        """About how many cells it takes."""
        return len(self.tokens) + IMAGE_COST * len(self.images)

    @property
    def fields(self) -> dict[str, Any]:
        """What a request is made of."""
        return {
            "prompt": self.tokens,
            "boundaries": self.boundaries,
            "keeps_prompt_end": self.keeps_prompt_end,
            "media": self.media,
        }


def begin(role: str) -> list[int]:
    return [BEGIN, models.token_id(ROLES[role])]


def encode(conversation: Conversation, *, keeps_prompt_end: bool = False) -> Prompt:
    """Return the prompt of a conversation, with the boundaries that the front end would find."""
    tokens: list[int] = []
    images: list[tuple[int, int]] = []
    boundaries: list[Boundary] = []
    last_user = max((i for i, m in enumerate(conversation) if m.role == "user"), default=-1)
    for index, message in enumerate(conversation):
        if index == last_user:
            boundaries.append(Boundary(len(tokens), "last_user", index, message.role, len(images)))
        for item in message.encode():
            if item < 0:
                images.append((len(tokens), -1 - item))
            else:
                tokens.append(item)
        kind: BoundaryKind = "system_end" if message.role == "system" else "message_end"
        boundaries.append(Boundary(len(tokens), kind, index, message.role, len(images)))
    boundaries.append(Boundary(len(tokens), "prompt_end", num_media=len(images)))
    return Prompt(tokens + begin("assistant"), tuple(boundaries), keeps_prompt_end, tuple(images))


@dataclass
class Walk:
    """Conversations that are gone on with, changed and left at random."""

    randoms: random.Random
    keeps_prompt_end: bool
    systems: list[Message] = field(init=False)
    conversations: list[Conversation] = field(default_factory=list)
    current: int = 0
    done: list[str] = field(default_factory=list)  # what was done so far, for people
    images: list[Content] = field(default_factory=list)  # in messages, if there are any; or audio

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
        weights = [4, 3, 2, 2, 3, 3, 1, 1]
        if self.images:
            actions |= {"swap": self._swap, "remove": self._remove}
            weights += [3, 1]
        name = self.randoms.choices(list(actions), weights)[0]
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
        while (prompt := encode(self.conversation)).cost > MAX_PROMPT_TOKENS:
            name += "+compact" if len(self.conversation) > 3 else "+cut"
            self._shorten()
        places = f", images {list(prompt.images)}" if prompt.images else ""
        self.done.append(f"{name} of {self.current}: {len(prompt.tokens)} tokens{places}")
        prompt = encode(self.conversation, keeps_prompt_end=self.keeps_prompt_end)
        media = tuple(self.images[number].ref(pos) for pos, number in prompt.images)
        return replace(prompt, media=media)

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

    def _swap(self) -> None:
        """Let another image take the place of one; what follows stays."""
        self._change_image(lambda: (self._image(),))

    def _remove(self) -> None:
        """Take an image out, or put text in its place."""
        self._change_image(lambda: self._text(0, 5) if self.randoms.random() < 0.5 else ())

    def _change_image(self, choose: Callable[[], tuple[int, ...]]) -> None:
        places = [
            (index, pos)
            for index, message in enumerate(self.conversation)
            for pos, item in enumerate(message.text)
            if item < 0
        ]
        if not places:
            self._append()
            return
        index, pos = self.randoms.choice(places)
        message = self.conversation[index]
        text = message.text[:pos] + choose() + message.text[pos + 1 :]
        self.conversation[index] = Message(message.role, text)

    def _image(self) -> int:
        return -1 - self.randoms.randrange(len(self.images))

    def _add(self, conversation: Conversation) -> None:
        if len(self.conversations) < MAX_CONVERSATIONS:
            self.conversations.append(conversation)
            self.current = len(self.conversations) - 1
        else:
            self.current = self.randoms.randrange(MAX_CONVERSATIONS)
            self.conversations[self.current] = conversation

    def _num_tokens(self) -> int:
        return encode(self.conversation).cost

    def _text(self, least: int, most: int) -> tuple[int, ...]:
        text = self.randoms.choices(LETTERS, k=self.randoms.randint(least, most))
        while self.images and self.randoms.random() < IMAGE_RATE:
            text.insert(self.randoms.randint(0, len(text)), self._image())
        return tuple(text)
