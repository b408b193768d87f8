// Random bursts on the Verilated engine, and all checks; built and called by harness.py.
//
// One after the other they may be all that AXI4 allows. Of several masters at once each has places of its own,
// whose blocks it writes whole, if in several bursts, so that nothing depends on who was first.

#include "drain_checks.h"

namespace {

constexpr uint64_t kOwn = kOpen * kPage / 8;  // bytes of each master in each region

class Harness : public DrainChecks {
   public:
    using DrainChecks::DrainChecks;

    // Bursts that each wait for the one before, or until that one waits for a block.
    void sequential(uint64_t count) {
        for (uint64_t i = 0; i < count; ++i) {
            if (i % 4096 == 0) check_all();
            one_burst(i);
        }
        finish();
    }

    // Bursts of several masters at once.
    void concurrent(uint64_t count) {
        std::vector<Master> masters(kMasters);
        uint64_t started = 0;
        unsigned idle = 0;
        while (started < count || !expected_.empty()) {
            if (started % 64 == 0) set_pauses();
            for (unsigned m = 0; m < kMasters; ++m) {
                if (masters[m].open == 0 && masters[m].todo.empty() && started < count && random_.chance(0.2)) {
                    started += begin(masters[m], m);
                }
                if (!masters[m].todo.empty() && random_.chance(0.3)) {
                    send(m, masters[m].todo.front());
                    masters[m].todo.pop_front();
                    ++masters[m].open;
                }
            }
            machine_.step();
            const size_t before = expected_.size();
            compare([&](const Expected &expected) { --masters[expected.master].open; });
            if (++idle > 100000) throw Broken("the engine hangs");
            if (before != expected_.size()) idle = 0;
        }
        finish();
    }

    using ReadChecks::lock;

    // A reset in the middle of bursts; then all is as it was at first, but what memory has.
    void reset() {
        set_pauses();
        for (unsigned i = 0; i < 2 * SLOTS; ++i) {
            const uint64_t start = windows_[random_.below(windows_.size())].start;
            const Burst burst = any_burst(start, start + kOpen * kPage, false);
            Write write = content_of(burst, random_.chance(0.5) ? 1 : 0.5);
            machine_.master.write(burst, std::move(write.words), std::move(write.strobes));
            machine_.master.read(any_burst(start, start + kOpen * kPage, false));
        }
        if (random_.chance(0.5)) machine_.registers.write(REGION_CONTROL, 0), machine_.registers.read(TIMEOUT);
        for (unsigned i = random_.below(1000); i; --i) machine_.step();
        machine_.reset();
        model_.reset();
        expected_.clear();
        read_bytes_ = 0;
        const unsigned written = REGION_SIZE + random_.below(REGIONS) * REGION_STRIDE;
        expect(machine_.set(written, 1) == kOkay, "the answer to a register after a reset");
        for (unsigned offset = TIMEOUT; offset < 4096; offset += 4) {
            if (is_mapped(offset)) expect_register(offset, offset == TIMEOUT ? 4096 : offset == written);
        }
        machine_.dram.faults.clear();
        for (const Window &window : windows_) fill(window);
        machine_.set(TIMEOUT, kPatience);
        for (unsigned i = 0; i < REGIONS; ++i) model_.regions[i].enabled = enable(i);
        for (unsigned i = 0; i < 256; ++i) one_burst(i);
        finish();
        concurrent(256);
    }

    // Bytes a cycle read and written at once in bursts of `size`, and the share of memory's beats beyond the
    // stored bytes.
    void rates(unsigned index, unsigned size, double *three) {
        const Region &region = model_.regions[index];
        const unsigned count = 128 * kPage / size;
        std::map<size_t, bool> reads;
        quiet();
        const auto before = machine_.dram.statistics();
        for (unsigned i = 0; i < count; ++i) {
            Burst burst = whole(region.base + uint64_t(i) * size % (2 * kPage), size);
            burst.cache = 3;
            Write write = content_of(burst, 1);
            reads[machine_.master.write(burst, std::move(write.words), std::move(write.strobes))] = false;
            burst.address += 2 * kPage;
            reads[machine_.master.read(burst)] = true;
        }
        std::vector<uint64_t> ends[2];
        while (machine_.master.writes() || machine_.master.reads()) {
            machine_.until([&] { return machine_.master.has_done(); });
            for (auto &[ticket, outcome] : machine_.master.take()) ends[reads[ticket]].push_back(machine_.cycles());
        }
        quiet();
        // Without the first quarter, in which the pipelines fill.
        for (unsigned way = 0; way < 2; ++way) {
            const uint64_t cycles = ends[way].back() - ends[way][count / 4];
            three[1 - way] = double(count - count / 4 - 1) * size / cycles;
        }
        const auto after = machine_.dram.statistics();
        const double beats = after.read_beats - before.read_beats + after.written_beats - before.written_beats;
        const double stored = 2.0 * count * size * target_bytes(region) / raw_bytes(region);
        three[2] = beats * MEMORY_BYTES / stored - 1;
    }

