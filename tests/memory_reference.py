"""A second model of the memory, written from docs/memory.md alone and deliberately plain.

It keeps no stored bytes: of each address it knows what a read returns. Bytes are Python integers in
dictionaries, a block is its first address, and there are neither faults nor invalid blocks.
"""

import numpy as np

OKAY, SLVERR, DECERR = 0, 2, 3


class Reference:
    def __init__(self, regions, bus_bytes, buffers, slots):
        self.regions = regions  # of (base, size, stored, fmt, merge)
        self.bus_bytes = bus_bytes
        self.buffers, self.slots = buffers, slots
        self.seen = {}  # address -> the byte that a read returns; 0 where there is none
        self.blocks = {}  # block -> {address: byte}, in the order in which they were opened
        self.told = set()  # open blocks of which a write was answered
        self.waits = []  # unanswered bursts: [ticket, master, blocks, response]
        self.answers = {}
        self.tickets = 0

    def region(self, address):
        hits = [r for r in self.regions if r[0] <= address < r[0] + r[1]]
        return hits[0] if len(hits) == 1 else None

    def beats(self, address, beats, size, kind):
        """First and last address of each beat."""
        for n in range(beats):
            start = address - address % size
            if kind == "INCR":
                start += n * size
            if kind == "WRAP":
                whole = beats * size
                start = address - address % whole + (address % whole + n * size) % whole
            yield (address if kind == "FIXED" or n == 0 else start), start - start % size + size

    def write(self, address, beats, size, kind, content, bufferable, master):
        """``content``: for each beat {address: byte}, of what is strobed."""
        while len(self.waits) == self.slots:
            self.evict(next(iter(self.blocks)))
        entry = [self.tickets, master, set(), OKAY]
        self.tickets += 1
        region = self.region(address)
        if region is None:
            entry[3] = DECERR
        elif region[3] is None:
            for beat in content:
                self.seen |= beat
        elif kind == "FIXED":
            entry[3] = SLVERR
        else:
            self.waits.append(entry)
            for beat in content:
                for place, byte in beat.items():
                    self.put(region, place, byte, None if bufferable else entry, last=place == max(beat))
            self.waits.remove(entry)
        self.waits.append(entry)
        self.settle()
        return entry[0]

    def put(self, region, place, byte, entry, last):
        original = region[3].original_bytes
        block = place - place % original
        if block not in self.blocks:
            if len(self.blocks) == self.buffers:
                self.evict(next(iter(self.blocks)), settle=False)
            self.blocks[block] = {}
        self.blocks[block][place] = byte
        if entry is None:
            self.told.add(block)
        else:
            entry[2].add(block)
        if last and len(self.blocks[block]) == original:
            self.close(block)

    def close(self, block):
        written = self.blocks.pop(block)
        self.told.discard(block)
        base, _, _, fmt, _ = self.region(block)
        values = np.array([written[block + i] for i in range(fmt.original_bytes)], np.uint8).view(
            fmt.float_type.array
        )
        number = (block - base) // fmt.original_bytes
        back = fmt.decompress(fmt.compress(values, number), fmt.block, number).view(np.uint8)
        self.seen |= {block + i: int(byte) for i, byte in enumerate(back)}
        for entry in self.waits:
            entry[2].discard(block)

    def evict(self, block, settle=True):
        region = self.region(block)
        original = region[3].original_bytes
        if region[4]:
            stored = {block + i: self.seen.get(block + i, 0) for i in range(original)}
            self.blocks[block] = stored | self.blocks[block]
            self.close(block)
        else:
            del self.blocks[block]
            self.told.discard(block)
            for entry in self.waits:
                if block in entry[2]:
                    entry[2].discard(block)
                    entry[3] = SLVERR
        if settle:
            self.settle()

    def settle(self):
        blocked = set()
        for entry in list(self.waits):
            ticket, master, blocks, response = entry
            if blocks or master in blocked:
                blocked.add(master)
            else:
                self.answers[ticket] = response
                self.waits.remove(entry)

    def read(self, address, beats, size, kind):
        """For each beat its bytes, or None."""
        region = self.region(address)
        if region is None:
            return [None] * beats
        spans = list(self.beats(address, beats, size, kind))
        if region[3] is not None:
            for start, _ in spans:
                block = start - start % region[3].original_bytes
                if block in self.told:
                    self.evict(block)
        return [[self.seen.get(place, 0) for place in range(*span)] for span in spans]
