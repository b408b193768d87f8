// Registers: what they take, refuse and count, regions that move, and the errors that they tell of.

#pragma once

#include "bench.h"

class RegisterChecks : public Bench {
   public:
    using Bench::Bench;

   protected:
    // A region is disabled, which evicts its open blocks, and enabled again, to merge or not.
    void reopen(unsigned index, bool merges) {
        Region &region = model_.regions[index];
        remember("disable region ", std::to_string(index));
        model_.disable(region);
        machine_.disable(index);
        write_region(index);
        region.enabled = true;
        region.merge = MERGING && region.format && merges;
        if (!enable(index)) throw Broken("region " + std::to_string(index) + " does not answer again");
        settle();
        clear_errors();
    }

    // Two regions exchange their places in the accelerator's addresses; in memory they stay where they are. Perhaps
    // their registers exchange all else.
    void exchange() {
        const unsigned one = random_.below(REGIONS), other = (one + 1 + random_.below(REGIONS - 1)) % REGIONS;
        for (unsigned index : {one, other}) {
            remember("move region ", std::to_string(index));
            model_.disable(model_.regions[index]);
            machine_.disable(index);
        }
        if (random_.chance(0.5)) {
            std::swap(model_.regions[one], model_.regions[other]);
            for (Window &window : windows_) {
                if (window.region == one || window.region == other) window.region ^= one ^ other;
            }
        }
        const uint64_t slices[] = {slice_of(other), slice_of(one)};
        move(one, slices[0]);
        move(other, slices[1]);
        settle();
        clear_errors();
    }

    // Of the accelerator's addresses.
    uint64_t slice_of(unsigned index) const { return model_.regions[index].base / kPage / kSlice; }

    // Enable a region somewhere in another slice.
    void move(unsigned index, uint64_t slice) {
        Region &region = model_.regions[index];
        const uint64_t base = (slice * kSlice + random_.below(kSlice - region.size / kPage)) * kPage;
        for (Window &window : windows_) {
            if (window.region == index) window.start += base - region.base;
        }
        region.base = base;
        region.enabled = true;
        expect(enable(index), "USABLE of region " + std::to_string(index));
    }

    // The registers that are there, what they take and what they refuse, while all regions are enabled.
    void check_registers() {
        quiet();
        for (unsigned i = 0; i < REGIONS; ++i) {  // evicts what is open
            model_.disable(model_.regions[i]);
            machine_.disable(i);
            write_region(i);
            refuse(i, false);
            expect(machine_.set(REGION_SIZE + i * REGION_STRIDE, 0) == kOkay, "the answer to no pages");
            expect(machine_.set(REGION_CONTROL + i * REGION_STRIDE, ENABLE) == kSlvErr, "ENABLE of no pages");
            model_.regions[i].enabled = enable(i);
            read_meanwhile(i);
        }
        settle();
        check_errors();
        for (unsigned offset = 0; offset < 4096; offset += 4) {
            expect(machine_.has(offset) == is_mapped(offset), "what is read at " + hex(offset));
            const bool is_writable = offset == TIMEOUT || offset == ERRORS || offset == INTERRUPTS ||
                                     (is_mapped(offset) && offset >= REGION_BASE);
            for (unsigned other = offset + is_writable; other < offset + (is_writable ? 4 : 1); ++other) {
                expect(machine_.set(other, ~0u) == kSlvErr, "the answer to a write at " + hex(other));
            }
        }
        expect_register(IDENTITY, 0x6273746D);
        expect_register(PARAMETERS, FORMATS | REGIONS << 8 | BUFFERS << 16 | log2_of(BUS_BYTES) << 24 |
                                        log2_of(MEMORY_BYTES) << 28);
        for (unsigned offset : {TIMEOUT, INTERRUPTS}) {
            // A timeout that comes soon would evict blocks: what is open was evicted before.
            const uint32_t mask = offset == TIMEOUT ? ~0u : (1u << ERROR_KINDS) - 1, value = random_.next() & mask;
            for (const uint32_t one : {value, ~value & mask}) {
                expect(machine_.set(offset, one) == kOkay, "the answer of " + hex(offset));
                expect(machine_.set(offset, ~one, a_part()) == kSlvErr, "the answer to a part");
                expect_register(offset, one);
            }
        }
        machine_.set(TIMEOUT, kPatience);
        for (unsigned i = 0; i < REGIONS; ++i) {
            const unsigned at = i * REGION_STRIDE;
            for (unsigned offset : {REGION_BASE, REGION_SIZE, REGION_STORED}) {
                expect(machine_.set(offset + at, 1) == kSlvErr, "the answer of an enabled region");
            }
            refuse(i, true);
            expect(machine_.set(REGION_CONTROL + at, 0, a_part()) == kSlvErr, "the answer to a part");
            expect_region(i, true);
        }
        check_overlaps();
        check_accesses_in_a_row();
        check_directed_counters();
        clear_errors();
    }

