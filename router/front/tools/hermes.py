"""Calls as Hermes and Qwen write them: each between `<tool_call>` and `</tool_call>`, on a line of its own."""

from __future__ import annotations

from router.front.tools.form import ToolForm

HERMES = ToolForm(
    name="hermes",
    opener="<tool_call>",
    after="</tool_call>",
    argument_keys=("arguments",),
    lead="<tool_call>\n",
    joint="\n</tool_call>\n<tool_call>\n",
    tail="\n</tool_call>",
)
