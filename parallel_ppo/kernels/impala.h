/* The IMPALA-CNN trunk of Procgen (16-32-32 channels, 64x64 images): features from bytes, and the gradients of its parameters. A source file
 * defines IMPALA(name), the names of its functions, and FLAT, what the linear layer reads: all 2048 numbers after the last block, or (Impoola)
 * the mean of each of the 32 channels; and includes this.
 *
 * One thread, no globals: the caller owns all memory. `parameters` and `gradients` are 32 pointers in torch's order and layouts:
 * for each of three blocks the convolution, then two residual blocks of two convolutions (weight, bias each); then the linear layer.
 *
 * Images go through a block in small groups, so that what one layer writes is still in the cache when the next reads it.
 */
#define AVERAGES (FLAT == 32)
#define FEATURES 256
#include "linear.h"
#include "network.h"
#include "pool.h"
#include "stem.h"
#include "vector.h"
#include "winograd.h"

#ifndef GROUP
#define GROUP 16 /* images that go through the second and third block together */
#endif
#define LINEAR 30 /* the linear layer's place among the parameters */

enum { AREA1 = 34 * 34 * 16, AREA2 = 18 * 18 * 32, AREA3 = 10 * 10 * 32 }; /* floats of a padded image at each level */
static const int AREA[3] = {AREA1, AREA2, AREA3};
static const int POOLED[3] = {32 * 32 * 16, 16 * 16 * 32, 8 * 8 * 32};

/* Sizes of the transformed weights; layer 0 is the stem, layer 5 b + i the i-th of block b. */
static int layer_inputs(int layer) { return layer <= 5 ? 16 : 32; }
static int layer_outputs(int layer) { return layer <= 4 ? 16 : 32; }
static size_t stem_floats(int C) { return ((size_t)9 * C * STEM + 15) / 16 * 16; }
static size_t transformed(int layer, int C) {
    return layer == 0 ? stem_floats(C) : (size_t)POSITIONS * layer_inputs(layer) * layer_outputs(layer);
}
static size_t offset_of(int layer, int C) {
    size_t at = 0;
    for (int i = 0; i < layer; i++) at += transformed(i, C);
    return at;
}

/* What forward leaves for backward: the input of every convolution, padded. Without it all images share the places of one group. */
typedef struct {
    float *r[3][2];  /* what each residual block starts from, through ReLU */
    float *h[3][2];  /* what is between its convolutions, through ReLU */
    float *result[3]; /* of the block */
    uint8_t *index[3];
    float *flat;
    size_t floats;
} saved;

static saved lay_out(float *base, int samples, int keep) {
    saved s;
    size_t at = 0;
    const size_t images = keep ? samples : samples < GROUP ? samples : GROUP;
    for (int level = 0; level < 3; level++) {
        for (int i = 0; i < 2; i++) {
            if (i == 1 && !keep) {
                s.r[level][1] = s.r[level][0], s.h[level][1] = s.h[level][0];
                continue;
            }
            s.r[level][i] = base + at, at += images * AREA[level];
            s.h[level][i] = base + at, at += images * AREA[level];
        }
        s.result[level] = base + at, at += images * AREA[level];
        s.index[level] = (uint8_t *)(base + at);
        at += images * POOLED[level] / sizeof(float);
    }
    s.flat = base + at;
    s.floats = at + (size_t)samples * FLAT;
    return s;
}

/* Scratch that no call leaves anything in, except the borders that prepare_scratch writes. */
typedef struct {
    float *image;    /* [66][66][C], border of zeros */
    float *rows;     /* the stem's convolved rows */
    float *unpooled; /* [33][33][32], border of -infinity */
    float *unpooled_small; /* [17][17][32] likewise */
    float *winograd;
    float *gradient[3], *hidden[3]; /* [GROUP][H][W][C]; forward keeps the skip connection in `gradient` */
    float *du, *db;
    float *x_transposed, *z_transposed, *dflat;
    size_t floats;
} scratch_space;

