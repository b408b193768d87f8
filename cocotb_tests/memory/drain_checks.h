// Regions that are disabled while bursts are under way, and writes whose places in memory nearly agree.

#pragma once

#include "read_checks.h"

class DrainChecks : public ReadChecks {
   public:
    using ReadChecks::ReadChecks;

   protected:
    // Bursts whose addresses were taken before a region is disabled end first, by the old map; later ones wait.
    void check_drains() {
        for (unsigned times = 0; times < 32; ++times) {
            const Window &window = windows_[random_.below(windows_.size())];
            Region &region = model_.regions[window.region];
            const unsigned raw = raw_bytes(region);
            reopen(window.region, random_.chance(0.5));
            quiet();
            set_pauses();
            auto &pauses = machine_.master.pauses;
            const bool holds_w = random_.chance(0.5), holds_r = random_.chance(0.5);
            if (holds_w) pauses.w = 1;
            if (holds_r) pauses.r = 1;
            std::vector<Burst> written;
            const unsigned writes = random_.below(3), reads = random_.below(4);
            for (unsigned block : shuffled(writes)) {
                written.push_back(whole(window.start + block * raw, raw));
                written.back().cache = 2 + random_.chance(0.5);
                send_write(content_of(written.back(), 1), 0);
            }
            for (unsigned i = 0; i < reads; ++i) {
                expect_read(whole(window.start + 2 * kPage + random_.below(kPage / raw) * raw, raw), 0);
            }
            if (FORMATS && region.format && !holds_w && random_.chance(0.5)) {  // is evicted
                Burst byte;
                byte.address = window.start + kPage + random_.below(kPage);
                send_write(content_of(byte, 1), 0);
            }
            machine_.until([&] { return machine_.master.sent_addresses(); });
            for (unsigned i = random_.below(100); i; --i) machine_.step();

            model_.disable(region);
            const size_t answered = machine_.registers.writes_answered;
            machine_.registers.pause = 0;
            machine_.registers.write(REGION_CONTROL + window.region * REGION_STRIDE, 0);
            for (unsigned i = 50 + random_.below(100); i; --i) machine_.step();
            const bool waits = (holds_w && writes) || (holds_r && reads);
            if (waits) expect(machine_.registers.writes_answered == answered, "a region disabled too early");
            // Registers are read meanwhile.
            const unsigned any = random_.below(REGIONS);
            const size_t read = machine_.registers.reads_answered;
            machine_.registers.read(REGION_BASE + any * REGION_STRIDE);
            machine_.until([&] { return machine_.registers.reads_answered != read; });
            expect(machine_.registers.data == model_.regions[any].base / kPage, "a register during a drain");
            // These come too late, one of them for a region that answers no more.
            const Window &other = windows_[random_.below(windows_.size())];
            const unsigned size = raw_bytes(model_.regions[other.region]);
            send_write(content_of(whole(other.start + kPage, size), 1), 0);
            expect_read(whole(window.start, BUS_BYTES), 0);
            expect_read(whole(other.start + 2 * kPage, size), 0);
            for (unsigned i = random_.below(100); i; --i) machine_.step();
            if (waits) expect(machine_.registers.writes_answered == answered, "a region disabled too early");
            set_pauses();
            machine_.until([&] { return !machine_.registers.is_busy(); });
            expect(machine_.registers.written == kOkay, "the answer to a region that is disabled");
            for (const Burst &burst : written) {
                const uint64_t place = model_.place(region, burst.address);
                const uint8_t *there = machine_.dram.content() + place;
                const bool has = std::equal(there, there + target_bytes(region), &model_.memory[place]);
                expect(has, "memory when the region was disabled");
            }
            settle();
            region.enabled = enable(window.region);
            clear_errors();
        }
    }

