// Where a position of a sequence lives, with a fault for numbers that point nowhere.
#pragma once
#include "fault.cuh"

// The operands that every kernel on pages begins with. A page's rows are [K, P] of `row_bytes` each.
struct Paged {
    u32* fault;
    const u32* positions;
    const u32* sequences;
    const u32* page_table;
    unsigned char* keys;
    unsigned char* values;
};

struct PagedNumbers {
    u32 rows;
    u32 tokens;
    u32 sequences;
    u32 pages_per_sequence;
    u32 page_tokens;
    u32 pages;
    u32 kv_heads;
    u32 head_dim;
    u32 row_bytes;
};

// Whether row t's sequence and position are within the page table.
DEVICE bool stands(const Paged& p, const PagedNumbers& n, u32 t, u32 of) {
    if (p.sequences[t] >= n.sequences) {
        refuse(p.fault, of + FAULT_SEQUENCE, p.sequences[t], n.sequences);
        return false;
    }
    u32 limit = n.pages_per_sequence * n.page_tokens;
    if (p.positions[t] >= limit) {
        refuse(p.fault, of + FAULT_POSITION, p.positions[t], limit);
        return false;
    }
    return true;
}

// The page of column `index` in row t's table; n.pages if there is no such page.
DEVICE u32 page_of(const Paged& p, const PagedNumbers& n, u32 t, u32 index, u32 of) {
    u32 page = p.page_table[(u64)p.sequences[t] * n.pages_per_sequence + index];
    if (page >= n.pages) {
        refuse(p.fault, of + FAULT_PAGE, page, n.pages);
        return n.pages;
    }
    return page;
}

// First byte of a position's row.
DEVICE u64 row_at(const PagedNumbers& n, u32 page, u32 kv_head, u32 position) {
    return (((u64)page * n.kv_heads + kv_head) * n.page_tokens + position % n.page_tokens) * n.row_bytes;
}

// Bytes of a group of Q8: its scale as a half, two unused, then 32 signed bytes.
#define GROUP_BYTES 36u
