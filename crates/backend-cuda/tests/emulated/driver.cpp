// As much of the CUDA driver's interface as the backend uses, on a processor: a card for tests where there is none. Work is done
// when it is queued. PTX is not run: the kernels of the same names are, compiled from the sources that the PTX was made of.
//
// Environment: EXO_EMULATED_SM (61, 80; default 80), EXO_EMULATED_CARDS (default 2), EXO_EMULATED_VERSION (default 12000),
// EXO_EMULATED_BYTES (of one card; default 1 GiB), EXO_EMULATED_TAKEN (a file with the bytes of a card that other programs hold),
// EXO_EMULATED_EXCLUSIVE (a file: as long as a process has locked it, no other may use the cards), EXO_EMULATED_LINGER_MS (what
// giving a card back takes), EXO_EMULATED_OPENS_MS (what opening one takes), EXO_EMULATED_SKIPS (a kernel by its name, which does
// nothing), EXO_EMULATED_ABORTS (bytes: whoever allocates more at once is ended), EXO_EMULATED_SHARED (this card, counted from 1,
// has no memory of its own), EXO_EMULATED_HANGS (a file: as long as it is there, kernels that are started never end).
#include "../../kernels/platform.cuh"
#include "driver.h"

#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <sys/file.h>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default"))) int

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, UNAVAILABLE = 46, NO_DEVICE = 100, INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NOT_FOUND = 500, NOT_READY = 600 };

std::map<std::string, emulated::Kernel>& kernels() {
    static std::map<std::string, emulated::Kernel> all;
    return all;
}

u64 setting(const char* name, u64 otherwise) {
    const char* text = std::getenv(name);
    return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Whether this process may use the cards: the lock goes with the process.
bool is_ours() {
    const char* path = std::getenv("EXO_EMULATED_EXCLUSIVE");
    static int file = path ? open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    return !path || flock(file, LOCK_EX | LOCK_NB) == 0;
}

// Bytes of a card that other programs hold now.
u64 taken() {
    const char* path = std::getenv("EXO_EMULATED_TAKEN");
    FILE* file = path ? std::fopen(path, "r") : nullptr;
    unsigned long long bytes = 0;
    if (file) {
        if (std::fscanf(file, "%llu", &bytes) != 1) {
            bytes = 0;
        }
        std::fclose(file);
    }
    return bytes;
}

struct Card {
    u64 held = 0;
    std::map<u64, u64> blocks;
};

struct Graph {
    std::vector<std::function<void()>> steps;
};

struct StreamState {
    Graph* capturing = nullptr;
    // Behind a kernel that never ends nothing is done, and no event comes.
    bool is_stuck = false;
};

struct Module {
    std::string text;
};

std::mutex lock;
Card cards[16];
// The current context of a thread: a card's number plus one.
thread_local u64 current = 0;

// Whether `bytes` from `at` on lie within one allocation of any card.
bool is_held(u64 at, u64 bytes) {
    std::lock_guard guard(lock);
    for (Card& card : cards) {
        auto next = card.blocks.upper_bound(at);
        if (next != card.blocks.begin() && std::prev(next)->first + std::prev(next)->second >= at + bytes) {
            return true;
        }
    }
    return false;
}

int work(void* stream, std::function<void()> step) {
    if (current == 0) {
        return INVALID_CONTEXT;
    }
    auto* state = (StreamState*)stream;
    if (state->capturing) {
        state->capturing->steps.push_back(step);
    } else if (!state->is_stuck) {
        step();
    }
    return SUCCESS;
}
}

emulated::Entry::Entry(const char* name, u32 threads, u32 args_size, void (*run)(const void*)) {
    kernels()[name] = Kernel{name, threads, args_size, run};
}

API cuInit(unsigned) { return setting("EXO_EMULATED_CARDS", 2) == 0 ? NO_DEVICE : SUCCESS; }
API cuDriverGetVersion(int* version) { *version = (int)setting("EXO_EMULATED_VERSION", 12000); return SUCCESS; }
API cuDeviceGetCount(int* count) { *count = (int)setting("EXO_EMULATED_CARDS", 2); return SUCCESS; }
API cuDeviceGet(int* device, int ordinal) { *device = ordinal; return SUCCESS; }
API cuDeviceTotalMem_v2(size_t* bytes, int) { *bytes = setting("EXO_EMULATED_BYTES", 1 << 30); return SUCCESS; }

