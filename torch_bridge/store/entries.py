"""What is stored of tensors, what autograd holds in their place, and the memory that is made of it again."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from ..backends import Backend, streams
from ..backends.bits import BitsCodec
from ..backends.checksum import CorruptionError, checksums
from ..facts.facts import Facts
from ..facts.geometry import Geometry, Region
from ..offload import Handle
from ..policy.decision import EXACT, Decision, Of, Strength
from ..report.report import Sums
from .centred import Means
from .verdicts import Flag

# What was stored of a tensor before is shared if it is at least this part of what is left to store: to put
# memory together of many small parts costs more than it saves.
_LEAST_SHARED = 1 / 8

# No node of an autograd.Function, which have numbers from 0.
NOBODY = -1


class Source:
    """One state of one storage: which of its regions are stored, and which stay as they are.

    Args:
        storage: a weak reference to it.
        tensor: of that storage.
        version: of the tensor.

    Attributes:
        version: as given.
        dtype: of the tensor.
        elements: that the storage has.
        is_input: whether others are recomputed from what of it stays as it is.
        is_held: whether the report counts all of its storage, which a part that stays as it is keeps alive.
    """

    __slots__ = (
        "__weakref__",
        "_entries",
        "_exact",
        "_limit",
        "_memories",
        "_storage",
        "dtype",
        "elements",
        "is_held",
        "is_input",
        "version",
    )

    def __init__(
        self, storage: weakref.ref[torch.UntypedStorage], tensor: torch.Tensor, version: int
    ) -> None:
        self._storage, self.version, self.dtype = storage, version, tensor.dtype
        self.elements = tensor.untyped_storage().nbytes() // tensor.element_size()
        # Most have one of all these: there are many sources, and a list of one is twice the objects.
        self._exact: tuple[tuple[Region, weakref.ref[Exact]], ...] = ()
        self._entries: tuple[tuple[int, int, weakref.ref[Entry]], ...] = ()
        self._memories: dict[tuple[int, int], weakref.ref[Memory]] | None = None
        self._limit = 16
        self.is_input = self.is_held = False

    def add(self, entry: Entry) -> None:
        self._entries += ((entry.region.offset, entry.region.end, weakref.ref(entry)),)
        if len(self._entries) > self._limit:
            self._entries = tuple(one for one in self._entries if one[2]() is not None)
            self._limit = max(16, 2 * len(self._entries))

    def holding(self, region: Region) -> Sequence[Entry]:
        """The entries that have all of a region, the first that was added first."""
        if not self._entries:
            return ()
        return [entry for entry in self._near(region) if region.is_within(entry.region)]

    def shared(
        self, region: Region, codec: Backend | BitsCodec | None
    ) -> tuple[list[tuple[Entry, Region]], list[Region]]:
        """Entries of a codec, or exact ones, with what of a region each has, and the rest of it in pieces."""
        parts: list[tuple[Entry, Region]] = []
        rest = [region]
        for entry in self._near(region) if self._entries else ():
            is_like = entry.codec is None or (entry.codec is codec and entry.means is None)
            if not entry.is_stored or not is_like:
                continue
            for piece in list(rest):
                least = _LEAST_SHARED * piece.count
                if entry.region.count < least:
                    continue
                common, others = piece.split(entry.region)
                if common is not None and common.count >= least:
                    parts.append((entry, common))
                    rest.remove(piece)
                    rest += others
        return parts, rest

    def is_at(self, storage: torch.UntypedStorage) -> bool:
        """Whether it is of this storage."""
        return self._storage() is storage

    def leave(self, region: Region, exact: Exact) -> int:
        """A region is to stay as it is, held by a saved tensor; how many of its elements did not yet."""
        if self._exact and self.left(region) is not None:
            return 0
        rest = [region]
        for other, _ in self._exact:
            rest = [part for piece in rest for part in piece.split(other)[1]]
        self._exact += ((region, weakref.ref(exact)),)
        return sum([piece.count for piece in rest])

    def is_left(self, region: Region) -> bool:
        """Whether all of a region stays as it is."""
        for one, _ in self._exact:  # noqa: SIM110, as a generator takes longer
            if region.is_within(one):
                return True
        return False

    def left(self, region: Region) -> Exact | None:
        """What still holds all of a region that stays as it is."""
        for one, ref in self._exact:
            if region.is_within(one) and (exact := ref()) is not None and not exact.may_change:
                return exact
        return None

    def memory_for(self, entry: Entry) -> Memory:
        """Where an entry's values go: to those of others in the same run of memory that are apart from it."""
        room = entry.region.room(self.elements)
        if self._memories is None:
            self._memories = {}
        known = self._memories.get(room)
        memory = known() if known else None
        if memory is None or memory.overlaps(entry.region):
            memory = Memory(*room)
            self._memories[room] = weakref.ref(memory)
        memory.regions.append(entry.region)
        return memory

    def _near(self, region: Region) -> list[Entry]:
        """Entries whose memory begins before a region's ends, and ends after it begins."""
        start, end = region.offset, region.end
        return [
            entry
            for first, last, ref in self._entries
            if first < end and start < last and (entry := ref()) is not None
        ]


