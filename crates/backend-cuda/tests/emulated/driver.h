// Between the driver that plays a card and the fibers that play its threads.
#pragma once

constexpr u32 THREADS_MAX = 1024;

namespace emulated {
struct Kernel {
    const char* name;
    u32 threads;
    u32 args_size;
    void (*run)(const void* args);
};

// Runs every thread block of a grid, one after the other.
void run(const Kernel& kernel, u32 x, u32 y, u32 threads, const void* args);
}
