"""Chat templates of the shapes that model families use, in our own short words."""

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

LLAMA3 = """\
{{- bos_token }}
{%- for m in messages %}
    {{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim }}
    {{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}"""

# Refuses system messages and two turns of one role.
MISTRAL = """\
{{- bos_token }}
{%- for m in messages %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant/user/assistant') }}
    {%- endif %}
    {%- if m['role'] == 'user' %}
        {{- '[INST] ' + m['content'] + ' [/INST]' }}
    {%- elif m['role'] == 'assistant' %}
        {{- ' ' + m['content'] | trim + eos_token }}
    {%- else %}
        {{- raise_exception('Only user and assistant roles!') }}
    {%- endif %}
{%- endfor %}"""

GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for m in messages %}
    {%- if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate') }}
    {%- endif %}
    {%- set role = 'model' if m['role'] == 'assistant' else m['role'] %}
    {{- '<start_of_turn>' + role + '\\n' + m['content'] | trim + '<end_of_turn>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""

# Drops the thoughts of earlier replies, as the reasoning models do.
QWEN3 = """\
{%- set ns = namespace(last=messages | length - 1) %}
{%- for m in messages %}
    {%- set content = m.content %}
    {%- if m.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ m.role ~ '\\n' ~ content ~ '<|im_end|>' ~ '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""

# Without a branch for system messages: they vanish without a word.
PHI3 = (
    "{% for m in messages %}{% if m['role'] in ['user', 'assistant'] %}"
    "{{ '<|' + m['role'] + '|>' }}\n{{ m['content'] }}<|end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}\n{% endif %}"
)

# Contents as lists of parts only, as some models that see pictures have it.
PARTS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% for p in m.content %}{{ p.text }}"
    "{% endfor %}<|im_end|>\n{% endfor %}{{ '<|im_start|>assistant\n' }}"
)

# A model that writes in channels, as gpt-oss; of replies only what was said is kept.
THOUGHT_CHANNEL = (
    "{% macro without_channel(text) %}{% for part in text.split('<channel|>') %}"
    "{{ part.split('<|channel>')[0] }}{% endfor %}{% endmacro %}"
    "{{ bos_token }}{% for m in messages %}"
    "<|turn>{{ 'model' if m['role'] == 'assistant' else m['role'] }}\n"
    "{{ without_channel(m['content']) if m['role'] == 'assistant' else m['content'] | trim }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)
CHANNELS = (
    "<|start|>system<|message|>Reasoning: medium<|end|>"
    "{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}<|start|>assistant<|channel|>final<|message|>"
    "{% else %}<|start|>{{ m['role'] }}<|message|>{% endif %}"
    "{{ m['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
