// Bursts of AXI4 (AMBA IHI 0022), and what the other files of this folder share. The engine's sizes come with
// engine.h, which gen/system.py writes.

#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#include "engine.h"

constexpr uint64_t kPage = 4096;  // no burst crosses a multiple of it

enum Kind : uint8_t { kFixed, kIncr, kWrap };
enum Response : uint8_t { kOkay, kExOkay, kSlvErr, kDecErr };

inline const char *name_of(int response) {
    static const char *const names[] = {"OKAY", "EXOKAY", "SLVERR", "DECERR"};
    return names[response & 3];
}

inline std::string hex(uint64_t number) {
    static const char *const digits = "0123456789abcdef";
    std::string text;
    for (; number || text.empty(); number >>= 4) text.insert(text.begin(), digits[number & 15]);
    return "0x" + text;
}

// The bytes of a signal, however wide; signals lie in memory from the least significant byte on.
template <class Signal>
uint8_t *octets(Signal &signal) {
    return reinterpret_cast<uint8_t *>(&signal);
}
template <class Signal>
const uint8_t *octets(const Signal &signal) {
    return reinterpret_cast<const uint8_t *>(&signal);
}

// The address channel of a burst; `size` is the power of two of a beat's bytes, as AxSIZE.
struct Burst {
    uint64_t address = 0;
    unsigned beats = 1, size = 0;
    Kind kind = kIncr;
    uint8_t id = 0, cache = 2;  // modifiable, not bufferable

    // Of a beat: the first may lie within a multiple of the size, where it has fewer bytes.
    uint64_t at(unsigned beat) const {
        if (kind == kFixed || beat == 0) return address;
        const uint64_t step = uint64_t{1} << size, start = address & ~(step - 1);
        if (kind == kIncr) return start + beat * step;
        const uint64_t span = beats * step, low = address / span * span;
        return low + (address - low + beat * step) % span;
    }

    // Where the bytes of a beat end.
    uint64_t end(unsigned beat) const {
        const uint64_t step = uint64_t{1} << size;
        return (at(beat) & ~(step - 1)) + step;
    }
};

// The simulated hardware did what no hardware may: it hangs, or breaks a rule of AXI.
struct Broken : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// What a channel offers, which has to stay until it is taken.
template <class Payload>
class Held {
   public:
    // In a cycle; `name` is the channel's.
    void sample(const Payload &now, bool valid, bool ready, const char *name) {
        if (is_held_ && (!valid || now != before_)) throw Broken(std::string(name) + " changed before it was taken");
        is_held_ = valid && !ready;
        if (is_held_) before_ = now;
    }
    bool is_held() const { return is_held_; }

   private:
    bool is_held_ = false;
    Payload before_{};
};

// Bits that are as random as a test needs them; the same for the same seed everywhere.
class Random {  // splitmix64
   public:
    // Mixed, or the numbers of one seed would be those of another a few draws later.
    explicit Random(uint64_t seed) : state_(mixed(seed)) {}

    uint64_t next() { return mixed(state_ += 0x9E3779B97F4A7C15); }

    uint64_t below(uint64_t count) { return next() % count; }
    bool chance(double share) { return share > 0 && (next() >> 11) * 0x1p-53 < share; }

   private:
    static uint64_t mixed(uint64_t word) {
        word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9;
        word = (word ^ word >> 27) * 0x94D049BB133111EB;
        return word ^ word >> 31;
    }

    uint64_t state_;
};