    // Accesses that are sent before those before them are answered.
    void check_accesses_in_a_row() {
        Lite &lite = machine_.registers;
        for (const double pause : {0.0, 0.5}) {
            std::map<unsigned, uint32_t> values;
            std::vector<int> answers, written;
            std::vector<uint32_t> words, read;
            for (unsigned i = 0; i < 32; ++i) {
                const unsigned offsets[] = {TIMEOUT, INTERRUPTS, IDENTITY}, offset = offsets[random_.below(3)];
                const uint32_t value = random_.below(1u << ERROR_KINDS);
                lite.write(offset, value);
                answers.push_back(offset == IDENTITY ? kSlvErr : kOkay);
                if (offset != IDENTITY) values[offset] = value;
                const unsigned region = random_.below(REGIONS);
                lite.read(i % 2 ? IDENTITY : REGION_STORED + region * REGION_STRIDE);
                words.push_back(i % 2 ? 0x6273746D : model_.regions[region].stored / kPage);
            }
            lite.pause = pause;
            size_t writes = lite.writes_answered, reads = lite.reads_answered;
            machine_.until([&] {
                if (writes != lite.writes_answered) written.push_back(lite.written), ++writes;
                if (reads != lite.reads_answered) read.push_back(lite.data), ++reads;
                return !lite.is_busy();
            });
            expect(written == answers, "an answer to writes of registers in a row");
            expect(read == words, "what is read of registers in a row");
            for (const auto &[offset, value] : values) expect_register(offset, value);
        }
        machine_.set(TIMEOUT, kPatience);
    }

    static bool is_mapped(unsigned offset) {
        for (unsigned one : {IDENTITY, PARAMETERS, TIMEOUT, ERRORS, INTERRUPTS}) {
            if (offset == one) return true;
        }
        if (offset >= ERROR_ADDRESS_LOW && offset < ERROR_ADDRESS_LOW + ERROR_KINDS * ERROR_ADDRESS_STRIDE) return true;
        if (offset >= READ_BEATS && offset < READ_BEATS + 4 * COUNTERS) return true;
        return offset >= REGION_BASE && offset < REGION_BASE + REGIONS * REGION_STRIDE;
    }

    // A format that there is not, and merging where there is none, cannot be; an enabled region keeps what it has of
    // both. Bits without a name are ignored.
    void refuse(unsigned index, bool is_enabled) {
        constexpr unsigned kFormats = 1u << FORMAT_BITS;  // that its field can name
        const Region &region = model_.regions[index];
        const unsigned control = REGION_CONTROL + index * REGION_STRIDE;
        for (unsigned format = 0; format < kFormats; ++format) {
            for (const bool merges : {false, true}) {
                const uint32_t value = (merges ? MERGE : 0) | format << FORMAT_LOW;
                const bool can_be = format <= FORMATS && (MERGING || !merges);
                const bool is_same = format == region.format && merges == region.merge;
                if (!can_be) expect(machine_.set(control, value) == kSlvErr, "the answer to " + hex(value));
                if (!can_be || (is_enabled && !is_same)) {
                    expect(machine_.set(control, value | ENABLE) == kSlvErr, "the answer to " + hex(value | ENABLE));
                } else if (is_enabled) {
                    const uint32_t named = ENABLE | LOCK | MERGE | (kFormats - 1) << FORMAT_LOW;
                    const uint32_t more = value | ENABLE | (random_.next() & ~named);
                    expect(machine_.set(control, more) == kOkay, "the answer to " + hex(more));
                }
            }
        }
    }

