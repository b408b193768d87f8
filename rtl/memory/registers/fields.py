"""The bits of registers by the names that the map gives them."""

from collections.abc import Mapping

from amaranth import C, Cat, Value

from .map import REGISTERS, Group, find

__all__ = ["bits_of", "packed", "registers_of"]


def registers_of(group: str) -> tuple[str, ...]:
    """The names of a group's registers, in their order: "REGION_BASE", "REGION_SIZE".

    Raises:
        ValueError: there is no such group.
    """
    for entry in REGISTERS:
        if isinstance(entry, Group) and entry.name == group:
            return tuple(f"{group}_{register.name}" for register in entry.registers)
    raise ValueError(f"group must be one of the register map's, not {group!r}")


def bits_of(register: str, field: str) -> slice:
    """Where a field is in the word of its register.

    Raises:
        ValueError: there is no such register, or it has no such field.
    """
    for one in find(register)[0].fields:
        if one.name == field:
            return slice(one.low, one.low + one.width)
    raise ValueError(f"field must be one of {register}'s, not {field!r}")


def packed(register: str, values: Mapping[str, Value]) -> Value:
    """The word of a register with a value in each of its fields, cut or filled up to the field's width.

    Raises:
        ValueError: there is no such register, or a field without a value.
    """
    parts, end = [], 0
    for one in sorted(find(register)[0].fields, key=lambda field: field.low):
        if one.name not in values:
            raise ValueError(f"values must have all fields of {register}, not {sorted(values)!r}")
        value = Value.cast(values[one.name])[: one.width]
        parts += [C(0, one.low - end), value, C(0, one.width - len(value))]
        end = one.low + one.width
    return Cat(parts)
