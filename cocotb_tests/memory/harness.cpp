// Random bursts on the Verilated engine, against the model of reference.h; built and called by harness.py.
//
// One after the other they may be all that AXI4 allows. Of several masters at once each has places of its own,
// whose blocks it writes whole, if in several bursts, so that nothing depends on who was first.

#include <deque>
#include <map>
#include <string>

#include "machine.h"
#include "reference.h"

namespace {

// Pages of a window: the first ones are written and read; one refuses writes, and one has beats that fail and blocks
// that are invalid. Between them lies one that is left alone, for neighbours share beats of memory.
constexpr unsigned kPages = 8, kOpen = 4, kRefusing = 5, kFailing = 7;
constexpr unsigned kMost = 8;            // kinds of regions: of each format, and in bypass
constexpr uint64_t kSpace = uint64_t{1} << ADDRESS_BITS;
constexpr uint64_t kSlice = kSpace / REGIONS / kPage;  // pages in which a region lies, and in which it is stored
constexpr uint32_t kPatience = 1u << 30;  // cycles of a timeout that does not come
constexpr unsigned kRecent = 8;          // bursts to tell of when one went wrong
constexpr unsigned kMasters = BUFFERS < 8 ? BUFFERS : 8;
constexpr uint64_t kOwn = kOpen * kPage / 8;  // bytes of each master in each region

unsigned log2_of(unsigned number) {
    unsigned power = 0;
    while (1u << power < number) ++power;
    return power;
}

const unsigned kBusSize = log2_of(BUS_BYTES);

// What is used of a region: its first pages, its last, and some between.
struct Window {
    unsigned region;
    uint64_t start;
};

struct Write {
    Burst burst;
    std::vector<uint8_t> words;
    std::vector<uint64_t> strobes;
};

// What a burst has to become.
struct Expected {
    unsigned region;
    std::vector<uint8_t> words, responses;  // of a read
    unsigned master;
    uint64_t place = 0, count = 0;  // what memory must have of a write when it is answered OKAY
};

class Harness {
   public:
    uint64_t bursts[kMost + 1] = {}, mismatches[kMost + 1] = {};  // by region; the last are those that hit none
    std::string message;  // of the first mismatches

    Harness(const std::vector<Codec> &codecs, uint64_t seed, unsigned latency, unsigned mutant)
        : codecs_(codecs),
          machine_({kSpace, latency, 1, 0, 0}, mutant),
          model_(codecs, kSpace, [this](uint64_t beat) { return int(machine_.dram.response(beat)); }),
          random_(seed),
          latency_(latency) {
        const std::vector<unsigned> here = shuffled(REGIONS), there = shuffled(REGIONS);
        for (unsigned i = 0; i < REGIONS; ++i) {
            const unsigned format = (i + 1) % (codecs.size() + 1);  // bypass is the last
            place_region(here[i], there[i], format);
            if (!enable(i)) throw Broken("no region");
        }
        for (const Window &window : windows_) fill(window);
        for (const Window &window : windows_) check_faults(window);
        machine_.set(TIMEOUT, kPatience);
    }

    // The simulated hardware broke.
    void complain(const Broken &broken) {
        message += std::string(broken.what()) + ", after\n";
        for (const std::string &line : recent_) message += line;
    }

