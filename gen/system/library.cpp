// The Verilated memory engine and a DRAM as a library with a plain C interface: byte ranges written and read
// through AXI4 at plain addresses. Built by gen/system.py, which writes engine.h.

#include <cstring>
#include <deque>
#include <string>

#include "machine.h"

namespace {

constexpr size_t kOutstanding = 16;  // bursts, in either direction

// A machine, and what went wrong in it last.
struct System {
    Machine machine;
    std::string message;
    explicit System(const DramFigures &figures) : machine(figures) {}
};

// Bursts for a range of addresses, none of more than a page.
std::deque<Burst> bursts_of(uint64_t address, size_t count) {
    std::deque<Burst> bursts;
    unsigned size = 0;
    while (1u << size < BUS_BYTES) ++size;
    for (const uint64_t end = address + count; address < end;) {
        const uint64_t stop = std::min(end, address / kPage * kPage + kPage);
        const uint64_t first = address / BUS_BYTES, last = (stop - 1) / BUS_BYTES;
        Burst burst;
        burst.address = address;
        burst.beats = unsigned(last - first + 1);
        burst.size = size;
        bursts.push_back(burst);
        address = stop;
    }
    return bursts;
}

// What the error registers say, as text.
std::string errors_of(Machine &machine) {
    std::string text;
    const uint32_t kinds = machine.get(ERRORS);
    for (unsigned i = 0; i < ERROR_KINDS; ++i) {
        if (!(kinds >> i & 1)) continue;
        const uint64_t low = machine.get(ERROR_ADDRESS_LOW + i * ERROR_ADDRESS_STRIDE);
        const uint64_t high = machine.get(ERROR_ADDRESS_HIGH + i * ERROR_ADDRESS_STRIDE);
        text += std::string(text.empty() ? "; " : ", ") + kErrorNames[i] + " at " + hex(high << 32 | low);
    }
    machine.set(ERRORS, kinds);
    return text;
}

// Note what was not answered OKAY; the gravest response.
int grade(const Outcome &outcome, const char *what, int worst, std::string &message) {
    for (const uint8_t response : outcome.responses) {
        if (response <= worst) continue;
        worst = response;
        message = std::string(what) + " at " + hex(outcome.burst.address) + " was answered " + name_of(worst);
    }
    return worst;
}

// Send bursts, some ahead of the answers; `send` sends one, `finish` sees what comes of each.
template <class Send, class Finish>
void transfer(Machine &machine, std::deque<Burst> bursts, Send send, Finish finish) {
    size_t open = 0;
    machine.master.take();
    while (!bursts.empty() || open) {
        for (; !bursts.empty() && open < kOutstanding; ++open, bursts.pop_front()) send(bursts.front());
        std::vector<std::pair<size_t, Outcome>> done;
        machine.until([&] { return !(done = machine.master.take()).empty(); });
        for (auto &[ticket, outcome] : done) finish(outcome);
        open -= done.size();
    }
}

// Lanes of a beat: the first byte, and the one behind the last, of a range that ends at `end`.
std::pair<unsigned, unsigned> lanes(const Burst &burst, unsigned beat, uint64_t end) {
    const uint64_t start = burst.at(beat), low = start / BUS_BYTES * BUS_BYTES;
    return {unsigned(start - low), unsigned(std::min<uint64_t>(BUS_BYTES, end - low))};
}

int write(System &system, uint64_t address, const uint8_t *bytes, size_t count) {
    int worst = kOkay;
    const auto send = [&](const Burst &burst) {
        std::vector<uint8_t> words(burst.beats * BUS_BYTES);
        std::vector<uint64_t> strobes(burst.beats);
        for (unsigned beat = 0; beat < burst.beats; ++beat) {
            const auto [low, high] = lanes(burst, beat, address + count);
            std::memcpy(&words[beat * BUS_BYTES + low], bytes + (burst.at(beat) - address), high - low);
            for (unsigned lane = low; lane < high; ++lane) strobes[beat] |= uint64_t{1} << lane;
        }
        system.machine.master.write(burst, std::move(words), std::move(strobes));
    };
    transfer(system.machine, bursts_of(address, count), send, [&](const Outcome &outcome) {
        worst = grade(outcome, "a write", worst, system.message);
    });
    return worst;
}

int read(System &system, uint64_t address, uint8_t *bytes, size_t count) {
    int worst = kOkay;
    const auto finish = [&](const Outcome &outcome) {
        worst = grade(outcome, "a read", worst, system.message);
        const Burst &burst = outcome.burst;
        for (unsigned beat = 0; beat < burst.beats; ++beat) {
            const auto [low, high] = lanes(burst, beat, address + count);
            const uint64_t place = burst.at(beat) - address;
            std::memcpy(bytes + place, &outcome.words[beat * BUS_BYTES + low], high - low);
        }
    };
    const auto send = [&](const Burst &burst) { system.machine.master.read(burst); };
    transfer(system.machine, bursts_of(address, count), send, finish);
    return worst;
}

// Run an access; its response, or -1 if the simulated hardware broke.
template <class Access>
int run(System &system, Access access) {
    try {
        const int worst = access();
        if (worst > kOkay) system.message += errors_of(system.machine);
        return worst;
    } catch (const Broken &broken) {
        system.message = broken.what();
        return -1;
    }
}

}  // namespace

