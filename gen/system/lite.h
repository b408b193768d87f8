// The registers' side: a manager of AXI4-Lite. Addresses and words are offered as soon as those before were taken.

#pragma once

#include <deque>
#include <utility>

#include "Vengine.h"
#include "bursts.h"

class Lite {
   public:
    uint32_t data = 0;  // that was read last
    Response written = kOkay, read_as = kOkay;  // the last answers
    size_t writes_answered = 0, reads_answered = 0;
    double pause = 0;  // share of the cycles in which a channel offers or takes nothing

    void write(unsigned offset, uint32_t value, unsigned strobes = 15) {
        aw_.todo.push_back(offset);
        w_.todo.push_back({value, strobes});
        ++writes_;
    }

    void read(unsigned offset) {
        ar_.todo.push_back(offset);
        ++reads_;
    }

    bool is_busy() const { return writes_ || reads_; }

    void drive(Vengine &m) {
        const bool offers_aw = aw_.offers(random_, pause), offers_w = w_.offers(random_, pause);
        const bool offers_ar = ar_.offers(random_, pause);
        // What is not offered says nothing.
        m.s_axil_awaddr = offers_aw ? aw_.todo.front() : random_.below(kPage);
        m.s_axil_araddr = offers_ar ? ar_.todo.front() : random_.below(kPage);
        m.s_axil_wdata = offers_w ? w_.todo.front().first : random_.next();
        m.s_axil_wstrb = offers_w ? w_.todo.front().second : random_.below(16);
        m.s_axil_awvalid = offers_aw;
        m.s_axil_wvalid = offers_w;
        m.s_axil_arvalid = offers_ar;
        m.s_axil_bready = !random_.chance(pause);
        m.s_axil_rready = !random_.chance(pause);
    }

    void sample(const Vengine &m) {
        b_.sample(m.s_axil_bresp, m.s_axil_bvalid, m.s_axil_bready, "B of a register");
        r_.sample({m.s_axil_rresp, m.s_axil_rdata}, m.s_axil_rvalid, m.s_axil_rready, "R of a register");
        if (m.s_axil_bvalid && !(aw_.taken && w_.taken)) throw Broken("B of a register before its AW and W");
        if (m.s_axil_rvalid && !ar_.taken) throw Broken("R of a register before its AR");
        aw_.sample(m.s_axil_awready, "AW");
        w_.sample(m.s_axil_wready, "W");
        ar_.sample(m.s_axil_arready, "AR");
        if (m.s_axil_bvalid && m.s_axil_bready) {
            written = Response(m.s_axil_bresp);
            aw_.taken = w_.taken = false;
            --writes_, ++writes_answered;
        }
        if (m.s_axil_rvalid && m.s_axil_rready) {
            data = m.s_axil_rdata;
            read_as = Response(m.s_axil_rresp);
            ar_.taken = false;
            --reads_, ++reads_answered;
        }
    }

   private:
    // What is to be sent, and whether one of it was taken that is not answered: then none else is.
    template <class Payload>
    struct Channel {
        std::deque<Payload> todo;
        bool is_offered = false, taken = false;

        bool offers(Random &random, double pause) {
            if (!todo.empty() && !random.chance(pause)) is_offered = true;
            return is_offered;
        }

        void sample(bool ready, const char *name) {
            if (!is_offered || !ready) return;
            if (taken) throw Broken(std::string(name) + " of a register before the answer to the one before");
            todo.pop_front();
            is_offered = false;
            taken = true;
        }
    };

    Random random_{1};
    Channel<unsigned> aw_, ar_;
    Channel<std::pair<uint32_t, unsigned>> w_;
    size_t writes_ = 0, reads_ = 0;  // that are not answered
    Held<int> b_;
    Held<std::pair<int, uint32_t>> r_;
};
