// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n], for many rows t: prefill. Operands as in matmul_vec.
//
// A workgroup of 256 makes a tile of 64 rows of x by 64 of w; a block of 32 columns of both is brought to workgroup
// memory, decoded once, and each thread adds a 4 by 4 piece of the tile. The blocks of a slice come one after the
// other, and sums of finished slices wait in a stack until their partner is there, which gives the pairwise order of matmul_vec.
// Bound by arithmetic.
//
// A piece is four vectors with names: what a loop indexes, drivers keep in memory and not in registers.

// Between a quad of a row and the next: neighbouring rows, and the quads of a row, lie in different banks.
const STRIDE: u32 = 65u;

var<workgroup> xs: array<vec4<f32>, 8u * STRIDE>;
var<workgroup> ws: array<vec4<f32>, 8u * STRIDE>;
var<workgroup> w_scales: array<vec3<f32>, 64>;
var<workgroup> x_plain: array<f32, 64>;

// Rows t0, t0 + 16, t0 + 32 and t0 + 48 of x; in each vector rows r0, r0 + 16, r0 + 32 and r0 + 48 of w.
struct Piece {
    a: vec4<f32>,
    b: vec4<f32>,
    c: vec4<f32>,
    d: vec4<f32>,
}

fn sum_of(p: Piece, q: Piece) -> Piece {
    return Piece(p.a + q.a, p.b + q.b, p.c + q.c, p.d + q.d);
}

// Four products for each row of w on top of their sums, in the order of dot_on.
fn dots_on(sums: vec4<f32>, w: mat4x4<f32>, x: vec4<f32>) -> vec4<f32> {
    return fma(w[3], vec4(x.w), fma(w[2], vec4(x.z), fma(w[1], vec4(x.y), fma(w[0], vec4(x.x), sums))));
}

fn put_row(t: u32, row: u32, sums: vec4<f32>) {
    if t >= rows() {
        return;
    }
    put_one(t, row, sums.x);
    put_one(t, row + 16u, sums.y);
    put_one(t, row + 32u, sums.z);
    put_one(t, row + 48u, sums.w);
}

fn put_one(t: u32, row: u32, sum: f32) {
    if row < stored_rows$() {
        put$(t, row, finish$(row, sum));
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {
    let row0 = group.x * 64u;
    let token0 = row_of(group) * 64u;
    if token0 >= rows() {
        return;
    }
    // Neighbouring threads take neighbouring rows of w: their results lie side by side.
    let r0 = index % 16u;
    let t0 = index / 16u;
    var pairs: Piece;
    var fours: Piece;
    var total: Piece;
    for (var slice = 0u; slice < 8u; slice++) {
        var sums: Piece;
        for (var block = slice; block < op.blocks; block += 8u) {
            for (var i = index; i < 512u; i += 256u) {
                let at = i % 8u * STRIDE + i / 8u;
                xs[at] = x_quad(min(token0 + i / 8u, rows() - 1u), block, i % 8u);
                ws[at] = quad$(min(row0 + i / 8u, stored_rows$() - 1u), block, i % 8u);
            }
            if index < 64u {
                w_scales[index] = scales$(min(row0 + index, stored_rows$() - 1u), block);
            }
            workgroupBarrier();
#if MINIMUM
            if index < 64u {
                var plain = 0.0;
                for (var j = 0u; j < 8u; j++) {
                    let quad = xs[j * STRIDE + index];
                    plain = plain + ((quad.x + quad.y) + (quad.z + quad.w));
                }
                x_plain[index] = plain;
            }
            workgroupBarrier();
#endif
            let of_row0 = w_scales[r0];
            let of_row1 = w_scales[r0 + 16u];
            let of_row2 = w_scales[r0 + 32u];
            let of_row3 = w_scales[r0 + 48u];
            for (var part = 0u; part < PARTS$; part++) {
                var products: Piece;
                for (var j = part * QUADS$; j < (part + 1u) * QUADS$; j++) {
                    let at = j * STRIDE;
                    let w = transpose(mat4x4(ws[at + r0], ws[at + r0 + 16u], ws[at + r0 + 32u], ws[at + r0 + 48u]));
                    products.a = dots_on(products.a, w, xs[at + t0]);
                    products.b = dots_on(products.b, w, xs[at + t0 + 16u]);
                    products.c = dots_on(products.c, w, xs[at + t0 + 32u]);
                    products.d = dots_on(products.d, w, xs[at + t0 + 48u]);
                }
                let first = vec4(of_row0.x, of_row1.x, of_row2.x, of_row3.x);
                let second = vec4(of_row0.y, of_row1.y, of_row2.y, of_row3.y);
                let scale = select(first, second, part == 1u);
                sums.a = fma(scale, products.a, sums.a);
                sums.b = fma(scale, products.b, sums.b);
                sums.c = fma(scale, products.c, sums.c);
                sums.d = fma(scale, products.d, sums.d);
#if MINIMUM
                let minimum = -vec4(of_row0.z, of_row1.z, of_row2.z, of_row3.z);
                sums.a = fma(minimum, vec4(x_plain[t0]), sums.a);
                sums.b = fma(minimum, vec4(x_plain[t0 + 16u]), sums.b);
                sums.c = fma(minimum, vec4(x_plain[t0 + 32u]), sums.c);
                sums.d = fma(minimum, vec4(x_plain[t0 + 48u]), sums.d);
#endif
            }
            workgroupBarrier();
        }
        if slice % 2u == 0u {
            pairs = sums;
            continue;
        }
        sums = sum_of(pairs, sums);
        if slice % 4u == 1u {
            fours = sums;
            continue;
        }
        sums = sum_of(fours, sums);
        if slice == 3u {
            total = sums;
        } else {
            total = sum_of(total, sums);
        }
    }
    put_row(token0 + t0, row0 + r0, total.a);
    put_row(token0 + t0 + 16u, row0 + r0, total.b);
    put_row(token0 + t0 + 32u, row0 + r0, total.c);
    put_row(token0 + t0 + 48u, row0 + r0, total.d);
}
