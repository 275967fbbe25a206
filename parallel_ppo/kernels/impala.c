/* The trunk of the IMPALA CNN and of Impoola: features from bytes, and the gradients of its parameters, for square images and for 16, 32 and 32
 * channels times a factor. The sizes of Procgen (64x64 images, factor 1) are compiled as constants; the bits would be the same without.
 *
 * One thread, no globals: the caller owns all memory. `parameters` and `gradients` are 32 pointers in torch's order and layouts:
 * for each of three blocks the convolution, then two residual blocks of two convolutions (weight, bias each); then the linear layer.
 *
 * Images go through a block in small groups, so that what one layer writes is still in the cache when the next reads it.
 */
#include "impala_layout.h"

#define LINEAR (2 * LAYERS) /* the linear layer's place among the parameters */
#define NOINLINE static __attribute__((noinline))

/* ---- layers, each compiled for the sizes of Procgen and once for all others ---- */

#define RESIDUAL(name, W, valid, N)                                                                                                       \
    NOINLINE void name(const geometry *g, int level, int images, const float *in, int mode, const float *u, const float *bias,             \
                       float *skip, float *out, float *scratch) {                                                                         \
        (void)g, (void)level;                                                                                                             \
        const int row = (W + 2) * N;                                                                                                      \
        const size_t image = (size_t)(W + 2) * row;                                                                                       \
        if (mode == STORE_RELU)                                                                                                           \
            convolution(images, W, valid, N, N, in, u, bias, STORE_RELU, skip, out + row + N, row, image, scratch);                       \
        else if (mode == STORE_SUM)                                                                                                       \
            convolution(images, W, valid, N, N, in, u, bias, STORE_SUM, skip, out + row + N, row, image, scratch);                        \
        else                                                                                                                              \
            convolution(images, W, valid, N, N, in, u, bias, STORE_SUM_RELU, skip, out + row + N, row, image, scratch);                   \
    }                                                                                                                                     \
    NOINLINE void name##_backward(const geometry *g, int level, int images, const float *in, int mode, const float *ut, const float *dy,   \
                                  float *du, float *db, float *dx, float *scratch) {                                                      \
        (void)g, (void)level;                                                                                                             \
        if (mode == GRAD_MASK)                                                                                                            \
            convolution_backward(images, W, valid, N, N, in, ut, dy, du, db, GRAD_MASK, dx, scratch);                                     \
        else                                                                                                                              \
            convolution_backward(images, W, valid, N, N, in, ut, dy, du, db, GRAD_MASK_ADD, dx, scratch);                                 \
    }
RESIDUAL(residual_32, 32, 32, 16)
RESIDUAL(residual_16, 16, 16, 32)
RESIDUAL(residual_8, 8, 8, 32)
RESIDUAL(residual_other, g->tiled[level], g->size[level], g->width[level])

/* A convolution that opens the second or third block, with its pool, image by image; W pixels a side before it. */
#define OPENING(name, W, valid, K, N, next)                                                                                               \
    NOINLINE void name(const geometry *g, int block, const float *in, const float *u, const float *bias, float *unpooled, float *skip,     \
                       float *positive, uint8_t *index, float *scratch) {                                                                 \
        (void)g, (void)block;                                                                                                             \
        const int row = (W + 1) * N, positive_row = (next + 2) * N;                                                                       \
        convolution(1, W, valid, K, N, in, u, bias, STORE, skip, unpooled + row + N, row, 0, scratch);                                    \
        pool(unpooled, W, (valid + 1) / 2, N, next * N, skip, positive + positive_row + N, positive_row, index);                          \
    }                                                                                                                                     \
    NOINLINE void name##_backward(const geometry *g, int block, const float *in, const float *ut, const float *gradient,                   \
                                  const uint8_t *index, float *dy, float *du, float *db, float *dx, float *scratch) {                     \
        (void)g, (void)block;                                                                                                             \
        pool_backward(gradient, index, W, (valid + 1) / 2, N, next * N, dy);                                                              \
        convolution_backward(1, W, valid, K, N, in, ut, dy, du, db, GRAD, dx, scratch);                                                   \
    }
