"""Frames of the rendezvous: two 4-byte lengths, a JSON object, and raw bytes. Nothing in them is executed."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

__all__ = ["HANDSHAKE", "MEMBER", "Decoder", "Frame", "Header", "Limits", "ProtocolError", "canonical", "encode"]

Header = dict[str, Any]

_LENGTHS = struct.Struct("!II")


class ProtocolError(Exception):
    """What arrived is not a frame, or a larger one than its sender may send."""


class Frame(NamedTuple):
    header: Header
    payload: bytes


class Limits(NamedTuple):
    """The largest header and payload that are accepted, in bytes."""

    header: int
    payload: int


HANDSHAKE = Limits(4096, 0)  # of a connection that has proved nothing yet
MEMBER = Limits(1 << 20, 1 << 28)


def canonical(header: Header) -> bytes:
    """The one JSON text of a header."""
    return json.dumps(header, sort_keys=True, separators=(",", ":")).encode()


def encode(header: Header, payload: bytes = b"") -> bytes:
    """A frame as bytes. Raises ProtocolError when a member may not send one so large."""
    text = canonical(header)
    if len(text) > MEMBER.header or len(payload) > MEMBER.payload:
        raise ProtocolError(f"{len(payload)} bytes are more than the {MEMBER.payload} that one message can carry")
    return _LENGTHS.pack(len(text), len(payload)) + text + payload


class Decoder:
    """Cuts a stream into frames. `limits` may be raised once the sender is known."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def pop(self) -> Frame | None:
        """The next whole frame. Raises ProtocolError as soon as the stream cannot be one."""
        if len(self._buffer) < _LENGTHS.size:
            return None
        header_bytes, payload_bytes = _LENGTHS.unpack_from(self._buffer)
        if header_bytes > self.limits.header or payload_bytes > self.limits.payload:
            raise ProtocolError(f"a frame of {header_bytes} + {payload_bytes} bytes, or no frame at all")
        end = _LENGTHS.size + header_bytes + payload_bytes
        if len(self._buffer) < end:
            return None
        text = bytes(self._buffer[_LENGTHS.size : _LENGTHS.size + header_bytes])
        payload = bytes(self._buffer[_LENGTHS.size + header_bytes : end])
        del self._buffer[:end]
        try:
            header = json.loads(text)
        except (ValueError, RecursionError):
            raise ProtocolError("a frame's header is not JSON") from None
        if not isinstance(header, dict) or not isinstance(header.get("op"), str):
            raise ProtocolError("a frame's header has no operation")
        return Frame(header, payload)

    def __iter__(self) -> Iterator[Frame]:
        while (frame := self.pop()) is not None:
            yield frame