    // Bytes a cycle of reads of one word of each block, in the order of their addresses, many at once.
    double word_rate(unsigned index) {
        constexpr unsigned kCount = 512;
        const Region &region = model_.regions[index];
        quiet();
        const uint64_t start = machine_.cycles();
        for (unsigned i = 0; i < kCount; ++i) {
            const uint64_t at = uint64_t(i) * raw_bytes(region) % (kOpen * kPage);
            machine_.master.read(whole(region.base + at, BUS_BYTES));
        }
        machine_.until([&] { return !machine_.master.reads(); });
        machine_.master.take();
        return double(kCount) * BUS_BYTES / (machine_.cycles() - start);
    }

    // Cycles that a read of one word adds to memory's own.
    unsigned added_latency(unsigned index) {
        quiet();
        const Region &region = model_.regions[index];
        machine_.master.read(whole(region.base + 3 * kPage + raw_bytes(region), BUS_BYTES));
        machine_.until([&] { return !machine_.master.reads(); });
        machine_.master.take();
        const auto &dram = machine_.dram;
        return dram.asked_at - machine_.master.asked_at + machine_.master.answered_at - dram.answered_at;
    }

   private:
    struct Master {
        std::deque<std::pair<bool, Write>> todo;  // whether it is a read
        unsigned open = 0;
    };

    // What random bursts seldom meet.
    void check_all() {
        for (unsigned i = 0; i < REGIONS; ++i) exchange();
        check_registers();
        check_alone();
        storm();
        check_failing_writes();
        stand_still();
        check_order();
        check_order_at_length();
        check_reads_among_writes();
        check_tags();
        check_turns();
        check_shared_beats();
        check_evictions();
        check_slots();
        check_lanes();
        check_told_blocks();
        check_forgotten();
        check_completions();
        check_timeouts();
        check_long_timeouts();
        check_no_timeout();
        check_ages();
        check_each_error();
        check_errors_at_once();
        check_errors_anew();
        check_merges_and_reads();
        check_room();
        check_drains();
        check_drains_among_others();
        check_pages();
        check_written_beats();
        set_pauses();
    }

    // Evict what is open, and compare the memories. Which block is evicted first is the engine's choice, and so is
    // which of several masters' errors is the first.
    void finish() {
        set_pauses();
        for (unsigned i = 0; i < model_.regions.size(); ++i) {
            model_.disable(model_.regions[i]);
            machine_.disable(i);
        }
        settle();
        clear_errors();
        for (const Window &window : windows_) {
            const Region &region = model_.regions[window.region];
            const uint64_t first = model_.place(region, window.start);
            const uint8_t *expected = &model_.memory[first], *end = expected + stored_bytes(region);
            const auto differ = std::mismatch(expected, end, machine_.dram.content() + first);
            if (differ.first == end) continue;
            ++mismatches[kind_of(&region)];
            message += "memory at " + hex(first + (differ.first - expected)) + " differs\n";
        }
        check_counters();
        for (unsigned i = 0; i < model_.regions.size(); ++i) model_.regions[i].enabled = enable(i);
    }

    // The one of this number, and what now and then goes before it.
    void one_burst(uint64_t number) {
        if (number % 256 == 0) check_errors(), check_counters();
        if (number % 64 == 0) set_pauses();
        if (random_.chance(0.004)) reopen(random_.below(REGIONS), random_.chance(0.7));
        if (random_.chance(0.004)) exchange();
        random_.chance(0.5) ? one_read() : one_write();
        for (unsigned gap = random_.chance(0.3) ? random_.below(40) : 0; gap; --gap) machine_.step();
    }