OPENING(opening_32, 32, 32, 16, 32, 16)
OPENING(opening_16, 16, 16, 32, 32, 8)
OPENING(opening_other, g->tiled[block - 1], g->size[block - 1], g->width[block - 1], g->width[block], g->tiled[block])

/* Whether a level's images are of this size, and whether the factor is 1. */
static int has_size(const geometry *g, int level, int size) { return g->size[level] == size && g->width[0] == 16; }

typedef void residual_function(const geometry *, int, int, const float *, int, const float *, const float *, float *, float *, float *);
typedef void residual_backward_function(const geometry *, int, int, const float *, int, const float *, const float *, float *, float *, float *,
                                        float *);
typedef void opening_function(const geometry *, int, const float *, const float *, const float *, float *, float *, float *, uint8_t *, float *);
typedef void opening_backward_function(const geometry *, int, const float *, const float *, const float *, const uint8_t *, float *, float *,
                                       float *, float *, float *);

/* Which of the residual functions fits a level: 0 to 2 for Procgen's sizes, 3 for all others. */
static int residual_choice(const geometry *g, int level) { return has_size(g, level, 32 >> level) ? level : 3; }

static residual_function *residual_of(const geometry *g, int level) {
    static residual_function *const functions[] = {residual_32, residual_16, residual_8, residual_other};
    return functions[residual_choice(g, level)];
}

static residual_backward_function *residual_backward_of(const geometry *g, int level) {
    static residual_backward_function *const functions[] = {residual_32_backward, residual_16_backward, residual_8_backward,
                                                            residual_other_backward};
    return functions[residual_choice(g, level)];
}

static opening_function *opening_of(const geometry *g, int block) {
    if (!has_size(g, 0, 32)) return opening_other;
    return block == 1 ? opening_32 : opening_16;
}

static opening_backward_function *opening_backward_of(const geometry *g, int block) {
    if (!has_size(g, 0, 32)) return opening_other_backward;
    return block == 1 ? opening_32_backward : opening_16_backward;
}

NOINLINE void stem(const geometry *g, const uint8_t *pixels, const float *w, const float *bias, const scratch_space *t, float *skip,
                   float *positive, uint8_t *index) {
    const int S = g->side, C = g->channels, N = g->width[0], row = g->tiled[0] * N, positive_row = row + 2 * N;
    float *inside = positive + positive_row + N;
    load_image(pixels, S, C, t->image);
    if (S == 64 && C == 3 && N == 16)
        stem_forward(t->image, 64, 3, 16, w, bias, t->rows, skip, 32 * 16, inside, 34 * 16, index);
    else
        stem_forward(t->image, S, C, N, w, bias, t->rows, skip, row, inside, positive_row, index);
}

NOINLINE void stem_gradient(const geometry *g, const uint8_t *pixels, const float *gradient, const uint8_t *index, const scratch_space *t) {
    const int S = g->side, C = g->channels, N = g->width[0];
    load_image(pixels, S, C, t->image);
    /* The Winograd scratch is idle here and serves for two rows of gradient. */
    if (S == 64 && C == 3 && N == 16)
        stem_backward(t->image, 64, 3, 16, gradient, 32 * 16, index, t->winograd, t->du, t->db);
    else
        stem_backward(t->image, S, C, N, gradient, g->tiled[0] * N, index, t->winograd, t->du, t->db);
}

/* ---- the network ---- */

/* One network with its memory for one call. */
typedef struct {
    geometry g;
    saved s;
    scratch_space t;
} network;

static network network_at(const network_shape *shape, int samples, int keep, float *place, float *scratch) {
    network n = {.g = measure(shape)};
    n.s = lay_out(&n.g, place, samples, keep);
    n.t = lay_out_scratch(&n.g, scratch, samples);
    return n;
}

