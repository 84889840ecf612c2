"""Templates of common model families, for `--chat-template NAME` and models without their own.

Written for this project from the formats' descriptions; names are llama-server's. They know
messages only, no tools, but for gpt-oss's: calls in its channels cannot be described as text. None
writes BOS in front: the tokenizer does where the model wants it.
"""

from __future__ import annotations


def _turns(
    start: str, between: str, end: str, generation: str, *, role: str = "message.role"
) -> str:
    """Return a template that writes each message as `start role between content end`.

    `generation` is the generation prompt, `role` the expression for the name of a role.
    """
    return (
        "{% for message in messages %}"
        f"{{{{ {start!r} ~ ({role}) ~ {between!r} ~ message.content ~ {end!r} }}}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {generation!r} }}}}{{% endif %}}"
    )


def _by_role(system: str, user: str, assistant: str, generation: str) -> str:
    """Return a template with one expression each for system, user and assistant messages.

    The expressions see the content as `text`; results of tools are written as user messages.
    """
    return (
        "{% for message in messages %}{% set text = message.content %}"
        f"{{% if message.role == 'system' %}}{{{{ {system} }}}}"
        f"{{% elif message.role == 'assistant' %}}{{{{ {assistant} }}}}"
        f"{{% else %}}{{{{ {user} }}}}{{% endif %}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ {generation!r} }}}}{{% endif %}}"
    )


def _instructions(start: str, system: str, end: str, reply: str) -> str:
    """Return an `[INST]` template: system texts stand in front inside the next instruction."""
    return (
        "{% set ns = namespace(is_open=false) %}"
        "{% for message in messages %}{% set text = message.content %}"
        "{% if message.role != 'assistant' and not ns.is_open %}"
        f"{{{{ {start!r} }}}}{{% set ns.is_open = true %}}{{% endif %}}"
        f"{{% if message.role == 'system' %}}{{{{ {system} }}}}"
        f"{{% elif message.role == 'assistant' %}}{{{{ {reply} ~ '</s>' }}}}"
        "{% set ns.is_open = false %}"
        f"{{% else %}}{{{{ text ~ {end!r} }}}}{{% set ns.is_open = false %}}{{% endif %}}"
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

# A reply is one message or several. Tools are TypeScript in a message of the developer, together
# with what the system message says. Reasoning stays until the user speaks again.
_GPT_OSS = r"""
{%- macro type_of(schema) -%}
    {%- set kinds = [schema.type] if schema.type is string else schema.type or [] -%}
    {%- set others = schema.anyOf or schema.oneOf -%}
    {%- if schema.enum -%}
        {{- schema.enum | map('tojson') | join(' | ') -}}
    {%- elif others or kinds | length > 1 -%}
        {%- for one in others or kinds -%}
            {{- ' | ' if not loop.first }}{{ type_of(one if others else {'type': one}) -}}
        {%- endfor -%}
    {%- elif kinds == ['array'] -%}
        {%- set item = type_of(schema['items'] or {}) -%}
        {{- ('(' ~ item ~ ')' if ' | ' in item else item) ~ '[]' -}}
    {%- elif kinds == ['object'] -%}
        {{- fields_of(schema) if schema.properties else 'object' -}}
    {%- elif kinds == ['integer'] -%}
        {{- 'number' -}}
    {%- else -%}
        {{- kinds[0] or 'any' -}}
    {%- endif -%}
{%- endmacro -%}
{%- macro comment(text) -%}
    {%- if text %}{{ '// ' ~ (text | replace('\n', '\n// ')) ~ '\n' }}{% endif -%}
{%- endmacro -%}
{%- macro fields_of(schema) -%}
    {{- '{\n' -}}
    {%- for key, part in schema.properties | items -%}
        {{- comment(part.description) ~ key ~ ('' if key in (schema.required or []) else '?') -}}
        {{- ': ' ~ type_of(part) ~ ',' -}}
        {{- ' // default: ' ~ (part.default | tojson) if part.default is defined -}}
        {{- '\n' -}}
    {%- endfor -%}
    {{- '}' -}}
{%- endmacro -%}
{%- macro list_tools() -%}
    {{- '# Tools\n\n## functions\n\nnamespace functions {\n\n' -}}
    {%- for tool in tools -%}
        {%- set function = tool.function -%}
        {%- set schema = function.parameters or {} -%}
        {{- comment(function.description) ~ 'type ' ~ function.name ~ ' = (' -}}
        {{- ('_: ' ~ fields_of(schema) if schema.properties else '') ~ ') => any;\n\n' -}}
    {%- endfor -%}
    {{- '} // namespace functions' -}}
{%- endmacro -%}
{%- set ns = namespace(last_user=-1, calls=[], name='') -%}
{%- for message in messages -%}
    {%- if message.role == 'user' %}{% set ns.last_user = loop.index0 %}{% endif -%}
{%- endfor -%}
{%- if tools -%}
    {{- '<|start|>system<|message|># Valid channels: analysis, commentary, final. Channel must be '
        ~ 'included for every message.\nCalls to these tools must go to the commentary channel: '
        ~ "'functions'.<|end|><|start|>developer<|message|>" -}}
    {%- if messages[0].role == 'system' -%}
        {{- '# Instructions\n\n' ~ messages[0].content ~ '\n\n' -}}
    {%- endif -%}
    {{- list_tools() ~ '<|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
    {%- set text = message.content -%}
    {%- if message.role == 'system' -%}
        {{- '<|start|>system<|message|>' ~ text ~ '<|end|>' if not (tools and loop.first) -}}
    {%- elif message.role == 'assistant' -%}
        {%- set ns.calls = message.tool_calls or [] -%}
        {%- if message.reasoning_content and loop.index0 > ns.last_user -%}
            {{- '<|start|>assistant<|channel|>analysis<|message|>' -}}
            {{- message.reasoning_content ~ '<|end|>' -}}
        {%- endif -%}
        {%- if text or not ns.calls -%}
            {{- '<|start|>assistant<|channel|>' ~ ('commentary' if ns.calls else 'final') -}}
            {{- '<|message|>' ~ text ~ '<|end|>' -}}
        {%- endif -%}
        {%- for call in ns.calls -%}
            {{- '<|start|>assistant<|channel|>commentary to=functions.' ~ call.function.name -}}
            {{- ' <|constrain|>json<|message|>' ~ (call.function.arguments | tojson) -}}
            {{- '<|call|>' -}}
        {%- endfor -%}
    {%- elif message.role == 'tool' -%}
        {%- set ns.name = message.name or (ns.calls[0].function.name if ns.calls else 'tool') -%}
        {%- for call in ns.calls if call.id == message.tool_call_id -%}
            {%- set ns.name = call.function.name -%}
        {%- endfor -%}
        {{- '<|start|>functions.' ~ ns.name ~ ' to=assistant<|channel|>commentary<|message|>' -}}
        {{- text ~ '<|end|>' -}}
    {%- else -%}
        {{- '<|start|>user<|message|>' ~ text ~ '<|end|>' -}}
    {%- endif -%}
{%- endfor -%}
{{- '<|start|>assistant' if add_generation_prompt -}}
"""

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
    "gpt-oss": _GPT_OSS,
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
