"""One prompt, several answers: blocks for all of them at once, and a sequence for each when the prompt's KV is here.

The answers share the prompt's full blocks by reference. Whatever else they need is taken with the prompt's own blocks, so
that a fork cannot fail. Knows block tables; when a prompt is cached is its caller's word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from decode_worker.sequence import DecodeSequence
from engine.block_pool import BlockPool, BlockTable
from engine.engine import Engine
from protocol.errors import BadRequest
from protocol.request import GeneratedToken, GenerateRequest


def num_blocks_to_start(num_tokens: int, num_choices: int, block_size: int) -> int:
    """Blocks for `num_tokens` and the one that follows, and for each further choice the one behind the full blocks."""
    return num_tokens // block_size + num_choices


def take_tables(
    pool: BlockPool, block_size: int, num_tokens: int, num_choices: int, found: Sequence[int] = ()
) -> list[BlockTable]:
    """A table for each choice, with room for `num_tokens` and the one that follows; full blocks are shared. They begin with
    `found`, full blocks which the tables hold from now on.

    Raises `OutOfBlocks`, and gives `found` back too, if there are fewer than `num_blocks_to_start`, less those found.
    """
    num_shared_tokens = num_tokens // block_size * block_size
    tables = [BlockTable(pool, block_size, found)]
    try:
        tables[0].ensure(num_tokens + 1)
        for _ in range(num_choices - 1):
            tables.append(tables[0].fork(num_shared_tokens))
            tables[-1].ensure(num_tokens + 1)
    except BaseException:
        release_all(tables)
        raise
    return tables


def release_all(tables: list[BlockTable]) -> None:
    """Gives the blocks of all tables back."""
    while tables:
        tables.pop().release()


def fork(trunk: DecodeSequence, engine: Engine) -> list[DecodeSequence]:
    """A sequence for each choice that `trunk` stands for, which is itself the first of them; all in its present phase.

    With blocks, the others get a copy of the prompt's last block if it is not full; `trunk` has all the prompt's KV and
    none beyond it. First tokens that a prefill worker has drawn are appended.
    """
    if len(trunk.choices) == 1 and not trunk.first_tokens:
        return [trunk]
    tables, first_tokens = trunk.tables, trunk.first_tokens
    forked = [
        replace(
            trunk,
            sequence_id=f"{trunk.request.request_id}/{choice}",
            arrival=trunk.arrival + index,
            tokens=[*trunk.tokens],
            choices={choice: sampling},
            tables=tables[index : index + 1],
            first_tokens={},
            names=trunk.names.fork(),
        )
        for index, (choice, sampling) in enumerate(trunk.choices.items())
    ]
    trunk.choices, trunk.tables, trunk.first_tokens = forked[0].choices, tables[:1], {}
    forked[0] = trunk
    for one in forked:
        if one is not trunk and tables:
            _copy_partial_block(trunk, one, engine)
        if one.choice in first_tokens:
            one.tokens.append(first_tokens[one.choice])
    return forked


def _copy_partial_block(trunk: DecodeSequence, one: DecodeSequence, engine: Engine) -> None:
    index, num_tokens = divmod(trunk.num_cached, engine.layout.block_size)
    if num_tokens:
        engine.copy_block(trunk.held_table().block_ids[index], one.held_table().block_ids[index])


def check_first_tokens(request: GenerateRequest, tokens: Sequence[GeneratedToken]) -> None:
    """Raises `BadRequest` unless these are first tokens of different choices of the request that go on."""
    choices = {one.choice for one in tokens}
    if not choices or len(choices) < len(tokens) or max(choices) >= request.num_choices or min(choices) < 0:
        raise BadRequest(
            f"request {request.request_id} needs one first token for each of its {request.num_choices} choices that goes on; "
            f"got them for {[one.choice for one in tokens]}"
        )
    if any(one.index or one.finish for one in tokens):
        raise BadRequest(f"request {request.request_id}: a first token has index 0 and is not its answer's last")