/* One convolution of a residual block over `images` images from the one `at`. */
static void residual(const network *n, int layer, int images, size_t at, const float *packed, const_pointers parameters) {
    const geometry *g = &n->g;
    const int level = layer / 5, i = (layer % 5 - 1) / 2, second = (layer % 5 - 1) % 2;
    const size_t o = at * g->padded_floats[level];
    float *in = (second ? n->s.h : n->s.r)[level][i], *out = second ? (i ? n->s.result[level] : n->s.r[level][1]) : n->s.h[level][i];
    residual_of(g, level)(g, level, images, in + o, !second ? STORE_RELU : i ? STORE_SUM : STORE_SUM_RELU, packed + offset_of(g, layer), parameters[2 * layer + 1],
     n->t.gradient[level], out + o, n->t.winograd);
}

static void residual_gradient(const network *n, int layer, int images, size_t at, const float *transposed) {
    const geometry *g = &n->g;
    const int level = layer / 5, i = (layer % 5 - 1) / 2, second = (layer % 5 - 1) % 2;
    const float *in = (second ? n->s.h : n->s.r)[level][i] + at * g->padded_floats[level];
    float *gradient = n->t.gradient[level], *hidden = n->t.hidden[level];
    const size_t o = offset_of(g, layer);
    residual_backward_of(g, level)(g, level, images, in, second ? GRAD_MASK : GRAD_MASK_ADD, transposed + o, second ? gradient : hidden, n->t.du + o,
     n->t.db + layer * g->width[2], second ? hidden : gradient, n->t.winograd);
}

/* The first convolution of a block and its pool, for the image `at` whose skip connection is the `slot`-th of the group's. */
static void opening(const network *n, int block, size_t at, int slot, const uint8_t *picture, const float *packed, const_pointers parameters) {
    const geometry *g = &n->g;
    float *skip = n->t.gradient[block] + slot * g->floats[block], *positive = n->s.r[block][0] + at * g->padded_floats[block];
    uint8_t *index = n->s.index[block] + at * g->floats[block];
    if (block == 0) stem(g, picture, packed, parameters[1], &n->t, skip, positive, index);
    else
        opening_of(g, block)(g, block, n->s.result[block - 1] + at * g->padded_floats[block - 1], packed + offset_of(g, 5 * block), parameters[10 * block + 1],
         n->t.unpooled[block - 1], skip, positive, index, n->t.winograd);
}

/* `below`: the place of the image's gradient in the block before. */
static void opening_gradient(const network *n, int block, size_t at, int slot, int below, const uint8_t *picture, const float *transposed) {
    const geometry *g = &n->g;
    const float *gradient = n->t.gradient[block] + slot * g->floats[block];
    const uint8_t *index = n->s.index[block] + at * g->floats[block];
    const size_t o = offset_of(g, 5 * block);
    if (block == 0) stem_gradient(g, picture, gradient, index, &n->t);
    else
        opening_backward_of(g, block)(g, block, n->s.result[block - 1] + at * g->padded_floats[block - 1], transposed + o, gradient, index, n->t.opened[block - 1],
         n->t.du + o, n->t.db + 5 * block * g->width[2], n->t.gradient[block - 1] + below * g->floats[block - 1], n->t.winograd);
}

/* From the last block's padded result to what the linear layer reads, through ReLU. */
static void flatten(const geometry *g, const float *x, float *flat) {
    const int P = g->size[2], N = g->width[2], pixels = P * P;
    if (g->averages) memset(flat, 0, N * sizeof(float));
    for (int p = 0; p < pixels; p++)
        for (int c = 0; c < N; c++) {
            const float a = x[((p / P + 1) * (g->tiled[2] + 2) + p % P + 1) * N + c], positive = a < 0 ? 0 : a;
            if (g->averages) flat[c] += positive / pixels;
            else flat[c * pixels + p] = positive;
        }
}