static scratch_space lay_out_scratch(float *base, int samples, int C) {
    scratch_space s;
    size_t at = 0;
    PLACE(image, (IMAGE + 2) * (IMAGE + 2) * C);
    PLACE(rows, 4 * STEM_ROW * STEM);
    PLACE(unpooled, 33 * 33 * 32);
    PLACE(unpooled_small, 17 * 17 * 32);
    PLACE(winograd, CONVOLUTION_SCRATCH);
    for (int level = 0; level < 3; level++) {
        PLACE(gradient[level], GROUP * POOLED[level]);
        PLACE(hidden[level], level == 0 ? 32 * 32 * 32 : GROUP * POOLED[level]);
    }
    PLACE(du, offset_of(15, C));
    PLACE(db, 15 * 32);
    PLACE(x_transposed, linear_scratch(samples));
    PLACE(z_transposed, (size_t)FEATURES * padded(samples));
    PLACE(dflat, (size_t)FLAT * samples);
    s.floats = at;
    return s;
}

/* The shapes of convolution, each compiled once for its sizes. */
#define SHAPE(name, W, N)                                                                                                                 \
    static __attribute__((noinline)) void name(int images, const float *in, int mode, const float *u, const float *bias, float *skip,      \
                                               float *out, float *scratch) {                                                              \
        const int row = (W + 2) * N;                                                                                                      \
        const size_t image = (size_t)(W + 2) * row;                                                                                       \
        if (mode == STORE_RELU)                                                                                                           \
            convolution(images, W, N, N, in, u, bias, STORE_RELU, skip, out + row + N, row, image, scratch);                              \
        else if (mode == STORE_SUM)                                                                                                       \
            convolution(images, W, N, N, in, u, bias, STORE_SUM, skip, out + row + N, row, image, scratch);                               \
        else                                                                                                                              \
            convolution(images, W, N, N, in, u, bias, STORE_SUM_RELU, skip, out + row + N, row, image, scratch);                          \
    }                                                                                                                                     \
    static __attribute__((noinline)) void name##_backward(int images, const float *in, int mode, const float *ut, const float *dy,         \
                                                          float *du, float *db, float *dx, float *scratch) {                              \
        if (mode == GRAD_MASK)                                                                                                            \
            convolution_backward(images, W, N, N, in, ut, dy, du, db, GRAD_MASK, dx, scratch);                                            \
        else                                                                                                                              \
            convolution_backward(images, W, N, N, in, ut, dy, du, db, GRAD_MASK_ADD, dx, scratch);                                        \
    }
SHAPE(residual_32, 32, 16)
SHAPE(residual_16, 16, 32)
SHAPE(residual_8, 8, 32)

/* A convolution that opens a block, with its pool, image by image. */
#define OPENING(name, W, K, N)                                                                                                            \
    static __attribute__((noinline)) void name(const float *in, const float *u, const float *bias, float *unpooled, float *skip,           \
                                               float *positive, uint8_t *index, float *scratch) {                                         \
        const int row = (W + 1) * N, positive_row = (W / 2 + 2) * N;                                                                      \
        convolution(1, W, K, N, in, u, bias, STORE, skip, unpooled + row + N, row, 0, scratch);                                           \
        pool(unpooled, W / 2, N, skip, positive + positive_row + N, positive_row, index);                                                 \
    }                                                                                                                                     \
    static __attribute__((noinline)) void name##_backward(const float *in, const float *ut, const float *g, const uint8_t *index,          \
                                                          float *dy, float *du, float *db, float *dx, float *scratch) {                   \
        pool_backward(g, index, W / 2, N, dy);                                                                                            \
        convolution_backward(1, W, K, N, in, ut, dy, du, db, GRAD, dx, scratch);                                                          \
    }
OPENING(opening_32, 32, 16, 32)
OPENING(opening_16, 16, 32, 32)

static __attribute__((noinline)) void stem(const uint8_t *pixels, int C, const float *w, const float *bias, const scratch_space *s,
                                           float *skip, float *positive, uint8_t *index) {
    float *inside = positive + 34 * STEM + STEM;
    load_image(pixels, C, s->image);
    if (C == 3) stem_forward(s->image, 3, w, bias, s->rows, skip, inside, 34 * STEM, index);
    else stem_forward(s->image, C, w, bias, s->rows, skip, inside, 34 * STEM, index);
}