    // Registers are read while the one that enables a region is written, which takes a while.
    void read_meanwhile(unsigned index) {
        settle();
        for (unsigned times = 0; times < 4; ++times) {
            const unsigned others[] = {IDENTITY, TIMEOUT, READ_BEATS + 4 * unsigned(random_.below(COUNTERS)),
                                       REGION_BASE + unsigned(random_.below(REGIONS)) * REGION_STRIDE};
            const unsigned other = others[times], control = REGION_CONTROL + index * REGION_STRIDE;
            machine_.disable(index);
            const Region &region = model_.regions[index];
            const uint32_t value = ENABLE | (region.merge ? MERGE : 0) | region.format << FORMAT_LOW;
            const uint32_t before = machine_.get(other);
            machine_.registers.write(control, value);
            for (unsigned i = random_.below(12); i; --i) machine_.step();
            expect(machine_.get(other) == before, "the register at " + hex(other) + " meanwhile");
            expect(machine_.registers.written == kOkay, "the answer of a disabled region");
            expect_register(control, value | USABLE);
        }
    }

    // Strobes of a register, but not all.
    unsigned a_part() { return random_.below(15); }

    void expect_region(unsigned index, bool is_enabled) {
        const Region &region = model_.regions[index];
        const unsigned at = index * REGION_STRIDE;
        expect_register(REGION_BASE + at, region.base / kPage);
        expect_register(REGION_SIZE + at, region.size / kPage);
        expect_register(REGION_STORED + at, region.stored / kPage);
        if (!is_enabled) return;
        expect_register(REGION_CONTROL + at,
                        ENABLE | USABLE | (region.merge ? MERGE : 0) | region.format << FORMAT_LOW);
    }

    // Each bit of a disabled region's registers, and what lies beyond the addresses.
    void write_region(unsigned index) {
        const unsigned at = index * REGION_STRIDE;
        constexpr uint32_t pages = uint32_t((kSpace / kPage) - 1);
        for (unsigned offset : {REGION_BASE, REGION_SIZE, REGION_STORED}) {
            const uint32_t value = random_.next() & pages;
            for (uint32_t one : {value, ~value & pages}) {
                expect(machine_.set(offset + at, one) == kOkay, "the answer of a disabled region");
                expect(machine_.set(offset + at, ~one & pages, a_part()) == kSlvErr, "the answer to a part");
                expect_register(offset + at, one);
            }
            if (pages != ~0u) {
                const uint32_t beyond = (value & pages) | (pages + 1) << random_.below(32 - log2_of(pages));
                expect(machine_.set(offset + at, beyond) == kSlvErr, "the answer to a page beyond");
            }
        }
    }

    // Of each region and each other one: addresses that are both's; stored bytes that meet the other's, or end where
    // these begin, or reach beyond memory.
    void check_overlaps() {
        for (unsigned pair : shuffled(REGIONS * REGIONS)) {
            const unsigned index = pair / REGIONS, next = pair % REGIONS;
            if (index == next) continue;
            const Region &other = model_.regions[next];
            Region &region = model_.regions[index];
            const Region before = region;
            machine_.disable(index);
            region.base = 0;
            const uint64_t most = random_.chance(0.5) ? 1 + some_pages() : kSpace / kPage - 1;
            region.size = kPage * (1 + random_.below(most));
            const uint64_t pages = stored_pages(region), begin = other.stored / kPage;
            const uint64_t end = begin + stored_pages(other), last = kSpace / kPage - pages;
            const uint64_t places[] = {begin - pages, begin - pages + 1, end - 1, end, last, last + 1};
            region.stored = places[random_.below(6)] * kPage % kSpace;
            expect(enable(index) == is_apart(index), "USABLE of region " + std::to_string(index));
            for (unsigned i = 0; i < REGIONS; ++i) {
                const bool is_usable = machine_.get(REGION_CONTROL + i * REGION_STRIDE) & USABLE;
                expect(is_usable == is_apart(i), "USABLE of region " + std::to_string(i));
            }
            // Where both are, neither answers, usable or not; nor does what is not usable.
            region.enabled = model_.regions[next].enabled = is_apart(next);
            for (const Window &window : windows_) {
                if (window.region != next) continue;
                const Burst burst = whole(window.start, std::max(raw_bytes(region), raw_bytes(other)));
                expect_read(burst, 0);
                settle();
                send_write(content_of(burst, 1), 0);
                settle();
                quiet();
            }
            machine_.disable(index);
            for (Region &one : model_.regions) one.enabled = true;
            region = before;
            region.enabled = enable(index);
        }
    }