class Memory:
    """A run of memory that entries' values are written to when they are needed; it goes when no one uses it.

    Attributes:
        start: where in the storage it begins.
        count: its elements.
        regions: that have a place in it. What lies between them is undefined.
        kept: the memory, if it is to stay for nodes to come.
        is_light: whether its values take no longer to make anew than to read and write them.
        is_awaited: whether a node needs its values that others have asked for before.
    """

    def __init__(self, start: int, count: int) -> None:
        self.start, self.count = start, count
        self.regions: list[Region] = []
        self.kept: torch.Tensor | None = None
        self.is_light = self.is_awaited = False
        self._lent_to = NOBODY
        self._storage: weakref.ref[torch.UntypedStorage] | None = None
        self._counts: torch.Tensor | None = None  # the memory's versions, once it is not kept any more
        self._times = 0  # that it was made
        self._version = 0  # of the kept memory, with what was written here
        self._written: streams.Written | None = None

    def lend(self, number: int) -> None:
        """A node asks for it: of an ``autograd.Function``, whose kernel may write over it unseen, or NOBODY.

        Whoever asks behind a Function has the values made anew.
        """
        if self._lent_to not in (NOBODY, number):
            self.forget()
        self._lent_to = number

    def forget(self) -> None:
        """What its entries' values were is not asked for again: they are made anew."""
        self.kept = self._storage = self._counts = None

    def overlaps(self, region: Region) -> bool:
        """Whether a region has a place in it that is partly another's as well."""
        return any(region.overlaps(other) for other in self.regions)

    def find(self, entry: Entry) -> torch.Tensor | None:
        """The memory, flat, if an entry's values are there."""
        if entry.filled != self._times or (memory := self._find(entry)) is None:
            return None
        streams.take(self._written, memory)
        return memory

    def of(self, entry: Entry) -> torch.Tensor:
        """The memory, flat, with an entry's values in it: the same for as long as anyone still uses it."""
        memory = self._find(entry)
        if memory is not None:
            streams.take(self._written, memory)
            if entry.filled == self._times:
                return memory
        else:
            self._times += 1
        memory = entry.write_to(memory, self)
        storage = memory.untyped_storage()
        if entry.source.is_at(storage):
            return memory  # not away yet, and may be written to: to be asked for each time
        self._storage, self._counts = weakref.ref(storage), None
        self._version = memory._version
        entry.filled = self._times
        self._written = streams.written(memory.device)
        return memory

    def keep(self, values: torch.Tensor, is_light: bool) -> None:
        """Keep the memory, which these are, for nodes to come."""
        self.is_light = is_light
        if self._storage is not None:
            self.kept, self._version = values, values._version

    def give_up(self) -> None:
        """Keep it no longer. While a node still uses it, it is found, and seen if that wrote to it."""
        if self.kept is not None:
            self._counts = self.kept.detach()
            self._counts.data = self.kept.new_empty(0)  # the same versions without the memory
        self.kept = None

    def view(self, values: torch.Tensor, where: Geometry | Region) -> torch.Tensor:
        """A tensor in the memory, whose values these are, that lies as it did in the storage."""
        offset = values.storage_offset() + where.offset - self.start
        return values.as_strided(where.size, where.stride, offset)

    def _find(self, entry: Entry) -> torch.Tensor | None:
        counts = self._counts if self.kept is None else self.kept
        if counts is not None and counts._version != self._version:
            self.kept = self._storage = None  # a node has written its result over what it saved
        if self.kept is not None or self._storage is None:
            return self.kept
        storage = self._storage()
        if storage is None:
            return None
        return torch.empty(0, dtype=entry.dtype, device=entry.device).set_(storage)


