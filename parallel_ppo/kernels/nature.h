/* The Nature CNN on square images of IMAGE pixels a side: features from bytes, and the gradients of its parameters. A source file defines IMAGE
 * and TRUNK, the name of its table of functions, and includes this.
 *
 * One thread, no globals: the caller owns all memory. `parameters` and `gradients` are 8 pointers in torch's order and layouts:
 * three convolutions (8x8 stride 4, 4x4 stride 2, 3x3), then the linear layer (weight, bias each).
 *
 * The first convolution of 64x64 images makes 15x15 pixels, of which the second reads 14x14: the others are never computed, and their gradient
 * is zero.
 */
enum { N1 = 32, N2 = 64, N3 = 64, FIRST_SIDE = (IMAGE - 8) / 4 + 1, SIDE2 = (FIRST_SIDE - 4) / 2 + 1, SIDE1 = 2 * SIDE2 + 2, SIDE3 = SIDE2 - 2 };
#define FLAT (SIDE3 * SIDE3 * N3)
#define FEATURES 512
#include "direct.h"
#include "linear.h"
#include "network.h"

#define GROUP (IMAGE > 64 ? 4 : 8) /* images that go through a layer together */

/* Pixels (and rows, where two fit) of a tile, so that all its sums stay in registers. */
enum {
    PIXELS1 = VL < 16 ? 5 : SIDE1 % 14 ? 10 : 14,
    PIXELS2 = SIDE2 <= 6 || VL == 16 ? SIDE2 : 5,
    ROWS2 = VL == 16 && SIDE2 == 6 ? 2 : 1,
    PIXELS3 = SIDE3 <= 4 || VL == 16 ? SIDE3 : 4,
    ROWS3 = VL == 16 && SIDE3 == 4 ? 2 : 1,
    DATA_PIXELS2 = SIDE2 <= 6 ? SIDE2 : 5,
    DATA_PIXELS3 = 4,
};

enum { AREA1 = SIDE1 * SIDE1 * N1, AREA2 = SIDE2 * SIDE2 * N2, WEIGHTS2 = 16 * N1 * N2, WEIGHTS3 = 9 * N2 * N3 };
static size_t weights1(int C) { return (size_t)64 * C * N1; }
static size_t convolutions(int C) { return weights1(C) + WEIGHTS2 + WEIGHTS3; }

/* What forward leaves for backward: each layer's activations. Without it all images share the places of one group. */
typedef struct {
    float *first, *second, *flat;
    size_t floats;
} saved;

static saved lay_out(float *base, int samples, int keep) {
    const size_t images = keep ? samples : samples < GROUP ? samples : GROUP;
    saved s;
    s.first = base;
    s.second = s.first + images * AREA1;
    s.flat = s.second + images * AREA2;
    s.floats = images * (AREA1 + AREA2) + (size_t)samples * FLAT;
    return s;
}

/* Scratch that no call leaves anything in. */
typedef struct {
    float *images;  /* [GROUP][64][64][C] */
    float *gradient1, *gradient2; /* [GROUP][...] of the activations */
    float *dw, *db; /* of the convolutions, [window][C][N] */
    float *x_transposed, *z_transposed, *dflat;
    size_t floats;
} scratch_space;

static scratch_space lay_out_scratch(float *base, int samples, int C) {
    scratch_space s;
    size_t at = 0;
    PLACE(images, GROUP * IMAGE * IMAGE * C);
    PLACE(gradient1, GROUP * AREA1);
    PLACE(gradient2, GROUP * AREA2);
    PLACE(dw, convolutions(C));
    PLACE(db, N1 + N2 + N3);
    PLACE(x_transposed, (size_t)FLAT * padded(samples));
    PLACE(z_transposed, (size_t)FEATURES * padded(samples));
    PLACE(dflat, (size_t)FLAT * samples);
    s.floats = at;
    return s;
}

static void load_images(const uint8_t *pixels, int images, int C, float *out) {
    for (int i = 0; i < images * IMAGE * IMAGE * C; i++) out[i] = pixels[i];
}

/* ---- forward ---- */

/* A row (or R of them) of `side` pixels, P at a time. */
INLINE void row_forward(int R, int side, int P, int size, int terms, const float *in, int in_row, int stride_row, int stride_pixel,
                        const float *w, const float *bias, float *out, int N) {
    const int whole = side / P * P;
    for (int x = 0; x < whole; x += P)
        tile_forward(R, P, size, terms, in + x * stride_pixel, in_row, stride_row, stride_pixel, w, bias, out + x * N, side * N, N);
    if (side % P)
        tile_forward(R, side % P, size, terms, in + whole * stride_pixel, in_row, stride_row, stride_pixel, w, bias, out + whole * N, side * N, N);
}

