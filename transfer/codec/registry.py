"""The codecs that this version knows, by the code in a header and by the name in a ticket's rule."""

from __future__ import annotations

from protocol.wire_rule import WireCodec
from transfer.codec.channel import ChannelCodec
from transfer.codec.codec import Codec
from transfer.codec.native import NativeCodec
from transfer.codec.symmetric import FP8, SPECTRUM, UNIFORM_INT4, UNIFORM_INT8

NATIVE = NativeCodec()
BY_CODE: dict[int, Codec] = {
    one.code: one for one in (NATIVE, ChannelCodec(), SPECTRUM, UNIFORM_INT8, UNIFORM_INT4, FP8)
}
BY_NAME: dict[WireCodec, Codec] = {one.name: one for one in BY_CODE.values()}
