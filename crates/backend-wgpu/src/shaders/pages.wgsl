// Where a position of a sequence lives, with a fault for numbers that point nowhere.

// A cache of keys and values, and the tables that lead to it. First in every Op that has pages.
struct Kv {
    sequences: u32,
    pages_per_sequence: u32,
    page_tokens: u32,
    pages: u32,
    // Key-value heads of this part of the cache, its first among those of the layer, and how many those are.
    heads: u32,
    first_head: u32,
    layer_heads: u32,
    head_dim: u32,
    // u32 of one row of the cache, and threads that write it.
    words: u32,
    parts: u32,
    // To whole sixteen bytes, as what stands in a uniform must have.
    unused: vec2<u32>,
}

@slot var<storage, read> positions: array<u32>;
@slot var<storage, read> sequences: array<u32>;
@slot var<storage, read> page_table: array<u32>;

// Whether row t's sequence and position are within the page table.
fn stands(t: u32) -> bool {
    let sequence = sequences[t];
    if sequence >= op.kv.sequences {
        refuse(FAULT_SEQUENCE, sequence, op.kv.sequences);
        return false;
    }
    let limit = op.kv.pages_per_sequence * op.kv.page_tokens;
    if positions[t] >= limit {
        refuse(FAULT_POSITION, positions[t], limit);
        return false;
    }
    return true;
}

// The page of column `index` in row t's table; op.kv.pages if there is no such page.
fn page_of(t: u32, index: u32) -> u32 {
    let page = page_table[sequences[t] * op.kv.pages_per_sequence + index];
    if page >= op.kv.pages {
        refuse(FAULT_PAGE, page, op.kv.pages);
        return op.kv.pages;
    }
    return page;
}

// The first u32 of the row of a head of this part at a position in a page.
fn cache_row(page: u32, head: u32, position: u32) -> u32 {
    return ((page * op.kv.heads + head) * op.kv.page_tokens + position % op.kv.page_tokens) * op.kv.words;
}
