// Where a position of a sequence lives, with a fault for numbers that point nowhere.

@group(0) @binding(3) var<storage, read> positions: array<u32>;
@group(0) @binding(4) var<storage, read> sequences: array<u32>;
@group(0) @binding(5) var<storage, read> page_table: array<u32>;

// Whether row t's sequence and position are within the page table.
fn stands(t: u32) -> bool {
    let sequence = sequences[t];
    if sequence >= op.sequences {
        refuse(FAULT_SEQUENCE, sequence, op.sequences);
        return false;
    }
    let limit = op.pages_per_sequence * op.page_tokens;
    if positions[t] >= limit {
        refuse(FAULT_POSITION, positions[t], limit);
        return false;
    }
    return true;
}

// The page of column `index` in row t's table; op.pages if there is no such page.
fn page_of(t: u32, index: u32) -> u32 {
    let page = page_table[sequences[t] * op.pages_per_sequence + index];
    if page >= op.pages {
        refuse(FAULT_PAGE, page, op.pages);
        return op.pages;
    }
    return page;
}
