"""What the router is asked for and what it is compared with: requests, and the facts about workers that have no model.

Pure. Knows nothing of processes or sockets.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass

from protocol.description import WorkerDescription
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout

CHAT_PATH = "/v1/chat/completions"
MODEL_NAME = "no-model"
CONTEXT_TOKENS = 131_072
"""So large that the router's limit on a prompt is the body's size, not the context."""
MAX_CONCURRENT = 1024
LAYOUT = KvLayout(
    model_fingerprint="no weights", num_layers=1, num_kv_heads=1, head_dim=1, dtype=KvDtype.FLOAT32, block_size=16
)
NUM_BLOCKS = MAX_CONCURRENT * CONTEXT_TOKENS // LAYOUT.block_size
CHUNK_TOKENS = 512
TICKET_LEASE_S = 30.0


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One streamed chat request. `number` travels as the seed, so that a worker can say when it sent this answer's tokens."""

    num_tokens: int
    number: int = 0
    text: str = "Name three rivers."

    def body(self) -> bytes:
        """The JSON body."""
        return json.dumps(
            {
                "model": MODEL_NAME,
                "messages": [{"role": "user", "content": self.text}],
                "max_tokens": self.num_tokens,
                "seed": self.number,
                "temperature": 0,
                "stream": True,
            }
        ).encode()

    def http(self, host: str, port: int) -> bytes:
        """The request as it goes over a connection that is kept open."""
        body = self.body()
        head = f"POST {CHAT_PATH} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def long_text(num_bytes: int) -> str:
    """English prose of about `num_bytes` bytes, with numbers in it so that no two sentences are alike."""
    sentences: list[str] = []
    length = 0
    while length < num_bytes:
        number = len(sentences)
        sentence = (
            f"In the year {1000 + number} the river rose {number % 17} feet, and town {number * 7919} moved uphill. "
        )
        sentences.append(sentence)
        length += len(sentence)
    return "".join(sentences)[:num_bytes]


def describe(worker: WorkerId, role: str, target: str) -> WorkerDescription:
    """What a worker without a model says about itself."""
    return WorkerDescription(
        worker=worker,
        role=role,
        layout=LAYOUT,
        num_blocks=NUM_BLOCKS,
        max_context_tokens=CONTEXT_TOKENS,
        device="none",
        num_threads=1,
        cores=tuple(sorted(os.sched_getaffinity(0))),
        process_id=os.getpid(),
        host=socket.gethostname(),
        target=target,
        transport="none",
    )
