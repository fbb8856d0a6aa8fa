"""Calls as Mistral writes them: one JSON array of all calls after `[TOOL_CALLS]`.

Its templates refuse call ids that have not nine characters; of longer ones the last nine are shown.
"""

from __future__ import annotations

from router.front.tools.form import ToolForm

MISTRAL = ToolForm(
    name="mistral",
    opener="[TOOL_CALLS]",
    before="[",
    separator=",",
    after="]",
    argument_keys=("arguments",),
    lead="[TOOL_CALLS] [",
    joint=", ",
    tail="]",
    num_id_chars=9,
)