    // A region is disabled among bursts that never stop.
    void check_drains_among_others() {
        for (unsigned times = 0; times < 8; ++times) {
            const Window &window = windows_[random_.below(windows_.size())], &bypass = window_of(codecs_.size());
            if (window.region == bypass.region) continue;
            settle();
            quiet();
            no_pauses();
            for (unsigned i = 0; i < 1000; ++i) {
                const uint64_t at = i * BUS_BYTES % kPage;
                if (times != 1) send_write(content_of(whole(bypass.start + at, BUS_BYTES), 1), 0);
                if (times != 2) expect_read(whole(bypass.start + kPage + at, BUS_BYTES), 0);
            }
            for (unsigned i = 0; i < 100; ++i) machine_.step();
            model_.disable(model_.regions[window.region]);
            machine_.disable(window.region);
            if (times != 1) expect(machine_.master.writes() > 500, "a region disabled among writes");
            if (times != 2) expect(machine_.master.reads() > 500, "a region disabled among reads");
            settle();
            model_.regions[window.region].enabled = enable(window.region);
        }
        clear_errors();
    }

    // Writes of blocks in a row, to a region each, whose pages of memory are the same but for one bit: they share
    // neither beats nor bursts.
    void check_pages() {
        quiet();
        no_pauses();
        const std::vector<Region> before = model_.regions;
        for (unsigned i = 0; i < REGIONS; ++i) {
            model_.disable(model_.regions[i]);
            machine_.disable(i);
        }
        for (unsigned format = 0; format <= FORMATS; ++format) {
            for (uint64_t bit = kPage; bit < kSpace; bit *= 2) {
                const unsigned one = random_.below(REGIONS), other = (one + 1) % REGIONS;
                const uint64_t page = random_.below(kSpace / kPage - 1) * kPage;
                for (const unsigned index : {one, other}) {
                    Region &region = model_.regions[index];
                    const bool is_one = index == one;
                    region = {is_one ? page : page + kPage, kPage, is_one ? page : page ^ bit, format, true};
                    if (!enable(index)) throw Broken("two regions of a page each do not answer");
                }
                const unsigned raw = raw_bytes(model_.regions[one]), count = kPage / raw;
                for (unsigned times = 0; times < 4; ++times) {
                    const unsigned block = random_.below(count - 1);
                    const bool swaps = random_.chance(0.5);
                    const uint64_t first = (swaps ? page + kPage : page) + block * raw;
                    const uint64_t second = (swaps ? page : page + kPage) + (block + 1) * raw;
                    for (const uint64_t address : {first, second}) send_write(content_of(whole(address, raw), 1), 0);
                    settle();
                    for (const uint64_t address : {first, second}) expect_read(whole(address, raw), 0);
                    settle();
                }
                for (const unsigned index : {one, other}) {
                    model_.disable(model_.regions[index]);
                    machine_.disable(index);
                }
            }
        }
        model_.regions = before;
        for (unsigned i = 0; i < REGIONS; ++i) model_.regions[i].enabled = enable(i);
        clear_errors();
    }

    // A burst of whole blocks makes as many beats as they take in memory. Those in a row share beats if they follow
    // each other soon.
    void check_written_beats() {
        for (const Window &window : windows_) {
            const Region &region = model_.regions[window.region];
            const unsigned raw = raw_bytes(region), most = std::min<unsigned>(kPage, 256 * BUS_BYTES) / raw;
            quiet();
            no_pauses();
            const unsigned blocks = BUFFERS > 1 && raw <= 8 * BUS_BYTES ? 1 + random_.below(most) : 1;
            const Burst burst = whole(window.start, blocks * raw);
            const uint64_t first = model_.place(region, window.start) / MEMORY_BYTES;
            const uint64_t last = (model_.place(region, window.start + burst.beats * BUS_BYTES) - 1) / MEMORY_BYTES;
            const uint64_t before = machine_.dram.statistics().written_beats;
            send_write(content_of(burst, 1), 0);
            settle();
            quiet();
            expect(machine_.dram.statistics().written_beats - before == last - first + 1, "beats of a write");
        }
    }
};