API cuDeviceGetName(char* name, int len, int) {
    std::snprintf(name, (size_t)len, "Emulated CUDA card");
    return SUCCESS;
}

API cuDeviceGetPCIBusId(char* text, int len, int device) {
    std::snprintf(text, (size_t)len, "0000:%02X:00.0", 0xe0 + device);
    return SUCCESS;
}

API cuDeviceGetAttribute(int* value, int attribute, int device) {
    int sm = (int)setting("EXO_EMULATED_SM", 80);
    switch (attribute) {
        case 16: *value = 2; return SUCCESS;        // multiprocessors
        case 18: *value = (u64)device + 1 == setting("EXO_EMULATED_SHARED", 0); return SUCCESS;
        case 75: *value = sm / 10; return SUCCESS;  // compute capability
        case 76: *value = sm % 10; return SUCCESS;
        default: return INVALID_VALUE;
    }
}

API cuDevicePrimaryCtxRetain(void** context, int device) {
    *context = (void*)(u64)(device + 1);
    usleep((useconds_t)setting("EXO_EMULATED_OPENS_MS", 0) * 1000);
    return is_ours() ? SUCCESS : UNAVAILABLE;
}

API cuDevicePrimaryCtxRelease_v2(int) {
    usleep((useconds_t)setting("EXO_EMULATED_LINGER_MS", 0) * 1000);
    return SUCCESS;
}

API cuCtxSetCurrent(void* context) { current = (u64)context; return SUCCESS; }

API cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
    if (current == 0) {
        return INVALID_CONTEXT;
    }
    std::lock_guard guard(lock);
    *total = setting("EXO_EMULATED_BYTES", 1 << 30);
    u64 held = cards[current - 1].held + taken();
    *free_bytes = held < *total ? *total - held : 0;
    return SUCCESS;
}

API cuMemAlloc_v2(u64* at, size_t bytes) {
    if (current == 0 || bytes == 0) {
        return current == 0 ? INVALID_CONTEXT : INVALID_VALUE;
    }
    if (bytes > setting("EXO_EMULATED_ABORTS", ~0ull)) {
        std::fprintf(stderr, "emulated driver: assertion failed\n");
        std::abort();
    }
    std::lock_guard guard(lock);
    Card& card = cards[current - 1];
    if (card.held + taken() + bytes > setting("EXO_EMULATED_BYTES", 1 << 30)) {
        return OUT_OF_MEMORY;
    }
    void* block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    // What nobody wrote shows: it is no number.
    memset(block, 0xff, (bytes + 255) / 256 * 256);
    *at = (u64)block;
    card.held += bytes;
    card.blocks[*at] = bytes;
    return SUCCESS;
}

API cuMemFree_v2(u64 at) {
    std::lock_guard guard(lock);
    for (Card& card : cards) {
        auto found = card.blocks.find(at);
        if (found != card.blocks.end()) {
            card.held -= found->second;
            card.blocks.erase(found);
            std::free((void*)at);
            return SUCCESS;
        }
    }
    return INVALID_VALUE;
}

API cuMemHostAlloc(void** at, size_t bytes, unsigned) { *at = std::malloc(bytes); return *at ? SUCCESS : OUT_OF_MEMORY; }
API cuMemFreeHost(void* at) { std::free(at); return SUCCESS; }

API cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void* stream) {
    return is_held(to, bytes) ? work(stream, [=] { memcpy((void*)to, from, bytes); }) : INVALID_VALUE;
}

API cuMemcpyDtoHAsync_v2(void* to, u64 from, size_t bytes, void* stream) {
    return is_held(from, bytes) ? work(stream, [=] { memcpy(to, (void*)from, bytes); }) : INVALID_VALUE;
}

API cuMemcpyDtoDAsync_v2(u64 to, u64 from, size_t bytes, void* stream) {
    bool is_fine = is_held(to, bytes) && is_held(from, bytes);
    return is_fine ? work(stream, [=] { memmove((void*)to, (void*)from, bytes); }) : INVALID_VALUE;
}

API cuMemsetD8Async(u64 to, unsigned char value, size_t bytes, void* stream) {
    return is_held(to, bytes) ? work(stream, [=] { memset((void*)to, value, bytes); }) : INVALID_VALUE;
}

API cuModuleLoadData(void** module, const void* image) {
    std::string text((const char*)image);
    if (text.find(".version") == std::string::npos) {
        return INVALID_IMAGE;
    }
    *module = new Module{text};
    return SUCCESS;
}

API cuModuleUnload(void* module) { delete (Module*)module; return SUCCESS; }

