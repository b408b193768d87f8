// A DRAM with its controller, as far as the engine can tell: an AXI4 subordinate.
//
// An address or a whole write is answered `latency` cycles later; then a beat moves every `interval` cycles in
// either direction. In every `refresh_period` cycles there are `refresh_cycles` in which none moves. Bursts of
// one ID are answered in their order; which ID comes first is drawn by lot.

#pragma once

#include <array>
#include <cstring>
#include <deque>
#include <vector>

#include "Vengine.h"
#include "bursts.h"
#include "space.h"

struct DramFigures {
    uint64_t bytes;  // from address 0 on; what lies beyond answers DECERR
    unsigned latency, interval, refresh_period, refresh_cycles;
};

class Dram {
   public:
    static constexpr size_t kMost = 64;  // bursts that it takes before it answers one, in either direction
    static constexpr unsigned kLongestWrite = 16;  // beats that the engine promises
    // Beats that moved, and cycles in which one could not for a refresh.
    struct Statistics {
        uint64_t read_beats = 0, written_beats = 0, refreshing = 0;
    };
    struct Fault {
        uint64_t low, high;
        Response response;
    };

    std::vector<Fault> faults;  // places, by their first byte and the one behind the last
    unsigned latency;           // cycles, of the bursts that come
    double pause = 0;           // share of the cycles in which a channel moves nothing, besides
    size_t most_reads = kMost;  // bursts that it takes before it has answered one
    uint64_t asked_at = 0, answered_at = 0;  // the cycles of the last AR, and of the last beat of R
    std::vector<uint64_t> failed_writes;     // where bursts began that it answered with an error, in their order

    explicit Dram(const DramFigures &figures)
        : latency(figures.latency), figures_(figures), random_(1), content_(figures.bytes) {}

    // Forget all bursts; what was written stays.
    void reset() {
        reads_ = {}, writes_ = {}, data_ = {}, written_ = {};
        r_offered_ = b_offered_ = false;
        asked_ = answers_ = 0;
        failed_writes.clear();
        ar_ = {}, aw_ = {}, w_ = {};
    }

    uint8_t *content() { return content_.data(); }
    const Statistics &statistics() const { return statistics_; }

    // What it offers in this cycle.
    void drive(Vengine &m, uint64_t now) {
        const bool refreshes = figures_.refresh_period && now % figures_.refresh_period < figures_.refresh_cycles;
        statistics_.refreshing += refreshes;
        m.m_axi_arready = asked_ < most_reads && !random_.chance(pause);
        m.m_axi_awready = writes_.size() < kMost && !random_.chance(pause);
        m.m_axi_wready = !refreshes && now >= next_write_ && !random_.chance(pause);
        if (!r_offered_ && !refreshes && now >= next_read_ && !random_.chance(pause)) offer_read(m, now);
        if (!b_offered_ && !random_.chance(pause)) offer_answer(m, now);
        m.m_axi_rvalid = r_offered_;
        m.m_axi_bvalid = b_offered_;
    }

    // What moved in it.
    void sample(const Vengine &m, uint64_t now) {
        hold(m);
        if (m.m_axi_arvalid && m.m_axi_arready) {
            if (!MERGING && m.m_axi_arid) throw Broken("a read of memory with an ID");
            reads_[m.m_axi_arid].push_back({burst_of(m.m_axi_araddr, m.m_axi_arlen, m.m_axi_arsize,
                                                     m.m_axi_arburst, m.m_axi_arcache),
                                            0, now + latency});
            ++asked_;
            asked_at = now;
        }
        if (r_offered_ && m.m_axi_rready) {
            ++statistics_.read_beats;
            answered_at = now;
            next_read_ = now + figures_.interval;
            r_offered_ = false;
            if (m.m_axi_rlast) --asked_;
        }
        if (b_offered_ && m.m_axi_bready) b_offered_ = false;
        if (m.m_axi_awvalid && m.m_axi_awready) {
            if (m.m_axi_awid || m.m_axi_awlen >= kLongestWrite) throw Broken("a write to memory with an ID, or long");
            writes_.push_back({burst_of(m.m_axi_awaddr, m.m_axi_awlen, m.m_axi_awsize, m.m_axi_awburst,
                                        m.m_axi_awcache),
                               m.m_axi_awid});
        }
        if (m.m_axi_wvalid && m.m_axi_wready) {
            ++statistics_.written_beats;
            next_write_ = now + figures_.interval;
            Beat beat{{}, uint64_t{m.m_axi_wstrb}, bool(m.m_axi_wlast)};
            std::memcpy(beat.data.data(), octets(m.m_axi_wdata), MEMORY_BYTES);
            data_.push_back(beat);
        }
        while (!writes_.empty() && data_.size() >= writes_.front().burst.beats) finish_write(now);
    }

    bool is_idle() const { return !asked_ && writes_.empty() && data_.empty() && !answers_; }

    // What a beat answers.
    Response response(uint64_t address) const {
        int worst = address + MEMORY_BYTES > figures_.bytes ? kDecErr : kOkay;
        for (const Fault &fault : faults) {
            if (fault.low < address + MEMORY_BYTES && address < fault.high && fault.response > worst) {
                worst = fault.response;
            }
        }
        return Response(worst);
    }