    void one_read() {
        const uint64_t start = somewhere(false);
        const Burst burst = any_burst(start, start + 1, false);
        expect_read(burst, 0);
        settle();
    }

    void one_write() {
        const uint64_t start = somewhere(true);
        const Burst burst = any_burst(start, start + 1, false);
        const double shares[] = {1, 1, 1, 0.5, 0};
        // What shares a burst of memory with a write that fails, fails as well: so may blocks that others wait for.
        if (may_fail(burst)) {
            const Region *region = model_.at(burst.address);
            const bool may_share = region && is_of_blocks(*region, burst) && model_.unanswered();
            if (may_share) reopen(region - model_.regions.data(), region->merge);
            quiet();
        }
        const uint64_t before = model_.stored;
        const size_t ticket = send_write(content_of(burst, shares[random_.below(5)]), 0);
        // What was written and is not answered may be seen by the next read, or not.
        const bool may_be_seen = model_.stored != before && !model_.answers.count(ticket);
        settle();
        if (may_fail(burst) || may_be_seen) quiet();
    }

    // Where a burst of the sequential kind may begin.
    uint64_t somewhere(bool writes) {
        const Window &window = windows_[random_.below(windows_.size())];
        const Region &region = model_.regions[window.region];
        if (random_.chance(0.03)) return region.base + region.size + random_.below(kPage);
        if (random_.chance(0.03)) return (region.base - 1 - random_.below(kPage)) & (kSpace - 1);
        const unsigned draw = random_.below(100);
        const unsigned page = draw < 5 ? kRefusing : draw < (writes ? 8 : 15) ? kFailing : random_.below(kOpen);
        uint64_t start = window.start + page * kPage;
        // One bit of the page may be another: that is elsewhere, or in no region.
        if (random_.chance(0.05)) start ^= kPage << random_.below(ADDRESS_BITS - 12);
        start += random_.chance(0.3) ? random_.below(kPage) : random_.below(2) * 0x400 + random_.below(0x180);
        return random_.chance(0.4) ? start / 512 * 512 : start;  // whole blocks, perhaps
    }

    // Any burst that AXI4 allows, whose first byte lies in a range within a page.
    Burst any_burst(uint64_t low, uint64_t high, bool stays) {
        Burst burst;
        burst.size = random_.chance(0.6) ? kBusSize : random_.below(kBusSize + 1);
        burst.id = random_.below(4);
        burst.cache = 2 + random_.chance(0.3);
        const uint64_t step = uint64_t{1} << burst.size;
        burst.address = low + random_.below(high - low);
        const unsigned draw = random_.below(12);
        burst.kind = draw == 0 ? kFixed : draw < 4 ? kWrap : kIncr;
        if (burst.kind == kWrap) {
            burst.address -= burst.address % step;
            burst.beats = 2u << random_.below(4);
            while (stays && burst.beats * step > high - low) burst.beats /= 2;
            if (burst.beats < 2) burst.kind = kIncr, burst.beats = 1;
        } else if (burst.kind == kFixed) {
            burst.beats = 1 + random_.below(16);
        } else {
            const uint64_t end = stays ? high : burst.address / kPage * kPage + kPage;
            const uint64_t most = (end - burst.address + burst.address % step) / step;
            const unsigned some[] = {1, 2, 3, 8, 16, 64, 256};
            burst.beats = std::max<uint64_t>(1, std::min<uint64_t>(most, some[random_.below(7)]));
        }
        return burst;
    }

    // Whether it has bytes of more than one block.
    bool is_of_blocks(const Region &region, const Burst &burst) const {
        for (unsigned beat = 1; region.format && beat < burst.beats; ++beat) {
            if (burst.at(beat) / raw_bytes(region) != burst.address / raw_bytes(region)) return true;
        }
        return false;
    }

    // Whether it lies in a page that refuses writes, or has beats that fail.
    bool may_fail(const Burst &burst) const {
        for (const Window &window : windows_) {
            if (burst.address - window.start >= kPages * kPage) continue;
            const uint64_t page = (burst.address - window.start) / kPage;
            return page == kRefusing || page == kFailing;
        }
        return false;
    }

