// As much of AMD's driver and kernel compiler as the backend uses, over the same emulated cards: `driver.cpp` under AMD's names. A
// kernel is not compiled here: the compiler looks whether it was handed everything, and what it makes is the source.
//
// Environment: HIP_EMULATED_CARDS (default 0; `exo demo` keeps what begins with EXO_ from its nodes), EXO_EMULATED_BYTES as there.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

typedef unsigned long long u64;
#define API extern "C" __attribute__((visibility("default"))) int
// AMD's function, which takes what NVIDIA's takes, and does the same here.
#define SAME(hip, cuda, params, args) \
    API cuda params;                  \
    API hip params { return cuda args; }

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_DEVICE = 101, COMPILATION = 6 };

int cards() {
    const char* text = std::getenv("HIP_EMULATED_CARDS");
    return text ? std::atoi(text) : 0;
}

struct Program {
    std::string source, log;
    std::vector<std::string> headers;
    bool is_compiled = false;
};

struct Copy {
    u64 to;
    const void* from;
    size_t bytes;
    void* stream;
};
thread_local std::vector<Copy> late;

const char MADE[] = "made by the emulated compiler\n";
}

SAME(hipDeviceGetPCIBusId, cuDeviceGetPCIBusId, (char* text, int len, int device), (text, len, device))
SAME(hipDeviceTotalMem, cuDeviceTotalMem_v2, (size_t* bytes, int device), (bytes, device))
SAME(hipMemGetInfo, cuMemGetInfo_v2, (size_t* free_bytes, size_t* total), (free_bytes, total))
SAME(hipMalloc, cuMemAlloc_v2, (u64* at, size_t bytes), (at, bytes))
SAME(hipFree, cuMemFree_v2, (u64 at), (at))
SAME(hipHostMalloc, cuMemHostAlloc, (void** at, size_t bytes, unsigned flags), (at, bytes, flags))
SAME(hipHostFree, cuMemFreeHost, (void* at), (at))
SAME(hipMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, (void* to, u64 from, size_t bytes, void* stream), (to, from, bytes, stream))
SAME(hipMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, (u64 to, u64 from, size_t bytes, void* stream), (to, from, bytes, stream))
SAME(hipMemsetD8Async, cuMemsetD8Async, (u64 to, unsigned char value, size_t bytes, void* stream), (to, value, bytes, stream))
SAME(hipModuleUnload, cuModuleUnload, (void* module), (module))
SAME(hipStreamCreateWithFlags, cuStreamCreate, (void** stream, unsigned flags), (stream, flags))
SAME(hipStreamDestroy, cuStreamDestroy_v2, (void* stream), (stream))
SAME(hipStreamBeginCapture, cuStreamBeginCapture_v2, (void* stream, int mode), (stream, mode))
SAME(hipStreamEndCapture, cuStreamEndCapture, (void* stream, void** graph), (stream, graph))
SAME(hipGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, (void** exec, void* graph, u64 flags), (exec, graph, flags))
SAME(hipGraphDestroy, cuGraphDestroy, (void* graph), (graph))
SAME(hipGraphExecDestroy, cuGraphExecDestroy, (void* exec), (exec))
SAME(hipGraphLaunch, cuGraphLaunch, (void* exec, void* stream), (exec, stream))
SAME(hipEventCreateWithFlags, cuEventCreate, (void** event, unsigned flags), (event, flags))
SAME(hipEventDestroy, cuEventDestroy_v2, (void* event), (event))
SAME(hipEventRecord, cuEventRecord, (void* event, void* stream), (event, stream))
SAME(hipModuleLaunchKernel, cuLaunchKernel,
     (void* function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned ty, unsigned tz, unsigned shared,
      void* stream, void** params, void** extra),
     (function, x, y, z, threads, ty, tz, shared, stream, params, extra))

API cuEventQuery(void* event);
API cuCtxSetCurrent(void* context);
API cuMemcpyHtoDAsync_v2(u64 to, const void* from, size_t bytes, void* stream);
API cuModuleLoadData(void** module, const void* image);
API exo_emulated_function(void** function, const char* name);

