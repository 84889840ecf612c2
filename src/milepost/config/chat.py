"""Settings of the chat templates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from milepost.config.flag import Flag, setting
from milepost.kinds import ReasoningPlace

REASONING_MODES = ("auto", "on", "off")

_NO_KWARGS: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatSettings:
    """Which chat template is used, and with what."""

    jinja: bool = setting(
        True,
        Flag(
            names="--jinja",
            negated="--no-jinja",
            env="LLAMA_ARG_JINJA",
            group="Chat",
            help="Use the Jinja chat template.",
        ),
    )
    chat_template: str = setting(
        "",
        Flag(
            names="--chat-template",
            env="LLAMA_ARG_CHAT_TEMPLATE",
            metavar="NAME|TEXT",
            group="Chat",
            shown_default="from the model",
            help="Name of a template of the model or of a built-in one, or a template itself.",
        ),
    )
    chat_template_file: str = setting(
        "",
        Flag(
            names="--chat-template-file",
            env="LLAMA_ARG_CHAT_TEMPLATE_FILE",
            metavar="FILE",
            group="Chat",
            help="File with a chat template.",
        ),
    )
    chat_template_kwargs: Mapping[str, Any] = setting(
        _NO_KWARGS,
        Flag(
            names="--chat-template-kwargs",
            env="LLAMA_ARG_CHAT_TEMPLATE_KWARGS",
            metavar="JSON",
            group="Chat",
            kind="json_object",
            help='More variables for the template, for example {"enable_thinking": false}.',
        ),
    )
    reasoning_format: ReasoningPlace = setting(
        "auto",
        Flag(
            names="--reasoning-format",
            env="LLAMA_ARG_THINK",
            group="Chat",
            choices=get_args(ReasoningPlace),
            help="Where the model's thoughts are put in answers: in reasoning_content, "
            "in the content as they were written (none), or in both (deepseek-legacy).",
        ),
    )
    reasoning: str = setting(
        "auto",
        Flag(
            names="-rea --reasoning",
            env="LLAMA_ARG_REASONING",
            group="Chat",
            choices=REASONING_MODES,
            help="Let the model think before it answers, where its template can switch that.",
        ),
    )
    reasoning_budget: int = setting(
        -1,
        Flag(
            names="--reasoning-budget",
            env="LLAMA_ARG_THINK_BUDGET",
            group="Chat",
            unit="tokens",
            minimum=-1,
            shown_default="-1: no limit",
            help="Tokens that a reply may spend on thinking; then it is ended. 0 is none.",
        ),
    )
    reasoning_budget_message: str = setting(
        "",
        Flag(
            names="--reasoning-budget-message",
            env="LLAMA_ARG_THINK_BUDGET_MESSAGE",
            metavar="TEXT",
            group="Chat",
            help="Text that is written before the end of thinking that used up its tokens.",
        ),
    )
    skip_chat_parsing: bool = setting(
        False,
        Flag(
            names="--skip-chat-parsing",
            negated="--no-skip-chat-parsing",
            env="LLAMA_ARG_SKIP_CHAT_PARSING",
            group="Chat",
            help="Leave thoughts and tool calls in the content, as the model writes them.",
        ),
    )
    restore_reasoning: bool = setting(
        False,
        Flag(
            names="--restore-reasoning",
            negated="--no-restore-reasoning",
            env="MILEPOST_RESTORE_REASONING",
            group="Chat",
            help="Put reasoning of the model back into the history of clients that leave it out, "
            "where the template keeps it.",
        ),
    )