/* `dflat` is through the ReLU already where every number is read; of a mean, each number has its own. */
static void flatten_backward(const geometry *g, const float *x, const float *dflat, float *gradient) {
    const int P = g->size[2], N = g->width[2], pixels = P * P;
    for (int p = 0; p < pixels; p++)
        for (int c = 0; c < N; c++) {
            const float a = x[((p / P + 1) * (g->tiled[2] + 2) + p % P + 1) * N + c];
            gradient[(p / P * g->tiled[2] + p % P) * N + c] = !g->averages ? dflat[c * pixels + p] : a > 0 ? dflat[c] / pixels : 0;
        }
}

/* ---- the functions of api.h ---- */

static size_t packed_floats(const network_shape *shape) {
    const geometry g = measure(shape);
    return 2 * offset_of(&g, LAYERS);
}
static size_t saved_floats(const network_shape *shape, int samples, int keep) { return network_at(shape, samples, keep, 0, 0).s.count; }
static size_t scratch_floats(const network_shape *shape, int samples) { return network_at(shape, samples, 0, 0, 0).t.count; }

/* `scratch` is zero before. */
static void prepare_scratch(const network_shape *shape, float *scratch, int samples) {
    const network n = network_at(shape, samples, 0, 0, scratch);
    fill_unpooled(n.t.rows, 4 * stem_row_floats(n.g.side, n.g.width[0]));
    for (int block = 1; block < 3; block++) fill_unpooled(n.t.unpooled[block - 1], unpooled_floats(&n.g, block));
}

/* First all weights for the forward pass, then (with `backward`) all transposed. */
static void pack(const network_shape *shape, const_pointers parameters, int backward, float *packed, float *scratch) {
    const network n = network_at(shape, 0, 0, 0, scratch);
    const geometry *g = &n.g;
    pack_stem(parameters[0], g->channels, g->width[0], packed);
    for (int layer = 1; layer < LAYERS; layer++)
        for (int transposed = 0; transposed <= backward; transposed++)
            transform_weights(parameters[2 * layer], layer_inputs(g, layer), layer_outputs(g, layer), transposed, n.t.winograd,
                              packed + transposed * offset_of(g, LAYERS) + offset_of(g, layer));
}

/* `place` and `scratch` have zero borders (fresh memory, or used by nothing but these functions with the same sizes). */
static void forward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed, int keep,
                    float *place, float *scratch, float *features) {
    const network n = network_at(shape, samples, keep, place, scratch);
    const size_t picture = (size_t)n.g.side * n.g.side * n.g.channels;
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        const size_t at = keep ? first : 0;
        for (int i = 0; i < images; i++) {
            opening(&n, 0, at + i, 0, pixels + (first + i) * picture, packed, parameters);
            for (int layer = 1; layer < 5; layer++) residual(&n, layer, 1, at + i, packed, parameters);
            opening(&n, 1, at + i, i, 0, packed, parameters);
        }
        for (int layer = 6; layer < 10; layer++) residual(&n, layer, images, at, packed, parameters);
        for (int i = 0; i < images; i++) opening(&n, 2, at + i, i, 0, packed, parameters);
        for (int layer = 11; layer < 15; layer++) residual(&n, layer, images, at, packed, parameters);
        for (int i = 0; i < images; i++)
            flatten(&n.g, n.s.result[2] + (at + i) * n.g.padded_floats[2], n.s.flat + (size_t)(first + i) * n.g.flat);
    }
    linear_forward(n.g.flat, FEATURES, n.s.flat, samples, parameters[LINEAR], parameters[LINEAR + 1], 1, n.t.x_transposed, n.t.z_transposed,
                   features);
}

