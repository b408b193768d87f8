// Writes that wait for each other: slots, open blocks, evictions, timeouts, and memory that refuses some.

#pragma once

#include "register_checks.h"

class WriteChecks : public RegisterChecks {
   public:
    using RegisterChecks::RegisterChecks;

   protected:
    // Bytes of several open blocks, each by a burst of its own that waits in a slot, until the region is disabled.
    // Where it merges, of some blocks that are invalid or cannot be read.
    void check_evictions() {
        for (unsigned times = 0; FORMATS && times < 32; ++times) {
            const Window &window = windows_[random_.below(windows_.size())];
            Region &region = model_.regions[window.region];
            if (!region.format) continue;
            const unsigned raw = raw_bytes(region), most = std::max(1u, kMasters - 1);
            const bool merges = MERGING && random_.chance(0.7);
            reopen(window.region, merges);
            // Of the failing page, or any blocks in a row.
            const uint64_t first = merges && random_.chance(0.5) ? window.start + kFailing * kPage
                                                                 : any_block_of(window).address;
            const bool fills = random_.chance(0.5);  // all slots; a told write would leave its own
            for (unsigned i = fills ? 0 : random_.below(SLOTS); i < SLOTS; ++i) {
                Burst burst;
                burst.address = first + random_.below(most) * raw + random_.below(raw - 1);
                burst.id = random_.below(16);
                burst.cache = 2 + (!fills && random_.chance(0.1));
                Expected &expected = expected_[send_write(content_of(burst, 1), 0)];
                if (!merges || burst.cache & 1) continue;
                expected.place = model_.place(region, burst.address);
                expected.count = target_bytes(region);
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
        for (unsigned times = 0; FORMATS && times < 8; ++times) {
            const unsigned kind = random_.below(codecs_.size()), raw = codecs_[kind].original;
            const Window &window = window_of(kind);
            // Cycles in which an eviction is answered, and a block is taken and stored.
            const unsigned beats = raw / BUS_BYTES + codecs_[kind].target / MEMORY_BYTES;
            const unsigned soon = 100 + 2 * latency_ + 4 * beats;
            const unsigned timeout = 4 * soon + random_.below(1u << (times ? 10 : 17));
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
            for (unsigned i = soon; i < timeout; ++i) machine_.step();
            compare([](const Expected &) {});  // nothing is answered yet
            model_.disable(model_.regions[window.region]);
            model_.regions[window.region].enabled = true;
            settle();
            const uint64_t took = machine_.cycles() - start;
            expect(took <= timeout + soon, "a timeout of " + std::to_string(timeout) + " cycles");
            machine_.set(TIMEOUT, kPatience);
            clear_errors();
        }
    }

    // A timeout of any one bit does not come at once.
    void check_long_timeouts() {
        for (unsigned bit = 12; FORMATS && bit < 32; ++bit) {
            const Window &window = window_of(random_.below(codecs_.size()));
            const Burst block = whole(window.start, raw_bytes(model_.regions[window.region]));
            Burst byte = block;
            byte.beats = 1, byte.size = 0;
            machine_.set(TIMEOUT, 1u << bit);
            send_write(content_of(byte, 1), 0);
            for (unsigned i = 0; i < 500; ++i) machine_.step();
            compare([](const Expected &) {});  // nothing is answered yet
            send_write(content_of(block, 1), 0);
            settle();
        }
        machine_.set(TIMEOUT, kPatience);
    }

    // With a timeout of 0 each block is evicted as soon as it is open; merged, where its region merges.
    void check_no_timeout() {
        for (const bool merges : {false, MERGING != 0}) {
            if (!FORMATS) break;
            const Window &window = window_of(random_.below(codecs_.size()));
            Region &region = model_.regions[window.region];
            reopen(window.region, merges);
            quiet();
            machine_.set(TIMEOUT, 0);
            for (unsigned i = 0; i < 8; ++i) {
                Burst byte;
                byte.address = window.start + i * raw_bytes(region) + random_.below(raw_bytes(region));
                byte.id = i % 2;
                send_write(content_of(byte, 1), 0);
            }
            model_.disable(region);
            region.enabled = true;
            settle();
            machine_.set(TIMEOUT, kPatience);
            clear_errors();
        }
    }

    // Blocks are evicted in the order in which they were opened, in whatever buffers they and others are.
    void check_ages() {
        // That are open at once, each with a slot and an ID.
        constexpr unsigned kHeld = std::min({BUFFERS, SLOTS - 1, 16u});
        for (unsigned times = 0; FORMATS && times < 8; ++times) {
            const unsigned kind = random_.below(codecs_.size()), raw = codecs_[kind].original;
            const Window &window = window_of(kind);
            std::vector<unsigned> open, evicted;
            const auto begin = [&](unsigned block) {
                Burst burst;
                burst.address = window.start + block * raw;
                burst.id = block % kHeld;
                expected_[send_write(content_of(burst, 1), 0)].master = block;
                settle();
                open.push_back(block);
            };
            reopen(window.region, false);
            for (unsigned block = 0; block < kHeld; ++block) begin(block);
            for (unsigned block : shuffled(kHeld)) {
                if (random_.chance(0.4)) continue;
                Burst burst = whole(window.start + block * raw, raw);
                burst.id = block;
                send_write(content_of(burst, 1), 0);
                settle();
                open.erase(std::find(open.begin(), open.end(), block));
                if (random_.chance(0.5)) begin(kHeld + block);
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
            const unsigned bytes = raw_bytes(region);
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
                    expected.count = target_bytes(region);
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

    // A block comes to memory among words in bypass that never stop, and an answer among those of bursts that are
    // refused, which have slots before its own.
    void check_turns() {
        constexpr unsigned kOne = 1, kOthers = 2, kMany = 1000;
        for (unsigned times = 0; FORMATS && times < 8; ++times) {
            const Window &window = window_of(random_.below(codecs_.size())), &bypass = window_of(codecs_.size());
            const unsigned raw = raw_bytes(model_.regions[window.region]);
            Burst all = whole(window.start, raw);
            reopen(window.region, false);
            quiet();
            no_pauses();
            if (times % 2) {
                Burst other = whole(window.start + 2 * raw, raw), byte = other;
                byte.beats = 1, byte.size = 0;
                for (unsigned i = 1 + random_.below(SLOTS - 1); i; --i) send_write(content_of(byte, 1), 0);
                byte.address = window.start, byte.id = 1;
                expected_[send_write(content_of(byte, 1), 0)].master = kOne;
                all.cache = other.cache = 3;
                all.id = other.id = 2;
                send_write(content_of(other, 1), 0);
                settle();
            }
            const size_t ticket = send_write(content_of(all, 1), 0);
            if (times % 2 == 0) expected_[ticket].master = kOne;
            for (unsigned i = 0; i < kMany; ++i) {
                const uint64_t place = bypass.start + i * 2 * BUS_BYTES % (kOpen * kPage);
                Burst more = whole(times % 2 ? behind(window.region) : place, BUS_BYTES);
                more.id = 3;
                expected_[send_write(content_of(more, 1), 0)].master = kOthers;
            }
            unsigned before = 0, seen = 0;
            machine_.until([&] {
                compare([&](const Expected &answered) {
                    if (answered.master == kOne) before = seen;
                    seen += answered.master == kOthers;
                });
                return !machine_.master.writes();
            });
            expect(before < 300 + 4 * latency_, "an answer behind " + std::to_string(before) + " others");
            clear_errors();
        }
    }

    // Blocks of a failing page, each after the answer of the one before, for else they share bursts of memory.
    void check_failing_writes() {
        for (unsigned kind = 0; kind <= codecs_.size(); ++kind) {
            const Window &window = window_of(kind);
            const Region &region = model_.regions[window.region];
            const unsigned bytes = raw_bytes(region);
            quiet();
            for (unsigned at = 0; at < kPage; at += bytes) {
                send_write(content_of(whole(window.start + kFailing * kPage + at, bytes), 1), 0);
                settle();
            }
            quiet();
        }
    }

    // Blocks that are read are counted, and those that are merged, also in the same cycle.
    void check_merges_and_reads() {
        for (const double pause : {0.0, 0.7}) {
            if (MERGING) merge_and_read(pause);
        }
    }

    void merge_and_read(double pause) {
        const Window &window = window_of(0);
        const unsigned raw = codecs_[0].original, count = kPage / raw;
        reopen(window.region, true);
        expect_read(whole(window.start + 3 * kPage, raw), 0);  // what was read before is displaced
        settle();
        quiet();
        machine_.dram.pause = pause;
        machine_.master.pauses.r = 0.5;  // else each ends with its last beat, of which memory gives one in a cycle
        const uint32_t before = machine_.get(BLOCKS_READ);
        for (unsigned i = 0; i < count; ++i) {
            Burst burst;
            burst.address = window.start + i * raw + random_.below(raw);
            send_write(content_of(burst, 1), 0);
            expect_read(whole(window.start + 2 * kPage + i * raw, raw), 0);
        }
        settle();
        machine_.dram.pause = machine_.master.pauses.r = 0;
        reopen(window.region, true);
        expect(machine_.get(BLOCKS_READ) - before == 2 * count, "BLOCKS_READ of merges and reads at once");
    }
};
