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

// The operands of every launch: up to three products of one x, whose thread blocks follow each other along y. `x` is f32, what
// round8.cu wrote for quants, or what halves.cu wrote; its scales likewise.
struct MatMulArgs {
    Weights w[3];
    // May be null.
    const float* bias[3];
    float* out[3];
    // What the result is added to as well; may be null. Of the first.
    float* sum;
    const void* x;
    const Rounded* x_scales;
    u32 rows;
    u32 tokens;
    // N of each, K and blocks of K.
    u32 outputs[3];
    u32 cols;
    u32 blocks;
    // Where the thread blocks of the second and of the third begin.
    u32 second;
    u32 third;
};

// The product that a thread block has a part of.
struct Product {
    Weights w;
    const void* x;
    const Rounded* x_scales;
    const float* bias;
    float* out;
    float* sum;
    u32 rows;
    u32 outputs;
    u32 cols;
    u32 blocks;
    // Of the product's thread blocks along y.
    u32 block_y;
};

// Constant indices: a parameter that is indexed by a number is copied to local memory.
DEVICE Product product_of(const MatMulArgs& a) {
    if (BLOCK_Y >= a.third) {
        return {a.w[2], a.x, a.x_scales, a.bias[2], a.out[2], 0, a.rows, a.outputs[2], a.cols, a.blocks, BLOCK_Y - a.third};
    }
    if (BLOCK_Y >= a.second) {
        return {a.w[1], a.x, a.x_scales, a.bias[1], a.out[1], 0, a.rows, a.outputs[1], a.cols, a.blocks, BLOCK_Y - a.second};
    }
    return {a.w[0], a.x, a.x_scales, a.bias[0], a.out[0], a.sum, a.rows, a.outputs[0], a.cols, a.blocks, BLOCK_Y};
}

// Slices of K whose sums are added last, from the first to the last: slice s takes the blocks s, s + 8, ... in order. Every
// product of quants and of plain floats does, so that a row's result is the same bits whatever is computed beside it.
#define SLICES 8u

DEVICE void write_result(const Product& a, u32 t, u32 n, float sum) {
    if (t < a.rows && n < a.outputs) {
        u64 at = (u64)t * a.outputs + n;
        float result = a.bias ? sum + a.bias[n] : sum;
        a.out[at] = result;
        if (a.sum) {
            a.sum[at] = a.sum[at] + result;
        }
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
DEVICE void load_x(const Product& a, u32 t, u32 c, float out[4]) {
    load_four((const float*)a.x + (u64)t * a.cols, a.cols, c, out);
}
