// Inputs that point nowhere: the first since the last look is told in `fault` as [count, code, value, limit]. Codes are
// numbered as in crates/backend/src/faults.rs.
#pragma once
#include "platform.cuh"

#define FAULT_TOKEN 1u
#define FAULT_ROW 2u
#define FAULT_SEQUENCE 3u
#define FAULT_POSITION 4u
#define FAULT_PAGE 5u
// Added by the kernel that writes the cache.
#define FAULT_OF_KV_WRITE 16u

DEVICE void refuse(u32* fault, u32 code, u32 value, u32 limit) {
    if (atomic_add(fault, 1u) == 0u) {
        store_seen_by_all(fault + 1, code);
        store_seen_by_all(fault + 2, value);
        store_seen_by_all(fault + 3, limit);
    }
}