    // Regions as large as the address space, one at a time. Those that are disabled have the same addresses and stored
    // bytes, and take no part.
    void check_alone() {
        quiet();
        const std::vector<Region> before = model_.regions;
        for (unsigned i = 0; i < REGIONS; ++i) {
            model_.disable(model_.regions[i]);
            machine_.disable(i);
        }
        for (unsigned index : shuffled(REGIONS)) {
            Region &region = model_.regions[index];
            region.base = random_.below(2) * kPage;
            region.size = kSpace - kPage;
            region.stored = random_.below(kSpace / kPage - stored_pages(region) + 1) * kPage;
            region.enabled = true;
            expect(enable(index), "USABLE of region " + std::to_string(index) + ", alone");
            const uint64_t blocks = region.size / raw_bytes(region);
            for (uint64_t number : {uint64_t{0}, random_.below(blocks), random_.below(blocks), blocks - 1}) {
                const Burst burst = whole(region.base + number * raw_bytes(region), raw_bytes(region));
                send_write(content_of(burst, 1), 0);
                quiet();
                expect_read(burst, 0);
                settle();
            }
            model_.disable(region);
            machine_.disable(index);
            region.base = region.stored = 0;
            for (region.size = kPage; region.size < kSpace; region.size *= 2) {
                expect(enable(index), "USABLE of a region of " + hex(region.size) + " bytes");
                machine_.disable(index);
            }
            check_last_pages(index);
        }
        model_.regions = before;
        for (unsigned i = 0; i < REGIONS; ++i) model_.regions[i].enabled = enable(i);
        settle();
        clear_errors();
    }

    // A region that reaches beyond the address space ends there.
    void check_last_pages(unsigned index) {
        Region &region = model_.regions[index];
        const uint64_t pages = 1 + random_.below(4);
        region.base = kSpace - pages * kPage;
        region.size = (pages + 1 + random_.below(8)) * kPage;
        region.stored = random_.below(kSpace / kPage - stored_pages(region) + 1) * kPage;
        region.enabled = true;
        expect(enable(index), "USABLE of a region at the end");
        const unsigned raw = raw_bytes(region);
        for (const uint64_t address : {region.base, kSpace - raw, uint64_t{0}}) {
            send_write(content_of(whole(address, raw), 1), 0);
            quiet();
            expect_read(whole(address, raw), 0);
            settle();
        }
        model_.disable(region);
        machine_.disable(index);
    }

    // Whether a region is stored in memory, and apart from all others.
    bool is_apart(unsigned index) const {
        const Region &region = model_.regions[index];
        const auto first = [](const Region &one) { return one.stored / kPage; };
        const auto end = [&](const Region &one) { return first(one) + stored_pages(one); };
        for (unsigned i = 0; i < REGIONS; ++i) {
            const Region &other = model_.regions[i];
            if (i != index && first(region) < end(other) && first(other) < end(region)) return false;
        }
        return end(region) <= kSpace / kPage;
    }

    // Of memory, that a region takes, the last perhaps in part.
    uint64_t stored_pages(const Region &region) const {
        return (model_.place(region, region.base + region.size) - region.stored + kPage - 1) / kPage;
    }

