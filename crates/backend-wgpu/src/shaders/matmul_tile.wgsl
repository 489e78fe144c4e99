// out[t, n] = sum_k x[t, k] * w[n, k] + bias[n], for many rows t: prefill. Operands as in matmul_vec.
//
// A workgroup of 256 makes a tile of 64 rows of x by 64 of w; a block of 32 columns of both is brought to workgroup
// memory, decoded once, and each thread adds a 4 by 4 piece of the tile. The blocks of a slice come one after the
// other, and sums of finished slices wait in a stack until their partner is there, which gives the pairwise order of matmul_vec.
// Bound by arithmetic.

var<workgroup> xs: array<vec4<f32>, 512>;
var<workgroup> ws: array<vec4<f32>, 512>;
var<workgroup> w_scales: array<vec3<f32>, 64>;
var<workgroup> x_plain: array<f32, 64>;

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
    var pairs: array<f32, 16>;
    var fours: array<f32, 16>;
    var total: array<f32, 16>;
    for (var slice = 0u; slice < 8u; slice++) {
        var sums: array<f32, 16>;
        for (var block = slice; block < op.blocks; block += 8u) {
            for (var i = index; i < 512u; i += 256u) {
                xs[i] = x_quad(min(token0 + i / 8u, rows() - 1u), block, i % 8u);
                ws[i] = quad$(min(row0 + i / 8u, stored_rows$() - 1u), block, i % 8u);
            }
            if index < 64u {
                w_scales[index] = scales$(min(row0 + index, stored_rows$() - 1u), block);
            }
            workgroupBarrier();
#if MINIMUM
            if index < 64u {
                var plain = 0.0;
                for (var j = 0u; j < 8u; j++) {
                    let quad = xs[index * 8u + j];
                    plain = plain + ((quad.x + quad.y) + (quad.z + quad.w));
                }
                x_plain[index] = plain;
            }
            workgroupBarrier();
#endif
            for (var part = 0u; part < PARTS$; part++) {
                var products: array<f32, 16>;
                for (var j = part * QUADS$; j < (part + 1u) * QUADS$; j++) {
                    for (var i = 0u; i < 16u; i++) {
                        let r = r0 + i % 4u * 16u;
                        let t = t0 + i / 4u * 16u;
                        products[i] = dot_on(products[i], ws[r * 8u + j], xs[t * 8u + j]);
                    }
                }
                for (var i = 0u; i < 16u; i++) {
                    let s = w_scales[r0 + i % 4u * 16u];
                    sums[i] = fma(select(s.x, s.y, part == 1u), products[i], sums[i]);
#if MINIMUM
                    sums[i] = fma(-s.z, x_plain[t0 + i / 4u * 16u], sums[i]);
#endif
                }
            }
            workgroupBarrier();
        }
        for (var i = 0u; i < 16u; i++) {
            var sum = sums[i];
            if slice % 2u == 0u {
                pairs[i] = sum;
                continue;
            }
            sum = pairs[i] + sum;
            if slice % 4u == 1u {
                fours[i] = sum;
                continue;
            }
            sum = fours[i] + sum;
            if slice == 3u {
                total[i] = sum;
            } else {
                total[i] = total[i] + sum;
            }
        }
    }
    for (var i = 0u; i < 16u; i++) {
        let n = row0 + r0 + i % 4u * 16u;
        let t = token0 + t0 + i / 4u * 16u;
        if n < stored_rows$() && t < rows() {
            put$(t, n, finish$(n, total[i]));
        }
    }
}