INLINE void first_layer(int images, int C, const float *in, const float *w, const float *bias, float *out) {
    for (int n = 0; n < N1; n += PANEL_LANES)
        for (int i = 0; i < images; i++)
            for (int y = 0; y < SIDE1; y++)
                row_forward(1, SIDE1, PIXELS1, 8, 8 * C, in + ((size_t)i * IMAGE + 4 * y) * IMAGE * C, IMAGE * C, 0, 4 * C, w + (size_t)n * 64 * C,
                            bias + n, out + (size_t)i * AREA1 + (size_t)y * SIDE1 * N1 + n, N1);
}

static __attribute__((noinline)) void second_layer(int images, const float *in, const float *w, const float *bias, float *out) {
    enum { ROW = SIDE1 * N1 };
    for (int n = 0; n < N2; n += PANEL_LANES)
        for (int i = 0; i < images; i++)
            for (int y = 0; y < SIDE2; y += ROWS2)
                row_forward(ROWS2, SIDE2, PIXELS2, 4, 4 * N1, in + (size_t)i * AREA1 + 2 * y * ROW, ROW, 2 * ROW, 2 * N1, w + (size_t)n * 16 * N1,
                            bias + n, out + (size_t)i * AREA2 + y * SIDE2 * N2 + n, N2);
}

static __attribute__((noinline)) void third_layer(int images, const float *in, const float *w, const float *bias, float *out) {
    enum { ROW = SIDE2 * N2 };
    for (int n = 0; n < N3; n += PANEL_LANES)
        for (int i = 0; i < images; i++)
            for (int y = 0; y < SIDE3; y += ROWS3)
                row_forward(ROWS3, SIDE3, PIXELS3, 3, 3 * N2, in + (size_t)i * AREA2 + y * ROW, ROW, ROW, N2, w + (size_t)n * 9 * N2, bias + n,
                            out + (size_t)i * FLAT + y * SIDE3 * N3 + n, N3);
}

/* ---- backward ---- */

INLINE void first_layer_weights(int images, int C, int J, const float *in, const float *g, float *dw, float *db) {
    for (int y = 0; y < 8; y++)
        for (int j = 0; j < 8 * C; j += J)
            for (int n = 0; n < N1; n += PANEL_LANES)
                tile_weights(J, 2, images, SIDE1, SIDE1, in + (size_t)y * IMAGE * C + j, IMAGE * IMAGE * C, 4 * IMAGE * C, 4 * C, g + n, AREA1,
                             SIDE1 * N1, N1, dw + ((size_t)y * 8 * C + j) * N1 + n);
    add_rows(images * SIDE1 * SIDE1, N1, g, db);
}

static __attribute__((noinline)) void second_layer_weights(int images, const float *in, const float *g, float *dw, float *db) {
    enum { V = VL == 16 ? 4 : 2, ROW = SIDE1 * N1 };
    for (int y = 0; y < 4; y++)
        row_weights(4 * N1, V, images, SIDE2, SIDE2, in + y * ROW, AREA1, 2 * ROW, 2 * N1, g, AREA2, SIDE2 * N2, N2, dw + (size_t)y * 4 * N1 * N2);
    add_rows(images * SIDE2 * SIDE2, N2, g, db);
}

static __attribute__((noinline)) void third_layer_weights(int images, const float *in, const float *g, float *dw, float *db) {
    enum { V = VL == 16 ? 4 : 2, ROW = SIDE2 * N2 };
    for (int y = 0; y < 3; y++)
        row_weights(3 * N2, V, images, SIDE3, SIDE3, in + y * ROW, AREA2, ROW, N2, g, FLAT, SIDE3 * N3, N3, dw + (size_t)y * 3 * N2 * N3);
    add_rows(images * SIDE3 * SIDE3, N3, g, db);
}

/* The data gradient of a row of `side` pixels of g, P at a time. */
INLINE void row_data(int side, int P, int V, int N, const float *g, const float *w, int w_term, float *dx, int dx_step) {
    const int whole = side / P * P;
    for (int x = 0; x < whole; x += P) tile_data(P, V, N, g + x * N, w, w_term, dx + x * dx_step, dx_step);
    if (side % P) tile_data(side % P, V, N, g + whole * N, w, w_term, dx + whole * dx_step, dx_step);
}