static __attribute__((noinline)) void stem_gradient(const uint8_t *pixels, int C, const float *g, const uint8_t *index,
                                                    const scratch_space *s, float *dw, float *db) {
    load_image(pixels, C, s->image);
    /* The Winograd scratch is idle here and serves for two rows of gradient. */
    if (C == 3) stem_backward(s->image, 3, g, index, s->winograd, dw, db);
    else stem_backward(s->image, C, g, index, s->winograd, dw, db);
}

typedef void (*residual_forward)(int, const float *, int, const float *, const float *, float *, float *, float *);
typedef void (*residual_backward)(int, const float *, int, const float *, const float *, float *, float *, float *, float *);

static void residual_blocks(residual_forward layer, int level, int images, const saved *s, size_t at, const float *packed, int C,
                            const_pointers parameters, const scratch_space *t) {
    const size_t o = at * AREA[level];
    for (int i = 0; i < 2; i++) {
        const int first = 5 * level + 1 + 2 * i;
        layer(images, s->r[level][i] + o, STORE_RELU, packed + offset_of(first, C), parameters[2 * first + 1], 0, s->h[level][i] + o,
              t->winograd);
        layer(images, s->h[level][i] + o, i ? STORE_SUM : STORE_SUM_RELU, packed + offset_of(first + 1, C), parameters[2 * first + 3],
              t->gradient[level], (i ? s->result[level] : s->r[level][1]) + o, t->winograd);
    }
}

static void residual_blocks_backward(residual_backward layer, int level, int images, const saved *s, size_t at, const float *packed, int C,
                                     const scratch_space *t) {
    const size_t o = at * AREA[level];
    for (int i = 1; i >= 0; i--) {
        const int first = 5 * level + 1 + 2 * i;
        layer(images, s->h[level][i] + o, GRAD_MASK, packed + offset_of(first + 1, C), t->gradient[level], t->du + offset_of(first + 1, C),
              t->db + 32 * (first + 1), t->hidden[level], t->winograd);
        layer(images, s->r[level][i] + o, GRAD_MASK_ADD, packed + offset_of(first, C), t->hidden[level], t->du + offset_of(first, C),
              t->db + 32 * first, t->gradient[level], t->winograd);
    }
}

/* From the last block's padded result to what the linear layer reads, through ReLU. */
static void flatten(const float *x, float *flat) {
    if (AVERAGES) memset(flat, 0, FLAT * sizeof(float));
    for (int p = 0; p < 64; p++)
        for (int c = 0; c < 32; c++) {
            const float a = x[((p / 8 + 1) * 10 + p % 8 + 1) * 32 + c], positive = a < 0 ? 0 : a;
            if (AVERAGES) flat[c] += positive / 64;
            else flat[c * 64 + p] = positive;
        }
}

/* `dflat` is through the ReLU already where every number is read; of a mean, each number has its own. */
static void flatten_backward(const float *x, const float *dflat, float *gradient) {
    for (int p = 0; p < 64; p++)
        for (int c = 0; c < 32; c++) {
            const float a = x[((p / 8 + 1) * 10 + p % 8 + 1) * 32 + c];
            gradient[p * 32 + c] = !AVERAGES ? dflat[c * 64 + p] : a > 0 ? dflat[c] / 64 : 0;
        }
}

/* ---- what Python calls ---- */

size_t IMPALA(packed_floats)(int C) { return 2 * offset_of(15, C); }
size_t IMPALA(saved_floats)(int samples, int keep) { return lay_out(0, samples, keep).floats; }
size_t IMPALA(scratch_floats)(int samples, int C) { return lay_out_scratch(0, samples, C).floats; }

/* `scratch` is zero before. */
void IMPALA(prepare_scratch)(float *scratch, int samples, int C) {
    const scratch_space s = lay_out_scratch(scratch, samples, C);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < (i == 3 ? STEM_ROW * STEM : STEM); j++) s.rows[i * STEM_ROW * STEM + j] = -__builtin_inff();
    fill_pool_border(s.unpooled, 32, 32);
    fill_pool_border(s.unpooled_small, 16, 32);
}