    // Bursts that each wait for the one before, or until that one waits for a block.
    void sequential(uint64_t count) {
        for (uint64_t i = 0; i < count; ++i) {
            if (i % 2048 == 0) check_all();
            if (i % 256 == 0) check_errors(), check_counters();
            if (i % 64 == 0) set_pauses();
            if (random_.chance(0.004)) reopen(random_.below(REGIONS), random_.chance(0.7));
            if (random_.chance(0.004)) exchange();
            random_.chance(0.5) ? one_read() : one_write();
            for (unsigned gap = random_.chance(0.3) ? random_.below(40) : 0; gap; --gap) machine_.step();
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
        const Codec *codec = region.format ? &codecs_[region.format - 1] : nullptr;
        const double stored = 2.0 * count * size * (codec ? double(codec->target) / codec->original : 1);
        three[2] = beats * MEMORY_BYTES / stored - 1;
    }

    // Cycles that a read of one word adds to memory's own.
    unsigned added_latency(unsigned index) {
        quiet();
        const unsigned original = model_.regions[index].format ? codecs_[model_.regions[index].format - 1].original : 0;
        machine_.master.read(whole(model_.regions[index].base + 3 * kPage + original, BUS_BYTES));
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

    std::vector<unsigned> shuffled(unsigned count) {
        std::vector<unsigned> numbers(count);
        for (unsigned i = 0; i < count; ++i) {
            const unsigned other = random_.below(i + 1);
            numbers[i] = numbers[other];
            numbers[other] = i;
        }
        return numbers;
    }

    // A region somewhere in a slice of the addresses, stored somewhere in one of memory, of any size that both have
    // room for; a page behind it is in no region.
    void place_region(uint64_t slice, uint64_t slice_of_memory, unsigned format) {
        const uint64_t least = 3 * kPages, most = kSlice - 1;
        uint64_t size = least + some_pages();
        if (size > most) size = least;
        const uint64_t base = slice * kSlice + random_.below(kSlice - size);
        const uint64_t stored = slice_of_memory * kSlice + random_.below(kSlice - size + 1);
        const unsigned region = model_.regions.size();
        model_.regions.push_back({base * kPage, size * kPage, stored * kPage, format, true});
        const uint64_t between = kPages + (random_.chance(0.3) ? 0 : random_.below(size - least + 1));
        for (uint64_t page : {uint64_t{0}, between, size - kPages}) windows_.push_back({region, (base + page) * kPage});
    }

    // Fewer than a slice has: half of the time any number, else one of any order of magnitude.
    uint64_t some_pages() {
        const unsigned most = log2_of(kSlice);
        return random_.below(uint64_t{1} << (random_.chance(0.5) ? most : random_.below(most)));
    }

    // Blocks of random values; where reads fail, also some that no encoder makes.
    void fill(const Window &window) {
        const Region &region = model_.regions[window.region];
        std::vector<uint8_t> original(kPage);
        for (uint64_t address = window.start; address < window.start + kPages * kPage;) {
            const uint64_t kept = kept_bits();
            for (unsigned i = 0; i < kPage; ++i) original[i] = random_.next() & (kept >> (i % 2 * 8));
            uint8_t *stored = &model_.memory[model_.place(region, address)];
            if (region.format == 0) {
                std::copy(original.begin(), original.end(), stored);
                address += kPage;
                continue;
            }
            const Codec &codec = codecs_[region.format - 1];
            const uint32_t number = (address - region.base) / codec.original;
            if (address >= window.start + kFailing * kPage && random_.chance(0.3)) {
                for (unsigned i = 0; i < codec.target; ++i) stored[i] = random_.next();
            } else {
                codec.compress(region.format, number, original.data(), stored);
            }
            address += codec.original;
        }
        const auto place = [&](unsigned page) { return model_.place(region, window.start + page * kPage); };
        auto &faults = machine_.dram.faults;
        faults.push_back({place(kRefusing), place(kRefusing + 1), random_.chance(0.5) ? kSlvErr : kDecErr});
        // Two beats of the page, not where it begins or ends; Hadamard at 16x has four in all.
        const uint64_t failing = place(kFailing), beats = (place(kFailing + 1) - failing) / MEMORY_BYTES;
        const uint64_t first_beat = failing + std::min<uint64_t>(3, beats / 2) * MEMORY_BYTES;
        const uint64_t second_beat = failing + std::min<uint64_t>(9, beats / 4) * MEMORY_BYTES;
        faults.push_back({first_beat, first_beat + 1, kSlvErr});
        faults.push_back({second_beat, second_beat + 1, kDecErr});
        const uint64_t first = place(0), end = first + stored_bytes(region);
        std::copy(&model_.memory[first], &model_.memory[end], machine_.dram.content() + first);
    }

    // Writes to a window's open pages must not fail, and some to its failing page must.
    void check_faults(const Window &window) {
        const Region &region = model_.regions[window.region];
        const auto fails = [&](unsigned first, unsigned end) {
            const uint64_t low = model_.place(region, window.start + first * kPage);
            const uint64_t high = model_.place(region, window.start + end * kPage);
            for (uint64_t beat = low / MEMORY_BYTES * MEMORY_BYTES; beat < high; beat += MEMORY_BYTES) {
                if (machine_.dram.response(beat) != kOkay) return true;
            }
            return false;
        };
        expect(!fails(0, kOpen), "memory in the open pages of the window at " + hex(window.start));
        expect(fails(kFailing, kFailing + 1), "memory in the failing page of the window at " + hex(window.start));
    }

    // Of a window.
    uint64_t stored_bytes(const Region &region) const {
        return model_.place(region, region.base + kPages * kPage) - region.stored;
    }

    void set_pauses() {
        const double shares[] = {0, 0, 0.2, 0.7};
        auto &pauses = machine_.master.pauses;
        for (double *pause : {&pauses.aw, &pauses.w, &pauses.ar, &pauses.b, &pauses.r, &machine_.dram.pause}) {
            *pause = shares[random_.below(4)];
        }
        machine_.registers.pause = shares[random_.below(4)];
        const size_t most[] = {1, 2, 64, 64};
        machine_.dram.most_reads = most[random_.below(4)];
    }

    static Burst whole(uint64_t address, unsigned bytes) {
        Burst burst;
        burst.address = address;
        burst.beats = bytes / BUS_BYTES;
        burst.size = kBusSize;
        return burst;
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

    // All, or some of each two bytes: floats of any bits have high exponents, so that some of what is stored would
    // hardly ever change.
    uint64_t kept_bits() {
        if (random_.chance(0.5)) return ~uint64_t(0);
        return ((random_.next() | random_.next()) & 0xffff) * 0x0001000100010001;
    }

    // Random values for a burst, of whose lanes a share is strobed.
    Write content_of(const Burst &burst, double share) {
        Write write{burst, std::vector<uint8_t>(burst.beats * BUS_BYTES), std::vector<uint64_t>(burst.beats)};
        const uint64_t kept = kept_bits();
        for (size_t i = 0; i + 8 <= write.words.size(); i += 8) {
            const uint64_t bits = random_.next() & kept;
            std::memcpy(&write.words[i], &bits, 8);
        }
        for (unsigned beat = 0; beat < burst.beats; ++beat) {
            const uint64_t low = burst.at(beat) / BUS_BYTES * BUS_BYTES;
            for (uint64_t byte = burst.at(beat); byte < burst.end(beat); ++byte) {
                if (share >= 1 || random_.chance(share)) write.strobes[beat] |= uint64_t{1} << (byte - low);
            }
        }
        return write;
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

    unsigned kind_of(const Region *region) const {
        return !region ? kMost : region->format ? region->format - 1 : unsigned(codecs_.size());
    }

    // One of a region of this kind.
    const Window &window_of(unsigned kind) {
        for (;;) {
            const Window &window = windows_[random_.below(windows_.size())];
            if (kind_of(&model_.regions[window.region]) == kind) return window;
        }
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
        // What shares a burst of memory with a write that fails, fails as well.
        if (may_fail(burst)) quiet();
        const uint64_t before = model_.stored;
        const size_t ticket = send_write(content_of(burst, shares[random_.below(5)]), 0);
        // What was written and is not answered may be seen by the next read, or not.
        const bool may_be_seen = model_.stored != before && !model_.answers.count(ticket);
        settle();
        if (may_fail(burst) || may_be_seen) quiet();
    }

    void expect_read(const Burst &burst, unsigned master) {
        const unsigned region = kind_of(model_.at(burst.address));
        const size_t ticket = machine_.master.read(burst);
        auto [words, responses] = model_.read(burst);
        expected_[ticket] = {region, std::move(words), std::move(responses), master, 0, 0};
        ++bursts[region];
        remember("read, ", text(burst));
    }

    size_t send_write(Write write, unsigned master) {
        const unsigned region = kind_of(model_.at(write.burst.address));
        const Burst burst = write.burst;
        const size_t ticket = machine_.master.write(burst, write.words, write.strobes);
        model_.write(ticket, burst, write.words, write.strobes);
        expected_[ticket] = {region, {}, {}, master, 0, 0};
        ++bursts[region];
        remember("write, ", text(burst));
        return ticket;
    }

    void send(unsigned master, std::pair<bool, Write> &burst) {
        if (burst.first) {
            expect_read(burst.second.burst, master);
        } else {
            send_write(std::move(burst.second), master);
        }
    }

    // Until all is answered that the model has answered.
    void settle() {
        auto &master = machine_.master;
        machine_.until([&] {
            compare([](const Expected &) {});  // at once, for memory goes on
            return master.sent_all() && !master.reads() && master.writes() <= model_.unanswered();
        });
    }

    void quiet() {
        machine_.until([this] { return machine_.dram.is_idle(); });
        for (unsigned i = 0; i < 200 + 4 * latency_; ++i) machine_.step();
    }

    template <class Seen>
    void compare(Seen seen) {
        if (!machine_.master.has_done()) return;
        for (auto &[ticket, outcome] : machine_.master.take()) {
            const auto found = expected_.find(ticket);
            const std::string wrong = difference(ticket, outcome, found->second);
            if (!wrong.empty()) complain(found->second.region, outcome.burst, wrong);
            seen(found->second);
            for (unsigned beat = 0; outcome.is_read && beat < outcome.burst.beats; ++beat) {
                read_bytes_ += outcome.burst.end(beat) - outcome.burst.at(beat);
            }
            expected_.erase(found);
        }
    }

    // What is wrong with what a burst became, if anything.
    std::string difference(size_t ticket, const Outcome &outcome, const Expected &expected) {
        if (!outcome.is_read) {
            const auto answer = model_.answers.find(ticket);
            if (answer == model_.answers.end()) return "answered too early";
            const int response = answer->second;
            model_.answers.erase(answer);
            if (outcome.responses[0] == response) {
                const uint8_t *there = machine_.dram.content() + expected.place;
                const bool has = std::equal(there, there + expected.count, &model_.memory[expected.place]);
                return has || response != kOkay ? "" : "OKAY before memory has it";
            }
            return std::string(name_of(outcome.responses[0])) + ", not " + name_of(response);
        }
        for (unsigned beat = 0; beat < outcome.burst.beats; ++beat) {
            const std::string where = " in beat " + std::to_string(beat);
            if (outcome.responses[beat] != expected.responses[beat]) {
                return name_of(outcome.responses[beat]) + where + ", not " + name_of(expected.responses[beat]);
            }
            const uint64_t start = outcome.burst.at(beat), count = outcome.burst.end(beat) - start;
            const size_t at = beat * BUS_BYTES + start % BUS_BYTES;
            for (size_t i = at; i < at + count; ++i) {
                if (outcome.words[i] == expected.words[i]) continue;
                return hex(outcome.words[i]) + " in lane " + std::to_string(i % BUS_BYTES) + where + ", not " +
                       hex(expected.words[i]);
            }
        }
        return "";
    }

    static std::string text(const Burst &burst) {
        const char *const kinds[] = {"FIXED", "INCR", "WRAP"};
        return std::string(kinds[burst.kind]) + " of " + std::to_string(burst.beats) + " beats of " +
               std::to_string(1u << burst.size) + " at " + hex(burst.address) + ", ID " + std::to_string(burst.id) +
               (burst.cache & 1 ? ", bufferable" : "");
    }

    void remember(const char *what, const std::string &more) {
        recent_.push_back("    " + std::string(what) + more + " in cycle " + std::to_string(machine_.cycles()) + "\n");
        if (recent_.size() > kRecent) recent_.pop_front();
    }

    void complain(unsigned region, const Burst &burst, const std::string &wrong) {
        if (++mismatches[region] > 3) return;
        message += text(burst) + ": " + wrong + ", after\n";
        for (const std::string &line : recent_) message += line;
    }

    bool enable(unsigned index) {
        const Region &region = model_.regions[index];
        return machine_.enable(index, region.base, region.size, region.stored, region.format, region.merge);
    }

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

    // Whether something is as it must be; what it is stands in `what`.
    void expect(bool holds, const std::string &what) {
        if (holds) return;
        if (++mismatches[kMost] > 3) return;
        message += what + " is wrong in cycle " + std::to_string(machine_.cycles()) + "\n";
    }

    void expect_register(unsigned offset, uint32_t value) {
        const uint32_t found = machine_.get(offset);
        expect(found == value, "the register at " + hex(offset) + ", " + hex(found) + ", not " + hex(value) + ",");
    }

    static bool is_mapped(unsigned offset) {
        for (unsigned one : {IDENTITY, PARAMETERS, TIMEOUT, ERRORS, INTERRUPTS}) {
            if (offset == one) return true;
        }
        if (offset >= ERROR_ADDRESS_LOW && offset < ERROR_ADDRESS_LOW + ERROR_KINDS * ERROR_ADDRESS_STRIDE) return true;
        if (offset >= READ_BEATS && offset < READ_BEATS + 4 * COUNTERS) return true;
        return offset >= REGION_BASE && offset < REGION_BASE + REGIONS * REGION_STRIDE;
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
        check_directed_counters();
        clear_errors();
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

    // Of memory, that a region takes, the last perhaps in part.
    uint64_t stored_pages(const Region &region) const {
        return (model_.place(region, region.base + region.size) - region.stored + kPage - 1) / kPage;
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

    // Regions whose stored bytes meet another's, or end where these begin, or reach beyond memory.
    void check_overlaps() {
        for (unsigned times = 0; times < 8 * REGIONS; ++times) {
            const unsigned index = random_.below(REGIONS), next = (index + 1 + random_.below(REGIONS - 1)) % REGIONS;
            const Region &other = model_.regions[next];
            Region &region = model_.regions[index];
            const Region before = region;
            machine_.disable(index);
            region.base = 0;
            const uint64_t most = random_.chance(0.5) ? 1 + some_pages() : kSpace / kPage;
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
            machine_.disable(index);
            region = before;
            region.enabled = enable(index);
        }
    }

    // The page behind a region, which is in none.
    uint64_t behind(unsigned index) const { return model_.regions[index].base + model_.regions[index].size; }

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
                expect(busy + 2 >= took && busy <= took + 3, "BUSY of a read of " + std::to_string(took) + " cycles");
                expect(more(1) == (region.format && !times), "BLOCKS_READ");
            }
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

    // What random bursts seldom meet.
    void check_all() {
        for (unsigned i = 0; i < REGIONS; ++i) exchange();
        check_registers();
        storm();
        check_failing_writes();
        stand_still();
        check_order();
        check_order_at_length();
        check_shared_beats();
        check_evictions();
        check_slots();
        check_lanes();
        check_told_blocks();
        check_forgotten();
        check_completions();
        check_timeouts();
        check_ages();
        check_each_error();
        check_errors_at_once();
        check_merges_and_reads();
        check_room();
        set_pauses();
    }

    // Bytes of several open blocks, each by a burst of its own that waits in a slot, until the region is disabled.
    // Where it merges, of some blocks that are invalid or cannot be read.
    void check_evictions() {
        for (unsigned times = 0; FORMATS && times < 32; ++times) {
            const Window &window = windows_[random_.below(windows_.size())];
            Region &region = model_.regions[window.region];
            if (!region.format) continue;
            const unsigned raw = codecs_[region.format - 1].original, most = std::max(1u, kMasters - 1);
            const bool merges = MERGING && random_.chance(0.7);
            reopen(window.region, merges);
            const uint64_t page = window.start + (merges && random_.chance(0.7) ? kFailing : 0) * kPage;
            const bool fills = random_.chance(0.5);  // all slots; a told write would leave its own
            for (unsigned i = fills ? 0 : random_.below(SLOTS); i < SLOTS; ++i) {
                Burst burst;
                burst.address = page + random_.below(most) * raw + random_.below(raw - 1);
                burst.id = random_.below(16);
                burst.cache = 2 + (!fills && random_.chance(0.1));
                Expected &expected = expected_[send_write(content_of(burst, 1), 0)];
                if (!merges || burst.cache & 1) continue;
                expected.place = model_.place(region, burst.address);
                expected.count = codecs_[region.format - 1].target;
            }
            settle();
            reopen(window.region, merges);
        }
    }

    // Every slot waits for every buffer, whose block then gets more bytes. No block is ever complete, so that each
    // answer says whether its slot still waited when the region was disabled.
    void check_slots() {
        for (unsigned times = 0; FORMATS && times < 2 * BUFFERS; ++times) {
            const unsigned kind = random_.below(codecs_.size()), raw = codecs_[kind].original;
            const Window &window = window_of(kind);
            const auto write = [&](unsigned block, bool is_bufferable) {
                Burst burst;
                burst.address = window.start + block * raw + random_.below(raw - 1);
                burst.id = random_.below(15);
                burst.cache = 2 + is_bufferable;
                send_write(content_of(burst, 1), 0);
            };
            reopen(window.region, false);
            quiet();
            for (unsigned block = 0; block < BUFFERS; ++block) write(block, true), settle();
            for (unsigned slot = 0; slot < SLOTS; ++slot) {
                if (random_.chance(0.5)) {  // what is refused at once leaves its slot to the next
                    Burst burst = whole(behind(window.region), BUS_BYTES);
                    burst.id = 15;
                    send_write(content_of(burst, 1), 0);
                    settle();
                }
                write((slot + times) % BUFFERS, false);
            }
            settle();
            // A read of one block evicts it, and so makes room for more writes.
            const unsigned evicted = (times + times / BUFFERS) % BUFFERS;
            expect_read(whole(window.start + evicted * raw, BUS_BYTES), 0);
            settle();
            for (unsigned block = 0; block < BUFFERS; ++block) {
                if (block != evicted) write(block, true), settle();
            }
            reopen(window.region, false);
        }
    }

    // A block is incomplete as long as one byte is missing, in any lane, whatever is written anew of the same word.
    void check_lanes() {
        for (unsigned lane = 0; FORMATS && lane < BUS_BYTES; ++lane) {
            const unsigned raw = codecs_[0].original, words = raw / BUS_BYTES, word = random_.below(words);
            const Window &window = window_of(0);
            const uint64_t block = window.start + random_.below(kPage / raw) * raw;
            Write all = content_of(whole(block, raw), 1);
            all.strobes[word] &= ~(uint64_t{1} << lane);
            send_write(all, 0);
            settle();
            const unsigned other = (lane + 1 + random_.below(BUS_BYTES - 1)) % BUS_BYTES;
            for (unsigned at : {other, lane}) {
                for (unsigned i = 0; i < 100; ++i) machine_.step();
                Burst burst;
                burst.address = block + word * BUS_BYTES + at;
                send_write(content_of(burst, 1), 0);
                settle();
            }
        }
    }

    // Slots that wait for any of several blocks, which are completed one after the other. Memory refuses some; it has
    // the others when their writes are answered.
    void check_completions() {
        for (unsigned times = 0; FORMATS && times < 32; ++times) {
            const unsigned kind = random_.below(codecs_.size()), raw = codecs_[kind].original;
            const Window &window = window_of(kind);
            const Region &region = model_.regions[window.region];
            reopen(window.region, false);
            const bool fails = random_.chance(0.5);
            std::vector<uint64_t> blocks(std::max(1u, BUFFERS - 1));
            for (unsigned i = 0; i < blocks.size(); ++i) {
                const unsigned page = !fails ? 0 : random_.below(2) * (random_.chance(0.5) ? kFailing : kRefusing);
                blocks[i] = window.start + page * kPage + (2 * i + random_.below(2)) * raw;
            }
            // Where all slots wait, the first burst to complete a block evicts another one.
            for (unsigned slot = random_.below(2); slot < SLOTS; ++slot) {
                const uint64_t block = blocks[random_.below(blocks.size())];
                Burst burst;
                burst.address = block + random_.below(raw - 1);
                burst.id = random_.below(16);
                Expected &expected = expected_[send_write(content_of(burst, 1), 0)];
                expected.place = model_.place(region, block);
                expected.count = codecs_[kind].target;
            }
            settle();
            machine_.dram.pause = random_.chance(0.5) ? 0.9 : 0;
            for (const uint64_t block : blocks) {
                Burst burst = whole(block, raw);
                burst.cache = 3;
                send_write(content_of(burst, 1), 0);
                if (fails) settle(), quiet();  // else it would share a burst of memory with the next one
            }
            machine_.dram.pause = 0;
            settle();
        }
    }

    // A read evicts an open block in any buffer if a bufferable write to it was answered, and no other.
    void check_told_blocks() {
        for (unsigned times = 0; FORMATS && times < 16; ++times) {
            const unsigned kind = random_.below(codecs_.size()), raw = codecs_[kind].original;
            const Window &window = window_of(kind);
            reopen(window.region, MERGING && random_.chance(0.5));
            quiet();
            std::vector<unsigned> blocks = shuffled(kPage / raw);
            blocks.resize(std::min<size_t>(blocks.size(), BUFFERS));
            for (unsigned block : blocks) {
                Burst burst;
                burst.address = window.start + block * raw;
                send_write(content_of(burst, 1), 0);
                burst.cache = 3;
                if (random_.chance(0.5)) send_write(content_of(burst, 1), 0);
                settle();
            }
            std::vector<uint64_t> unread;
            for (unsigned i : shuffled(blocks.size())) {
                const uint64_t block = window.start + blocks[i] * raw;
                if (random_.chance(0.5)) {
                    expect_read(whole(block, BUS_BYTES), 0);
                    settle();
                } else {
                    unread.push_back(block);
                }
            }
            for (uint64_t block : unread) {  // still has its first byte, and needs the others
                Write others = content_of(whole(block, raw), 1);
                others.strobes[0] &= ~uint64_t{1};
                send_write(others, 0);
                settle();
            }
            reopen(window.region, false);
        }
    }

    // An incomplete block is evicted once it was the oldest for as long as TIMEOUT says, and not before.
    void check_timeouts() {
        constexpr unsigned kSoon = 100;  // cycles in which an eviction is answered
        for (unsigned times = 0; FORMATS && times < 8; ++times) {
            const unsigned kind = random_.below(codecs_.size()), raw = codecs_[kind].original;
            const Window &window = window_of(kind);
            const unsigned timeout = 4 * kSoon + random_.below(1u << (times ? 10 : 17));
            reopen(window.region, false);
            quiet();
            machine_.set(TIMEOUT, timeout);
            Burst older = whole(window.start, raw), newer = older;
            newer.address += 2 * raw;
            older.size = newer.size = 0, older.beats = newer.beats = 1;
            const bool has_older = random_.chance(0.5);
            if (has_older) send_write(content_of(older, 1), 0);
            send_write(content_of(newer, 1), 0);
            machine_.until([&] { return machine_.master.sent_all(); });
            if (has_older) {
                for (unsigned i = timeout / 2; i; --i) machine_.step();
                send_write(content_of(whole(window.start, raw), 1), 0);
                settle();
            }
            const uint64_t start = machine_.cycles();
            for (unsigned i = kSoon; i < timeout; ++i) machine_.step();
            compare([](const Expected &) {});  // nothing is answered yet
            model_.disable(model_.regions[window.region]);
            model_.regions[window.region].enabled = true;
            settle();
            const uint64_t took = machine_.cycles() - start;
            expect(took <= timeout + kSoon, "a timeout of " + std::to_string(timeout) + " cycles");
            machine_.set(TIMEOUT, kPatience);
            clear_errors();
        }
    }

    // Blocks are evicted in the order in which they were opened, in whatever buffers they and others are.
    void check_ages() {
        for (unsigned times = 0; FORMATS && times < 8; ++times) {
            const unsigned kind = random_.below(codecs_.size()), raw = codecs_[kind].original;
            const Window &window = window_of(kind);
            std::vector<unsigned> open, evicted;
            const auto begin = [&](unsigned block) {
                Burst burst;
                burst.address = window.start + block * raw;
                burst.id = block % BUFFERS;
                expected_[send_write(content_of(burst, 1), 0)].master = block;
                settle();
                open.push_back(block);
            };
            reopen(window.region, false);
            for (unsigned block = 0; block < BUFFERS; ++block) begin(block);
            for (unsigned block : shuffled(BUFFERS)) {
                if (random_.chance(0.4)) continue;
                Burst burst = whole(window.start + block * raw, raw);
                burst.id = block;
                send_write(content_of(burst, 1), 0);
                settle();
                open.erase(std::find(open.begin(), open.end(), block));
                if (random_.chance(0.5)) begin(BUFFERS + block);
            }
            model_.disable(model_.regions[window.region]);
            model_.regions[window.region].enabled = true;
            machine_.set(TIMEOUT, 100);
            machine_.until([&] {
                compare([&](const Expected &one) { evicted.push_back(one.master); });
                return evicted.size() == open.size();
            });
            expect(evicted == open, "the order of evictions");
            machine_.set(TIMEOUT, kPatience);
            clear_errors();
        }
    }

    // More writes at once than there are slots and bursts of memory, of which some are refused: each is answered for
    // itself, for of those none lies beside another.
    void storm() {
        for (unsigned kind = 0; kind <= codecs_.size(); ++kind) {
            const Window &window = window_of(kind);
            const Region &region = model_.regions[window.region];
            const unsigned bytes = region.format ? codecs_[region.format - 1].original : BUS_BYTES;
            quiet();
            machine_.dram.pause = 0.9;
            unsigned sent = 0;
            for (const unsigned page : {0u, kRefusing, 1u}) {
                const unsigned step = (page == kRefusing || random_.chance(0.5) ? 2 : 1) * bytes;
                for (unsigned i = 0; i < 2 * SLOTS && i * step + bytes <= kPage; ++i) {
                    Burst burst = whole(window.start + page * kPage + i * step, bytes);
                    burst.id = random_.below(16);
                    Expected &expected = expected_[send_write(content_of(burst, 1), 0)];
                    expected.place = model_.place(region, burst.address);
                    expected.count = region.format ? codecs_[region.format - 1].target : bytes;
                    if (++sent % (2 * SLOTS) == 0) settle();
                }
                // Counters go on while others are read.
                for (unsigned i = 0; i < 40; ++i) machine_.get(READ_BEATS + 4 * random_.below(COUNTERS));
                settle();
            }
            quiet();
        }
        machine_.dram.pause = 0;
    }

    // Blocks of a failing page, each after the answer of the one before, for else they share bursts of memory.
    void check_failing_writes() {
        for (unsigned kind = 0; kind <= codecs_.size(); ++kind) {
            const Window &window = window_of(kind);
            const Region &region = model_.regions[window.region];
            const unsigned bytes = region.format ? codecs_[region.format - 1].original : BUS_BYTES;
            quiet();
            for (unsigned at = 0; at < kPage; at += bytes) {
                send_write(content_of(whole(window.start + kFailing * kPage + at, bytes), 1), 0);
                settle();
            }
            quiet();
        }
    }

    // A block of a window's open pages, whole; often one behind which another page of memory begins, or in it.
    Burst any_block_of(const Window &window) {
        const Region &region = model_.regions[window.region];
        const unsigned raw = codecs_[region.format - 1].original, count = kOpen * kPage / raw;
        const auto page_behind = [&](unsigned block) {
            return model_.place(region, window.start + (block + 1) * raw) / kPage;
        };
        unsigned block = random_.below(count);
        if (random_.chance(0.3)) {
            while (block + 1 < count && page_behind(block) == page_behind(block - 1)) ++block;
        }
        return whole(window.start + block * raw, raw);
    }

    // Blocks that are read as soon as their write was answered, while they are still on their way to memory.
    void check_order() {
        quiet();
        uint64_t last = ~uint64_t(0);  // the block that may still be read
        for (unsigned times = 0; FORMATS && times < 256; ++times) {
            const Window &window = windows_[random_.below(windows_.size())];
            const Region &region = model_.regions[window.region];
            if (!region.format) continue;
            Burst burst = any_block_of(window);
            burst.cache = 3;
            if (burst.address == last) settle();  // else that read might see this write
            last = burst.address;
            send_write(content_of(burst, 1), 0);
            settle();
            expect_read(burst, 0);
            if (random_.chance(0.5)) settle();
        }
        settle();
    }

    // The same while memory stands still, so that blocks are in every part in which writes wait.
    void check_order_at_length() {
        for (unsigned times = 0; FORMATS && times < 64; ++times) {
            quiet();
            machine_.dram.pause = 1;
            std::vector<Burst> written;
            while (written.size() < 1 + times % 40) {
                const Window &window = windows_[random_.below(windows_.size())];
                const Region &region = model_.regions[window.region];
                if (!region.format) continue;
                written.push_back(any_block_of(window));
                written.back().cache = 3;
                send_write(content_of(written.back(), 1), 0);
                for (unsigned i = 0; i < 200; ++i) machine_.step();
                compare([](const Expected &) {});
                if (!machine_.master.writes()) continue;
                // There is no room for it: a read of this block may see it, or not.
                const uint64_t last = written.back().address;
                const auto is_it = [&](const Burst &one) { return one.address == last; };
                written.erase(std::remove_if(written.begin(), written.end(), is_it), written.end());
                break;
            }
            for (unsigned i : shuffled(written.size())) expect_read(written[i], 0);
            for (unsigned i = random_.below(400); i; --i) machine_.step();
            machine_.dram.pause = 0;
            settle();
        }
    }

    // Of blocks in a row two may share a beat of memory. It is read once, but anew if the second block was written
    // since, be it while memory stands still.
    void check_shared_beats() {
        for (unsigned times = 0; FORMATS && times < 64; ++times) {
            const unsigned kind = random_.below(codecs_.size()), raw = codecs_[kind].original;
            const Window &window = window_of(kind);
            const Region &region = model_.regions[window.region];
            reopen(window.region, false);
            expect_read(whole(window.start + 3 * kPage, raw), 0);  // what was read before is displaced
            settle();
            quiet();
            const unsigned count = 1 + random_.below(8);
            Burst burst = whole(window.start + random_.below(kPage / raw) * raw, raw);
            const uint64_t first = model_.place(region, burst.address) / MEMORY_BYTES;
            const uint64_t last = (model_.place(region, burst.address + count * raw) - 1) / MEMORY_BYTES;
            const uint64_t before = machine_.dram.statistics().read_beats;
            for (unsigned i = 0; i < count; ++i, burst.address += raw) expect_read(burst, 0), settle();
            expect(machine_.dram.statistics().read_beats - before == last - first + 1, "beats of blocks in a row");

            machine_.dram.pause = times % 2;
            expect_read(burst, 0);
            if (times % 2 == 0) settle();
            burst.address += raw;
            send_write(content_of(burst, 1), 0);
            for (unsigned i = random_.below(400); i; --i) machine_.step();
            machine_.dram.pause = 0;
            settle();
            expect_read(burst, 0);
            settle();
        }
    }

    // What a read kept of memory is forgotten if its region is disabled, if the block was invalid, or if memory refused
    // it: then memory may have something else.
    void check_forgotten() {
        for (unsigned times = 0; times < 24; ++times) {
            const Window &window = windows_[random_.below(windows_.size())];
            Region &region = model_.regions[window.region];
            const unsigned raw = region.format ? codecs_[region.format - 1].original : BUS_BYTES;
            const unsigned stored = region.format ? codecs_[region.format - 1].target : raw;
            const uint64_t block = window.start + random_.below(kPage / raw) * raw, place = model_.place(region, block);
            const auto put = [&](const std::vector<uint8_t> &bytes) {
                std::copy(bytes.begin(), bytes.end(), &model_.memory[place]);
                std::copy(bytes.begin(), bytes.end(), machine_.dram.content() + place);
            };
            std::vector<uint8_t> values(raw), bytes(stored);
            const auto draw = [&](std::vector<uint8_t> &some) {
                for (uint8_t &byte : some) byte = random_.next();
            };
            reopen(window.region, false);
            quiet();
            if (times % 3 == 1) draw(bytes), put(bytes);  // is no block, perhaps
            if (times % 3 == 2) machine_.dram.faults.push_back({place, place + stored, kSlvErr});
            expect_read(whole(block, raw), 0);
            settle();
            if (times % 3 == 2) machine_.dram.faults.pop_back();
            if (times % 3 == 1 && !model_.errors.count(kInvalid)) continue;
            if (times % 3 == 0) model_.disable(region), machine_.disable(window.region);
            draw(values);
            if (region.format) {
                const uint32_t number = (block - region.base) / raw;
                codecs_[region.format - 1].compress(region.format, number, values.data(), bytes.data());
            }
            put(region.format ? bytes : values);
            if (times % 3 == 0) region.enabled = enable(window.region);
            expect_read(whole(block, raw), 0);
            settle();
            clear_errors();
        }
    }

    // More reads than the engine has room for while R stands still for long; more writes while B does; then both
    // while memory does.
    void stand_still() {
        constexpr unsigned kLong = 3000;  // cycles
        auto &pauses = machine_.master.pauses;
        for (double *still : {&pauses.r, &pauses.b, &machine_.dram.pause}) {
            for (unsigned times = 0; times < 4; ++times) {
                const Window &window = windows_[random_.below(windows_.size())];
                const Region &region = model_.regions[window.region];
                const unsigned raw = region.format ? codecs_[region.format - 1].original : BUS_BYTES;
                quiet();
                *still = 1;
                for (unsigned i = 0; still != &pauses.b && i < 40; ++i) {
                    const unsigned most = std::min<uint64_t>(256 * BUS_BYTES, kPage);
                    Burst burst = whole(window.start + (2 + i % 2) * kPage, i % 8 ? BUS_BYTES : most);
                    burst.id = random_.below(16);
                    expect_read(burst, 0);
                }
                for (unsigned i = 0; still != &pauses.r && i < 2 * SLOTS; ++i) {
                    Burst burst = whole(window.start + i * raw % (2 * kPage), raw);
                    burst.id = random_.below(16);
                    burst.cache = 2 + i % 2;
                    send_write(content_of(burst, 1), 0);
                }
                for (unsigned i = 0; i < kLong; ++i) machine_.step();
                *still = 0;
                settle();
            }
        }
    }

    // An error of each kind with each window, and its address.
    void check_each_error() {
        for (const Window &window : windows_) {
            const Region &region = model_.regions[window.region];
            const unsigned raw = region.format ? codecs_[region.format - 1].original : BUS_BYTES;
            const auto any_block = [&] { return whole(window.start + random_.below(kPage / raw) * raw, raw); };
            reopen(window.region, false);
            expect_read(whole(behind(window.region) + random_.below(kPage / raw) * raw, raw), 0);
            settle();
            if (region.format) {
                Burst burst = any_block();
                burst.kind = kFixed, burst.beats = 1;
                send_write(content_of(burst, 1), 0);
                // Bytes of two blocks, of which each is evicted by a read.
                burst = whole(window.start + random_.below(kPage / raw - 1) * raw + raw - 1, BUS_BYTES);
                burst.beats = 2, burst.size = 0, burst.cache = 3;
                send_write(content_of(burst, 1), 0);
                settle();
                burst.beats = 1;
                for (unsigned i = 0; i < 2; ++i, ++burst.address) expect_read(burst, 0), settle();
            }
            Burst failing = any_block();
            const auto has_both = [&] { return model_.errors.count(kRead) && model_.errors.count(kInvalid); };
            for (unsigned at = 0; at < kPage && !has_both(); at += raw) {
                failing.address = window.start + kFailing * kPage + at;
                expect_read(failing, 0);
                settle();
            }
            failing.address = any_block().address + kFailing * kPage;
            quiet();
            send_write(content_of(failing, 1), 0);
            settle();
            check_errors();
        }
    }

    // Errors of several kinds in the same cycle are all counted.
    void check_errors_at_once() {
        constexpr unsigned kTimes = 1000;
        const Window &window = window_of(codecs_.size());
        Burst burst;
        burst.size = log2_of(MEMORY_BYTES);
        clear_errors();
        const uint32_t before = machine_.get(ERRORS_SEEN);
        for (unsigned i = 0; i < kTimes; ++i) {
            const uint64_t failing = window.start + kFailing * kPage + 3 * MEMORY_BYTES;
            burst.address = random_.chance(0.5) ? behind(window.region) : failing;
            expect_read(burst, 0);
            // Every second beat, for those in a row share a burst of memory.
            const uint64_t refusing = window.start + kRefusing * kPage + 2 * i * MEMORY_BYTES % kPage;
            burst.address = random_.chance(0.5) ? behind(window.region) : refusing;
            send_write(content_of(burst, 1), 0);
        }
        settle();
        expect(machine_.get(ERRORS_SEEN) - before == 2 * kTimes, "ERRORS_SEEN of many at once");
        clear_errors();
    }

    // Blocks that are read are counted, and those that are merged, also in the same cycle.
    void check_merges_and_reads() {
        if (!MERGING) return;
        const Window &window = window_of(0);
        const unsigned raw = codecs_[0].original, count = kPage / raw;
        reopen(window.region, true);
        expect_read(whole(window.start + 3 * kPage, raw), 0);  // what was read before is displaced
        settle();
        quiet();
        machine_.master.pauses.r = 0.5;  // else each ends with its last beat, of which memory gives one in a cycle
        const uint32_t before = machine_.get(BLOCKS_READ);
        for (unsigned i = 0; i < count; ++i) {
            Burst burst;
            burst.address = window.start + i * raw + random_.below(raw);
            send_write(content_of(burst, 1), 0);
            expect_read(whole(window.start + 2 * kPage + i * raw, raw), 0);
        }
        settle();
        machine_.master.pauses.r = 0;
        reopen(window.region, true);
        expect(machine_.get(BLOCKS_READ) - before == 2 * count, "BLOCKS_READ of merges and reads at once");
    }

    // Reads of as many beats of memory as there is room for where R stands still, of some more, and of many more: all
    // that come are kept.
    void check_room() {
        constexpr unsigned kRoom = std::max<unsigned>(128, kPage / MEMORY_BYTES), kLast = 64;
        constexpr unsigned kLongest = std::min<unsigned>(256, kPage / MEMORY_BYTES);
        const Window &window = window_of(codecs_.size());
        Burst burst;
        burst.size = log2_of(MEMORY_BYTES);
        for (unsigned more = 0; MERGING && more < kLast / 2; ++more) {
            machine_.master.pauses.r = 1;
            // Some blocks first, of any number of beats, so that it may be full to the last one.
            const unsigned raw = codecs_[0].original;
            expect_read(whole(window_of(0).start, (1 + random_.below(8)) * raw), 0);
            for (unsigned left = kRoom + more; left; left -= burst.beats) {
                burst.address = window.start + random_.below(kOpen) * kPage;
                burst.beats = left > kLast ? std::min(left - kLast, kLongest) : left;
                expect_read(burst, 0);
            }
            burst.beats = kLongest;
            expect_read(burst, 0);
            for (unsigned i = 0; i < 2 * kRoom; ++i) machine_.step();
            machine_.master.pauses.r = 0;
            settle();
        }
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
        for (const Region &region : model_.regions) expect_read(whole(region.base + kPage, 512), 0), settle();
        clear_errors();
    }

    void clear_errors() {
        quiet();
        machine_.set(ERRORS, (1u << ERROR_KINDS) - 1);
        machine_.dram.failed_writes.clear();
        model_.errors.clear();
        model_.evicts_any = false;
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
        const unsigned original = region.format ? codecs_[region.format - 1].original : BUS_BYTES;
        const unsigned most = kOwn / original, first = random_.below(most);
        const uint64_t start = low + first * original, end = start + (1 + random_.below(most - first)) * original;
        const unsigned pieces = 1 + random_.below(3);
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

    std::vector<Codec> codecs_;
    std::vector<Window> windows_;
    Machine machine_;
    Reference model_;
    Random random_;
    unsigned latency_;
    std::deque<std::string> recent_;
    uint32_t read_bytes_ = 0;
    std::map<size_t, Expected> expected_;
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
    });
}

// Bytes a cycle read and written at once, the share of memory's beats beyond the stored bytes, and the cycles
// that a read adds.
int bitstash_harness_measure(void *handle, unsigned region, unsigned size, double *four) {
    Harness &harness = *static_cast<Harness *>(handle);
    return run(harness, [&] {
        four[3] = harness.added_latency(region);
        harness.rates(region, size, four);
    });
}
}
