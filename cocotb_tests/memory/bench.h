// A Verilated engine between a master and memory, and what must come of the bursts that it is given.

#pragma once

#include <algorithm>
#include <deque>
#include <map>
#include <string>

#include "machine.h"
#include "reference.h"

// Pages of a window: the first ones are written and read; one refuses writes, and one has beats that fail and blocks
// that are invalid. Between them lies one that is left alone, for neighbours share beats of memory.
constexpr unsigned kPages = 8, kOpen = 4, kRefusing = 5, kFailing = 7;
constexpr unsigned kMost = 8;            // kinds of regions: of each format, and in bypass
constexpr uint64_t kSpace = uint64_t{1} << ADDRESS_BITS;
constexpr uint64_t kSlice = kSpace / REGIONS / kPage;  // pages in which a region lies, and in which it is stored
constexpr uint32_t kPatience = 1u << 30;  // cycles of a timeout that does not come
constexpr unsigned kRecent = 8;          // bursts to tell of when one went wrong
constexpr unsigned kPieces = std::min(3u, SLOTS);  // bursts that fill blocks, each of which waits for the others
constexpr unsigned kMasters = std::max(1u, std::min({8u, BUFFERS, SLOTS / kPieces}));

inline unsigned log2_of(unsigned number) {
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

class Bench {
   public:
    uint64_t bursts[kMost + 1] = {}, mismatches[kMost + 1] = {};  // by region; the last are those that hit none
    std::string message;  // of the first mismatches

    Bench(const std::vector<Codec> &codecs, uint64_t seed, unsigned latency, unsigned mutant)
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

   protected:
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
        // Two bytes of the page fail, and so whatever has bytes of either's beat: the first byte of a block, whose beat
        // has the end of the block before as well unless beats divide blocks, and one of the same block or any other.
        const uint64_t failing = place(kFailing), bytes = place(kFailing + 1) - failing, size = target_bytes(region);
        // The last beat may have bytes of the next page.
        const uint64_t most = bytes > 2 * MEMORY_BYTES ? bytes - 2 * MEMORY_BYTES : 0;
        const uint64_t one = random_.below(most / size + 1) * size + (region.format ? 0 : random_.below(size));
        const uint64_t near = one / size * size + random_.below(size), far = random_.below(most + 1);
        faults.push_back({failing + one, failing + one + 1, kSlvErr});
        const uint64_t other = failing + (random_.chance(0.5) ? std::min(near, most) : far);
        faults.push_back({other, other + 1, kDecErr});
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

    bool enable(unsigned index) {
        const Region &region = model_.regions[index];
        return machine_.enable(index, region.base, region.size, region.stored, region.format, region.merge);
    }

    std::vector<unsigned> shuffled(unsigned count) {
        std::vector<unsigned> numbers(count);
        for (unsigned i = 0; i < count; ++i) {
            const unsigned other = random_.below(i + 1);
            numbers[i] = numbers[other];
            numbers[other] = i;
        }
        return numbers;
    }

    void set_pauses() {
        const double shares[] = {0, 0, 0.2, 0.7};
        auto &pauses = machine_.master.pauses;
        for (double *pause : {&pauses.aw, &pauses.w, &pauses.ar, &pauses.b, &pauses.r, &machine_.dram.pause}) {
            *pause = shares[random_.below(4)];
        }
        machine_.registers.pause = shares[random_.below(4)];
        const size_t most[] = {1, 2, Dram::kMost, Dram::kMost};
        machine_.dram.most_reads = most[random_.below(4)];
        machine_.dram.latency = random_.chance(0.25) ? 1 : latency_;
    }

    void no_pauses() {
        machine_.master.pauses = {};
        machine_.registers.pause = machine_.dram.pause = 0;
        machine_.dram.most_reads = Dram::kMost;
        machine_.dram.latency = latency_;
    }

    static Burst whole(uint64_t address, unsigned bytes) {
        Burst burst;
        burst.address = address;
        burst.beats = bytes / BUS_BYTES;
        burst.size = kBusSize;
        return burst;
    }

    // All, or some of each two bytes: floats of any bits have high exponents, so that some of what is stored would
    // hardly ever change.
    uint64_t kept_bits() {
        if (random_.chance(0.5)) return ~uint64_t(0);
        return ((random_.next() | random_.next()) & 0xffff) * 0x0001000100010001;
    }

    // A block of a window's open pages, whole; often one behind which another page of memory begins, or in it.
    Burst any_block_of(const Window &window) {
        const Region &region = model_.regions[window.region];
        const unsigned raw = raw_bytes(region), count = kOpen * kPage / raw;
        const auto page_behind = [&](unsigned block) {
            return model_.place(region, window.start + (block + 1) * raw) / kPage;
        };
        unsigned block = random_.below(count);
        if (random_.chance(0.3)) {
            while (block + 1 < count && page_behind(block) == page_behind(block - 1)) ++block;
        }
        return whole(window.start + block * raw, raw);
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

    // Of a block, in bypass of a word.
    unsigned raw_bytes(const Region &region) const {
        return region.format ? codecs_[region.format - 1].original : BUS_BYTES;
    }

    // The same where it is stored.
    unsigned target_bytes(const Region &region) const {
        return region.format ? codecs_[region.format - 1].target : BUS_BYTES;
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

    // The page behind a region, which is in none.
    uint64_t behind(unsigned index) const { return model_.regions[index].base + model_.regions[index].size; }

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
