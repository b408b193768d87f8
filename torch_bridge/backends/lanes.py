"""Vectors of sixteen numbers, one for each of sixteen blocks, as a type that Numba compiles.

``a + b`` is sixteen sums and ``a > b`` sixteen truths; where ``b`` is a single number it stands for sixteen.
LLVM makes of these what vectors the processor has. They come from flat arrays and go there:
``load(array, i)`` is ``array[i : i + 16]``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import lower_builtin, models, register_model, type_callable

from .instructions import instruction

LANES = 16


class Lanes(types.Type):
    """Sixteen numbers of a type."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype
        super().__init__(f"Lanes({dtype})")


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, lanes: Lanes) -> None:
        number = manager.lookup(lanes.dtype).get_value_type()
        super().__init__(manager, lanes, ir.VectorType(number, LANES))


# Operators: of two vectors, or of one and a number.


def _define(function: Callable, emit: Callable, gives: Lanes | None = None) -> None:
    """Say what LLVM code an operator is, by its builder, the numbers' type and two vectors."""

    @type_callable(function)
    def typed(_: Any) -> Any:
        def result(a: Any, b: Any) -> Any:
            return (gives or a) if isinstance(a, Lanes) and (a == b or isinstance(b, types.Number)) else None

        return result

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        a, b = signature.args
        return emit(builder, a.dtype, arguments[0], _filled(context, builder, arguments[1], b, a))

    lower_builtin(function, Lanes, Lanes)(generate)
    lower_builtin(function, Lanes, types.Number)(generate)


def _filled(context: Any, builder: Any, number: Any, kind: Any, lanes: Lanes) -> Any:
    """A number sixteen times; a vector as it is."""
    if isinstance(kind, Lanes):
        return number
    vector, zeros = context.get_value_type(lanes), ir.VectorType(ir.IntType(32), LANES)(None)
    number = context.cast(builder, number, kind, lanes.dtype)
    first = builder.insert_element(vector(ir.Undefined), number, ir.IntType(32)(0))
    return builder.shuffle_vector(first, vector(ir.Undefined), zeros)


def _by_name(of_integers: str, of_floats: str = "") -> Callable:
    def emit(builder: Any, dtype: Any, a: Any, b: Any) -> Any:
        name = of_floats if isinstance(dtype, types.Float) else of_integers
        return getattr(builder, name)(a, b)

    return emit


def _shift_right(builder: Any, dtype: Any, a: Any, b: Any) -> Any:
    return builder.ashr(a, b) if dtype.signed else builder.lshr(a, b)


def _comparison(sign: str) -> Callable:
    def emit(builder: Any, dtype: Any, a: Any, b: Any) -> Any:
        if isinstance(dtype, types.Float):
            return builder.fcmp_ordered(sign, a, b)
        return (builder.icmp_signed if dtype.signed else builder.icmp_unsigned)(sign, a, b)

    return emit


_define(operator.add, _by_name("add", "fadd"))
_define(operator.sub, _by_name("sub", "fsub"))
_define(operator.mul, _by_name("mul", "fmul"))
_define(operator.truediv, _by_name("", "fdiv"))
_define(operator.and_, _by_name("and_"))
_define(operator.or_, _by_name("or_"))
_define(operator.xor, _by_name("xor"))
_define(operator.lshift, _by_name("shl"))
_define(operator.rshift, _shift_right)
_define(operator.lt, _comparison("<"), Lanes(types.boolean))
_define(operator.gt, _comparison(">"), Lanes(types.boolean))
_define(operator.ne, _comparison("!="), Lanes(types.boolean))


# Functions: what each returns is a signature, and what emits the LLVM code for a call.


@instruction
def filled(_: Any, number: Any) -> Any:
    """A number sixteen times."""
    lanes = Lanes(types.unliteral(number))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _filled(context, builder, arguments[0], number, lanes)

    return lanes(number), generate


@instruction
def negated(_: Any, a: Any) -> Any:
    return a(a), lambda context, builder, signature, arguments: builder.neg(arguments[0])


@instruction
def where(_: Any, truths: Any, a: Any, b: Any) -> Any:
    """``a`` where it is true, ``b``, which may be a number, elsewhere."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.select(*arguments[:2], _filled(context, builder, arguments[2], b, a))

    return a(truths, a, b), generate


def _chooses(sign: str) -> Callable:
    """A function that gives of each two numbers the one that is smaller or larger."""

    def chosen(_: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            other = _filled(context, builder, arguments[1], b, a)
            return builder.select(
                _comparison(sign)(builder, a.dtype, arguments[0], other), arguments[0], other
            )

        return a(a, b), generate

    return instruction(chosen)


smaller, larger = _chooses("<"), _chooses(">")


@instruction
def converted(_: Any, a: Any, dtype: Any) -> Any:
    """The numbers as another type: of integers the lowest bits, of floats what is before the point."""
    lanes, old, new = Lanes(dtype.dtype), a.dtype, dtype.dtype

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if isinstance(new, types.Float):
            name = "sitofp"
        elif isinstance(old, types.Float):
            name = "fptosi"
        elif new.bitwidth <= old.bitwidth:
            name = "trunc" if new.bitwidth < old.bitwidth else "bitcast"
        else:
            name = "sext" if old.signed else "zext"
        return getattr(builder, name)(arguments[0], context.get_value_type(lanes))

    return lanes(a, dtype), generate


@instruction
def viewed(_: Any, a: Any, dtype: Any) -> Any:
    """The bits as another type of the same width."""
    lanes = Lanes(dtype.dtype)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(lanes))

    return lanes(a, dtype), generate


@instruction
def square_root(_: Any, a: Any) -> Any:
    """Of floats of 32 bits."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector = context.get_value_type(a)
        kind = ir.FunctionType(vector, [vector])
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, f"llvm.sqrt.v{LANES}f32"), arguments
        )

    return a(a), generate