/* First all weights for the forward pass, then (with `backward`) all transposed. */
void IMPALA(pack)(const_pointers parameters, int C, int backward, float *packed, float *scratch) {
    float *taps = lay_out_scratch(scratch, 0, C).winograd;
    pack_stem(parameters[0], C, packed);
    for (int layer = 1; layer < 15; layer++)
        for (int transposed = 0; transposed <= backward; transposed++)
            transform_weights(parameters[2 * layer], layer_inputs(layer), layer_outputs(layer), transposed, taps,
                              packed + transposed * offset_of(15, C) + offset_of(layer, C));
}

/* `place` and `scratch` have zero borders (fresh memory, or used by nothing but these functions with the same sizes). */
void IMPALA(forward)(const uint8_t *pixels, int samples, int C, const_pointers parameters, const float *packed, int keep, float *place,
                    float *scratch, float *features) {
    const saved s = lay_out(place, samples, keep);
    const scratch_space t = lay_out_scratch(scratch, samples, C);
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        const size_t at = keep ? first : 0;
        for (int i = 0; i < images; i++) {
            stem(pixels + (size_t)(first + i) * IMAGE * IMAGE * C, C, packed, parameters[1], &t, t.gradient[0], s.r[0][0] + (at + i) * AREA1,
                 s.index[0] + (at + i) * POOLED[0]);
            residual_blocks(residual_32, 0, 1, &s, at + i, packed, C, parameters, &t);
            opening_32(s.result[0] + (at + i) * AREA1, packed + offset_of(5, C), parameters[11], t.unpooled, t.gradient[1] + i * POOLED[1],
                       s.r[1][0] + (at + i) * AREA2, s.index[1] + (at + i) * POOLED[1], t.winograd);
        }
        residual_blocks(residual_16, 1, images, &s, at, packed, C, parameters, &t);
        for (int i = 0; i < images; i++)
            opening_16(s.result[1] + (at + i) * AREA2, packed + offset_of(10, C), parameters[21], t.unpooled_small,
                       t.gradient[2] + i * POOLED[2], s.r[2][0] + (at + i) * AREA3, s.index[2] + (at + i) * POOLED[2], t.winograd);
        residual_blocks(residual_8, 2, images, &s, at, packed, C, parameters, &t);
        for (int i = 0; i < images; i++) flatten(s.result[2] + (at + i) * AREA3, s.flat + (size_t)(first + i) * FLAT);
    }
    linear_forward(s.flat, samples, parameters[LINEAR], parameters[LINEAR + 1], t.x_transposed, t.z_transposed, features);
}

/* After forward with `keep` on the same place. */
void IMPALA(backward)(const uint8_t *pixels, int samples, int C, const_pointers parameters, const float *packed, float *place, float *scratch,
                     const float *features, const float *dfeatures, pointers gradients) {
    const saved s = lay_out(place, samples, 1);
    const scratch_space t = lay_out_scratch(scratch, samples, C);
    const float *transposed = packed + offset_of(15, C);
    memset(t.du, 0, (offset_of(15, C) + 15 * 32) * sizeof(float));
    linear_backward(s.flat, samples, parameters[LINEAR], features, dfeatures, t.x_transposed, t.z_transposed, gradients[LINEAR],
                    gradients[LINEAR + 1], t.dflat);
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        for (int i = 0; i < images; i++)
            flatten_backward(s.result[2] + (size_t)(first + i) * AREA3, t.dflat + (size_t)(first + i) * FLAT, t.gradient[2] + i * POOLED[2]);
        residual_blocks_backward(residual_8_backward, 2, images, &s, first, transposed, C, &t);
        for (int i = 0; i < images; i++)
            opening_16_backward(s.result[1] + (size_t)(first + i) * AREA2, transposed + offset_of(10, C), t.gradient[2] + i * POOLED[2],
                                s.index[2] + (size_t)(first + i) * POOLED[2], t.hidden[0], t.du + offset_of(10, C), t.db + 32 * 10,
                                t.gradient[1] + i * POOLED[1], t.winograd);
        residual_blocks_backward(residual_16_backward, 1, images, &s, first, transposed, C, &t);
        for (int i = 0; i < images; i++) {
            const size_t image = first + i;
            opening_32_backward(s.result[0] + image * AREA1, transposed + offset_of(5, C), t.gradient[1] + i * POOLED[1],
                                s.index[1] + image * POOLED[1], t.hidden[0], t.du + offset_of(5, C), t.db + 32 * 5, t.gradient[0],
                                t.winograd);
            residual_blocks_backward(residual_32_backward, 0, 1, &s, image, transposed, C, &t);
            stem_gradient(pixels + image * IMAGE * IMAGE * C, C, t.gradient[0], s.index[0] + image * POOLED[0], &t, t.du, t.db);
        }
    }
    unpack_stem_gradient(t.du, C, gradients[0]);
    for (int layer = 1; layer < 15; layer++)
        transform_weight_gradient(t.du + offset_of(layer, C), layer_inputs(layer), layer_outputs(layer), t.winograd, gradients[2 * layer]);
    for (int layer = 0; layer < 15; layer++)
        memcpy(gradients[2 * layer + 1], t.db + 32 * layer, layer_outputs(layer) * sizeof(float));
}

