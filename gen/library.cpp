// The Verilated engines as a library with a plain C interface: whole tensors in, whole tensors out.
// Built by gen/library.py, which defines RAW_BYTES, TARGET_BYTES and BUS_BYTES.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "Vcompressor.h"
#include "Vdecompressor.h"
#include "verilated.h"

namespace {

// More cycles than this without a word in or out can only be a hang.
constexpr int kMostIdleCycles = 10000;

// What a payload holds behind its data: rtl/stream.py, word_layout.
constexpr uint32_t kLast = 1, kEmpty = 2, kError = kEmpty * BUS_BYTES;

// A model with its clock: reset once, then reused for every tensor.
template <class Model>
class Engine {
   public:
    Engine() : model_(&context_) {
        model_.rst = 1;
        tick();
        model_.rst = 0;
    }

    // Send `in_bytes` through the engine as one tensor and gather the `out_bytes` that it becomes;
    // `on_word(offset, flags)` sees each of their words.
    template <class OnWord>
    void stream(const uint8_t *in, size_t in_bytes, uint8_t *out, size_t out_bytes, OnWord on_word) {
        size_t taken = 0, given = 0;
        int idle = 0;
        bool offered = false, ended = in_bytes == 0;
        while (!ended) {
            const bool has_input = taken < in_bytes;
            const size_t in_size = has_input ? std::min<size_t>(BUS_BYTES, in_bytes - taken) : 0;
            if (has_input && !offered) {
                uint8_t word[BUS_BYTES] = {};
                std::memcpy(word, in + taken, in_size);
                const bool last = taken + in_size == in_bytes;
                std::memcpy(model_.i___05Fpayload.data(), word, BUS_BYTES);
                model_.i___05Fpayload[BUS_BYTES / 4] = last * kLast + (BUS_BYTES - in_size) * kEmpty;
                offered = true;
            }
            model_.i___05Fvalid = has_input;
            model_.o___05Fready = 1;
            model_.eval();
            if (++idle > kMostIdleCycles) throw std::runtime_error("the engine hangs");
            if (model_.o___05Fvalid) {
                const uint32_t *word = model_.o___05Fpayload.data();
                const uint32_t flags = word[BUS_BYTES / 4];
                const size_t out_size = BUS_BYTES - flags / kEmpty % BUS_BYTES;
                if (given + out_size > out_bytes) throw std::runtime_error("the tensor ends late");
                on_word(given, flags);
                ended = flags & kLast;
                std::memcpy(out + given, word, out_size);
                given += out_size;
                idle = 0;
            }
            if (has_input && model_.i___05Fready) {
                taken += in_size;
                offered = false;
                idle = 0;
            }
            tick();
        }
        model_.i___05Fvalid = 0;
        if (given < out_bytes) throw std::runtime_error("the tensor ends early");
    }

   private:
    void tick() {
        model_.clk = 0;
        model_.eval();
        model_.clk = 1;
        model_.eval();
    }

    VerilatedContext context_;
    Model model_;
};

}  // namespace

extern "C" {

// Another number whenever a function below takes or gives something else; who calls them asks for it.
int bitstash_interface() { return 3; }

// raw: blocks * RAW_BYTES bytes; stored: blocks * TARGET_BYTES bytes. Returns 0, or -1 if the engine
// hangs or gives another number of bytes.
int bitstash_compress(const uint8_t *raw, size_t blocks, uint8_t *stored) {
    thread_local auto engine = std::make_unique<Engine<Vcompressor>>();
    try {
        engine->stream(raw, blocks * RAW_BYTES, stored, blocks * TARGET_BYTES, [](size_t, uint32_t) {});
    } catch (const std::runtime_error &) {
        engine.reset(new Engine<Vcompressor>());
        return -1;
    }
    return 0;
}

// Returns -1 if every block was decoded, else the index of the first word's first block that
// was not; -2 if the engine hangs or gives another number of bytes.
long bitstash_decompress(const uint8_t *stored, size_t blocks, uint8_t *raw) {
    thread_local auto engine = std::make_unique<Engine<Vdecompressor>>();
    long first_bad = -1;
    try {
        engine->stream(stored, blocks * TARGET_BYTES, raw, blocks * RAW_BYTES,
                       [&first_bad](size_t offset, uint32_t flags) {
                           const bool error = flags & kError;
                           if (error && first_bad < 0) first_bad = static_cast<long>(offset / RAW_BYTES);
                       });
    } catch (const std::runtime_error &) {
        engine.reset(new Engine<Vdecompressor>());
        return -2;
    }
    return first_bad;
}
}