class Entry:
    """A region of a storage, compressed, copied or offloaded; lives as long as its handles.

    Args:
        source: the storage's state.
        region: that is stored.
        codec: what decompresses it; None if its values are stored.
        values: its values, of which dtype and device are taken.
        stored: what they became.
        sums: checksums of that.
        name: what an error calls it.

    Attributes:
        filled: which time that its memory was made has its values.
        name: as given.
        facts: of the tensor that it was made for.
        strength: of what is kept of the values, see ``strength_of``.
        stride: of that tensor.
        is_alone: whether no other entry has a part of the tensor.
        is_followed: whether others are stored as their differences from it.
        sums: of its row in the report.
        original: bytes of it that the row counts.
        means: that were taken from its values, of the input of a norm.
        of: what of its values is compressed.
    """

    facts: Facts
    sums: Sums
    strength: Strength = EXACT
    stride: tuple[int, ...] = ()
    is_alone = True
    is_followed = False
    original = 0
    means: Means | None = None
    of: Of = "values"

    def __init__(
        self,
        source: Source,
        region: Region,
        codec: Backend | BitsCodec | None,
        values: torch.Tensor,
        stored: torch.Tensor | Handle | None,
        sums: torch.Tensor | None = None,
        name: str = "",
    ) -> None:
        self.source, self.region, self.codec = source, region, codec
        self.dtype, self.device = values.dtype, values.device
        self.stored, self._checksums, self.name = stored, sums, name
        self._written = streams.written(self.device)
        self._memory: Memory | None = None
        self._doubt: tuple[tuple[Flag, ...], torch.Tensor] | None = None
        self.filled = 0
        source.add(self)

    def become(
        self,
        codec: Backend | BitsCodec | None,
        stored: torch.Tensor | Handle,
        sums: torch.Tensor | None,
        strength: Strength,
        means: Means | None = None,
    ) -> None:
        """Store the same values in another way, for a node that needs more of them."""
        self.codec, self.stored, self._checksums, self.strength = codec, stored, sums, strength
        self.means = means
        self._written = streams.written(self.device)
        self.filled = 0

    def doubt(self, flag: Flag, values: torch.Tensor) -> None:
        """The values stay until a flag says that what was made of them is right; else they are used."""
        flags = self._doubt[0] if self._doubt is not None else ()
        self._doubt = (*flags, flag), values

    @property
    def is_doubtful(self) -> bool:
        """Whether its values stay in memory beside what was made of them; asks the flag, and never waits."""
        if self._doubt is not None and all(flag.value for flag in self._doubt[0]):
            self._doubt = None
        return self._doubt is not None

    @property
    def doubted(self) -> torch.Tensor | None:
        """A copy of its values as they were, if they stay; None if they do not."""
        if not self.is_doubtful:
            return None
        assert self._doubt is not None
        return self._doubt[1].clone()

    @property
    def nbytes(self) -> int:
        """That it takes."""
        found = 0
        for part in (self.stored, self._checksums, self.means):
            if part is not None:
                found += part.nbytes
        return found

    @property
    def is_stored(self) -> bool:
        """Whether it stores its values itself."""
        return True

    @property
    def is_exact(self) -> bool:
        """Whether its values come back as they were."""
        return self.codec is None or isinstance(self.codec, BitsCodec)

    def serves(self, decision: Decision) -> bool:
        """Whether its values are good enough for a node for whose tensor that was decided."""
        if self.is_exact:
            return True
        means, normed, has, wants = self.means, decision.normed, self.strength, decision.least
        is_normed = normed is None or (means is not None and means.has(normed))
        return is_normed and has[0] >= wants[0] and has[1] >= wants[1]

    @property
    def bits(self) -> float:
        """Of a value; of what is made of others, of that which has fewest."""
        return self.strength[1]

    @property
    def is_light(self) -> bool:
        """Whether its values are a few sums and products of others'."""
        return False

    @property
    def is_product(self) -> bool:
        """Whether matrix products make its values."""
        return False

    @property
    def needs(self) -> Sequence[Entry]:
        """Entries that its values are made of."""
        return ()

    @property
    def is_made_anew(self) -> bool:
        """Whether its values have to be made when they are needed, by decompressing or reading."""
        return self.codec is not None or not isinstance(self.stored, torch.Tensor)

    @property
    def memory(self) -> Memory:
        """Where its values go when they are needed."""
        if self._memory is None:
            self._memory = self.source.memory_for(self)
        return self._memory

    def forget(self) -> None:
        """Its values, and all that they are made of, are to be made anew."""
        self.memory.forget()
        for entry in self.needs:
            entry.forget()

    def write_to(self, memory: torch.Tensor | None, where: Memory) -> torch.Tensor:
        """Write the values to memory, which is made if there is none; the memory."""
        doubted = self.doubted
        values = self._values() if doubted is None else doubted
        if memory is None and not self.region.has_gaps:
            memory = values
        else:
            if memory is None:
                memory = values.new_empty(where.count)
            where.view(memory, self.region).copy_(values.view(self.region.size))
        if self.means is not None and doubted is None:
            self.means.put_back(memory, where.start)
        return memory

    def own_values(self) -> torch.Tensor:
        """What it stores itself, of its values or of their difference from others': flat."""
        values = self._values()
        if self.means is not None:
            self.means.put_back_own(values, self.region.offset)
        return values

    def _values(self) -> torch.Tensor:
        stored = self._read()
        return stored if self.codec is None else self.codec.decompress(stored, self.region.count)

    def _read(self) -> torch.Tensor:
        """The stored bytes; raises CorruptionError if they have checksums and are not what was stored."""
        if isinstance(self.stored, Handle):
            stored = self.stored.get()
        else:
            assert self.stored is not None
            stored = self.stored
            streams.take(self._written, stored)
        if isinstance(self.codec, BitsCodec):
            streams.take(self._written, self.codec.levels)
        for one in self.means.tensors() if self.means is not None else ():
            streams.take(self._written, one)
        if self._checksums is not None:
            streams.take(self._written, self._checksums)
            changed = (checksums(stored) != self._checksums).nonzero()
            if len(changed):
                raise CorruptionError(
                    f"stored bytes changed in memory: block {int(changed[0])} of {len(stored)} of the "
                    f"tensor {self.name}"
                )
        return stored


