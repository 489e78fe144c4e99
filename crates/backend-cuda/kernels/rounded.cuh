// Activations in eight bits, as round8.cu leaves them, and the product of one block of them with one of weights.
#pragma once
#include "weights.cuh"

struct Rounded {
    float scale;
    // Sums of columns 0 to 15 and 16 to 31, sixteen bits each.
    u32 sums;
};

DEVICE int first_sum(const Rounded& x) {
    return (int)(short)(x.sums & 0xffffu);
}

DEVICE int second_sum(const Rounded& x) {
    return (int)(short)(x.sums >> 16);
}

// Adds a block's products to a sum: whole numbers first, which any order of adding leaves the same, then two roundings.
// `first` and `second` are the products of the numbers, less their offset, in columns 0 to 15 and 16 to 31.
template <class Q>
DEVICE float add_products(float sum, int first, int second, const Rounded& x, const Scale& s) {
    if (Q::PARTS == 2) {
        sum = fmaf(s.first * x.scale, (float)first, sum);
        return fmaf(s.second * x.scale, (float)second, sum);
    }
    sum = fmaf(s.first * x.scale, (float)(first + second), sum);
    if (Q::MINIMUM) {
        sum = fmaf(-(s.minimum * x.scale), (float)(first_sum(x) + second_sum(x)), sum);
    }
    return sum;
}

// The same of the stored numbers.
template <class Q>
DEVICE float add_block(float sum, int first, int second, const Rounded& x, const Scale& s) {
    first -= (int)Q::OFFSET * first_sum(x);
    second -= (int)Q::OFFSET * second_sum(x);
    return add_products<Q>(sum, first, second, x, s);
}

// The operands of every product. `x` is f32, what round8.cu wrote for quants, or what halves.cu wrote; its scales likewise.
struct MatMulArgs {
    Weights w;
    const void* x;
    const Rounded* x_scales;
    // May be null.
    const float* bias;
    float* out;
    u32 rows;
    u32 tokens;
    // N, K and blocks of K.
    u32 outputs;
    u32 cols;
    u32 blocks;
};

// Slices of K whose sums are added last, from the first to the last: slice s takes the blocks s, s + 8, ... in order. Every
// product of quants and of plain floats does, so that a row's result is the same bits whatever is computed beside it.
#define SLICES 8u

DEVICE void write_result(const MatMulArgs& a, u32 t, u32 n, float sum) {
    if (t < a.rows && n < a.outputs) {
        a.out[(u64)t * a.outputs + n] = a.bias ? sum + a.bias[n] : sum;
    }
}

DEVICE u32 at_most(u32 value, u32 limit) {
    return value < limit ? value : limit;
}

// Columns c to c + 3 of a row; zeros past its end.
DEVICE void load_four(const float* row, u32 cols, u32 c, float out[4]) {
    if (cols % 4u == 0u && c < cols) {
        float4 quad = *(const float4*)(row + c);
        out[0] = quad.x;
        out[1] = quad.y;
        out[2] = quad.z;
        out[3] = quad.w;
        return;
    }
    UNROLL
    for (u32 i = 0; i < 4u; i++) {
        out[i] = c + i < cols ? row[c + i] : 0.0f;
    }
}

// Of a row of x as it is.
DEVICE void load_x(const MatMulArgs& a, u32 t, u32 c, float out[4]) {
    load_four((const float*)a.x + (u64)t * a.cols, a.cols, c, out);
}
