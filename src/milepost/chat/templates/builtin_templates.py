"""Templates of common model families, for `--chat-template NAME` and models without their own.

Written for this project from the formats' descriptions; names are llama-server's. They know
messages only, no tools. None writes BOS in front: the tokenizer does where the model wants it.
"""

from __future__ import annotations


def _turns(
    opening: str, between: str, closing: str, reply: str, *, role: str = "message.role"
) -> str:
    """Return a template that writes each message as `opening role between content closing`.

    `reply` is the generation prompt, `role` the expression for the name of a role.
    """
    return (
        "{% for message in messages %}"
        f"{{{{ {opening!r} ~ ({role}) ~ {between!r} ~ message.content ~ {closing!r} }}}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {reply!r} }}}}{{% endif %}}"
    )


def _by_role(system: str, user: str, assistant: str, reply: str) -> str:
    """Return a template with one expression each for system, user and assistant messages.

    The expressions see the content as `text`; results of tools are written as user messages.
    """
    return (
        "{% for message in messages %}{% set text = message.content %}"
        f"{{% if message.role == 'system' %}}{{{{ {system} }}}}"
        f"{{% elif message.role == 'assistant' %}}{{{{ {assistant} }}}}"
        f"{{% else %}}{{{{ {user} }}}}{{% endif %}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {reply!r} }}}}{{% endif %}}"
    )


def _instructions(opening: str, system: str, closing: str, reply: str) -> str:
    """Return an `[INST]` template: system texts stand in front inside the next instruction."""
    return (
        "{% set ns = namespace(is_open=false) %}"
        "{% for message in messages %}{% set text = message.content %}"
        "{% if message.role != 'assistant' and not ns.is_open %}"
        f"{{{{ {opening!r} }}}}{{% set ns.is_open = true %}}{{% endif %}}"
        f"{{% if message.role == 'system' %}}{{{{ {system} }}}}"
        f"{{% elif message.role == 'assistant' %}}{{{{ {reply} ~ '</s>' }}}}"
        "{% set ns.is_open = false %}"
        f"{{% else %}}{{{{ text ~ {closing!r} }}}}{{% set ns.is_open = false %}}{{% endif %}}"
        "{% endfor %}"
    )


# Gemma has no system role; as in llama-server, its text stands in front of the next message.
_GEMMA = (
    "{% set ns = namespace(system='') %}"
    "{% for message in messages %}{% set text = message.content | trim %}"
    "{% if message.role == 'system' %}{% set ns.system = ns.system ~ text ~ '\\n\\n' %}"
    "{% elif message.role == 'assistant' %}"
    "{{ '<start_of_turn>model\\n' ~ text ~ '<end_of_turn>\\n' }}"
    "{% else %}{{ '<start_of_turn>user\\n' ~ ns.system ~ text ~ '<end_of_turn>\\n' }}"
    "{% set ns.system = '' %}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"
)

_BAILING_ROLE = "'HUMAN' if message.role == 'user' else message.role | upper"
_PLAIN_SYSTEM = r"text ~ '\n\n'"