extern "C" {

// Another number whenever a function below takes or gives something else; who calls them asks for it.
int bitstash_memory_interface() { return 1; }

// What the engine was made for, as JSON: see gen/system.py.
const char *bitstash_memory_description() { return kDescription; }

// An engine after a reset and a cleared memory: its bytes, and its figures in cycles, see dram.h. Null if there
// is not so much memory.
void *bitstash_memory_new(uint64_t bytes, unsigned latency, unsigned interval, unsigned refresh_period,
                          unsigned refresh_cycles) {
    try {
        return new System({bytes, latency, interval, refresh_period, refresh_cycles});
    } catch (const std::exception &) {
        return nullptr;
    }
}

void bitstash_memory_delete(void *system) { delete static_cast<System *>(system); }

// The memory behind the engine, for as long as this lives.
uint8_t *bitstash_memory_content(void *system) { return static_cast<System *>(system)->machine.dram.content(); }

// What went wrong last.
const char *bitstash_memory_message(void *system) { return static_cast<System *>(system)->message.c_str(); }

// The functions below return 0, or what AXI answers, SLVERR (2) or DECERR (3), or -1 if the simulated hardware
// hangs or breaks a rule; the message says more.

// Let a region answer; format 0 is bypass.
int bitstash_memory_enable(void *handle, unsigned region, uint64_t base, uint64_t size, uint64_t stored,
                           unsigned format) {
    auto &system = *static_cast<System *>(handle);
    return run(system, [&] {
        if (system.machine.enable(region, base, size, stored, format)) return int(kOkay);
        system.message = "region " + std::to_string(region) + " is not usable";
        return int(kSlvErr);
    });
}

// Wait for what is under way in a region; from then on nothing answers for its addresses.
int bitstash_memory_disable(void *handle, unsigned region) {
    auto &system = *static_cast<System *>(handle);
    return run(system, [&] { return system.machine.disable(region) ? int(kOkay) : int(kSlvErr); });
}

int bitstash_memory_write(void *handle, uint64_t address, const uint8_t *bytes, size_t count) {
    auto &system = *static_cast<System *>(handle);
    return run(system, [&] { return write(system, address, bytes, count); });
}

int bitstash_memory_read(void *handle, uint64_t address, uint8_t *bytes, size_t count) {
    auto &system = *static_cast<System *>(handle);
    return run(system, [&] { return read(system, address, bytes, count); });
}

// A place of the memory from then on answers so; SLVERR or DECERR.
void bitstash_memory_fault(void *handle, uint64_t low, uint64_t high, int response) {
    static_cast<System *>(handle)->machine.dram.faults.push_back({low, high, Response(response)});
}

// Cycles so far, beats read from memory and written to it, and cycles of refreshes.
void bitstash_memory_statistics(void *handle, uint64_t *four) {
    const Machine &machine = static_cast<System *>(handle)->machine;
    const auto &beats = machine.dram.statistics();
    four[0] = machine.cycles();
    four[1] = beats.read_beats;
    four[2] = beats.written_beats;
    four[3] = beats.refreshing;
}
}
