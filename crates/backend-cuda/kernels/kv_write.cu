// Stores each row's key and value at its sequence's and position's slot.
//
// | operand      | shape            | layout                             | type      |
// |--------------|------------------|------------------------------------|-----------|
// | k, v         | [T, K, D]        | rows contiguous                    | f32       |
// | keys, values | [pages, K, P, D] | rows padded to four bytes          | see below |
//
// F32 and F16 are written by one thread per element. Q8 comes in groups of 32 elements (the last may be shorter), a
// scale and then the bytes, written by one thread each: the scale is the largest magnitude over 127 as a half, an element is
// divided by it and rounded to nearest, ties to even; a group with an element that is not finite gets a scale that is no
// number. Bound by memory.
#include "pages.cuh"

struct KvWriteArgs {
    Paged paged;
    const float* k;
    const float* v;
    PagedNumbers n;
    // Threads that write a row of one head.
    u32 parts;
};

DEVICE void write_group(const float* from, u32 count, unsigned char* to) {
    float largest = 0.0f;
    // Becomes no number if an element is not finite, which a maximum may hide.
    float poison = 0.0f;
    for (u32 i = 0; i < count; i++) {
        largest = fmaxf(largest, fabsf(from[i]));
        poison += from[i] * 0.0f;
    }
    u16 bits = float_to_half(largest / 127.0f + poison);
    float scale = half_to_float(bits);
    *(u16*)to = bits;
    for (u32 i = 0; i < 32u; i++) {
        float steps = i < count && scale > 0.0f ? rintf(from[i] / scale) : 0.0f;
        to[4u + i] = (unsigned char)(int)fminf(fmaxf(steps, -127.0f), 127.0f);
    }
}

template <int STORED>
DEVICE void kv_write(const KvWriteArgs& a) {
    const PagedNumbers& n = a.n;
    u64 i = (u64)BLOCK_X * 256u + THREAD;
    u32 each = n.kv_heads * a.parts;
    if (i >= (u64)n.rows * each) {
        return;
    }
    u32 t = (u32)(i / each);
    u32 head = (u32)(i % each) / a.parts;
    u32 part = (u32)(i % each) % a.parts;
    if (!stands(a.paged, n, t, FAULT_OF_KV_WRITE)) {
        return;
    }
    u32 position = a.paged.positions[t];
    u32 page = page_of(a.paged, n, t, position / n.page_tokens, FAULT_OF_KV_WRITE);
    if (page == n.pages) {
        return;
    }
    u64 at = row_at(n, page, head, position);
    u64 from = ((u64)t * n.kv_heads + head) * n.head_dim;
    if (STORED == 32) {
        ((float*)(a.paged.keys + at))[part] = a.k[from + part];
        ((float*)(a.paged.values + at))[part] = a.v[from + part];
    } else if (STORED == 16) {
        ((u16*)(a.paged.keys + at))[part] = float_to_half(a.k[from + part]);
        ((u16*)(a.paged.values + at))[part] = float_to_half(a.v[from + part]);
    } else {
        u32 count = n.head_dim - 32u * part < 32u ? n.head_dim - 32u * part : 32u;
        write_group(a.k + from + 32u * part, count, a.paged.keys + at + GROUP_BYTES * part);
        write_group(a.v + from + 32u * part, count, a.paged.values + at + GROUP_BYTES * part);
    }
}

KERNEL(kv_write_f32, 256, KvWriteArgs) {
    kv_write<32>(a);
}

KERNEL(kv_write_f16, 256, KvWriteArgs) {
    kv_write<16>(a);
}

KERNEL(kv_write_q8, 256, KvWriteArgs) {
    kv_write<8>(a);
}
