"""The channels of AXI4 and AXI4-Lite (AMBA IHI 0022) as streams, and their ports by AXI's names."""

from amaranth import Cat, Module, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

__all__ = ["axi4_channels", "axi4_lite_channels", "connect_channels", "ports_of", "toward_subordinate"]


def axi4_channels(address_bits: int, size: int, id_bits: int) -> dict[str, data.StructLayout]:
    """Payloads of the five channels; fields that nothing here looks at are left out."""
    identity = {"id": id_bits}
    address = {**identity, "addr": address_bits, "len": 8, "size": 3, "burst": 2}
    return {
        "aw": data.StructLayout(address | {"cache": 4}),
        "w": data.StructLayout({"data": 8 * size, "strb": size, "last": 1}),
        "b": data.StructLayout(identity | {"resp": 2}),
        "ar": data.StructLayout(address | {"cache": 4}),
        "r": data.StructLayout(identity | {"data": 8 * size, "resp": 2, "last": 1}),
    }


def axi4_lite_channels(address_bits: int) -> dict[str, data.StructLayout]:
    """Payloads of the five channels, 32 bits of data."""
    return {
        "aw": data.StructLayout({"addr": address_bits}),
        "w": data.StructLayout({"data": 32, "strb": 4}),
        "b": data.StructLayout({"resp": 2}),
        "ar": data.StructLayout({"addr": address_bits}),
        "r": data.StructLayout({"data": 32, "resp": 2}),
    }


def toward_subordinate(channel: str) -> bool:
    """Whether a channel's payload goes from the manager to the subordinate."""
    return channel in ("aw", "w", "ar")


def ports_of(
    prefix: str, channels: dict[str, data.StructLayout], subordinate: bool
) -> dict[str, wiring.Member]:
    """The members of a component that has these channels, as its subordinate or its manager side."""
    members = {}
    for name, layout in channels.items():
        into = In if toward_subordinate(name) == subordinate else Out
        back = Out if into is In else In
        for field, place in layout:
            members[f"{prefix}_{name}{field}"] = into(place.width)
        members[f"{prefix}_{name}valid"] = into(1)
        members[f"{prefix}_{name}ready"] = back(1)
    return members


def connect_channels(
    m: Module,
    component,
    prefix: str,
    channels: dict[str, data.StructLayout],
    subordinate: bool,
    enable: Value,
) -> dict[str, stream.Interface]:
    """Streams of the channels behind such members, on which nothing moves unless enabled."""
    streams = {}
    for name, layout in channels.items():
        port = stream.Signature(layout).create(path=(f"{prefix}_{name}",))
        streams[name] = port
        fields = [getattr(component, f"{prefix}_{name}{field}") for field, _ in layout]
        valid = getattr(component, f"{prefix}_{name}valid")
        ready = getattr(component, f"{prefix}_{name}ready")
        if toward_subordinate(name) == subordinate:
            m.d.comb += [
                Value.cast(port.payload).eq(Cat(fields)),
                port.valid.eq(valid & enable),
                ready.eq(port.ready & enable),
            ]
        else:
            m.d.comb += [
                Cat(fields).eq(port.payload),
                valid.eq(port.valid & enable),
                port.ready.eq(ready & enable),
            ]
    return streams