    // Counters that no pin shows, by bursts of which is known what they count.
    void check_directed_counters() {
        quiet();
        const unsigned ours[] = {ERRORS_SEEN, BLOCKS_READ, BUSY};
        uint32_t before[3];
        const auto start = [&] { for (unsigned i = 0; i < 3; ++i) before[i] = machine_.get(ours[i]); };
        const auto more = [&](unsigned i) { return machine_.get(ours[i]) - before[i]; };
        start();
        for (unsigned i = 0; i < 200; ++i) machine_.step();
        expect(more(2) == 0, "BUSY while nothing is under way");
        check_busy_writes();
        for (const Window &window : windows_) {
            const Region &region = model_.regions[window.region];
            start();
            expect_read(whole(behind(window.region), BUS_BYTES), 0);
            settle();
            expect(more(0) == 1, "ERRORS_SEEN of a read");
            start();
            send_write(content_of(whole(behind(window.region), BUS_BYTES), 1), 0);
            settle();
            expect(more(0) == 1, "ERRORS_SEEN of a write");
            for (unsigned times = 0; times < 2; ++times) {
                start();
                expect_read(whole(window.start + 2 * kPage + 512, BUS_BYTES), 0);
                settle();
                for (unsigned i = 0; i < 200; ++i) machine_.step();  // until the block is decompressed
                const uint32_t took = machine_.master.answered_at - machine_.master.asked_at, busy = more(2);
                expect(busy == took + 1, "BUSY of a read of " + std::to_string(took) + " cycles");
                expect(more(1) == (region.format && !times), "BLOCKS_READ");
            }
        }
    }

    // A write is under way until memory answers; a burst that waits for an open block is not.
    void check_busy_writes() {
        no_pauses();
        for (const Window &window : windows_) {
            const Burst whole_block = whole(window.start, raw_bytes(model_.regions[window.region]));
            const auto busy = [&] {
                const uint32_t before = machine_.get(BUSY);
                for (unsigned i = 0; i < 100; ++i) machine_.step();
                return machine_.get(BUSY) - before;
            };
            if (model_.regions[window.region].format) {
                Burst byte = whole_block;
                byte.beats = 1, byte.size = 0;
                send_write(content_of(byte, 1), 0);
                for (unsigned i = 0; i < 100; ++i) machine_.step();
                expect(busy() == 0, "BUSY while a burst waits for an open block");
            }
            machine_.dram.pause = 1;
            send_write(content_of(whole_block, 1), 0);
            for (unsigned i = 0; i < 200; ++i) machine_.step();
            expect(busy() >= 100, "BUSY while memory does not take a write");
            machine_.dram.pause = 0;
            settle();
            quiet();
        }
    }

    // All others, from the reset on.
    void check_counters() {
        quiet();
        const Counters &seen = machine_.counters;
        const std::pair<unsigned, uint32_t> counters[] = {
            {READ_BEATS, seen.read_beats},
            {READ_BYTES, read_bytes_},
            {WRITE_BEATS, seen.write_beats},
            {WRITE_BYTES, seen.write_bytes},
            {MEMORY_READ_BEATS, seen.memory_read_beats},
            {MEMORY_WRITE_BEATS, seen.memory_write_beats},
            {MEMORY_WRITE_BYTES, seen.memory_write_bytes},
            {BLOCKS_WRITTEN, model_.blocks},
            {READ_STALLED, seen.read_stalled},
            {WRITE_STALLED, seen.write_stalled},
            {MEMORY_READ_STALLED, seen.memory_read_stalled},
            {MEMORY_WRITE_STALLED, seen.memory_write_stalled},
        };
        for (const auto &[offset, value] : counters) expect_register(offset, value);
    }

