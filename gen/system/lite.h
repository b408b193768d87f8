// The registers' side: a manager of AXI4-Lite, a write and a read at a time.

#pragma once

#include "Vengine.h"
#include "bursts.h"

class Lite {
   public:
    uint32_t data = 0;  // that was read
    Response written = kOkay, read_as = kOkay;
    double pause = 0;  // share of the cycles in which a channel offers or takes nothing

    void write(unsigned offset, uint32_t value, unsigned strobes = 15) {
        write_offset_ = offset;
        strobes_ = strobes;
        value_ = value;
        aw_ = w_ = kWaits;
        writes_ = true;
    }

    void read(unsigned offset) {
        read_offset_ = offset;
        ar_ = kWaits;
        reads_ = true;
    }

    bool is_busy() const { return writes_ || reads_; }

    void drive(Vengine &m) {
        for (State *channel : {&aw_, &w_, &ar_}) {
            if (*channel == kWaits && !random_.chance(pause)) *channel = kOffered;
        }
        // What is not offered says nothing.
        m.s_axil_awaddr = aw_ == kOffered ? write_offset_ : ~write_offset_;
        m.s_axil_araddr = ar_ == kOffered ? read_offset_ : ~read_offset_;
        m.s_axil_wdata = w_ == kOffered ? value_ : ~value_;
        m.s_axil_wstrb = w_ == kOffered ? strobes_ : ~strobes_;
        m.s_axil_awvalid = aw_ == kOffered;
        m.s_axil_wvalid = w_ == kOffered;
        m.s_axil_arvalid = ar_ == kOffered;
        m.s_axil_bready = !random_.chance(pause);
        m.s_axil_rready = !random_.chance(pause);
    }

    void sample(const Vengine &m) {
        hold(b_, m.s_axil_bvalid, m.s_axil_bready, m.s_axil_bresp, 0, "B");
        if (m.s_axil_bvalid && (aw_ != kIdle || w_ != kIdle)) throw Broken("B of a register before its AW and W");
        hold(r_, m.s_axil_rvalid, m.s_axil_rready, m.s_axil_rresp, m.s_axil_rdata, "R");
        if (m.s_axil_awready && m.s_axil_awvalid) aw_ = kIdle;
        if (m.s_axil_wready && m.s_axil_wvalid) w_ = kIdle;
        if (m.s_axil_arready && m.s_axil_arvalid) ar_ = kIdle;
        if (m.s_axil_bvalid && m.s_axil_bready) written = Response(m.s_axil_bresp), writes_ = false;
        if (m.s_axil_rvalid && m.s_axil_rready) {
            data = m.s_axil_rdata;
            read_as = Response(m.s_axil_rresp);
            reads_ = false;
        }
    }

   private:
    enum State { kIdle, kWaits, kOffered };
    struct Held {
        bool is_there = false;
        unsigned response = 0;
        uint32_t data = 0;
    };

    // An answer that was offered and not taken has to stay.
    static void hold(Held &held, bool valid, bool ready, unsigned response, uint32_t data, const char *name) {
        if (held.is_there && (!valid || response != held.response || data != held.data)) {
            throw Broken(std::string(name) + " of a register changed before it was taken");
        }
        held = {valid && !ready, response, data};
    }

    Random random_{1};
    unsigned write_offset_ = 0, read_offset_ = 0, strobes_ = 15;
    uint32_t value_ = 0;
    State aw_ = kIdle, w_ = kIdle, ar_ = kIdle;
    bool writes_ = false, reads_ = false;
    Held b_, r_;
};