/* After forward with `keep` on the same place. */
static void backward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed,
                     float *place, float *scratch, const float *features, const float *dfeatures, pointers gradients) {
    const network n = network_at(shape, samples, 1, place, scratch);
    const geometry *g = &n.g;
    const float *transposed = packed + offset_of(g, LAYERS);
    const size_t picture = (size_t)g->side * g->side * g->channels;
    memset(n.t.du, 0, (size_t)(n.t.db + LAYERS * g->width[2] - n.t.du) * sizeof(float));
    linear_backward(g->flat, FEATURES, n.s.flat, samples, parameters[LINEAR], features, dfeatures, 1, 1, n.t.x_transposed, n.t.z_transposed,
                    gradients[LINEAR], gradients[LINEAR + 1], n.t.dflat);
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        for (int i = 0; i < images; i++)
            flatten_backward(g, n.s.result[2] + (first + i) * g->padded_floats[2], n.t.dflat + (size_t)(first + i) * g->flat,
                             n.t.gradient[2] + i * g->floats[2]);
        for (int layer = 14; layer > 10; layer--) residual_gradient(&n, layer, images, first, transposed);
        for (int i = 0; i < images; i++) opening_gradient(&n, 2, first + i, i, i, 0, transposed);
        for (int layer = 9; layer > 5; layer--) residual_gradient(&n, layer, images, first, transposed);
        for (int i = 0; i < images; i++) {
            opening_gradient(&n, 1, first + i, i, 0, 0, transposed);
            for (int layer = 4; layer > 0; layer--) residual_gradient(&n, layer, 1, first + i, transposed);
            opening_gradient(&n, 0, first + i, 0, 0, pixels + (first + i) * picture, transposed);
        }
    }
    unpack_stem_gradient(n.t.du, g->channels, g->width[0], gradients[0]);
    for (int layer = 1; layer < LAYERS; layer++)
        transform_weight_gradient(n.t.du + offset_of(g, layer), layer_inputs(g, layer), layer_outputs(g, layer), n.t.winograd,
                                  gradients[2 * layer]);
    for (int layer = 0; layer < LAYERS; layer++)
        memcpy(gradients[2 * layer + 1], n.t.db + layer * g->width[2], layer_outputs(g, layer) * sizeof(float));
}

/* One layer alone over all samples, as it runs inside the network (the pools with the convolutions they follow); for the benchmark, after a
 * whole forward and backward on the same place. Layer 15 is the linear one. */
static void layer(const network_shape *shape, int layer, int backward, const uint8_t *pixels, int samples, const_pointers parameters,
                  const float *packed, float *place, float *scratch, float *features, pointers gradients) {
    const network n = network_at(shape, samples, 1, place, scratch);
    const geometry *g = &n.g;
    const float *transposed = packed + offset_of(g, LAYERS);
    if (layer == LAYERS && backward)
        linear_backward(g->flat, FEATURES, n.s.flat, samples, parameters[LINEAR], features, features, 1, 1, n.t.x_transposed, n.t.z_transposed,
                        gradients[LINEAR], gradients[LINEAR + 1], n.t.dflat);
    else if (layer == LAYERS)
        linear_forward(g->flat, FEATURES, n.s.flat, samples, parameters[LINEAR], parameters[LINEAR + 1], 1, n.t.x_transposed, n.t.z_transposed,
                       features);
    const int step = layer % 5 && layer > 5 ? GROUP : 1; /* the first block's images, and openings, go one by one */
    for (int first = 0; layer < LAYERS && first < samples; first += step) {
        const int images = samples - first < step ? samples - first : step;
        const uint8_t *picture = pixels + (size_t)first * g->side * g->side * g->channels;
        if (layer % 5 && backward) residual_gradient(&n, layer, images, first, transposed);
        else if (layer % 5) residual(&n, layer, images, first, packed, parameters);
        else if (backward) opening_gradient(&n, layer / 5, first, 0, 0, picture, transposed);
        else opening(&n, layer / 5, first, 0, picture, packed, parameters);
    }
}

const trunk impala_trunk = {packed_floats, saved_floats, scratch_floats, prepare_scratch, pack, forward, backward, layer};