// The PTX must have an entry of the name, whose parameter is as large as the sources' structure.
API cuModuleGetFunction(void** function, void* module, const char* name) {
    auto found = kernels().find(name);
    const std::string& text = ((Module*)module)->text;
    size_t entry = text.find(".entry " + std::string(name) + "(");
    if (found == kernels().end() || entry == std::string::npos) {
        return NOT_FOUND;
    }
    std::string size = "_param_0[" + std::to_string(found->second.args_size) + "]";
    if (text.substr(entry, text.find(')', entry) - entry).find(size) == std::string::npos) {
        std::fprintf(stderr, "%s: the PTX has another parameter than the sources (%s)\n", name, size.c_str());
        return INVALID_IMAGE;
    }
    *function = (void*)&found->second;
    return SUCCESS;
}

// For `hip.cpp`, which has no PTX to look into.
API exo_emulated_function(void** function, const char* name) {
    auto found = kernels().find(name);
    if (found == kernels().end()) {
        return NOT_FOUND;
    }
    *function = (void*)&found->second;
    return SUCCESS;
}

API cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz,
                   unsigned shared, void* stream, void** params, void**) {
    auto* kernel = (const emulated::Kernel*)function;
    if (!x || !y || y > 65535 || z != 1 || ty != 1 || tz != 1 || shared != 0 || threads != kernel->threads) {
        return INVALID_VALUE;
    }
    const char* skips = std::getenv("EXO_EMULATED_SKIPS");
    if (skips && std::string(skips) == kernel->name) {
        return work(stream, [] {});
    }
    // Arguments count as they are now, as the driver copies them.
    auto* from = (const char*)params[0];
    std::vector<char> args(from, from + kernel->args_size);
    return work(stream, [=] {
        const char* hangs = std::getenv("EXO_EMULATED_HANGS");
        if (hangs && access(hangs, F_OK) == 0) {
            ((StreamState*)stream)->is_stuck = true;
        } else {
            emulated::run(*kernel, x, y, threads, args.data());
        }
    });
}

API cuStreamCreate(void** stream, unsigned) { *stream = new StreamState; return current ? SUCCESS : INVALID_CONTEXT; }
API cuStreamDestroy_v2(void* stream) { delete (StreamState*)stream; return SUCCESS; }
API cuStreamBeginCapture_v2(void* stream, int) { ((StreamState*)stream)->capturing = new Graph; return SUCCESS; }

API cuStreamEndCapture(void* stream, void** graph) {
    auto* state = (StreamState*)stream;
    *graph = state->capturing;
    state->capturing = nullptr;
    return *graph ? SUCCESS : INVALID_VALUE;
}

API cuGraphInstantiateWithFlags(void** exec, void* graph, u64) { *exec = new Graph(*(Graph*)graph); return SUCCESS; }
API cuGraphDestroy(void* graph) { delete (Graph*)graph; return SUCCESS; }
API cuGraphExecDestroy(void* exec) { delete (Graph*)exec; return SUCCESS; }

API cuGraphLaunch(void* exec, void* stream) {
    auto* graph = (Graph*)exec;
    return work(stream, [=] {
        for (auto& step : graph->steps) {
            work(stream, step);
        }
    });
}

// An event is whether it will never come.
API cuEventCreate(void** event, unsigned) { *event = new bool(false); return SUCCESS; }
API cuEventDestroy_v2(void* event) { delete (bool*)event; return SUCCESS; }
API cuEventRecord(void* event, void* stream) {
    auto* state = (StreamState*)stream;
    *(bool*)event = state->is_stuck;
    return state->capturing ? INVALID_VALUE : SUCCESS;
}
API cuEventQuery(void* event) { return *(bool*)event ? NOT_READY : SUCCESS; }

API cuGetErrorName(int error, const char** text) {
    switch (error) {
        case OUT_OF_MEMORY: *text = "CUDA_ERROR_OUT_OF_MEMORY"; return SUCCESS;
        case UNAVAILABLE: *text = "CUDA_ERROR_DEVICE_UNAVAILABLE"; return SUCCESS;
        case NO_DEVICE: *text = "CUDA_ERROR_NO_DEVICE"; return SUCCESS;
        default: *text = "CUDA_ERROR_EMULATED"; return SUCCESS;
    }
}

API cuGetErrorString(int error, const char** text) {
    *text = error == NO_DEVICE ? "no CUDA-capable device is detected" : "told by the emulated driver";
    return SUCCESS;
}