    // Something for a master to do, in places of its own; how many bursts it is.
    unsigned begin(Master &master, unsigned number) {
        const Window &window = windows_[random_.below(windows_.size())];
        const Region &region = model_.regions[window.region];
        const uint64_t low = window.start + number * kOwn;
        if (random_.chance(0.04)) {  // what is refused
            Burst burst = any_burst(region.base + region.size, region.base + region.size + kPage, false);
            burst.id = number;
            master.todo.push_back({random_.chance(0.5), content_of(burst, 1)});
        } else if (random_.chance(0.5)) {
            Burst burst = any_burst(low, low + kOwn, true);
            burst.id = number;
            master.todo.push_back({true, {burst, {}, {}}});
        } else {
            begin_write(master, number, region, low);
        }
        return master.todo.size();
    }

    // Whole blocks, in up to three bursts.
    void begin_write(Master &master, unsigned number, const Region &region, uint64_t low) {
        const unsigned original = raw_bytes(region);
        const unsigned most = kOwn / original, first = random_.below(most);
        const uint64_t start = low + first * original, end = start + (1 + random_.below(most - first)) * original;
        const unsigned pieces = 1 + random_.below(kPieces);
        Burst burst;
        burst.id = number;
        burst.cache = 2 + random_.chance(0.5);
        for (uint64_t at = start; at < end;) {
            burst.size = random_.chance(0.7) ? kBusSize : random_.below(kBusSize + 1);
            if (at % (1u << burst.size) || end - at < 1u << burst.size) burst.size = 0;
            const uint64_t left = (end - at) >> burst.size;
            const bool is_last = master.todo.size() + 1 >= pieces;
            const uint64_t beats = is_last || left < 2 ? left : 1 + random_.below(left - 1);
            burst.beats = std::min<uint64_t>(beats, 256);
            burst.address = at;
            master.todo.push_back({false, content_of(burst, 1)});
            at += uint64_t(burst.beats) << burst.size;
        }
    }

    void send(unsigned master, std::pair<bool, Write> &burst) {
        if (burst.first) {
            expect_read(burst.second.burst, master);
        } else {
            send_write(std::move(burst.second), master);
        }
    }
};

// Run something of a harness; -1 if the simulated hardware broke.
template <class Job>
int run(Harness &harness, Job job) {
    try {
        job();
        return 0;
    } catch (const Broken &broken) {
        harness.complain(broken);
        return -1;
    }
}

}  // namespace

extern "C" {

// An engine with mutants has the one of this number; nullptr if it breaks before its first burst.
void *bitstash_harness_new(const Codec *codecs, size_t count, uint64_t seed, unsigned latency, unsigned mutant) {
    try {
        return new Harness({codecs, codecs + count}, seed, latency, mutant);
    } catch (const Broken &) {
        return nullptr;
    }
}
void bitstash_harness_delete(void *harness) { delete static_cast<Harness *>(harness); }

const char *bitstash_harness_message(void *harness) { return static_cast<Harness *>(harness)->message.c_str(); }

// Bursts so far and those that went wrong, nine of each: of each region, and of none.
void bitstash_harness_counts(void *handle, uint64_t *bursts, uint64_t *mismatches) {
    const Harness &harness = *static_cast<Harness *>(handle);
    std::copy(std::begin(harness.bursts), std::end(harness.bursts), bursts);
    std::copy(std::begin(harness.mismatches), std::end(harness.mismatches), mismatches);
}

int bitstash_harness_run(void *handle, uint64_t sequential, uint64_t concurrent) {
    Harness &harness = *static_cast<Harness *>(handle);
    return run(harness, [&] {
        if (sequential) harness.sequential(sequential);
        if (concurrent) harness.concurrent(concurrent);
        harness.lock();
        for (unsigned times = 0; times < 3; ++times) harness.reset();
    });
}

// Bytes a cycle read and written at once, the share of memory's beats beyond the stored bytes, the cycles that a
// read adds, and bytes a cycle of reads of a word of each block.
int bitstash_harness_measure(void *handle, unsigned region, unsigned size, double *five) {
    Harness &harness = *static_cast<Harness *>(handle);
    return run(harness, [&] {
        five[3] = harness.added_latency(region);
        harness.rates(region, size, five);
        five[4] = harness.word_rate(region);
    });
}
}