class Joint(Entry):
    """A region that other entries have in parts; it stores nothing itself.

    Args:
        source, region, values: as of ``Entry``.
        parts: entries, none of them a joint, and what of the region each has.
    """

    def __init__(
        self, source: Source, region: Region, values: torch.Tensor, parts: Sequence[tuple[Entry, Region]]
    ) -> None:
        super().__init__(source, region, None, values, None)
        self._parts = parts

    @property
    def parts(self) -> list[Entry]:
        return [entry for entry, _ in self._parts]

    def forget(self) -> None:
        super().forget()
        for entry in self.parts:
            entry.forget()

    @property
    def is_stored(self) -> bool:
        return False

    def serves(self, decision: Decision) -> bool:
        return all(entry.serves(decision) for entry, _ in self._parts)

    @property
    def bits(self) -> float:
        return min(entry.bits for entry, _ in self._parts)

    @property
    def is_exact(self) -> bool:
        return all(entry.is_exact for entry, _ in self._parts)

    def write_to(self, memory: torch.Tensor | None, where: Memory) -> torch.Tensor:
        if memory is None:
            memory = torch.empty(where.count, dtype=self.dtype, device=self.device)
        for entry, region in self._parts:
            where.view(memory, region).copy_(entry.memory.view(entry.memory.of(entry), region))
        return memory


class Packed:
    """What autograd holds for a stored tensor: where it lies in an entry."""

    __slots__ = ("entry", "geometry")

    def __init__(self, entry: Entry, geometry: Geometry) -> None:
        self.entry, self.geometry = entry, geometry


class Exact:
    """What autograd holds for a tensor that stays as it is.

    With hooks autograd leaves it to them to notice that a saved tensor was written to since.

    Args:
        saved: the tensor. Of a parameter that is itself: ZeRO-3 and FSDP free its memory by what the
            parameter is given in its place, and a detached alias would hold the memory.
        source: of its storage.
        may_change: whether a kernel may write over it, unseen, when it has had it back.
    """

    __slots__ = ("__weakref__", "_saved", "_source", "_version", "may_change")
    is_exact = True
    bits = float("inf")

    def __init__(self, saved: torch.Tensor, source: Source | None, may_change: bool = False) -> None:
        self._saved, self._source, self.may_change = saved, source, may_change
        self._version = saved._version

    def tensor(self) -> torch.Tensor:
        """The tensor; raises autograd's own error if it was written to."""
        if self._saved._version != self._version:
            raise self._written_to(
                f"is at version {self._saved._version}; expected version {self._version} instead"
            )
        return self._saved.detach() if self._saved.requires_grad else self._saved

    def _written_to(self, how: str) -> RuntimeError:
        """Autograd's own error."""
        return RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace "
            f"operation: [{self._saved.dtype} {list(self._saved.shape)}] {how}"
        )

    def apart(self) -> torch.Tensor:
        """The tensor, in memory of its own if others are recomputed from it."""
        tensor = self.tensor()
        is_input = self._source is not None and self._source.is_input
        return tensor.clone() if is_input and 0 not in tensor.stride() else tensor


class Live(Exact):
    """A parameter that others are recomputed from, by the values that it has then.

    Without hooks these have values of their own, which nothing changes that is done to the parameter.
    """

    __slots__ = ("_storage",)

    def __init__(self, parameter: torch.Tensor) -> None:
        super().__init__(parameter, None)
        self._storage = weakref.ref(parameter.untyped_storage())

    def tensor(self) -> torch.Tensor:
        """The parameter; raises autograd's own error if it was written to, or has other memory."""
        if self._saved.untyped_storage() is not self._storage():
            raise self._written_to('has other memory since, as by ".data = ..."')
        return super().tensor()
