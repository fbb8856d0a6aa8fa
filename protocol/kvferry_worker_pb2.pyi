from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerId(_message.Message):
    __slots__ = ("name", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Layout(_message.Message):
    __slots__ = ("model_fingerprint", "num_layers", "num_kv_heads", "head_dim", "dtype", "block_size")
    MODEL_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_HEADS_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SIZE_FIELD_NUMBER: _ClassVar[int]
    model_fingerprint: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    block_size: int
    def __init__(self, model_fingerprint: _Optional[str] = ..., num_layers: _Optional[int] = ..., num_kv_heads: _Optional[int] = ..., head_dim: _Optional[int] = ..., dtype: _Optional[str] = ..., block_size: _Optional[int] = ...) -> None: ...

class LandingZone(_message.Message):
    __slots__ = ("base_address", "num_slots", "slot_bytes")
    BASE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    base_address: int
    num_slots: int
    slot_bytes: int
    def __init__(self, base_address: _Optional[int] = ..., num_slots: _Optional[int] = ..., slot_bytes: _Optional[int] = ...) -> None: ...

class PeerAddress(_message.Message):
    __slots__ = ("worker", "transport", "agent_metadata", "zone")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    AGENT_METADATA_FIELD_NUMBER: _ClassVar[int]
    ZONE_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerId
    transport: str
    agent_metadata: bytes
    zone: LandingZone
    def __init__(self, worker: _Optional[_Union[WorkerId, _Mapping]] = ..., transport: _Optional[str] = ..., agent_metadata: _Optional[bytes] = ..., zone: _Optional[_Union[LandingZone, _Mapping]] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerDescription(_message.Message):
    __slots__ = ("worker", "role", "layout", "target", "num_blocks", "max_context_tokens", "device", "num_threads", "cores", "process_id", "host", "transport")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    NUM_THREADS_FIELD_NUMBER: _ClassVar[int]
    CORES_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerId
    role: str
    layout: Layout
    target: str
    num_blocks: int
    max_context_tokens: int
    device: str
    num_threads: int
    cores: _containers.RepeatedScalarFieldContainer[int]
    process_id: int
    host: str
    transport: str
    def __init__(self, worker: _Optional[_Union[WorkerId, _Mapping]] = ..., role: _Optional[str] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., target: _Optional[str] = ..., num_blocks: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., device: _Optional[str] = ..., num_threads: _Optional[int] = ..., cores: _Optional[_Iterable[int]] = ..., process_id: _Optional[int] = ..., host: _Optional[str] = ..., transport: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkerStatus(_message.Message):
    __slots__ = ("worker", "num_waiting", "num_running", "num_waiting_tokens", "num_blocks", "num_free_blocks", "num_slots", "num_free_slots", "num_steps", "num_transfers", "num_transfer_failures", "transfer_bytes", "num_preemptions", "num_local_prefill_tokens", "num_remote_prefill_tokens", "links", "num_quarantined_slots", "landed_wire_bytes", "landed_half_bytes", "transfer_bytes_by_tier", "hidden_bytes", "acknowledged_bytes", "prefix_cache", "num_swaps", "output_length_error_octaves", "output_length_covered_ratio", "is_draining", "is_drained", "transfer_failures_by_cause")
    class TransferBytesByTierEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TransferFailuresByCauseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    WORKER_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRANSFERS_FIELD_NUMBER: _ClassVar[int]
    NUM_TRANSFER_FAILURES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_LOCAL_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_REMOTE_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LINKS_FIELD_NUMBER: _ClassVar[int]
    NUM_QUARANTINED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    LANDED_WIRE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANDED_HALF_BYTES_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_BYTES_BY_TIER_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    NUM_SWAPS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_LENGTH_ERROR_OCTAVES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_LENGTH_COVERED_RATIO_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINED_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FAILURES_BY_CAUSE_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerId
    num_waiting: int
    num_running: int
    num_waiting_tokens: int
    num_blocks: int
    num_free_blocks: int
    num_slots: int
    num_free_slots: int
    num_steps: int
    num_transfers: int
    num_transfer_failures: int
    transfer_bytes: int
    num_preemptions: int
    num_local_prefill_tokens: int
    num_remote_prefill_tokens: int
    links: _containers.RepeatedCompositeFieldContainer[Link]
    num_quarantined_slots: int
    landed_wire_bytes: int
    landed_half_bytes: int
    transfer_bytes_by_tier: _containers.ScalarMap[str, int]
    hidden_bytes: int
    acknowledged_bytes: int
    prefix_cache: PrefixCacheStatus
    num_swaps: int
    output_length_error_octaves: float
    output_length_covered_ratio: float
    is_draining: bool
    is_drained: bool
    transfer_failures_by_cause: _containers.ScalarMap[str, int]
    def __init__(self, worker: _Optional[_Union[WorkerId, _Mapping]] = ..., num_waiting: _Optional[int] = ..., num_running: _Optional[int] = ..., num_waiting_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_slots: _Optional[int] = ..., num_free_slots: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_transfers: _Optional[int] = ..., num_transfer_failures: _Optional[int] = ..., transfer_bytes: _Optional[int] = ..., num_preemptions: _Optional[int] = ..., num_local_prefill_tokens: _Optional[int] = ..., num_remote_prefill_tokens: _Optional[int] = ..., links: _Optional[_Iterable[_Union[Link, _Mapping]]] = ..., num_quarantined_slots: _Optional[int] = ..., landed_wire_bytes: _Optional[int] = ..., landed_half_bytes: _Optional[int] = ..., transfer_bytes_by_tier: _Optional[_Mapping[str, int]] = ..., hidden_bytes: _Optional[int] = ..., acknowledged_bytes: _Optional[int] = ..., prefix_cache: _Optional[_Union[PrefixCacheStatus, _Mapping]] = ..., num_swaps: _Optional[int] = ..., output_length_error_octaves: _Optional[float] = ..., output_length_covered_ratio: _Optional[float] = ..., is_draining: _Optional[bool] = ..., is_drained: _Optional[bool] = ..., transfer_failures_by_cause: _Optional[_Mapping[str, int]] = ...) -> None: ...

class PrefixCacheStatus(_message.Message):
    __slots__ = ("num_blocks", "num_queries", "num_query_tokens", "num_hit_tokens", "num_stored_blocks", "num_evicted_blocks")
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERIES_FIELD_NUMBER: _ClassVar[int]
    NUM_QUERY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_HIT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STORED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_EVICTED_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    num_blocks: int
    num_queries: int
    num_query_tokens: int
    num_hit_tokens: int
    num_stored_blocks: int
    num_evicted_blocks: int
    def __init__(self, num_blocks: _Optional[int] = ..., num_queries: _Optional[int] = ..., num_query_tokens: _Optional[int] = ..., num_hit_tokens: _Optional[int] = ..., num_stored_blocks: _Optional[int] = ..., num_evicted_blocks: _Optional[int] = ...) -> None: ...

class Link(_message.Message):
    __slots__ = ("peer", "transport", "bytes_per_second")
    PEER_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    peer: WorkerId
    transport: str
    bytes_per_second: float
    def __init__(self, peer: _Optional[_Union[WorkerId, _Mapping]] = ..., transport: _Optional[str] = ..., bytes_per_second: _Optional[float] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "seed", "num_logprobs", "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "grammar")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    num_logprobs: int
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: _containers.RepeatedCompositeFieldContainer[LogitBias]
    grammar: str
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., seed: _Optional[int] = ..., num_logprobs: _Optional[int] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Iterable[_Union[LogitBias, _Mapping]]] = ..., grammar: _Optional[str] = ...) -> None: ...

class LogitBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class Generation(_message.Message):
    __slots__ = ("request_id", "prompt_token_ids", "sampling", "max_tokens", "stop_token_ids", "min_tokens", "num_choices", "num_continued", "num_prompt_logprobs", "kv_wire_budget", "priority", "cache_salt")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHOICES_FIELD_NUMBER: _ClassVar[int]
    NUM_CONTINUED_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    KV_WIRE_BUDGET_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prompt_token_ids: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    max_tokens: int
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    min_tokens: int
    num_choices: int
    num_continued: int
    num_prompt_logprobs: int
    kv_wire_budget: float
    priority: int
    cache_salt: str
    def __init__(self, request_id: _Optional[str] = ..., prompt_token_ids: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., max_tokens: _Optional[int] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., min_tokens: _Optional[int] = ..., num_choices: _Optional[int] = ..., num_continued: _Optional[int] = ..., num_prompt_logprobs: _Optional[int] = ..., kv_wire_budget: _Optional[float] = ..., priority: _Optional[int] = ..., cache_salt: _Optional[str] = ...) -> None: ...

class Ticket(_message.Message):
    __slots__ = ("request_id", "prefill_worker", "decode_worker", "generation", "slots", "slot_bytes", "first_token", "num_tokens", "chunk_tokens", "dtype", "lease_s", "rule", "tail_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHUNK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    TAIL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    prefill_worker: WorkerId
    decode_worker: WorkerId
    generation: int
    slots: _containers.RepeatedScalarFieldContainer[int]
    slot_bytes: int
    first_token: int
    num_tokens: int
    chunk_tokens: int
    dtype: str
    lease_s: float
    rule: WireRule
    tail_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., prefill_worker: _Optional[_Union[WorkerId, _Mapping]] = ..., decode_worker: _Optional[_Union[WorkerId, _Mapping]] = ..., generation: _Optional[int] = ..., slots: _Optional[_Iterable[int]] = ..., slot_bytes: _Optional[int] = ..., first_token: _Optional[int] = ..., num_tokens: _Optional[int] = ..., chunk_tokens: _Optional[int] = ..., dtype: _Optional[str] = ..., lease_s: _Optional[float] = ..., rule: _Optional[_Union[WireRule, _Mapping]] = ..., tail_tokens: _Optional[int] = ...) -> None: ...

class WireRule(_message.Message):
    __slots__ = ("codec", "budget", "importance", "num_sinks", "allows_int4")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    IMPORTANCE_FIELD_NUMBER: _ClassVar[int]
    NUM_SINKS_FIELD_NUMBER: _ClassVar[int]
    ALLOWS_INT4_FIELD_NUMBER: _ClassVar[int]
    codec: str
    budget: float
    importance: str
    num_sinks: int
    allows_int4: bool
    def __init__(self, codec: _Optional[str] = ..., budget: _Optional[float] = ..., importance: _Optional[str] = ..., num_sinks: _Optional[int] = ..., allows_int4: _Optional[bool] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Token(_message.Message):
    __slots__ = ("request_id", "index", "token_id", "logprob", "top", "finish", "choice")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    index: int
    token_id: int
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    finish: str
    choice: int
    def __init__(self, request_id: _Optional[str] = ..., index: _Optional[int] = ..., token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ..., finish: _Optional[str] = ..., choice: _Optional[int] = ...) -> None: ...

class TokenScore(_message.Message):
    __slots__ = ("logprob", "top")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class ConnectRequest(_message.Message):
    __slots__ = ("decode_target",)
    DECODE_TARGET_FIELD_NUMBER: _ClassVar[int]
    decode_target: str
    def __init__(self, decode_target: _Optional[str] = ...) -> None: ...

class ConnectReply(_message.Message):
    __slots__ = ("decode_worker", "transport", "bytes_per_second")
    DECODE_WORKER_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    decode_worker: WorkerId
    transport: str
    bytes_per_second: float
    def __init__(self, decode_worker: _Optional[_Union[WorkerId, _Mapping]] = ..., transport: _Optional[str] = ..., bytes_per_second: _Optional[float] = ...) -> None: ...

class AcceptRequest(_message.Message):
    __slots__ = ("address", "layout")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    address: PeerAddress
    layout: Layout
    def __init__(self, address: _Optional[_Union[PeerAddress, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ...) -> None: ...

class AcceptReply(_message.Message):
    __slots__ = ("address", "layout", "link_test")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    LINK_TEST_FIELD_NUMBER: _ClassVar[int]
    address: PeerAddress
    layout: Layout
    link_test: Ticket
    def __init__(self, address: _Optional[_Union[PeerAddress, _Mapping]] = ..., layout: _Optional[_Union[Layout, _Mapping]] = ..., link_test: _Optional[_Union[Ticket, _Mapping]] = ...) -> None: ...

class ForgetRequest(_message.Message):
    __slots__ = ("worker",)
    WORKER_FIELD_NUMBER: _ClassVar[int]
    worker: WorkerId
    def __init__(self, worker: _Optional[_Union[WorkerId, _Mapping]] = ...) -> None: ...

class ForgetReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("timeout_s", "restart")
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    RESTART_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    restart: bool
    def __init__(self, timeout_s: _Optional[float] = ..., restart: _Optional[bool] = ...) -> None: ...

class DrainReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefillRequest(_message.Message):
    __slots__ = ("generation", "ticket", "plan")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    generation: Generation
    ticket: Ticket
    plan: TransferPlan
    def __init__(self, generation: _Optional[_Union[Generation, _Mapping]] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ..., plan: _Optional[_Union[TransferPlan, _Mapping]] = ...) -> None: ...

class Pace(_message.Message):
    __slots__ = ("reserved_bytes_per_second", "allowed_bytes_per_second", "is_shared")
    RESERVED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    IS_SHARED_FIELD_NUMBER: _ClassVar[int]
    reserved_bytes_per_second: float
    allowed_bytes_per_second: float
    is_shared: bool
    def __init__(self, reserved_bytes_per_second: _Optional[float] = ..., allowed_bytes_per_second: _Optional[float] = ..., is_shared: _Optional[bool] = ...) -> None: ...

class TransferPlan(_message.Message):
    __slots__ = ("pace", "produced_bytes_per_second")
    PACE_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    pace: Pace
    produced_bytes_per_second: float
    def __init__(self, pace: _Optional[_Union[Pace, _Mapping]] = ..., produced_bytes_per_second: _Optional[float] = ...) -> None: ...

class PaceOrder(_message.Message):
    __slots__ = ("request_id", "pace")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    pace: Pace
    def __init__(self, request_id: _Optional[str] = ..., pace: _Optional[_Union[Pace, _Mapping]] = ...) -> None: ...

class PrefillReply(_message.Message):
    __slots__ = ("first_tokens", "num_cached_tokens", "prompt_scores")
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_SCORES_FIELD_NUMBER: _ClassVar[int]
    first_tokens: _containers.RepeatedCompositeFieldContainer[Token]
    num_cached_tokens: int
    prompt_scores: _containers.RepeatedCompositeFieldContainer[TokenScore]
    def __init__(self, first_tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., num_cached_tokens: _Optional[int] = ..., prompt_scores: _Optional[_Iterable[_Union[TokenScore, _Mapping]]] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("generation", "prefill_worker")
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    PREFILL_WORKER_FIELD_NUMBER: _ClassVar[int]
    generation: Generation
    prefill_worker: WorkerId
    def __init__(self, generation: _Optional[_Union[Generation, _Mapping]] = ..., prefill_worker: _Optional[_Union[WorkerId, _Mapping]] = ...) -> None: ...

class DecodeRequest(_message.Message):
    __slots__ = ("request_id", "generation", "first_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    generation: int
    first_tokens: _containers.RepeatedCompositeFieldContainer[Token]
    def __init__(self, request_id: _Optional[str] = ..., generation: _Optional[int] = ..., first_tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id", "choice")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    choice: int
    def __init__(self, request_id: _Optional[str] = ..., choice: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("number", "reserve", "decode", "generate", "prefill", "cancel", "pace", "prefix_snapshot", "deadline_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    DECODE_FIELD_NUMBER: _ClassVar[int]
    GENERATE_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    CANCEL_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    PREFIX_SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    reserve: ReserveRequest
    decode: DecodeRequest
    generate: Generation
    prefill: PrefillRequest
    cancel: CancelRequest
    pace: PaceOrder
    prefix_snapshot: PrefixSnapshotOrder
    deadline_s: float
    def __init__(self, number: _Optional[int] = ..., reserve: _Optional[_Union[ReserveRequest, _Mapping]] = ..., decode: _Optional[_Union[DecodeRequest, _Mapping]] = ..., generate: _Optional[_Union[Generation, _Mapping]] = ..., prefill: _Optional[_Union[PrefillRequest, _Mapping]] = ..., cancel: _Optional[_Union[CancelRequest, _Mapping]] = ..., pace: _Optional[_Union[PaceOrder, _Mapping]] = ..., prefix_snapshot: _Optional[_Union[PrefixSnapshotOrder, _Mapping]] = ..., deadline_s: _Optional[float] = ...) -> None: ...

class OrderBatch(_message.Message):
    __slots__ = ("orders",)
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    def __init__(self, orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ...) -> None: ...

class OrderFailure(_message.Message):
    __slots__ = ("code", "message", "param")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    PARAM_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    param: str
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., param: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("number", "failure", "ticket", "prefill")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    PREFILL_FIELD_NUMBER: _ClassVar[int]
    number: int
    failure: OrderFailure
    ticket: Ticket
    prefill: PrefillReply
    def __init__(self, number: _Optional[int] = ..., failure: _Optional[_Union[OrderFailure, _Mapping]] = ..., ticket: _Optional[_Union[Ticket, _Mapping]] = ..., prefill: _Optional[_Union[PrefillReply, _Mapping]] = ...) -> None: ...

class PrefixSnapshotOrder(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefixStored(_message.Message):
    __slots__ = ("parent", "hashes")
    PARENT_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    parent: bytes
    hashes: bytes
    def __init__(self, parent: _Optional[bytes] = ..., hashes: _Optional[bytes] = ...) -> None: ...

class PrefixEvicted(_message.Message):
    __slots__ = ("hashes",)
    HASHES_FIELD_NUMBER: _ClassVar[int]
    hashes: bytes
    def __init__(self, hashes: _Optional[bytes] = ...) -> None: ...

class PrefixCleared(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PrefixEvent(_message.Message):
    __slots__ = ("stored", "evicted", "cleared")
    STORED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    stored: PrefixStored
    evicted: PrefixEvicted
    cleared: PrefixCleared
    def __init__(self, stored: _Optional[_Union[PrefixStored, _Mapping]] = ..., evicted: _Optional[_Union[PrefixEvicted, _Mapping]] = ..., cleared: _Optional[_Union[PrefixCleared, _Mapping]] = ...) -> None: ...

class PrefixEvents(_message.Message):
    __slots__ = ("first_number", "events")
    FIRST_NUMBER_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    first_number: int
    events: _containers.RepeatedCompositeFieldContainer[PrefixEvent]
    def __init__(self, first_number: _Optional[int] = ..., events: _Optional[_Iterable[_Union[PrefixEvent, _Mapping]]] = ...) -> None: ...

class PrefixSnapshotPart(_message.Message):
    __slots__ = ("next_number", "hashes", "is_first", "is_last")
    NEXT_NUMBER_FIELD_NUMBER: _ClassVar[int]
    HASHES_FIELD_NUMBER: _ClassVar[int]
    IS_FIRST_FIELD_NUMBER: _ClassVar[int]
    IS_LAST_FIELD_NUMBER: _ClassVar[int]
    next_number: int
    hashes: bytes
    is_first: bool
    is_last: bool
    def __init__(self, next_number: _Optional[int] = ..., hashes: _Optional[bytes] = ..., is_first: _Optional[bool] = ..., is_last: _Optional[bool] = ...) -> None: ...

class PrefixNews(_message.Message):
    __slots__ = ("events", "snapshot")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    events: PrefixEvents
    snapshot: PrefixSnapshotPart
    def __init__(self, events: _Optional[_Union[PrefixEvents, _Mapping]] = ..., snapshot: _Optional[_Union[PrefixSnapshotPart, _Mapping]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("answers", "tokens", "failures", "prompts", "landings", "progress", "prefix", "lost_kv")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    LANDINGS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    LOST_KV_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    tokens: _containers.RepeatedCompositeFieldContainer[Token]
    failures: _containers.RepeatedCompositeFieldContainer[RequestFailure]
    prompts: _containers.RepeatedCompositeFieldContainer[PromptRead]
    landings: _containers.RepeatedCompositeFieldContainer[Landing]
    progress: _containers.RepeatedCompositeFieldContainer[TransferProgress]
    prefix: _containers.RepeatedCompositeFieldContainer[PrefixNews]
    lost_kv: _containers.RepeatedCompositeFieldContainer[RequestFailure]
    def __init__(self, answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., tokens: _Optional[_Iterable[_Union[Token, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[RequestFailure, _Mapping]]] = ..., prompts: _Optional[_Iterable[_Union[PromptRead, _Mapping]]] = ..., landings: _Optional[_Iterable[_Union[Landing, _Mapping]]] = ..., progress: _Optional[_Iterable[_Union[TransferProgress, _Mapping]]] = ..., prefix: _Optional[_Iterable[_Union[PrefixNews, _Mapping]]] = ..., lost_kv: _Optional[_Iterable[_Union[RequestFailure, _Mapping]]] = ...) -> None: ...

class TransferProgress(_message.Message):
    __slots__ = ("request_id", "acknowledged_bytes", "seconds", "is_ended")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    IS_ENDED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    acknowledged_bytes: int
    seconds: float
    is_ended: bool
    def __init__(self, request_id: _Optional[str] = ..., acknowledged_bytes: _Optional[int] = ..., seconds: _Optional[float] = ..., is_ended: _Optional[bool] = ...) -> None: ...

class Landing(_message.Message):
    __slots__ = ("request_id", "wire_bytes", "half_bytes")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    WIRE_BYTES_FIELD_NUMBER: _ClassVar[int]
    HALF_BYTES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    wire_bytes: int
    half_bytes: int
    def __init__(self, request_id: _Optional[str] = ..., wire_bytes: _Optional[int] = ..., half_bytes: _Optional[int] = ...) -> None: ...

class PromptRead(_message.Message):
    __slots__ = ("request_id", "scores", "num_cached_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    scores: _containers.RepeatedCompositeFieldContainer[TokenScore]
    num_cached_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., scores: _Optional[_Iterable[_Union[TokenScore, _Mapping]]] = ..., num_cached_tokens: _Optional[int] = ...) -> None: ...

class RequestFailure(_message.Message):
    __slots__ = ("request_id", "code", "message")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: str
    message: str
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
