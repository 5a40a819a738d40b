from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("id", "model", "cut", "tensors")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    id: int
    model: bytes
    cut: int
    tensors: bytes
    def __init__(self, id: _Optional[int] = ..., model: _Optional[bytes] = ..., cut: _Optional[int] = ..., tensors: _Optional[bytes] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("id", "tensors", "refusal", "compute_ns", "server_ns")
    ID_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_NS_FIELD_NUMBER: _ClassVar[int]
    SERVER_NS_FIELD_NUMBER: _ClassVar[int]
    id: int
    tensors: bytes
    refusal: Refusal
    compute_ns: int
    server_ns: int
    def __init__(self, id: _Optional[int] = ..., tensors: _Optional[bytes] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., compute_ns: _Optional[int] = ..., server_ns: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("reason", "message")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        UNKNOWN: _ClassVar[Refusal.Reason]
        MODEL: _ClassVar[Refusal.Reason]
        CUT: _ClassVar[Refusal.Reason]
        TENSORS: _ClassVar[Refusal.Reason]
        BUSY: _ClassVar[Refusal.Reason]
        FAILED: _ClassVar[Refusal.Reason]
    UNKNOWN: Refusal.Reason
    MODEL: Refusal.Reason
    CUT: Refusal.Reason
    TENSORS: Refusal.Reason
    BUSY: Refusal.Reason
    FAILED: Refusal.Reason
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: Refusal.Reason
    message: str
    def __init__(self, reason: _Optional[_Union[Refusal.Reason, str]] = ..., message: _Optional[str] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("name", "cut")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    name: str
    cut: int
    def __init__(self, name: _Optional[str] = ..., cut: _Optional[int] = ...) -> None: ...

class Description(_message.Message):
    __slots__ = ("model", "cuts", "head", "offered", "sha256", "results")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CUTS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    model: bytes
    cuts: int
    head: bytes
    offered: _containers.RepeatedScalarFieldContainer[int]
    sha256: bytes
    results: bytes
    def __init__(self, model: _Optional[bytes] = ..., cuts: _Optional[int] = ..., head: _Optional[bytes] = ..., offered: _Optional[_Iterable[int]] = ..., sha256: _Optional[bytes] = ..., results: _Optional[bytes] = ...) -> None: ...
