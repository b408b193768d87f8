"""What the kernels of the CPU backend need of the processor and loops do not become, by way of LLVM."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba.extending import intrinsic


def compiled(function: Callable) -> Any:
    try:
        return numba.njit(function, nogil=True, cache=True)
    except RuntimeError:  # there is no folder at all to keep the machine code in
        return numba.njit(function, nogil=True)


def inlined(function: Callable) -> Any:
    """A part of what is compiled. A call would pass each array as seven numbers, which takes its time."""
    return numba.njit(function, forceinline=True)


def instruction(function: Callable) -> Any:
    """What a function of argument types returns: a signature, and what emits the LLVM code for a call."""
    return intrinsic(prefer_literal=True)(function)


@instruction
def bit_count(_: Any, number: Any) -> Any:
    kind = numba.types.unliteral(number)
    return kind(kind), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@instruction
def trailing_zeros(_: Any, number: Any) -> Any:
    """Of a number other than 0."""
    kind, true = numba.types.unliteral(number), ir.IntType(1)(1)
    return kind(kind), lambda context, builder, signature, arguments: builder.cttz(arguments[0], true)


@instruction
def _leading_zeros(_: Any, number: Any) -> Any:
    kind, false = numba.types.unliteral(number), ir.IntType(1)(0)
    return kind(kind), lambda context, builder, signature, arguments: builder.ctlz(arguments[0], false)


@inlined
def bit_length(number: int) -> int:
    """int.bit_length of a number from 0 to 2**62."""
    return 64 - _leading_zeros(np.int64(number))


@instruction
def copy_octets(_: Any, array: Any, place: Any, out: Any, to: Any) -> Any:
    """``out[to : to + 8] = array[place : place + 8]``, of arrays of bytes."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, target = (
            builder.bitcast(
                builder.gep(context.make_array(kind)(context, builder, value).data, [at]),
                ir.IntType(64).as_pointer(),
            )
            for kind, value, at in ((array, *arguments[:2]), (out, *arguments[2:]))
        )
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return numba.void(array, numba.intp, out, numba.intp), generate


# A plane is all words of a block compared at once, which processors have instructions for and compilers
# do not find in a loop. So these two are written in LLVM's language, where a comparison gives <N x i1>.


@instruction
def store_plane(_: Any, words: Any, n: Any, weight: Any, stored: Any, place: Any) -> Any:
    """``stored[place:] =`` the bits of that weight of ``words[:n]``."""
    signature = numba.void(words, n, words.dtype, stored, place)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, weights, octets = _of_block(context, builder, signature, arguments)
        values = builder.load(block, align=_alignment(words))
        plane = builder.icmp_unsigned("!=", builder.and_(values, weights), values.type(None))
        builder.store(builder.bitcast(plane, octets.type.pointee), octets, align=1)
        return context.get_dummy_value()

    return signature, generate


@instruction
def load_plane(_: Any, words: Any, n: Any, weight: Any, stored: Any, place: Any) -> Any:
    """Those of ``words[:n]`` whose bit in ``stored[place:]`` is 1 get a bit of that weight."""
    signature = numba.void(words, n, words.dtype, stored, place)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        block, weights, octets = _of_block(context, builder, signature, arguments)
        values = builder.load(block, align=_alignment(words))
        plane = builder.bitcast(builder.load(octets, align=1), ir.VectorType(ir.IntType(1), n.literal_value))
        bits = builder.select(plane, weights, values.type(None))
        builder.store(builder.or_(values, bits), block, align=_alignment(words))
        return context.get_dummy_value()

    return signature, generate


def _of_block(context: Any, builder: Any, signature: Any, arguments: Any) -> tuple[Any, Any, Any]:
    """A pointer to ``words[:n]`` as a vector, n times one word, a pointer to the plane as an integer."""
    words, n, word, stored, _ = signature.args
    vector = ir.VectorType(ir.IntType(word.bitwidth), n.literal_value)
    block = context.make_array(words)(context, builder, arguments[0]).data
    plane = builder.gep(context.make_array(stored)(context, builder, arguments[3]).data, [arguments[4]])
    first = builder.insert_element(vector(None), arguments[2], ir.IntType(32)(0))
    zeros = ir.VectorType(ir.IntType(32), n.literal_value)(None)
    weights = builder.shuffle_vector(first, vector(None), zeros)
    return (
        builder.bitcast(block, vector.as_pointer()),
        weights,
        builder.bitcast(plane, ir.IntType(n.literal_value).as_pointer()),
    )


def _alignment(array: Any) -> int:
    return array.dtype.bitwidth // 8