/* Two neighbouring taps at a time: the pixels that they reach from a row of g are all different, and next to each other. */
static __attribute__((noinline)) void second_layer_data(int images, const float *g, const float *w, const float *activation, float *dx) {
    enum { V = VL == 16 ? 4 : 2, ROW = SIDE1 * N1 };
    memset(dx, 0, (size_t)images * AREA1 * sizeof(float));
    for (int ky = 0; ky < 4; ky++)
        for (int kx = 0; kx < 4; kx += 2)
            for (int c = 0; c < 2 * N1; c += V * VL)
                for (int i = 0; i < images; i++)
                    for (int y = 0; y < SIDE2; y++)
                        row_data(SIDE2, DATA_PIXELS2, V, N2, g + (size_t)i * AREA2 + y * SIDE2 * N2, w + (size_t)(ky * 4 + kx) * N2 * N1 + c,
                                 2 * N1, dx + (size_t)i * AREA1 + (2 * y + ky) * ROW + kx * N1 + c, 2 * N1);
    through_relu((size_t)images * AREA1, activation, dx, dx);
}

static __attribute__((noinline)) void third_layer_data(int images, const float *g, const float *w, const float *activation, float *dx) {
    enum { V = VL == 16 ? 4 : 2, ROW = SIDE2 * N2 };
    memset(dx, 0, (size_t)images * AREA2 * sizeof(float));
    for (int ky = 0; ky < 3; ky++)
        for (int kx = 0; kx < 3; kx++)
            for (int c = 0; c < N2; c += V * VL)
                for (int i = 0; i < images; i++)
                    for (int y = 0; y < SIDE3; y++)
                        row_data(SIDE3, DATA_PIXELS3, V, N3, g + (size_t)i * FLAT + y * SIDE3 * N3, w + (size_t)(ky * 3 + kx) * N3 * N2 + c, N2,
                                 dx + (size_t)i * AREA2 + (y + ky) * ROW + kx * N2 + c, N2);
    through_relu((size_t)images * AREA2, activation, dx, dx);
}

static __attribute__((noinline)) void run_first(int images, int C, const float *in, const float *w, const float *bias, float *out) {
    if (C == 3) first_layer(images, 3, in, w, bias, out);
    else if (C == 4) first_layer(images, 4, in, w, bias, out);
    else first_layer(images, C, in, w, bias, out);
}

static __attribute__((noinline)) void run_first_weights(int images, int C, const float *in, const float *g, float *dw, float *db) {
    if (C == 3) first_layer_weights(images, 3, VL == 16 ? 12 : 6, in, g, dw, db);
    else if (C == 4) first_layer_weights(images, 4, VL == 16 ? 8 : 4, in, g, dw, db);
    else first_layer_weights(images, C, VL == 16 ? 8 : 4, in, g, dw, db);
}

/* ---- a layer of one group ---- */

typedef struct {
    float *first, *second, *flat; /* activations */
} group_space;

static group_space group_at(const saved *s, size_t kept, size_t first) {
    const group_space g = {s->first + kept * AREA1, s->second + kept * AREA2, s->flat + first * FLAT};
    return g;
}

static void layer_forward(int layer, int images, int C, const group_space *g, const_pointers parameters, const float *packed,
                          const scratch_space *t) {
    if (layer == 0) run_first(images, C, t->images, packed, parameters[1], g->first);
    else if (layer == 1) second_layer(images, g->first, packed + weights1(C), parameters[3], g->second);
    else third_layer(images, g->second, packed + weights1(C) + WEIGHTS2, parameters[5], g->flat);
}

/* The gradient of the layer's outputs is there: in dflat, gradient2, gradient1. */
static void layer_backward(int layer, int images, int C, const group_space *g, const float *dflat, const float *packed,
                           const scratch_space *t) {
    const float *transposed = packed + convolutions(C);
    float *dw2 = t->dw + weights1(C), *dw3 = dw2 + WEIGHTS2, *db2 = t->db + N1, *db3 = db2 + N2;
    if (layer == 0) {
        run_first_weights(images, C, t->images, t->gradient1, t->dw, t->db);
    } else if (layer == 1) {
        second_layer_weights(images, g->first, t->gradient2, dw2, db2);
        second_layer_data(images, t->gradient2, transposed, g->first, t->gradient1);
    } else {
        third_layer_weights(images, g->second, dflat, dw3, db3);
        third_layer_data(images, dflat, transposed + WEIGHTS2, g->second, t->gradient2);
    }
}

/* ---- the functions of api.h ---- */

