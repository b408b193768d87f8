// The self-test in Verilator, its UART's pins on a pseudo-terminal, whose name is printed first.
// Ends when its standard input does.

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <poll.h>
#include <termios.h>
#include <unistd.h>

#include "Vselftest.h"

namespace {

constexpr int kQuiet = 20000;  // cycles without a bit or a run after which the simulation waits for the host

// A UART at the design's pins: a bit takes DIVISOR cycles.
struct Uart {
    int terminal;
    int sending = 0, send_timer = 0;      // bits of the byte that is sent, the next lowest; cycles of this one
    int receiving = 0, receive_timer = 0;  // bits still to be sampled; cycles until the next
    int received = 0;
    bool line = true;

    // Whether a bit is under way.
    bool step(Vselftest& design) {
        if (send_timer == 0) {
            if (sending <= 1) {
                unsigned char byte;
                if (read(terminal, &byte, 1) == 1) sending = byte << 1 | 3 << 9;
                line = true;
            }
            if (sending > 1) {
                line = sending & 1;
                sending >>= 1;
                send_timer = DIVISOR;
            } else {
                send_timer = 16;  // look again then
            }
        }
        --send_timer;
        design.rx = line;

        if (receiving == 0 && !design.tx) {
            receiving = 10;
            receive_timer = DIVISOR / 2;
        } else if (receiving != 0 && --receive_timer == 0) {
            received = received >> 1 | design.tx << 9;
            receive_timer = DIVISOR;
            if (--receiving == 0) {
                unsigned char byte = received >> 1;
                if (write(terminal, &byte, 1) != 1) std::exit(1);
            }
        }
        return sending > 1 || receiving != 0;
    }
};

int open_terminal() {
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal)) return -1;
    // The other end stays open, or the terminal would hang up between two hosts.
    int other = open(ptsname(terminal), O_RDWR | O_NOCTTY);
    termios settings;
    if (other < 0 || tcgetattr(other, &settings)) return -1;
    cfmakeraw(&settings);
    if (tcsetattr(other, TCSANOW, &settings)) return -1;
    fcntl(terminal, F_SETFL, O_NONBLOCK);
    return terminal;
}

}  // namespace

int main() {
    int terminal = open_terminal();
    if (terminal < 0) {
        std::perror("pseudo-terminal");
        return 1;
    }
    std::printf("%s\n", ptsname(terminal));
    std::fflush(stdout);

    VerilatedContext context;
    Vselftest design{&context};
    Uart uart{terminal};
    design.rx = 1;
    design.eval();
    for (int quiet = 0;; ++quiet) {
        if (uart.step(design) || design.busy) quiet = 0;
        if (quiet >= kQuiet) {
            pollfd waits[] = {{terminal, POLLIN, 0}, {STDIN_FILENO, POLLIN, 0}};
            poll(waits, 2, -1);
            if (waits[1].revents) return 0;
            quiet = 0;
        }
        design.clk = 0;
        design.eval();
        design.clk = 1;
        design.eval();
    }
}