/* One layer alone over all samples, as it runs inside the network (the pools with the convolutions they follow); for the benchmark, after a
 * whole forward and backward on the same place. Layer 15 is the linear one. */
void IMPALA(layer)(int layer, int backward, const uint8_t *pixels, int samples, int C, const_pointers parameters, const float *packed,
                  float *place, float *scratch, float *features, pointers gradients) {
    const saved s = lay_out(place, samples, 1);
    const scratch_space t = lay_out_scratch(scratch, samples, C);
    const int level = layer / 5, i = (layer % 5 - 1) / 2, second = (layer % 5 - 1) % 2;
    const float *weights = packed + (backward ? offset_of(15, C) : 0) + offset_of(layer, C), *bias = parameters[2 * layer + 1];
    float *du = t.du + offset_of(layer, C), *db = t.db + 32 * layer;
    if (layer == 15) {
        if (backward)
            linear_backward(s.flat, samples, parameters[LINEAR], features, features, t.x_transposed, t.z_transposed, gradients[LINEAR],
                            gradients[LINEAR + 1], t.dflat);
        else linear_forward(s.flat, samples, parameters[LINEAR], bias, t.x_transposed, t.z_transposed, features);
        return;
    }
    if (layer % 5) { /* the first block's images go one by one */
        const residual_forward forward[3] = {residual_32, residual_16, residual_8};
        const residual_backward back[3] = {residual_32_backward, residual_16_backward, residual_8_backward};
        const int step = level == 0 ? 1 : GROUP;
        for (int first = 0; first < samples; first += step) {
            const int images = samples - first < step ? samples - first : step;
            const size_t o = (size_t)first * AREA[level];
            float *in = (second ? s.h : s.r)[level][i] + o, *out = second ? (i ? s.result[level] : s.r[level][1]) : s.h[level][i];
            if (backward)
                back[level](images, in, second ? GRAD_MASK : GRAD_MASK_ADD, weights, second ? t.gradient[level] : t.hidden[level], du, db,
                            second ? t.hidden[level] : t.gradient[level], t.winograd);
            else
                forward[level](images, in, !second ? STORE_RELU : i ? STORE_SUM : STORE_SUM_RELU, weights, bias, t.gradient[level], out + o,
                               t.winograd);
        }
        return;
    }
    for (size_t image = 0; image < (size_t)samples; image++) {
        float *positive = s.r[level][0] + image * AREA[level];
        uint8_t *index = s.index[level] + image * POOLED[level];
        const uint8_t *picture = pixels + image * IMAGE * IMAGE * C;
        const float *in = level ? s.result[level - 1] + image * AREA[level - 1] : 0;
        if (level == 0 && backward) stem_gradient(picture, C, t.gradient[0], index, &t, t.du, t.db);
        else if (level == 0) stem(picture, C, packed, bias, &t, t.gradient[0], positive, index);
        else if (level == 1 && backward)
            opening_32_backward(in, weights, t.gradient[1], index, t.hidden[0], du, db, t.gradient[0], t.winograd);
        else if (level == 1) opening_32(in, weights, bias, t.unpooled, t.gradient[1], positive, index, t.winograd);
        else if (backward) opening_16_backward(in, weights, t.gradient[2], index, t.hidden[0], du, db, t.gradient[1], t.winograd);
        else opening_16(in, weights, bias, t.unpooled_small, t.gradient[2], positive, index, t.winograd);
    }
}