static size_t packed_floats(const network_shape *shape) { return convolutions(shape->channels) + WEIGHTS2 + WEIGHTS3; }
static size_t saved_floats(const network_shape *shape, int samples, int keep) { return (void)shape, lay_out(0, samples, keep).floats; }
static size_t scratch_floats(const network_shape *shape, int samples) { return lay_out_scratch(0, samples, shape->channels).floats; }

/* First all weights for the forward pass, then (with `backward`) those of the second and third layer transposed. */
static void pack(const network_shape *shape, const_pointers parameters, int backward, float *packed, float *scratch) {
    const int C = shape->channels;
    (void)scratch;
    pack_forward(parameters[0], N1, C, 8, 255.0f, packed);
    pack_forward(parameters[2], N2, N1, 4, 1.0f, packed + weights1(C));
    pack_forward(parameters[4], N3, N2, 3, 1.0f, packed + weights1(C) + WEIGHTS2);
    if (!backward) return;
    pack_data(parameters[2], N2, N1, 4, 2, packed + convolutions(C));
    pack_data(parameters[4], N3, N2, 3, 1, packed + convolutions(C) + WEIGHTS2);
}

static void forward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed, int keep,
                     float *place, float *scratch, float *features) {
    const int C = shape->channels;
    const saved s = lay_out(place, samples, keep);
    const scratch_space t = lay_out_scratch(scratch, samples, C);
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        const group_space g = group_at(&s, keep ? first : 0, first);
        load_images(pixels + (size_t)first * IMAGE * IMAGE * C, images, C, t.images);
        for (int layer = 0; layer < 3; layer++) layer_forward(layer, images, C, &g, parameters, packed, &t);
    }
    linear_forward(FLAT, FEATURES, s.flat, samples, parameters[6], parameters[7], 1, t.x_transposed, t.z_transposed, features);
}

/* After `forward` with `keep` on the same place. */
static void backward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed,
                      float *place, float *scratch, const float *features, const float *dfeatures, pointers gradients) {
    const int C = shape->channels;
    const saved s = lay_out(place, samples, 1);
    const scratch_space t = lay_out_scratch(scratch, samples, C);
    memset(t.dw, 0, (size_t)(t.db + N1 + N2 + N3 - t.dw) * sizeof(float));
    linear_backward(FLAT, FEATURES, s.flat, samples, parameters[6], features, dfeatures, 1, 1, t.x_transposed, t.z_transposed, gradients[6], gradients[7], t.dflat);
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        const group_space g = group_at(&s, first, first);
        load_images(pixels + (size_t)first * IMAGE * IMAGE * C, images, C, t.images);
        for (int layer = 2; layer >= 0; layer--) layer_backward(layer, images, C, &g, t.dflat + (size_t)first * FLAT, packed, &t);
    }
    unpack_gradient(t.dw, N1, C, 8, 255.0f, gradients[0]);
    unpack_gradient(t.dw + weights1(C), N2, N1, 4, 1.0f, gradients[2]);
    unpack_gradient(t.dw + weights1(C) + WEIGHTS2, N3, N2, 3, 1.0f, gradients[4]);
    memcpy(gradients[1], t.db, N1 * sizeof(float));
    memcpy(gradients[3], t.db + N1, N2 * sizeof(float));
    memcpy(gradients[5], t.db + N1 + N2, N3 * sizeof(float));
}

/* One layer alone over all samples, as it runs inside the network; for the benchmark, after a whole forward and backward on the same place.
 * Layer 3 is the linear one. */
static void layer(const network_shape *shape, int layer, int backward, const uint8_t *pixels, int samples, const_pointers parameters,
                   const float *packed, float *place, float *scratch, float *features, pointers gradients) {
    const int C = shape->channels;
    const saved s = lay_out(place, samples, 1);
    const scratch_space t = lay_out_scratch(scratch, samples, C);
    if (layer == 3) {
        if (backward)
            linear_backward(FLAT, FEATURES, s.flat, samples, parameters[6], features, features, 1, 1, t.x_transposed, t.z_transposed, gradients[6], gradients[7],
                            t.dflat);
        else linear_forward(FLAT, FEATURES, s.flat, samples, parameters[6], parameters[7], 1, t.x_transposed, t.z_transposed, features);
        return;
    }
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        const group_space g = group_at(&s, first, first);
        if (layer == 0) load_images(pixels + (size_t)first * IMAGE * IMAGE * C, images, C, t.images);
        if (backward) layer_backward(layer, images, C, &g, t.dflat + (size_t)first * FLAT, packed, &t);
        else layer_forward(layer, images, C, &g, parameters, packed, &t);
    }
}

const trunk TRUNK = {packed_floats, saved_floats, scratch_floats, NULL, pack, forward, backward, layer};