API hipInit(unsigned) { return cards() == 0 ? INVALID_DEVICE : SUCCESS; }
API hipDriverGetVersion(int* version) { *version = 50221153; return SUCCESS; }
API hipGetDeviceCount(int* count) { *count = cards(); return SUCCESS; }
API hipSetDevice(int device) { return device < cards() ? cuCtxSetCurrent((void*)(u64)(device + 1)) : INVALID_DEVICE; }

API hipDeviceGetName(char* name, int len, int) {
    std::snprintf(name, (size_t)len, "Emulated HIP card");
    return SUCCESS;
}

API hipDeviceGetAttribute(int* value, int attribute, int) {
    switch (attribute) {
        case 63: *value = 2; return SUCCESS;   // compute units
        case 16: *value = 0; return SUCCESS;   // shares the machine's memory
        case 23: *value = 10; return SUCCESS;  // architecture
        case 61: *value = 3; return SUCCESS;
        default: return INVALID_VALUE;
    }
}

// The bytes are read when the stream is next asked whether it is done, as AMD's driver may: who hands over memory and does not
// wait finds nothing on the card.
API hipMemcpyHtoDAsync(u64 to, const void* from, size_t bytes, void* stream) {
    late.push_back({to, from, bytes, stream});
    return SUCCESS;
}

API hipEventQuery(void* event) {
    for (auto& copy : late) {
        if (int error = cuMemcpyHtoDAsync_v2(copy.to, copy.from, copy.bytes, copy.stream)) {
            return error;
        }
    }
    late.clear();
    return cuEventQuery(event);
}

API hipModuleLoadData(void** module, const void* image) {
    if (std::strncmp((const char*)image, MADE, sizeof MADE - 1) != 0) {
        return INVALID_VALUE;
    }
    return cuModuleLoadData(module, ".version");
}

API hipModuleGetFunction(void** function, void*, const char* name) { return exo_emulated_function(function, name); }

extern "C" __attribute__((visibility("default"))) const char* hipGetErrorName(int error) {
    return error == 2 ? "hipErrorOutOfMemory" : "hipErrorEmulated";
}
extern "C" __attribute__((visibility("default"))) const char* hipGetErrorString(int) { return "told by the emulated driver"; }
extern "C" __attribute__((visibility("default"))) const char* hiprtcGetErrorString(int) { return "told by the emulated compiler"; }

API hiprtcCreateProgram(void** program, const char* source, const char*, int count, const char** headers, const char** names) {
    auto* made = new Program{source, "", {}, false};
    for (int i = 0; i < count; i++) {
        if (headers[i][0]) {
            made->headers.push_back(names[i]);
        }
    }
    *program = made;
    return SUCCESS;
}

// Every include of the source must have come along.
API hiprtcCompileProgram(void* program, int, const char**) {
    auto* made = (Program*)program;
    const std::string word = "#include \"";
    for (size_t at = made->source.find(word); at != std::string::npos; at = made->source.find(word, at + 1)) {
        size_t from = at + word.size();
        std::string name = made->source.substr(from, made->source.find('"', from) - from);
        bool is_there = false;
        for (auto& header : made->headers) {
            is_there |= header == name;
        }
        if (!is_there) {
            made->log = name + " is not there";
            return COMPILATION;
        }
    }
    made->is_compiled = true;
    return SUCCESS;
}

API hiprtcGetCodeSize(void* program, size_t* bytes) {
    auto* made = (Program*)program;
    *bytes = sizeof MADE + made->source.size();
    return made->is_compiled ? SUCCESS : INVALID_VALUE;
}

API hiprtcGetCode(void* program, char* code) {
    std::string text = MADE + ((Program*)program)->source;
    std::memcpy(code, text.c_str(), text.size() + 1);
    return SUCCESS;
}

API hiprtcGetProgramLogSize(void* program, size_t* bytes) { *bytes = ((Program*)program)->log.size() + 1; return SUCCESS; }
API hiprtcGetProgramLog(void* program, char* log) { std::strcpy(log, ((Program*)program)->log.c_str()); return SUCCESS; }
API hiprtcDestroyProgram(void** program) { delete (Program*)*program; return SUCCESS; }
