// What the engine's counters must count, as seen at its pins.

#pragma once

#include "Vengine.h"
#include "bursts.h"

struct Counters {
    uint32_t read_beats = 0, write_beats = 0, write_bytes = 0;
    uint32_t memory_read_beats = 0, memory_write_beats = 0, memory_write_bytes = 0;
    uint32_t read_stalled = 0, write_stalled = 0, memory_read_stalled = 0, memory_write_stalled = 0;

    void sample(const Vengine &m) {
        count(m.s_axi_rvalid, m.s_axi_rready, read_beats, read_stalled);
        memory_read_beats += m.m_axi_rvalid && m.m_axi_rready;
        memory_read_stalled += m.m_axi_arvalid && !m.m_axi_arready;
        if (count(m.s_axi_wvalid, m.s_axi_wready, write_beats, write_stalled)) {
            write_bytes += __builtin_popcountll(m.s_axi_wstrb);
        }
        if (count(m.m_axi_wvalid, m.m_axi_wready, memory_write_beats, memory_write_stalled)) {
            memory_write_bytes += __builtin_popcountll(m.m_axi_wstrb);
        }
    }

   private:
    static bool count(bool valid, bool ready, uint32_t &moves, uint32_t &stalls) {
        moves += valid && ready;
        stalls += valid && !ready;
        return valid && ready;
    }
};