def table(numbers: tuple[int, ...]) -> Any:
    """A function that looks numbers up by the lowest bits of vectors: as many as there are places."""

    def looked_up(_: Any, index: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            vector = context.get_value_type(index)
            left, weight = [ir.Constant(vector, [number] * LANES) for number in numbers], 1
            while len(left) > 1:
                bit = builder.and_(arguments[0], ir.Constant(vector, [weight] * LANES))
                truths = builder.icmp_unsigned("!=", bit, vector(None))
                left = [builder.select(truths, b, a) for a, b in zip(left[::2], left[1::2], strict=True)]
                weight *= 2
            return left[0]

        return index(index), generate

    return instruction(looked_up)


@instruction
def load(_: Any, array: Any, place: Any) -> Any:
    """``array[place : place + 16]``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return _load(builder, _pointer(context, builder, array, arguments[0]), arguments[1])

    return Lanes(array.dtype)(array, types.intp), generate


@instruction
def store(_: Any, array: Any, place: Any, a: Any) -> Any:
    """``array[place : place + 16] = a``."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        _store(builder, arguments[2], _pointer(context, builder, array, arguments[0]), arguments[1])
        return context.get_dummy_value()

    return types.void(array, types.intp, Lanes(array.dtype)), generate


@instruction
def prefetch(_: Any, array: Any, place: Any, writes: Any) -> Any:
    """Have ``array[place]``, which need not exist, in the cache soon: to be read, or to be written if 1.

    Processors do not foresee the places of rows that are worked on side by side.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        pointer = builder.gep(_pointer(context, builder, array, arguments[0]), [arguments[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        hints = [number(hint) for hint in (writes.literal_value, 3, 1)]  # all caches, and data
        builder.call(function, [builder.bitcast(pointer, byte), *hints])
        return context.get_dummy_value()

    return types.void(array, types.intp, writes), generate


def _pointer(context: Any, builder: Any, array: Any, value: Any) -> Any:
    return context.make_array(array)(context, builder, value).data


def _load(builder: Any, pointer: Any, place: Any) -> Any:
    vector = ir.VectorType(pointer.type.pointee, LANES)
    at = builder.bitcast(builder.gep(pointer, [place]), vector.as_pointer())
    return builder.load(at, align=pointer.type.pointee.width // 8)


def _store(builder: Any, vector: Any, pointer: Any, place: Any) -> None:
    at = builder.bitcast(builder.gep(pointer, [place]), vector.type.as_pointer())
    builder.store(vector, at, align=pointer.type.pointee.width // 8)


def _places(builder: Any, count: int, first: Any, stride: Any) -> list[Any]:
    return [builder.add(first, builder.mul(stride, stride.type(i))) for i in range(count)]


@instruction
def butterflies(_: Any, array: Any, place: Any, stride: Any, count: Any, out: Any) -> Any:
    """The Walsh-Hadamard transform of ``count`` vectors, a constant, ``stride`` apart from ``place`` on.

    They go to the same places of ``out``, which may be the array itself or one of wider integers.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = _pointer(context, builder, array, arguments[0])
        target = _pointer(context, builder, out, arguments[4])
        places = _places(builder, count.literal_value, *arguments[1:3])
        rows = [_load(builder, source, at) for at in places]
        if out != array:
            rows = [builder.sext(row, ir.VectorType(target.type.pointee, LANES)) for row in rows]
        half = 1
        while half < len(rows):
            for i in range(len(rows)):
                if not i & half:
                    a, b = rows[i], rows[i + half]
                    rows[i], rows[i + half] = builder.add(a, b), builder.sub(a, b)
            half *= 2
        for row, at in zip(rows, places, strict=True):
            _store(builder, row, target, at)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, count, out), generate


@instruction
def transpose(_: Any, array: Any, place: Any, stride: Any, out: Any, out_place: Any, out_stride: Any) -> Any:
    """Sixteen rows of sixteen numbers, ``stride`` apart, become the columns of others in ``out``.

    If there is only room for half of a number's bits, the upper ones do.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source = _pointer(context, builder, array, arguments[0])
        target = _pointer(context, builder, out, arguments[3])
        rows = [_load(builder, source, at) for at in _places(builder, LANES, *arguments[1:3])]
        parts = array.dtype.bitwidth // out.dtype.bitwidth
        half, order = LANES // 2, ir.VectorType(ir.IntType(32), LANES)
        for _ in range(LANES.bit_length() - 1):
            # Each row of the upper half interleaved with that of the lower one: the bits of a number's place,
            # those of its row and then those of its column, rotate by one.
            rows = [builder.bitcast(row, ir.VectorType(target.type.pointee, LANES * parts)) for row in rows]
            rows = [
                builder.shuffle_vector(
                    rows[i],
                    rows[i + half],
                    order([parts * (start + k // 2 + k % 2 * LANES + 1) - 1 for k in range(LANES)]),
                )
                for i in range(half)
                for start in (0, half)
            ]
            parts = 1
        for row, at in zip(rows, _places(builder, LANES, *arguments[4:6]), strict=True):
            _store(builder, row, target, at)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.intp, out, types.intp, types.intp), generate