   private:
    static constexpr int kIds = 2;

    struct Read {
        Burst burst;
        unsigned done;
        uint64_t from;
    };
    struct Write {
        Burst burst;
        uint8_t id;
    };
    struct Answer {
        Response response;
        uint64_t from;
    };
    struct Beat {
        std::array<uint8_t, MEMORY_BYTES> data;
        uint64_t strobes;
        bool last;
        bool operator!=(const Beat &other) const {
            return data != other.data || strobes != other.strobes || last != other.last;
        }
    };
    using Address = std::array<uint64_t, 3>;  // ID, address and length

    // What it was offered and did not take.
    void hold(const Vengine &m) {
        ar_.sample({m.m_axi_arid, m.m_axi_araddr, m.m_axi_arlen}, m.m_axi_arvalid, m.m_axi_arready, "AR to memory");
        aw_.sample({m.m_axi_awid, m.m_axi_awaddr, m.m_axi_awlen}, m.m_axi_awvalid, m.m_axi_awready, "AW to memory");
        Beat beat{{}, uint64_t{m.m_axi_wstrb}, bool(m.m_axi_wlast)};
        if (w_.is_held() || (m.m_axi_wvalid && !m.m_axi_wready)) {
            std::memcpy(beat.data.data(), octets(m.m_axi_wdata), MEMORY_BYTES);
        }
        w_.sample(beat, m.m_axi_wvalid, m.m_axi_wready, "W to memory");
    }

    static Burst burst_of(uint64_t address, unsigned len, unsigned size, unsigned kind, unsigned cache) {
        const uint64_t span = uint64_t(len + 1) * MEMORY_BYTES;
        if (cache != 2) throw Broken("a burst to memory at " + hex(address) + " has another AxCACHE than 0010");
        if (kind != kIncr || 1u << size != MEMORY_BYTES || address % MEMORY_BYTES) {
            throw Broken("a burst to memory at " + hex(address) + " is not of whole beats");
        }
        if (address / kPage != (address + span - 1) / kPage) {
            throw Broken("a burst to memory at " + hex(address) + " crosses 4 KiB");
        }
        return {address, len + 1, size, kIncr};
    }

    // An ID drawn from those whose oldest burst has waited long enough; -1 if there is none.
    template <class Queues>
    int draw(const Queues &queues, uint64_t now) {
        int found = -1;
        for (int id = 0, count = 0; id < kIds; ++id) {
            if (!queues[id].empty() && queues[id].front().from <= now && random_.below(++count) == 0) found = id;
        }
        return found;
    }

    void offer_read(Vengine &m, uint64_t now) {
        const int id = draw(reads_, now);
        if (id < 0) return;
        Read &read = reads_[id].front();
        const uint64_t address = read.burst.at(read.done);
        const Response answer = response(address);
        auto *data = octets(m.m_axi_rdata);
        if (answer == kOkay) {
            std::memcpy(data, &content_[address], MEMORY_BYTES);
        } else {
            std::memset(data, 0xAD, MEMORY_BYTES);
        }
        r_offered_ = true;
        m.m_axi_rid = id;
        m.m_axi_rresp = answer;
        m.m_axi_rlast = ++read.done == read.burst.beats;
        if (m.m_axi_rlast) reads_[id].pop_front();
    }

    void finish_write(uint64_t now) {
        const Write write = writes_.front();
        writes_.pop_front();
        int worst = kOkay;
        for (unsigned beat = 0; beat < write.burst.beats; ++beat, data_.pop_front()) {
            const Beat &from = data_.front();
            if (from.last != (beat + 1 == write.burst.beats)) throw Broken("WLAST to memory is wrong");
            const uint64_t address = write.burst.at(beat);
            const Response answer = response(address);
            if (answer > worst) worst = answer;
            for (unsigned i = 0; answer == kOkay && i < MEMORY_BYTES; ++i) {
                if (from.strobes >> i & 1) content_[address + i] = from.data[i];
            }
        }
        if (worst > kOkay) failed_writes.push_back(write.burst.address);
        written_[write.id].push_back({Response(worst), now + latency});
        ++answers_;
    }

    void offer_answer(Vengine &m, uint64_t now) {
        const int id = draw(written_, now);
        if (id < 0) return;
        b_offered_ = true;
        m.m_axi_bid = id;
        m.m_axi_bresp = written_[id].front().response;
        written_[id].pop_front();
        --answers_;
    }

    DramFigures figures_;
    Random random_;
    Space content_;
    Statistics statistics_;
    std::array<std::deque<Read>, kIds> reads_;
    std::deque<Write> writes_;
    std::deque<Beat> data_;
    std::array<std::deque<Answer>, kIds> written_;
    bool r_offered_ = false, b_offered_ = false;
    size_t asked_ = 0, answers_ = 0;
    Held<Address> ar_, aw_;
    Held<Beat> w_;
    uint64_t next_read_ = 0, next_write_ = 0;
};
