// A model of the memory behind the engine, written from docs/memory.md alone: regions and their map, gathered
// writes, evictions, what a read sees, errors. Values are compressed by whom the caller says.

#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "bursts.h"
#include "space.h"

enum Kinds { kDecode, kRefused, kEvicted, kInvalid, kRead, kWrite };  // of errors, in the order of their bits

struct Codec {
    unsigned original, target;  // bytes of a block
    // Those of a block with a number; decompress says whether an encoder produces what is stored.
    void (*compress)(unsigned format, uint32_t number, const uint8_t *original, uint8_t *stored);
    int (*decompress)(unsigned format, uint32_t number, const uint8_t *stored, uint8_t *original);
};

struct Region {
    uint64_t base, size, stored;
    unsigned format;  // 0 is bypass
    bool enabled = false, merge = false;
};

class Reference {
   public:
    std::vector<Region> regions;
    Space memory;
    std::map<size_t, int> answers;                // of writes, by their tickets
    std::map<int, std::vector<uint64_t>> errors;  // by kind, the addresses
    bool evicts_any = false;                      // whether those of what was evicted may come in another order
    uint64_t stored = 0;                          // bursts in bypass, and blocks, that were written
    uint32_t blocks = 0;                          // of them, blocks

    // `fault` says what a beat of memory answers.
    Reference(std::vector<Codec> codecs, uint64_t bytes, std::function<int(uint64_t)> fault)
        : memory(bytes), codecs_(std::move(codecs)), fault_(std::move(fault)) {}

    // Forget all but what memory has.
    void reset() {
        for (Region &region : regions) region.enabled = false;
        open_.clear(), waits_.clear(), answers.clear(), errors.clear();
        evicts_any = false;
        stored = blocks = 0;
    }

    size_t unanswered() const { return waits_.size(); }

    const Region *at(uint64_t address) const {
        const Region *found = nullptr;
        for (const Region &region : regions) {
            if (!region.enabled || address < region.base || address - region.base >= region.size) continue;
            if (found) return nullptr;
            found = &region;
        }
        return found;
    }

    void write(size_t ticket, const Burst &burst, const std::vector<uint8_t> &words,
               const std::vector<uint64_t> &strobes) {
        while (waits_.size() == SLOTS) evict(open_.begin());
        waits_.push_back({ticket, burst.id, 0, kOkay, true});
        Wait &wait = waits_.back();
        const Region *region = at(burst.address);
        if (!region) {
            note(kDecode, burst.address);
            wait.response = kDecErr;
        } else if (region->format == 0) {
            wait.response = write_through(*region, burst, words, strobes);
        } else if (burst.kind == kFixed) {
            note(kRefused, burst.address);
            wait.response = kSlvErr;
        } else {
            gather(*region, burst, words, strobes, burst.cache & 1 ? nullptr : &wait);
        }
        wait.is_taking = false;
        answer();
    }

    // The words of a read, zeros where it has none, and the response of each beat.
    std::pair<std::vector<uint8_t>, std::vector<uint8_t>> read(const Burst &burst) {
        std::vector<uint8_t> words(burst.beats * BUS_BYTES), responses(burst.beats, kDecErr);
        const Region *region = at(burst.address);
        if (!region) {
            note(kDecode, burst.address);
            return {words, responses};
        }
        const unsigned size = region->format ? codecs_[region->format - 1].original : BUS_BYTES;
        if (region->format) evict_told(*region, burst, size);
        std::vector<uint8_t> content(size);
        uint64_t has = 1;
        int response = kOkay;
        for (unsigned beat = 0; beat < burst.beats; ++beat) {
            const uint64_t start = burst.at(beat);
            if (start - start % size != has) {
                has = start - start % size;
                response = region->format ? load(*region, has, content) : load_word(*region, has, content);
            }
            const uint64_t count = burst.end(beat) - start;
            std::memcpy(&words[beat * BUS_BYTES + start % BUS_BYTES], &content[start - has], count);
            responses[beat] = response;
        }
        return {words, responses};
    }

    void disable(Region &region) {
        unsigned count = 0;
        for (auto block = open_.begin(); block != open_.end();) {
            const auto next = std::next(block);
            if (block->region == &region) {
                evict(block);
                evicts_any |= ++count > 1;
            }
            block = next;
        }
        region.enabled = false;
        answer();
    }

    // Where the block, or in bypass the byte, is stored that has an address.
    uint64_t place(const Region &region, uint64_t address) const {
        const uint64_t offset = address - region.base;
        if (!region.format) return region.stored + offset;
        const Codec &codec = codecs_[region.format - 1];
        return region.stored + offset / codec.original * codec.target;
    }

   private:
    struct Wait {
        size_t ticket;
        int id;
        unsigned blocks;  // that it waits for
        int response;
        bool is_taking;
    };
    struct Open {
        const Region *region;
        uint64_t address;
        std::vector<uint8_t> content;
        std::vector<bool> written;
        unsigned missing;
        std::set<Wait *> waits;
        bool told;  // whether a bufferable burst wrote to it
    };

    void note(int kind, uint64_t address) { errors[kind].push_back(address); }

    // The gravest of what the beats answer that have these bytes.
    int response(uint64_t place, uint64_t count) const {
        int worst = kOkay;
        for (uint64_t beat = place - place % MEMORY_BYTES; beat < place + count; beat += MEMORY_BYTES) {
            worst = std::max(worst, int(fault_(beat)));
        }
        return worst;
    }

    uint32_t number(const Region &region, uint64_t address) const {
        return uint32_t((address - region.base) / codecs_[region.format - 1].original);
    }

