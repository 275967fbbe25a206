/* Sizes of the IMPALA CNN and where its memory lies. */
#ifndef PARALLEL_PPO_IMPALA_LAYOUT_H
#define PARALLEL_PPO_IMPALA_LAYOUT_H

#include "linear.h"
#include "network.h"
#include "stem.h"
#include "winograd.h"

#define FEATURES 256
#define LAYERS 15 /* convolutions: layer 0 is the stem, layer 5 b + i the i-th of block b */
#ifndef GROUP
#define GROUP 16 /* images that go through the second and third block together */
#endif

typedef struct {
    int side, channels;
    int averages;                 /* the linear layer reads the mean of each channel (Impoola) */
    int size[3], tiled[3];        /* pixels a side after each block's pool, and in whole tiles of four */
    int width[3];                 /* channels of each block */
    size_t padded_floats[3];      /* of an activation [tiled+2][tiled+2][width] */
    size_t floats[3];             /* of a gradient [tiled][tiled][width], and of the pool's choices */
    int flat;                     /* numbers that the linear layer reads */
} geometry;

static geometry measure(const network_shape *shape) {
    geometry g = {.side = shape->height, .channels = shape->channels, .averages = shape->kind == IMPOOLA};
    for (int level = 0, side = shape->height; level < 3; level++) {
        side = (side + 1) / 2;
        g.size[level] = side, g.tiled[level] = in_fours(side), g.width[level] = (level ? 32 : 16) * shape->factor;
        g.padded_floats[level] = (size_t)(g.tiled[level] + 2) * (g.tiled[level] + 2) * g.width[level];
        g.floats[level] = (size_t)g.tiled[level] * g.tiled[level] * g.width[level];
    }
    g.flat = g.width[2] * (g.averages ? 1 : g.size[2] * g.size[2]);
    return g;
}

static int layer_outputs(const geometry *g, int layer) { return g->width[layer / 5]; }
static int layer_inputs(const geometry *g, int layer) {
    return layer == 0 ? g->channels : g->width[(layer - 1) / 5];
}

/* Of the transformed weights of all layers before this one. */
static size_t offset_of(const geometry *g, int layer) {
    size_t at = 0;
    for (int i = 0; i < layer; i++) {
        const size_t pairs = (size_t)layer_inputs(g, i) * layer_outputs(g, i);
        at += i ? POSITIONS * pairs : (9 * pairs + 15) / 16 * 16;
    }
    return at;
}

/* What forward leaves for backward: the input of every convolution, padded. Without it all images share the places of one group. */
typedef struct {
    float *r[3][2];   /* what each residual block starts from, through ReLU */
    float *h[3][2];   /* what is between its convolutions, through ReLU */
    float *result[3]; /* of the block */
    uint8_t *index[3];
    float *flat;
    size_t count;
} saved;

static saved lay_out(const geometry *g, float *base, int samples, int keep) {
    saved s;
    size_t at = 0;
    const size_t images = keep ? samples : samples < GROUP ? samples : GROUP;
    for (int level = 0; level < 3; level++) {
        for (int i = 0; i < 2; i++) {
            if (i == 1 && !keep) {
                s.r[level][1] = s.r[level][0], s.h[level][1] = s.h[level][0];
                continue;
            }
            s.r[level][i] = base + at, at += images * g->padded_floats[level];
            s.h[level][i] = base + at, at += images * g->padded_floats[level];
        }
        s.result[level] = base + at, at += images * g->padded_floats[level];
        s.index[level] = (uint8_t *)(base + at);
        at += images * g->floats[level] / sizeof(float);
    }
    s.flat = base + at;
    s.count = at + (size_t)samples * g->flat;
    return s;
}

/* Scratch that no call leaves anything in, except the borders that prepare_scratch writes. */
typedef struct {
    float *image;       /* stem_image_floats, border of zeros */
    float *rows;        /* the stem's convolved rows */
    float *unpooled[2]; /* of the second and third block: [tiled+1][tiled+1][width], -infinity outside the image */
    float *opened[2];   /* their gradients, [tiled][tiled][width] */
    float *winograd;
    float *gradient[3], *hidden[3]; /* of a group, of the first block of one image; forward keeps the skip connection in `gradient` */
    float *du, *db;                 /* db: [LAYERS][width[2]] */
    float *x_transposed, *z_transposed, *dflat;
    size_t count;
} scratch_space;

static size_t unpooled_floats(const geometry *g, int block) {
    return (size_t)(g->tiled[block - 1] + 1) * (g->tiled[block - 1] + 1) * g->width[block];
}

/* Of the largest layer; the stem's backward pass keeps two rows there. */
static size_t winograd_floats(const geometry *g) {
    size_t most = (size_t)4 * g->size[0] * g->width[0];
    for (int layer = 1; layer < LAYERS; layer++) {
        const size_t needed = convolution_scratch(g->tiled[(layer - 1) / 5], layer_inputs(g, layer), layer_outputs(g, layer));
        most = needed > most ? needed : most;
    }
    return most;
}

static scratch_space lay_out_scratch(const geometry *g, float *base, int samples) {
    scratch_space s;
    size_t at = 0;
    PLACE(image, stem_image_floats(g->side, g->channels));
    PLACE(rows, 4 * stem_row_floats(g->side, g->width[0]));
    for (int block = 1; block < 3; block++) {
        PLACE(unpooled[block - 1], unpooled_floats(g, block));
        PLACE(opened[block - 1], (size_t)g->tiled[block - 1] * g->tiled[block - 1] * g->width[block]);
    }
    PLACE(winograd, winograd_floats(g));
    for (int level = 0; level < 3; level++) {
        PLACE(gradient[level], (level ? GROUP : 1) * g->floats[level]);
        PLACE(hidden[level], (level ? GROUP : 1) * g->floats[level]);
    }
    PLACE(du, offset_of(g, LAYERS));
    PLACE(db, LAYERS * g->width[2]);
    PLACE(x_transposed, linear_scratch(samples, g->flat, FEATURES));
    PLACE(z_transposed, (size_t)FEATURES * padded(samples));
    PLACE(dflat, (size_t)g->flat * samples);
    s.count = at;
    return s;
}

#endif
