// Reads behind writes, of what a read before them kept, of what fails, and more of them than there is room for.

#pragma once

#include "write_checks.h"

class ReadChecks : public WriteChecks {
   public:
    using WriteChecks::WriteChecks;

   protected:
    // Blocks that are read as soon as their write was answered, while they are still on their way to memory; often
    // the one that was read last, of which the engine keeps what it was before.
    void check_order() {
        quiet();
        Burst burst;
        for (unsigned times = 0; FORMATS && times < 256; ++times) {
            const uint64_t last = burst.address;  // the block that may still be read
            if (times == 0 || random_.chance(0.7)) {
                burst = any_block_of(window_of(random_.below(codecs_.size())));
                burst.cache = 3;
            }
            if (burst.address == last) settle();  // else that read might see this write
            send_write(content_of(burst, 1), 0);
            settle();
            expect_read(burst, 0);
            if (random_.chance(0.5)) settle();
        }
        settle();
    }

    // The same while memory stands still, so that blocks are in every part in which writes wait.
    void check_order_at_length() {
        for (unsigned times = 0; FORMATS && times < 40; ++times) {
            quiet();
            machine_.dram.pause = 1;
            std::vector<Burst> written;
            while (written.size() < 1 + times) {
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

    // Blocks that are read as soon as their write was answered, while others are written: a read waits for what was
    // there before it.
    void check_reads_among_writes() {
        const double pauses[] = {0, 0.3, 0.9};
        for (unsigned times = 0; FORMATS && times < 24; ++times) {
            const Window &window = window_of(random_.below(codecs_.size()));
            const unsigned raw = raw_bytes(model_.regions[window.region]);
            reopen(window.region, false);
            quiet();
            no_pauses();
            machine_.dram.pause = pauses[times % 3];
            std::vector<unsigned> blocks = shuffled(kOpen * kPage / raw);
            if (times % 2) std::sort(blocks.begin(), blocks.end());  // they share beats, then
            blocks.resize(std::min<size_t>(blocks.size(), 64));
            for (unsigned block : blocks) {
                Burst burst = whole(window.start + block * raw, raw);
                burst.cache = 3;
                burst.id = random_.below(4);
                send_write(content_of(burst, 1), 0);
                machine_.until([&] {
                    compare([](const Expected &) {});
                    return machine_.master.sent_all() && machine_.master.writes() <= model_.unanswered();
                });
                expect_read(burst, 0);
            }
            settle();
            machine_.dram.pause = 0;
        }
    }

    // A read does not wait for all of the words in bypass that are written to a page of memory of the same tag.
    void check_tags() {
        const auto tag = [](uint64_t page) {
            uint64_t folded = 0;
            for (; page; page >>= TAG_BITS) folded ^= page & ((1u << TAG_BITS) - 1);
            return folded;
        };
        for (const Window &window : windows_) {
            const Region &region = model_.regions[window.region];
            const Window &other = window_of(codecs_.size());
            const Region &bypass = model_.regions[other.region];
            const uint64_t place = model_.place(region, window.start);
            uint64_t page = bypass.stored / kPage;
            const uint64_t end = (bypass.stored + bypass.size) / kPage;
            while (page < end && (page == place / kPage || tag(page) != tag(place / kPage))) ++page;
            const uint64_t there = page * kPage + place % kPage / BUS_BYTES * BUS_BYTES;
            if (!region.format || page == end || machine_.dram.response(there) != kOkay) continue;
            reopen(window.region, false);
            quiet();
            no_pauses();
            for (unsigned i = 0; i < 1000; ++i) {
                send_write(content_of(whole(bypass.base + there - bypass.stored, BUS_BYTES), 1), 0);
            }
            for (unsigned i = 0; i < 100; ++i) machine_.step();
            expect_read(whole(window.start, BUS_BYTES), 0);
            machine_.until([&] { return !machine_.master.reads(); });
            expect(machine_.master.writes() > 500, "a read behind " + std::to_string(machine_.master.writes()));
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
            const unsigned raw = raw_bytes(region);
            const unsigned stored = target_bytes(region);
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
            auto &faults = machine_.dram.faults;
            const size_t before = faults.size();
            if (times % 3 == 2) {  // some bytes, some of them worse
                const uint64_t one = place + random_.below(stored), other = place + random_.below(stored);
                faults.push_back({place, one + 1, kSlvErr});
                if (random_.chance(0.7)) faults.push_back({std::min(one, other), one + 1, kDecErr});
            }
            expect_read(whole(block, raw), 0);
            settle();
            faults.resize(before);
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
                const unsigned raw = raw_bytes(region);
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

    // An error of each kind with each window, and its address.
    void check_each_error() {
        for (const Window &window : windows_) {
            const Region &region = model_.regions[window.region];
            const unsigned raw = raw_bytes(region);
            const auto any_block = [&] { return whole(window.start + random_.below(kPage / raw) * raw, raw); };
            reopen(window.region, false);
            quiet();
            const uint32_t seen = machine_.get(ERRORS_SEEN);
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
                if (random_.chance(0.5)) settle();
            }
            settle();
            // Two words each, a byte a beat: what fails is one error.
            const uint64_t word = failing_word(window) / BUS_BYTES * BUS_BYTES;
            for (uint64_t address : {word, word - 2 * BUS_BYTES, word + 2 * BUS_BYTES}) {
                Burst narrow = whole(address / (2 * BUS_BYTES) * 2 * BUS_BYTES, BUS_BYTES);
                narrow.size = 0, narrow.beats = 2 * BUS_BYTES;
                expect_read(narrow, 0);
                settle();
            }
            failing.address = any_block().address + kFailing * kPage;
            quiet();
            send_write(content_of(failing, 1), 0);
            settle();
            quiet();
            expect_register(ERRORS_SEEN, seen + errors_met());
            check_errors();
        }
    }

    // The first word of memory in a window's failing page that fails, or the first of a block that does.
    uint64_t failing_word(const Window &window) {
        const Region &region = model_.regions[window.region];
        uint64_t address = window.start + kFailing * kPage;
        const auto place = [&] { return model_.place(region, address); };
        while (machine_.dram.response(place()) == kOkay) address += region.format ? raw_bytes(region) : MEMORY_BYTES;
        return address;
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
            const uint64_t failing = failing_word(window);
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

    // An error is cleared while more come: the next one is told again.
    void check_errors_anew() {
        Burst burst;
        burst.address = behind(random_.below(REGIONS));
        quiet();
        no_pauses();
        const uint64_t end = burst.address + kPage;
        for (; burst.address < end; ++burst.address) expect_read(burst, 0);
        for (unsigned i = 0; i < 100; ++i) machine_.step();
        uint64_t last = 0;
        for (unsigned times = 0; times < 50 && machine_.master.reads() > 100; ++times) {
            machine_.set(ERRORS, 1 << kDecode);
            const uint64_t high = machine_.get(ERROR_ADDRESS_HIGH);
            const uint64_t place = high << 32 | machine_.get(ERROR_ADDRESS_LOW);
            expect(place > last, "the address of an error behind one that was cleared");
            last = place;
            for (unsigned i = random_.below(8); i; --i) machine_.step();
        }
        settle();
        clear_errors();
    }
};
