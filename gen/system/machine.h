// The Verilated engine between an accelerator and a DRAM, cycle by cycle.

#pragma once

#include <memory>

#include "Vengine.h"
#include "counters.h"
#include "dram.h"
#include "lite.h"
#include "master.h"
#include "verilated.h"

class Machine {
   public:
    Dram dram;
    Master master;
    Counters counters;  // since the reset
    Lite registers;

    // A model of mutants has the one of this number, or none.
    explicit Machine(const DramFigures &figures, unsigned mutant = 0) : dram(figures), model_(new Vengine(&context_)) {
        select(*model_, mutant, 0);
        reset();
    }

    // All that was under way is forgotten, in memory too.
    void reset() {
        Vengine &m = *model_;
        m.aresetn = 0;
        for (const bool level : {false, true}) m.aclk = level, m.eval();
        master = Master();
        registers = Lite();
        dram.reset();
        for (int i = 0; i < 3; ++i) {
            step();
            if (m.s_axi_bvalid || m.s_axi_rvalid || m.m_axi_awvalid || m.m_axi_wvalid || m.m_axi_arvalid) {
                throw Broken("the engine offers something while it is reset");
            }
        }
        m.aresetn = 1;
        counters = Counters();
    }

    uint64_t cycles() const { return cycle_; }
    bool interrupts() const { return model_->irq; }

    void step() {
        Vengine &m = *model_;
        master.drive(m);
        dram.drive(m, cycle_);
        registers.drive(m);
        m.aclk = 0;
        m.eval();
        master.sample(m, cycle_);
        dram.sample(m, cycle_);
        registers.sample(m);
        counters.sample(m);
        m.aclk = 1;
        m.eval();
        ++cycle_;
    }

    // Go on until a condition holds.
    template <class Condition>
    void until(Condition condition) {
        for (unsigned i = 0; !condition(); ++i, step()) {
            if (i == kMostIdleCycles) throw Broken("the engine hangs in cycle " + std::to_string(cycle_));
        }
    }

    // Write a register.
    Response set(unsigned offset, uint32_t value, unsigned strobes = 15) {
        registers.write(offset, value, strobes);
        until([this] { return !registers.is_busy(); });
        return registers.written;
    }

    uint32_t get(unsigned offset) {
        registers.read(offset);
        until([this] { return !registers.is_busy(); });
        return registers.data;
    }

    // Whether there is such a register.
    bool has(unsigned offset) {
        get(offset);
        return registers.read_as == kOkay;
    }

    // Let a region answer, or not; format 0 is bypass. Whether it does now, or no more.
    bool enable(unsigned region, uint64_t base, uint64_t size, uint64_t stored, unsigned format,
                bool merge = false) {
        const unsigned at = region * REGION_STRIDE;
        int worst = set(REGION_BASE + at, base / kPage);
        worst |= set(REGION_SIZE + at, size / kPage);
        worst |= set(REGION_STORED + at, stored / kPage);
        worst |= set(REGION_CONTROL + at, ENABLE | (merge ? MERGE : 0) | format << FORMAT_LOW);
        return worst == kOkay && get(REGION_CONTROL + at) & USABLE;
    }
    bool disable(unsigned region) { return set(REGION_CONTROL + region * REGION_STRIDE, 0) == kOkay; }

   private:
    // More cycles than this without an answer can only be a hang.
    static constexpr unsigned kMostIdleCycles = 100000;

    template <class Model>
    static auto select(Model &model, unsigned mutant, int) -> decltype(void(model.mutant)) {
        model.mutant = mutant;
    }
    template <class Model>
    static void select(Model &, unsigned, long) {}

    VerilatedContext context_;
    std::unique_ptr<Vengine> model_;
    uint64_t cycle_ = 0;
};
