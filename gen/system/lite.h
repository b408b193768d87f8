// The registers' side: a manager of AXI4-Lite, an access at a time.

#pragma once

#include "Vengine.h"
#include "bursts.h"

class Lite {
   public:
    uint32_t data = 0;         // that was read
    Response response = kOkay;

    void write(unsigned offset, uint32_t value, unsigned strobes = 15) {
        offset_ = offset;
        strobes_ = strobes;
        value_ = value;
        aw_offered_ = w_offered_ = is_busy_ = true;
    }

    void read(unsigned offset) {
        offset_ = offset;
        ar_offered_ = is_busy_ = true;
    }

    bool is_busy() const { return is_busy_; }

    void drive(Vengine &m) const {
        m.s_axil_awaddr = m.s_axil_araddr = offset_;
        m.s_axil_wdata = value_;
        m.s_axil_wstrb = strobes_;
        m.s_axil_awvalid = aw_offered_;
        m.s_axil_wvalid = w_offered_;
        m.s_axil_arvalid = ar_offered_;
        m.s_axil_bready = m.s_axil_rready = 1;
    }

    void sample(const Vengine &m) {
        if (m.s_axil_awready) aw_offered_ = false;
        if (m.s_axil_wready) w_offered_ = false;
        if (m.s_axil_arready) ar_offered_ = false;
        if (m.s_axil_bvalid) response = Response(m.s_axil_bresp), is_busy_ = false;
        if (m.s_axil_rvalid) {
            data = m.s_axil_rdata;
            response = Response(m.s_axil_rresp);
            is_busy_ = false;
        }
    }

   private:
    unsigned offset_ = 0, strobes_ = 15;
    uint32_t value_ = 0;
    bool aw_offered_ = false, w_offered_ = false, ar_offered_ = false, is_busy_ = false;
};
