// Runs a trace through DRAMsim3 to its end, which its own program does not know: that runs a number of cycles.
// Requests enter in order, in each cycle as many as there are channels, as long as their queues have room.

#include <cstdint>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "dramsim3.h"

namespace {

struct Request {
  std::uint64_t address;
  bool writes;
};

std::vector<Request> read_trace(const char* path) {
  std::ifstream file(path);
  std::vector<Request> requests;
  std::uint64_t address, cycle;
  std::string kind;
  while (file >> std::hex >> address >> kind >> std::dec >> cycle) {
    requests.push_back({address, kind == "WRITE"});
  }
  return requests;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: driver CONFIG TRACE CHANNELS FOLDER\n";
    return 2;
  }
  const std::vector<Request> requests = read_trace(argv[2]);
  const int channels = std::stoi(argv[3]);
  std::uint64_t done = 0, cycle = 0;
  const auto answered = [&done](std::uint64_t) { ++done; };
  dramsim3::MemorySystem& memory = *dramsim3::GetMemorySystem(argv[1], argv[4], answered, answered);
  for (std::size_t next = 0; done < requests.size(); ++cycle) {
    for (int entered = 0; entered < channels && next < requests.size(); ++entered, ++next) {
      const Request& request = requests[next];
      if (!memory.WillAcceptTransaction(request.address, request.writes)) break;
      memory.AddTransaction(request.address, request.writes);
    }
    memory.ClockTick();
  }
  memory.PrintStats();
  std::cout << "{\"requests\": " << requests.size() << ", \"cycles\": " << cycle << "}\n";
}
