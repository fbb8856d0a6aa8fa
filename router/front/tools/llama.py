"""Calls as Llama 3 writes them: the answer is the JSON object itself, sometimes after `<|python_tag|>`.

An object elsewhere in an answer is text: only at its start, after the tag or after another call is it a call. Llama's
template shows one call a turn, so that an answer that has to call makes one.
"""

from __future__ import annotations

from router.front.tools.form import ToolForm

LLAMA = ToolForm(
    name="llama",
    opener="<|python_tag|>",
    separator=";",
    argument_keys=("parameters", "arguments"),
    lead="",
    joint="; ",
    tail="",
    is_bare=True,
    max_forced_calls=1,
)