    int write_through(const Region &region, const Burst &burst, const std::vector<uint8_t> &words,
                      const std::vector<uint64_t> &strobes) {
        int worst = kOkay;
        ++stored;
        for (unsigned beat = 0; beat < burst.beats; ++beat) {
            const uint64_t word = burst.at(beat) / BUS_BYTES * BUS_BYTES;
            for (unsigned lane = 0; lane < BUS_BYTES; ++lane) {
                if (!(strobes[beat] >> lane & 1)) continue;
                const uint64_t byte = region.stored + word - region.base + lane;
                const int answered = response(byte, 1);
                if (answered > kOkay) note(kWrite, byte);
                if (answered == kOkay) memory[byte] = words[beat * BUS_BYTES + lane];
                worst = std::max(worst, answered);
            }
        }
        return worst;
    }

    void gather(const Region &region, const Burst &burst, const std::vector<uint8_t> &words,
                const std::vector<uint64_t> &strobes, Wait *wait) {
        const unsigned original = codecs_[region.format - 1].original;
        for (unsigned beat = 0; beat < burst.beats; ++beat) {
            if (!strobes[beat]) continue;
            const uint64_t word = burst.at(beat) / BUS_BYTES * BUS_BYTES, offset = word % original;
            const auto block = opened(region, word - offset);
            for (unsigned lane = 0; lane < BUS_BYTES; ++lane) {
                if (!(strobes[beat] >> lane & 1)) continue;
                block->content[offset + lane] = words[beat * BUS_BYTES + lane];
                block->missing -= !block->written[offset + lane];
                block->written[offset + lane] = true;
            }
            if (!wait) block->told = true;
            if (wait && block->waits.insert(wait).second) ++wait->blocks;
            if (block->missing == 0) store(block);
        }
    }

    std::list<Open>::iterator opened(const Region &region, uint64_t address) {
        for (auto block = open_.begin(); block != open_.end(); ++block) {
            if (block->address == address) return block;
        }
        if (open_.size() == BUFFERS) evict(open_.begin());
        const unsigned original = codecs_[region.format - 1].original;
        open_.push_back({&region, address, std::vector<uint8_t>(original), std::vector<bool>(original), original, {}, false});
        return std::prev(open_.end());
    }

    void store(std::list<Open>::iterator block) {
        const Region &region = *block->region;
        const Codec &codec = codecs_[region.format - 1];
        const uint64_t to = place(region, block->address);
        const int answered = response(to, codec.target);
        ++stored;
        ++blocks;
        if (answered > kOkay) note(kWrite, to);
        std::vector<uint8_t> bytes(codec.target);
        codec.compress(region.format, number(region, block->address), block->content.data(), bytes.data());
        for (unsigned i = 0; i < codec.target; ++i) {
            if (response(to + i, 1) == kOkay) memory[to + i] = bytes[i];
        }
        close(block, answered);
    }

    void evict(std::list<Open>::iterator block) {
        if (block->region->merge) {
            merge(block);
        } else {
            note(kEvicted, block->address);
            close(block, kSlvErr);
        }
        answer();
    }

    // Complete a block with what memory has of it.
    void merge(std::list<Open>::iterator block) {
        std::vector<uint8_t> content(block->content.size());
        const int answered = load(*block->region, block->address, content);
        if (answered > kOkay) return close(block, answered);
        for (size_t i = 0; i < content.size(); ++i) {
            if (!block->written[i]) block->content[i] = content[i];
        }
        store(block);
    }

    void close(std::list<Open>::iterator block, int response) {
        for (Wait *wait : block->waits) {
            --wait->blocks;
            wait->response = std::max(wait->response, response);
        }
        open_.erase(block);
    }

    // A read evicts the open blocks of which a bufferable write was answered.
    void evict_told(const Region &region, const Burst &burst, unsigned original) {
        unsigned count = 0;
        for (unsigned beat = 0; beat < burst.beats; ++beat) {
            const uint64_t address = burst.at(beat) - burst.at(beat) % original;
            for (auto block = open_.begin(); block != open_.end(); ++block) {
                if (block->address == address && block->told) {
                    evict(block);
                    evicts_any |= ++count > 1;
                    break;
                }
            }
        }
    }

    int load(const Region &region, uint64_t address, std::vector<uint8_t> &content) {
        const Codec &codec = codecs_[region.format - 1];
        const uint64_t from = place(region, address);
        int answered = response(from, codec.target);
        if (answered > kOkay) {
            note(kRead, address);
        } else if (!codec.decompress(region.format, number(region, address), &memory[from], content.data())) {
            note(kInvalid, address);
            answered = kSlvErr;
        }
        if (answered > kOkay) std::fill(content.begin(), content.end(), 0);
        return answered;
    }

    int load_word(const Region &region, uint64_t address, std::vector<uint8_t> &content) {
        const uint64_t from = region.stored + address - region.base;
        const int answered = response(from, BUS_BYTES);
        if (answered > kOkay) {
            note(kRead, address);
            std::fill(content.begin(), content.end(), 0);
        } else {
            std::memcpy(content.data(), &memory[from], BUS_BYTES);
        }
        return answered;
    }

    // Answer what waits neither for a block nor for an earlier burst of its ID.
    void answer() {
        std::set<int> held;
        for (auto wait = waits_.begin(); wait != waits_.end();) {
            if (wait->blocks || wait->is_taking || held.count(wait->id)) {
                held.insert(wait->id);
                ++wait;
            } else {
                answers[wait->ticket] = wait->response;
                wait = waits_.erase(wait);
            }
        }
    }

    std::vector<Codec> codecs_;
    std::function<int(uint64_t)> fault_;
    std::list<Open> open_;
    std::list<Wait> waits_;
};
