"""Small chat templates in the manner of published families, each with its own demands."""

from __future__ import annotations

LISTING = "{% for tool in tools %}{{ tool.function.name }};{% endfor %}"

CHATML_TOOLS = """\
{%- set ns = namespace(last_user=0) -%}
{%- for message in messages -%}
    {%- if message.role == 'user' and not message.content.startswith('<tool_response>') -%}
        {%- set ns.last_user = loop.index0 -%}
    {%- endif -%}
{%- endfor -%}
{%- if tools %}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}
# Tools
{%- for tool in tools %}

{{ tool | tojson }}
{%- endfor %}<|im_end|>
{% endif %}
{%- for message in messages -%}
    {%- if message.role == 'system' and loop.first and tools -%}{%- continue -%}{%- endif -%}
    {%- if message.role == 'tool' %}
<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
    {%- else %}
<|im_start|>{{ message.role }}
        {%- if message.reasoning_content and loop.index0 > ns.last_user %}

<think>
{{ message.reasoning_content }}
</think>
        {%- endif %}

{{ message.content }}
        {%- for call in message.tool_calls %}
            {%- set call = call.function or call %}

<tool_call>
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
</tool_call>
        {%- endfor %}<|im_end|>
    {%- endif %}

{% endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}
<think>

</think>

{% endif %}
{% endif %}"""

INST_ALTERNATING = """\
{{- bos_token }}
{%- set ns = namespace(index=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'assistant' and not message.tool_calls) %}
        {%- if (message.role == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('roles must alternate user/assistant/…') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + message.content + ' [/INST]' }}
    {%- elif message.role == 'assistant' and message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {%- if call.id is not defined or call.id|length != 9 %}
                {{- raise_exception('ids of tool calls have 9 letters') }}
            {%- endif %}
            {{- '[TOOL_CALLS]' + call.function | tojson + call.id }}
        {%- endfor %}
        {{- eos_token }}
    {%- elif message.role == 'tool' %}
        {{- '[TOOL_RESULTS]' + message.tool_call_id + message.content + '[/TOOL_RESULTS]' }}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content + eos_token }}
    {%- endif %}
{%- endfor %}"""

NO_SYSTEM = """\
{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}<turn>{{ message.role }}: {{ message.content | trim }}
{% endfor %}"""

TEXT_ARGUMENTS = """\
{%- for message in messages -%}
{{ message.role + ': ' + message.content }}
{%- for call in message.tool_calls %} [{{ call.function.name + call.function.arguments }}]
{%- endfor %};
{% endfor -%}"""

PRINTED_ARGUMENTS = LISTING + TEXT_ARGUMENTS.replace(
    "call.function.name + call.function.arguments", "call.function.arguments"
)

TYPED_PARTS = """\
{%- for message in messages %}<{{ message.role }}>
{%- for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}
{%- endfor %}{% endfor -%}"""

APPENDING = """\
{%- set queue = namespace(ids=[]) -%}
{%- for message in messages -%}
    {%- for call in message.tool_calls -%}
        {%- set _ = queue.ids.append('functions.' ~ call.function.name) -%}
    {%- endfor -%}
    {%- if message.role == 'tool' -%}
        {{- queue.ids.pop(0) }}={{ message.content }};
    {%- endif -%}
{%- endfor -%}"""

GENERATION_TAG = """\
{% for message in messages %}
{% if message.role == 'assistant' %}
{% generation %}
{{ message.content }}<|im_end|>
{% endgeneration %}
{% else %}
{{ message.role }}: {{ message.content }}
{% endif %}
{% endfor %}"""

THINKING_KEY = """\
{%- for message in messages -%}
    {%- if message.role == 'developer' %}<dev>{{ message.content }}{% endif -%}
    {%- if message.role == 'assistant' -%}
        {%- if message.content and message.thinking and message.tool_calls -%}
            {{- raise_exception('Cannot pass both content and thinking') -}}
        {%- endif -%}
        <analysis>{{ message.thinking }}<final>{{ message.content }}
    {%- endif -%}
{%- endfor -%}
{%- if messages[0].role == 'nobody' %}{{ 'developer' }}{% endif -%}"""

THINKING_PART = """\
{%- for message in messages -%}
    {%- if message.content is string -%}{{ message.content }}
    {%- else -%}
        {%- for part in message.content -%}
            {{- '[THINK]' + part.thinking + '[/THINK]' if part.type == 'thinking' else part.text }}
        {%- endfor -%}
    {%- endif -%};
{%- endfor -%}"""

NULL_CONTENT = (
    LISTING
    + """\
{%- for message in messages -%}
    {%- if message.content is none -%}
        {%- for call in message.tool_calls %}<{{ call.function.arguments }}>{% endfor -%}
    {%- else -%}{{ message.content }}
    {%- endif -%};
{%- endfor -%}"""
)

TOOLS_ALWAYS = """\
{%- for tool in tools %}{{ tool.function.name }} {% endfor -%}
{%- for message in messages %}{{ message.content }}{% endfor -%}"""

ITEMS_OF_ARGUMENTS = (
    LISTING
    + """\
{%- for message in messages -%}
    {{ message.content }}
    {%- for call in message.tool_calls -%}
        {%- for key, value in call.function.arguments | items %}<{{ key }}={{ value }}>{% endfor -%}
    {%- endfor -%}
{%- endfor -%}"""
)

# Calls have ids, and results name them.
CALL_IDS = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
    {%- if message.role == 'tool' -%}
<|im_start|>tool
{{ message.tool_call_id }}: {{ message.content }}<|im_end|>
{% else -%}
<|im_start|>{{ message.role }}
{{ message.content -}}
        {%- for call in message.tool_calls or [] -%}
<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson
}}, "id": "{{ call.id }}"}</tool_call>
        {%- endfor %}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