BUILTIN_TEMPLATES: dict[str, str] = {
    "bailing": _turns("<role>", "</role>", "", "<role>ASSISTANT</role>", role=_BAILING_ROLE),
    "chatglm4": "[gMASK]<sop>" + _turns("<|", "|>\n", "", "<|assistant|>\n"),
    "chatml": _turns("<|im_start|>", "\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
    "command-r": _by_role(
        "'<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>' ~ text | trim ~ '<|END_OF_TURN_TOKEN|>'",
        "'<|START_OF_TURN_TOKEN|><|USER_TOKEN|>' ~ text | trim ~ '<|END_OF_TURN_TOKEN|>'",
        "'<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' ~ text | trim ~ '<|END_OF_TURN_TOKEN|>'",
        "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>",
    ),
    "deepseek": _by_role(
        "text",
        r"'### Instruction:\n' ~ text ~ '\n'",
        r"'### Response:\n' ~ text ~ '\n<|EOT|>\n'",
        "### Response:\n",
    ),
    "deepseek2": _by_role(
        _PLAIN_SYSTEM,
        r"'User: ' ~ text ~ '\n\n'",
        "'Assistant: ' ~ text ~ '<｜end▁of▁sentence｜>'",
        "Assistant:",
    ),
    "deepseek3": _by_role(
        _PLAIN_SYSTEM,
        "'<｜User｜>' ~ text",
        "'<｜Assistant｜>' ~ text ~ '<｜end▁of▁sentence｜>'",
        "<｜Assistant｜>",
    ),
    "exaone3": _by_role(
        r"'[|system|]' ~ text | trim ~ '[|endofturn|]\n'",
        r"'[|user|]' ~ text | trim ~ '\n'",
        r"'[|assistant|]' ~ text | trim ~ '[|endofturn|]\n'",
        "[|assistant|]",
    ),
    "falcon3": _turns("<|", "|>\n", "\n", "<|assistant|>\n"),
    "gemma": _GEMMA,
    "gpt-oss": _by_role(
        "'<|start|>system<|message|>' ~ text ~ '<|end|>'",
        "'<|start|>user<|message|>' ~ text ~ '<|end|>'",
        "'<|start|>assistant<|channel|>final<|message|>' ~ text ~ '<|end|>'",
        "<|start|>assistant",
    ),
    "granite": _turns(
        "<|start_of_role|>",
        "<|end_of_role|>",
        "<|end_of_text|>\n",
        "<|start_of_role|>assistant<|end_of_role|>",
    ),
    "kimi-k2": _by_role(
        "'<|im_system|>system<|im_middle|>' ~ text ~ '<|im_end|>'",
        "'<|im_user|>user<|im_middle|>' ~ text ~ '<|im_end|>'",
        "'<|im_assistant|>assistant<|im_middle|>' ~ text ~ '<|im_end|>'",
        "<|im_assistant|>assistant<|im_middle|>",
    ),
    "llama2": _instructions(
        "[INST] ", r"'<<SYS>>\n' ~ text ~ '\n<</SYS>>\n\n'", " [/INST]", "' ' ~ text ~ ' '"
    ),
    "llama3": _turns(
        "<|start_header_id|>",
        "<|end_header_id|>\n\n",
        "<|eot_id|>",
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "llama4": _turns(
        "<|header_start|>",
        "<|header_end|>\n\n",
        "<|eot|>",
        "<|header_start|>assistant<|header_end|>\n\n",
    ),
    "minicpm": _by_role("text | trim", "'<用户>' ~ text | trim ~ '<AI>'", "text | trim", ""),
    "mistral-v1": _instructions(" [INST] ", _PLAIN_SYSTEM, " [/INST]", "' ' ~ text"),
    "mistral-v3": _instructions("[INST] ", _PLAIN_SYSTEM, "[/INST]", "' ' ~ text | trim"),
    "mistral-v3-tekken": _instructions("[INST]", _PLAIN_SYSTEM, "[/INST]", "text"),
    "mistral-v7": _by_role(
        "'[SYSTEM_PROMPT] ' ~ text ~ '[/SYSTEM_PROMPT]'",
        "'[INST] ' ~ text ~ '[/INST]'",
        "' ' ~ text ~ '</s>'",
        "",
    ),
    "mistral-v7-tekken": _by_role(
        "'[SYSTEM_PROMPT]' ~ text ~ '[/SYSTEM_PROMPT]'",
        "'[INST]' ~ text ~ '[/INST]'",
        "text ~ '</s>'",
        "",
    ),
    "openchat": _by_role(
        "text ~ '<|end_of_turn|>'",
        "'GPT4 Correct User: ' ~ text ~ '<|end_of_turn|>'",
        "'GPT4 Correct Assistant: ' ~ text ~ '<|end_of_turn|>'",
        "GPT4 Correct Assistant:",
    ),
    "phi3": _turns("<|", "|>\n", "<|end|>\n", "<|assistant|>\n"),
    "phi4": _turns("<|im_start|>", "<|im_sep|>", "<|im_end|>", "<|im_start|>assistant<|im_sep|>"),
    "seed_oss": _turns("<seed:bos>", "\n", "<seed:eos>", "<seed:bos>assistant\n"),
    "vicuna": _by_role(
        _PLAIN_SYSTEM, r"'USER: ' ~ text ~ '\n'", r"'ASSISTANT: ' ~ text ~ '</s>\n'", "ASSISTANT:"
    ),
    "vicuna-orca": _by_role(
        r"'SYSTEM: ' ~ text ~ '\n'",
        r"'USER: ' ~ text ~ '\n'",
        r"'ASSISTANT: ' ~ text ~ '</s>\n'",
        "ASSISTANT:",
    ),
    "zephyr": _turns("<|", "|>\n", "<|endoftext|>\n", "<|assistant|>\n"),
}