    // Compare the error registers, and clear them. What is kept of the last reads is displaced: an error that is
    // not met again is not recorded again.
    void check_errors() {
        quiet();
        const uint32_t kinds = machine_.get(ERRORS), raising = random_.below(1u << ERROR_KINDS);
        machine_.set(INTERRUPTS, raising);
        expect(machine_.interrupts() == ((kinds & raising) != 0), "the interrupt");
        for (unsigned kind = 0; kind < ERROR_KINDS; ++kind) {
            const bool is_there = kinds >> kind & 1;
            const uint64_t low = machine_.get(ERROR_ADDRESS_LOW + kind * ERROR_ADDRESS_STRIDE);
            const uint64_t high = machine_.get(ERROR_ADDRESS_HIGH + kind * ERROR_ADDRESS_STRIDE);
            const std::vector<uint64_t> &errors = model_.errors[kind];
            // Which blocks share a burst to memory is the engine's choice, and which of several is evicted first.
            const auto &places = kind == kWrite ? machine_.dram.failed_writes : errors;
            const bool is_any = model_.evicts_any && (kind == kEvicted || kind == kInvalid || kind == kRead);
            const auto end = is_any || places.empty() ? places.end() : places.begin() + 1;
            const bool is_right = !is_there || std::find(places.begin(), end, high << 32 | low) != end;
            if (is_there != errors.empty() && is_right) continue;
            ++mismatches[kMost];
            message += std::string("ERRORS: ") + kErrorNames[kind] + " is " + (is_there ? "" : "not ") + "set, at " +
                       hex(high << 32 | low) + "; it should be " + (places.empty() ? "none" : hex(places.front())) +
                       "\n";
        }
        clear_some(kinds, raising);
        for (const Region &region : model_.regions) expect_read(whole(region.base + kPage, 512), 0), settle();
        clear_errors();
    }

    // Some errors are cleared; the others stay, and their addresses.
    void clear_some(uint32_t kinds, uint32_t raising) {
        const auto place = [&](unsigned i) { return machine_.get(ERROR_ADDRESS_LOW + 4 * i); };
        const uint32_t cleared = random_.below(1u << ERROR_KINDS), left = kinds & ~cleared;
        std::vector<uint32_t> places;
        for (unsigned i = 0; i < 2 * ERROR_KINDS; ++i) places.push_back(place(i));
        machine_.set(ERRORS, cleared);
        expect_register(ERRORS, left);
        expect(machine_.interrupts() == ((left & raising) != 0), "the interrupt of what was not cleared");
        for (unsigned i = 0; i < 2 * ERROR_KINDS; ++i) {
            if (left >> i / 2 & 1) expect(place(i) == places[i], "the address of an error that was not cleared");
        }
    }

    // Errors that the model met, and memory; what ERRORS_SEEN counts.
    size_t errors_met() const {
        size_t met = machine_.dram.failed_writes.size();
        for (const auto &[kind, places] : model_.errors) met += kind == kWrite ? 0 : places.size();
        return met;
    }

    void clear_errors() {
        quiet();
        machine_.set(ERRORS, (1u << ERROR_KINDS) - 1);
        machine_.dram.failed_writes.clear();
        model_.errors.clear();
        model_.evicts_any = false;
    }

    // Lock the regions, some of them enabled: what is locked changes no more, whatever is written. Only a reset ends
    // that, so that nothing comes after it.
    void lock() {
        quiet();
        for (unsigned i = 0; i < REGIONS; ++i) {
            Region &region = model_.regions[i];
            if (random_.chance(0.5)) model_.disable(region), machine_.disable(i);
            const uint32_t merge = region.merge ? MERGE : 0, enabled = region.enabled ? ENABLE : 0;
            const uint32_t control = LOCK | enabled | merge | region.format << FORMAT_LOW;
            const unsigned at = i * REGION_STRIDE;
            expect(machine_.set(REGION_CONTROL + at, control) == kOkay, "the answer to LOCK");
            for (unsigned others = 0; others <= i; ++others) {  // those after it are not locked yet
                const unsigned there = others * REGION_STRIDE;
                for (unsigned offset : {REGION_BASE, REGION_SIZE, REGION_STORED, REGION_CONTROL}) {
                    const uint32_t before = machine_.get(offset + there);
                    for (const uint32_t value : {before, before ^ 1, uint32_t(random_.below(2))}) {
                        expect(machine_.set(offset + there, value) == kSlvErr, "the answer of a locked region");
                    }
                    expect_register(offset + there, before);
                }
            }
            expect_register(REGION_CONTROL + at, control | (region.enabled ? USABLE : 0));
            expect_region(i, false);
            if (i + 1 < REGIONS) {
                machine_.disable(i + 1);
                expect(!machine_.get(REGION_CONTROL + at + REGION_STRIDE), "a region that is not locked");
                expect(enable(i + 1), "USABLE of a region that is not locked");
            }
        }
        for (const Window &window : windows_) expect_read(whole(window.start, BUS_BYTES), 0), settle();
    }
};
