// An address space whose bytes are 0 and of no size before they are written.

#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <stdexcept>
#include <string>

class Space {
   public:
    explicit Space(uint64_t bytes) : bytes_(bytes) {
        void *content = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (content == MAP_FAILED) throw std::runtime_error("no " + std::to_string(bytes) + " bytes");
        content_ = static_cast<uint8_t *>(content);
    }
    ~Space() { munmap(content_, bytes_); }
    Space(const Space &) = delete;

    uint8_t *data() { return content_; }
    uint8_t &operator[](uint64_t place) { return content_[place]; }
    const uint8_t &operator[](uint64_t place) const { return content_[place]; }

   private:
    uint64_t bytes_;
    uint8_t *content_;
};
