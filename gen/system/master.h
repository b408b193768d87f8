// The accelerator's side of the engine: an AXI4 manager, and one of AXI4-Lite for the registers.

#pragma once

#include <cstring>
#include <deque>
#include <unordered_map>
#include <utility>
#include <vector>

#include "Vengine.h"
#include "bursts.h"

// What came of a burst: one response of a write, one of each beat of a read, whose words are BUS_BYTES each.
struct Outcome {
    Burst burst;
    bool is_read;
    std::vector<uint8_t> responses, words;
};

class Master {
   public:
    // Share of the cycles in which each channel moves nothing.
    struct Pauses {
        double aw = 0, w = 0, ar = 0, b = 0, r = 0;
    };
    Pauses pauses;
    uint64_t asked_at = 0, answered_at = 0;  // the cycles of the last AR, and of the last beat of R

    explicit Master(uint64_t seed = 1) : random_(seed) {}

    // Send a write burst; `words` are BUS_BYTES for each beat, `strobes` a bit for each of these.
    size_t write(const Burst &burst, std::vector<uint8_t> words, std::vector<uint64_t> strobes) {
        const size_t ticket = ticket_of(burst);
        aw_.push_back(burst);
        w_.push_back({std::move(words), std::move(strobes)});
        writing_[burst.id].push_back({ticket, {burst, false, {}, {}}});
        ++writes_;
        return ticket;
    }

    size_t read(const Burst &burst) {
        const size_t ticket = ticket_of(burst);
        ar_.push_back(burst);
        reading_[burst.id].push_back({ticket, {burst, true, {}, {}}});
        ++reads_;
        return ticket;
    }

    size_t writes() const { return writes_; }  // that are not answered
    size_t reads() const { return reads_; }
    bool sent_addresses() const { return aw_.empty() && ar_.empty(); }
    bool sent_all() const { return sent_addresses() && w_.empty(); }

    bool has_done() const { return !done_.empty(); }

    // What was answered since it was last asked, by tickets, in the order of the answers.
    std::vector<std::pair<size_t, Outcome>> take() { return std::exchange(done_, {}); }

    void drive(Vengine &m) {
        if (!aw_offered_ && !aw_.empty() && !random_.chance(pauses.aw)) {
            const Burst &burst = aw_.front();
            aw_offered_ = true;
            m.s_axi_awaddr = burst.address;
            m.s_axi_awlen = burst.beats - 1;
            m.s_axi_awsize = burst.size;
            m.s_axi_awburst = burst.kind;
            m.s_axi_awid = burst.id;
            m.s_axi_awcache = burst.cache;
        }
        if (!ar_offered_ && !ar_.empty() && !random_.chance(pauses.ar)) {
            const Burst &burst = ar_.front();
            ar_offered_ = true;
            m.s_axi_araddr = burst.address;
            m.s_axi_arlen = burst.beats - 1;
            m.s_axi_arsize = burst.size;
            m.s_axi_arburst = burst.kind;
            m.s_axi_arid = burst.id;
            m.s_axi_arcache = burst.cache;
        }
        if (!w_offered_ && !w_.empty() && !random_.chance(pauses.w)) {
            const Words &words = w_.front();
            w_offered_ = true;
            std::memcpy(octets(m.s_axi_wdata), words.data.data() + beat_ * BUS_BYTES, BUS_BYTES);
            m.s_axi_wstrb = words.strobes[beat_];
            m.s_axi_wlast = beat_ + 1 == words.strobes.size();
        }
        m.s_axi_awvalid = aw_offered_;
        m.s_axi_wvalid = w_offered_;
        m.s_axi_arvalid = ar_offered_;
        m.s_axi_bready = !random_.chance(pauses.b);
        m.s_axi_rready = !random_.chance(pauses.r);
    }

    void sample(const Vengine &m, uint64_t now) {
        if (aw_offered_ && m.s_axi_awready) aw_offered_ = false, aw_.pop_front();
        if (ar_offered_ && m.s_axi_arready) ar_offered_ = false, ar_.pop_front(), asked_at = now;
        if (w_offered_ && m.s_axi_wready) {
            w_offered_ = false;
            if (++beat_ == w_.front().strobes.size()) beat_ = 0, w_.pop_front();
        }
        sample_b(m);
        sample_r(m, now);
    }

   private:
    struct Words {
        std::vector<uint8_t> data;
        std::vector<uint64_t> strobes;
    };
    using Queue = std::deque<std::pair<size_t, Outcome>>;

    size_t ticket_of(const Burst &burst) {
        if (burst.at(burst.beats - 1) / kPage != burst.address / kPage) throw Broken("a burst crosses a page");
        return tickets_++;
    }

    void sample_b(const Vengine &m) {
        b_.sample({m.s_axi_bid, m.s_axi_bresp}, m.s_axi_bvalid, m.s_axi_bready, "B");
        if (!m.s_axi_bvalid || !m.s_axi_bready) return;
        Queue &queue = writing_[m.s_axi_bid];
        if (queue.empty()) throw Broken("B of ID " + std::to_string(m.s_axi_bid) + " that nobody asked for");
        queue.front().second.responses.push_back(m.s_axi_bresp);
        finish(queue, writes_);
    }

    void sample_r(const Vengine &m, uint64_t now) {
        R beat{m.s_axi_rid, m.s_axi_rresp, m.s_axi_rlast, {}};
        const auto *data = octets(m.s_axi_rdata);
        const bool moves = m.s_axi_rvalid && m.s_axi_rready;
        if (r_.is_held() || (m.s_axi_rvalid && !moves)) beat.data.assign(data, data + BUS_BYTES);
        r_.sample(beat, m.s_axi_rvalid, m.s_axi_rready, "R");
        if (!moves) return;
        Queue &queue = reading_[m.s_axi_rid];
        if (queue.empty()) throw Broken("R of ID " + std::to_string(m.s_axi_rid) + " that nobody asked for");
        Outcome &outcome = queue.front().second;
        outcome.responses.push_back(m.s_axi_rresp);
        outcome.words.insert(outcome.words.end(), data, data + BUS_BYTES);
        if (m.s_axi_rlast != (outcome.responses.size() == outcome.burst.beats)) {
            throw Broken("RLAST of the burst at " + hex(outcome.burst.address) + " is wrong");
        }
        answered_at = now;
        if (m.s_axi_rlast) finish(queue, reads_);
    }

    void finish(Queue &queue, size_t &count) {
        done_.push_back(std::move(queue.front()));
        queue.pop_front();
        --count;
    }

    struct R {
        int id, response, last;
        std::vector<uint8_t> data;
        bool operator!=(const R &other) const {
            return id != other.id || response != other.response || last != other.last || data != other.data;
        }
    };

    Random random_;
    std::deque<Burst> aw_, ar_;
    std::deque<Words> w_;
    size_t beat_ = 0, tickets_ = 0, writes_ = 0, reads_ = 0;
    std::unordered_map<int, Queue> writing_, reading_;
    std::vector<std::pair<size_t, Outcome>> done_;
    bool aw_offered_ = false, w_offered_ = false, ar_offered_ = false;
    Held<std::pair<int, int>> b_;
    Held<R> r_;
};
