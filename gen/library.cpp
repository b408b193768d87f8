// The Verilated engines as a library with a plain C interface: whole tensors in, whole tensors out.
// Built by gen/library.py, which defines ORIGINAL_BYTES, TARGET_BYTES and BUS_BYTES, and writes layout.h.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "Vcompressor.h"
#include "Vdecompressor.h"
#include "layout.h"
#include "verilated.h"

namespace {

// More cycles than this without a word in or out can only be a hang.
constexpr int kMostIdleCycles = 10000;

// A field of at most 32 bits of a payload; a port that lacks it has none of its bits.
uint32_t get(const uint32_t *payload, Field field) {
    uint64_t bits = payload[field.offset / 32];
    if (field.offset % 32 + field.width > 32) bits |= uint64_t{payload[field.offset / 32 + 1]} << 32;
    return bits >> field.offset % 32 & ((uint64_t{1} << field.width) - 1);
}

void put(uint32_t *payload, Field field, uint32_t value) {
    for (unsigned i = 0; i < field.width; ++i) {
        const uint32_t bit = uint32_t{1} << (field.offset + i) % 32;
        uint32_t &word = payload[(field.offset + i) / 32];
        word = value >> i & 1 ? word | bit : word & ~bit;
    }
}

// A model with its clock: reset once, then reused for every tensor.
template <class Model, class Layout>
class Engine {
   public:
    Engine() : model_(&context_) {
        model_.rst = 1;
        tick();
        model_.rst = 0;
    }

    // Send `in_bytes` through the engine as one tensor, whose first block has the number `first`, and
    // gather the `out_bytes` that it becomes; `on_word(offset, payload)` sees each of their words.
    template <class OnWord>
    void stream(const uint8_t *in, size_t in_bytes, uint32_t first, uint8_t *out, size_t out_bytes,
                OnWord on_word) {
        size_t taken = 0, given = 0;
        int idle = 0;
        bool offered = false, ended = in_bytes == 0;
        while (!ended) {
            const bool has_input = taken < in_bytes;
            const size_t in_size = has_input ? std::min<size_t>(BUS_BYTES, in_bytes - taken) : 0;
            if (has_input && !offered) {
                uint32_t *payload = model_.i_payload.data();
                std::memset(payload, 0, BUS_BYTES);
                std::memcpy(payload, in + taken, in_size);
                put(payload, Layout::i_last, taken + in_size == in_bytes);
                put(payload, Layout::i_empty, BUS_BYTES - in_size);
                put(payload, Layout::i_first, first);
                offered = true;
            }
            model_.i_valid = has_input;
            model_.o_ready = 1;
            model_.eval();
            if (++idle > kMostIdleCycles) throw std::runtime_error("the engine hangs");
            if (model_.o_valid) {
                const uint32_t *payload = model_.o_payload.data();
                const size_t out_size = BUS_BYTES - get(payload, Layout::o_empty);
                if (given + out_size > out_bytes) throw std::runtime_error("the tensor ends late");
                on_word(given, payload);
                ended = get(payload, Layout::o_last);
                std::memcpy(out + given, payload, out_size);
                given += out_size;
                idle = 0;
            }
            if (has_input && model_.i_ready) {
                taken += in_size;
                offered = false;
                idle = 0;
            }
            tick();
        }
        model_.i_valid = 0;
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

using Compressor = Engine<Vcompressor, CompressorLayout>;
using Decompressor = Engine<Vdecompressor, DecompressorLayout>;

}  // namespace

extern "C" {

// Another number whenever a function below takes or gives something else; who calls them asks for it.
int bitstash_interface() { return 4; }

// original: blocks * ORIGINAL_BYTES bytes; stored: blocks * TARGET_BYTES bytes; first: the number of the first block,
// for a format that counts them. Returns 0, or -1 if the engine hangs or gives another number of bytes.
int bitstash_compress(const uint8_t *original, size_t blocks, uint32_t first, uint8_t *stored) {
    thread_local auto engine = std::make_unique<Compressor>();
    try {
        engine->stream(original, blocks * ORIGINAL_BYTES, first, stored, blocks * TARGET_BYTES,
                       [](size_t, const uint32_t *) {});
    } catch (const std::runtime_error &) {
        engine = std::make_unique<Compressor>();
        return -1;
    }
    return 0;
}

// Returns -1 if every block was decoded, else the index of the first word's first block that
// was not; -2 if the engine hangs or gives another number of bytes.
long bitstash_decompress(const uint8_t *stored, size_t blocks, uint32_t first, uint8_t *original) {
    thread_local auto engine = std::make_unique<Decompressor>();
    long first_bad = -1;
    try {
        engine->stream(stored, blocks * TARGET_BYTES, first, original, blocks * ORIGINAL_BYTES,
                       [&first_bad](size_t offset, const uint32_t *payload) {
                           const bool error = get(payload, DecompressorLayout::o_error);
                           if (error && first_bad < 0) first_bad = static_cast<long>(offset / ORIGINAL_BYTES);
                       });
    } catch (const std::runtime_error &) {
        engine = std::make_unique<Decompressor>();
        return -2;
    }
    return first_bad;
}
}
