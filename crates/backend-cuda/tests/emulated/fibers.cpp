// Thread blocks as fibers: made once per thread of the test, switched without the system's help.
#include "../../kernels/platform.cuh"
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <vector>

namespace emulated {
__thread u32 thread, block_x, block_y;

namespace {
enum class State { Ready, WaitsForBlock, WaitsForWarp, Done };

struct Copy {
    void* to;
    const void* from;
};

// Where a fiber goes on. The compiler's own jumps: the library's take as long as many products.
typedef void* Place[5];

struct Fiber {
    std::unique_ptr<char[]> stack;
    Place place;
    State state = State::Done;
    u32 turn = 0;
    // Copies it has begun, in groups; the last is still open.
    std::vector<std::vector<Copy>> copies;
};

struct Pool {
    std::vector<std::unique_ptr<Fiber>> fibers;
    Words words[2][THREADS_MAX];
    Place scheduler;
    const Kernel* kernel;
    const void* args;
};

thread_local Pool pool;
thread_local ucontext_t first_home;
constexpr size_t STACK_BYTES = 64 << 10;

[[noreturn]] void stop(const char* why) {
    std::fprintf(stderr, "kernel %s, block (%u, %u): %s\n", pool.kernel->name, block_x, block_y, why);
    std::abort();
}

void yield_as(State state) {
    Pool& all = pool;
    Fiber& own = *all.fibers[thread];
    own.state = state;
    if (__builtin_setjmp(own.place) == 0) {
        __builtin_longjmp(all.scheduler, 1);
    }
}

// A fiber's life: one kernel after the other.
void live() {
    for (;;) {
        pool.kernel->run(pool.args);
        yield_as(State::Done);
    }
}

void resume(u32 index) {
    Pool& all = pool;
    thread = index;
    if (__builtin_setjmp(all.scheduler) == 0) {
        __builtin_longjmp(all.fibers[index]->place, 1);
    }
}

// Brings a new fiber to its first pause, in front of its first kernel.
void begin() {
    Fiber& own = *pool.fibers[thread];
    if (__builtin_setjmp(own.place) == 0) {
        swapcontext(std::make_unique<ucontext_t>().get(), &first_home);
    }
    live();
}

void grow(u32 threads) {
    while (pool.fibers.size() < threads) {
        auto fiber = std::make_unique<Fiber>();
        fiber->stack = std::make_unique<char[]>(STACK_BYTES);
        ucontext_t start;
        getcontext(&start);
        start.uc_stack.ss_sp = fiber->stack.get();
        start.uc_stack.ss_size = STACK_BYTES;
        start.uc_link = nullptr;
        makecontext(&start, begin, 0);
        thread = (u32)pool.fibers.size();
        pool.fibers.push_back(std::move(fiber));
        swapcontext(&first_home, &start);
    }
}

// Lets waits end that all have reached. Whether any did.
bool release(u32 threads) {
    auto& fibers = pool.fibers;
    bool moved = false;
    bool all_wait = true;
    bool any_waits = false;
    for (u32 warp = 0; warp < threads; warp += 32) {
        u32 waiting = 0, ended = 0, lanes = threads - warp < 32 ? threads - warp : 32;
        for (u32 lane = 0; lane < lanes; lane++) {
            State state = fibers[warp + lane]->state;
            waiting += state == State::WaitsForWarp;
            ended += state == State::Done;
            any_waits |= state == State::WaitsForBlock;
            all_wait &= state == State::WaitsForBlock || state == State::Done;
        }
        if (waiting > 0 && ended > 0) {
            stop("lanes wait for one that has ended");
        }
        for (u32 lane = 0; lane < lanes && waiting == lanes; lane++) {
            fibers[warp + lane]->state = State::Ready;
            moved = true;
        }
    }
    for (u32 i = 0; i < threads && all_wait && any_waits; i++) {
        if (fibers[i]->state == State::WaitsForBlock) {
            fibers[i]->state = State::Ready;
            moved = true;
        }
    }
    return moved;
}

void run_block(u32 threads) {
    auto& fibers = pool.fibers;
    for (u32 i = 0; i < threads; i++) {
        fibers[i]->state = State::Ready;
        fibers[i]->turn = 0;
        fibers[i]->copies.assign(1, {});
    }
    // From the first to the last and back, so that what lacks a barrier is seen in one order or the other.
    for (bool is_up = true;; is_up = !is_up) {
        bool all_done = true;
        for (u32 turn = 0; turn < threads; turn++) {
            u32 i = is_up ? turn : threads - 1 - turn;
            if (fibers[i]->state == State::Ready) {
                resume(i);
            }
            all_done &= fibers[i]->state == State::Done;
        }
        if (all_done) {
            return;
        }
        if (!release(threads)) {
            stop("threads wait for each other for ever");
        }
    }
}
}

void wait_for_block() {
    yield_as(State::WaitsForBlock);
}

void wait_for_warp() {
    yield_as(State::WaitsForWarp);
}

void begin_copy(void* to, const void* from) {
    pool.fibers[thread]->copies.back().push_back({to, from});
}

void end_copies() {
    pool.fibers[thread]->copies.emplace_back();
}

// Copies as late as may be: what is read without a wait is what was there before.
void wait_for_copies(u32 but) {
    auto& copies = pool.fibers[thread]->copies;
    while (copies.size() > but + 1) {
        for (const Copy& copy : copies.front()) {
            std::memcpy(copy.to, copy.from, 16);
        }
        copies.erase(copies.begin());
    }
}

u32* exchange(u32 of, u32 turn) {
    return pool.words[turn % 2][of];
}

u32 next_turn() {
    return pool.fibers[thread]->turn++;
}

void run(const Kernel& kernel, u32 x, u32 y, u32 threads, const void* args) {
    grow(threads);
    pool.kernel = &kernel;
    pool.args = args;
    for (block_y = 0; block_y < y; block_y++) {
        for (block_x = 0; block_x < x; block_x++) {
            run_block(threads);
        }
    }
}
}
