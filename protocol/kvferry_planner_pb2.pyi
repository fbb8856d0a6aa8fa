from protocol import kvferry_worker_pb2 as _kvferry_worker_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Hello(_message.Message):
    __slots__ = ("held_lease_ids",)
    HELD_LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    held_lease_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, held_lease_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReserveAsk(_message.Message):
    __slots__ = ("number", "request_id", "source", "destination", "num_bytes", "produced_bytes_per_second", "start_in_s")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    PRODUCED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    START_IN_S_FIELD_NUMBER: _ClassVar[int]
    number: int
    request_id: str
    source: str
    destination: str
    num_bytes: int
    produced_bytes_per_second: int
    start_in_s: float
    def __init__(self, number: _Optional[int] = ..., request_id: _Optional[str] = ..., source: _Optional[str] = ..., destination: _Optional[str] = ..., num_bytes: _Optional[int] = ..., produced_bytes_per_second: _Optional[int] = ..., start_in_s: _Optional[float] = ...) -> None: ...

class LeaseProgress(_message.Message):
    __slots__ = ("lease_id", "acknowledged_bytes")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    acknowledged_bytes: int
    def __init__(self, lease_id: _Optional[int] = ..., acknowledged_bytes: _Optional[int] = ...) -> None: ...

class PairSight(_message.Message):
    __slots__ = ("source", "destination", "tested_bytes_per_second", "measured_bytes_per_second")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    TESTED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MEASURED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    source: str
    destination: str
    tested_bytes_per_second: float
    measured_bytes_per_second: float
    def __init__(self, source: _Optional[str] = ..., destination: _Optional[str] = ..., tested_bytes_per_second: _Optional[float] = ..., measured_bytes_per_second: _Optional[float] = ...) -> None: ...

class NetworkSight(_message.Message):
    __slots__ = ("pairs",)
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[PairSight]
    def __init__(self, pairs: _Optional[_Iterable[_Union[PairSight, _Mapping]]] = ...) -> None: ...

class RouterMessage(_message.Message):
    __slots__ = ("hello", "sight", "released_lease_ids", "progress", "reserves", "is_leaving")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    SIGHT_FIELD_NUMBER: _ClassVar[int]
    RELEASED_LEASE_IDS_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    RESERVES_FIELD_NUMBER: _ClassVar[int]
    IS_LEAVING_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    sight: NetworkSight
    released_lease_ids: _containers.RepeatedScalarFieldContainer[int]
    progress: _containers.RepeatedCompositeFieldContainer[LeaseProgress]
    reserves: _containers.RepeatedCompositeFieldContainer[ReserveAsk]
    is_leaving: bool
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., sight: _Optional[_Union[NetworkSight, _Mapping]] = ..., released_lease_ids: _Optional[_Iterable[int]] = ..., progress: _Optional[_Iterable[_Union[LeaseProgress, _Mapping]]] = ..., reserves: _Optional[_Iterable[_Union[ReserveAsk, _Mapping]]] = ..., is_leaving: _Optional[bool] = ...) -> None: ...

class Grant(_message.Message):
    __slots__ = ("number", "lease_id", "pace")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    number: int
    lease_id: int
    pace: _kvferry_worker_pb2.Pace
    def __init__(self, number: _Optional[int] = ..., lease_id: _Optional[int] = ..., pace: _Optional[_Union[_kvferry_worker_pb2.Pace, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("number", "code", "message")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    number: int
    code: str
    message: str
    def __init__(self, number: _Optional[int] = ..., code: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class LeasePace(_message.Message):
    __slots__ = ("lease_id", "pace")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    pace: _kvferry_worker_pb2.Pace
    def __init__(self, lease_id: _Optional[int] = ..., pace: _Optional[_Union[_kvferry_worker_pb2.Pace, _Mapping]] = ...) -> None: ...

class PortUse(_message.Message):
    __slots__ = ("worker", "direction", "bytes_per_second", "reserved_bytes_per_second", "allowed_bytes_per_second", "achieved_bytes_per_second", "num_leases")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    DIRECTION_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    RESERVED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ACHIEVED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    NUM_LEASES_FIELD_NUMBER: _ClassVar[int]
    worker: str
    direction: str
    bytes_per_second: int
    reserved_bytes_per_second: int
    allowed_bytes_per_second: int
    achieved_bytes_per_second: int
    num_leases: int
    def __init__(self, worker: _Optional[str] = ..., direction: _Optional[str] = ..., bytes_per_second: _Optional[int] = ..., reserved_bytes_per_second: _Optional[int] = ..., allowed_bytes_per_second: _Optional[int] = ..., achieved_bytes_per_second: _Optional[int] = ..., num_leases: _Optional[int] = ...) -> None: ...

class LeaseUse(_message.Message):
    __slots__ = ("lease_id", "owner", "request_id", "source", "destination", "num_bytes", "acknowledged_bytes", "pace", "achieved_bytes_per_second", "ends_in_s")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    DESTINATION_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    ACHIEVED_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    ENDS_IN_S_FIELD_NUMBER: _ClassVar[int]
    lease_id: int
    owner: str
    request_id: str
    source: str
    destination: str
    num_bytes: int
    acknowledged_bytes: int
    pace: _kvferry_worker_pb2.Pace
    achieved_bytes_per_second: float
    ends_in_s: float
    def __init__(self, lease_id: _Optional[int] = ..., owner: _Optional[str] = ..., request_id: _Optional[str] = ..., source: _Optional[str] = ..., destination: _Optional[str] = ..., num_bytes: _Optional[int] = ..., acknowledged_bytes: _Optional[int] = ..., pace: _Optional[_Union[_kvferry_worker_pb2.Pace, _Mapping]] = ..., achieved_bytes_per_second: _Optional[float] = ..., ends_in_s: _Optional[float] = ...) -> None: ...

class NetworkUse(_message.Message):
    __slots__ = ("ports", "leases", "num_reserved", "num_refused", "num_released", "num_expired")
    PORTS_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NUM_RESERVED_FIELD_NUMBER: _ClassVar[int]
    NUM_REFUSED_FIELD_NUMBER: _ClassVar[int]
    NUM_RELEASED_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPIRED_FIELD_NUMBER: _ClassVar[int]
    ports: _containers.RepeatedCompositeFieldContainer[PortUse]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseUse]
    num_reserved: int
    num_refused: int
    num_released: int
    num_expired: int
    def __init__(self, ports: _Optional[_Iterable[_Union[PortUse, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[LeaseUse, _Mapping]]] = ..., num_reserved: _Optional[int] = ..., num_refused: _Optional[int] = ..., num_released: _Optional[int] = ..., num_expired: _Optional[int] = ...) -> None: ...

class PlannerMessage(_message.Message):
    __slots__ = ("grants", "refusals", "paces", "use")
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    PACES_FIELD_NUMBER: _ClassVar[int]
    USE_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[Grant]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    paces: _containers.RepeatedCompositeFieldContainer[LeasePace]
    use: NetworkUse
    def __init__(self, grants: _Optional[_Iterable[_Union[Grant, _Mapping]]] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., paces: _Optional[_Iterable[_Union[LeasePace, _Mapping]]] = ..., use: _Optional[_Union[NetworkUse, _Mapping]] = ...) -> None: ...
