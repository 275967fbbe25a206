/* The network for images up to 32x32 (`policies/trunks.py`): features from bytes, and the gradients of its parameters.
 *
 * One thread, no globals: the caller owns all memory. `parameters` and `gradients` are pointers in torch's order and layouts: kinds (weight,
 * bias), brightness (weight), each convolution (weight, bias), the linear layer (weight, bias).
 *
 * What a byte adds to its pixel depends on its channel and value only, so kinds and brightness are one table to look up. Every convolution is
 * 3x3 from 16 channels to 16, and so is its transpose: both are sums over windows of a map with a border of zeros (`convolve`). Borders are
 * never written: memory comes as zeros.
 */
#include "direct.h"
#include "linear.h"
#include "network.h"

enum { N = 16, V = N / VL, KINDS = 16, VALUES = 256, FEATURES = 128, LARGEST_MAP = 8, MAX_CONVOLUTIONS = 3, WEIGHTS = 9 * N * N };
enum { GROUP = 8 }; /* images that go through a layer together */
/* Images and pixels of a tile, so that all its sums stay in registers; terms of a window's row whose gradients do. */
enum { IMAGES = VL == 16 ? 2 : 1, PIXELS = VL == 16 ? 12 : 6, TERMS_AT_ONCE = VL == 16 ? 12 : 6 };

/* [height + 2][width + 2][N]; `row` and `floats` of it, `inside` is where the border ends */
typedef struct {
    int height, width;
    size_t row, floats, inside;
} map;

typedef struct {
    int channels, convolutions, flat;
    map maps[MAX_CONVOLUTIONS + 1]; /* what the first convolution reads, then what each makes */
} geometry;

static map map_of(int height, int width) {
    const size_t row = (size_t)(width + 2) * N;
    return (map){height, width, row, (height + 2) * row, row + N};
}

static geometry measure(const network_shape *shape) {
    int height = shape->height, width = shape->width, count = 1;
    geometry g = {.channels = shape->channels, .maps = {map_of(height, width), map_of(height, width)}};
    for (; height > LARGEST_MAP || width > LARGEST_MAP; count++) {
        height = (height + 1) / 2, width = (width + 1) / 2;
        g.maps[count + 1] = map_of(height, width);
    }
    g.convolutions = count, g.flat = height * width * N;
    return g;
}

static int stride_of(int layer) { return layer ? 2 : 1; }

/* What forward leaves for backward: the input of every layer. Without it all images share the places of one group. */
typedef struct {
    float *maps[MAX_CONVOLUTIONS], *flat;
    size_t floats;
} saved;

static saved lay_out(const geometry *g, float *base, int samples, int keep) {
    const size_t images = keep ? samples : samples < GROUP ? samples : GROUP;
    saved s;
    size_t at = 0;
    for (int i = 0; i < g->convolutions; i++) PLACE(maps[i], images * g->maps[i].floats);
    PLACE(flat, (size_t)samples * g->flat);
    s.floats = at;
    return s;
}

/* Scratch that no call leaves anything in. The gradients of the maps come first: their borders stay zeros for every number of samples. */
typedef struct {
    float *gradient[MAX_CONVOLUTIONS + 1];                      /* [GROUP] maps */
    float *dw[MAX_CONVOLUTIONS], *db[MAX_CONVOLUTIONS + 1];     /* [3][3][N][N]; db[0] is that of the kinds */
    float *dkinds, *dbrightness;                                /* [channel][kind][N], [channel][N] */
    float *x_transposed, *z_transposed, *dflat;
    size_t floats;
} scratch_space;

static scratch_space lay_out_scratch(const geometry *g, float *base, int samples) {
    scratch_space s;
    size_t at = 0;
    for (int i = 0; i <= g->convolutions; i++) PLACE(gradient[i], GROUP * g->maps[i].floats);
    for (int i = 0; i < g->convolutions; i++) PLACE(dw[i], WEIGHTS);
    for (int i = 0; i <= g->convolutions; i++) PLACE(db[i], N);
    PLACE(dkinds, g->channels * KINDS * N);
    PLACE(dbrightness, g->channels * N);
    PLACE(x_transposed, linear_scratch(samples, g->flat, FEATURES));
    PLACE(z_transposed, (size_t)FEATURES * padded(samples));
    PLACE(dflat, (size_t)samples * g->flat);
    s.floats = at;
    return s;
}

/* The weights as the passes read them. */
typedef struct {
    float *table;                                             /* [channel][value][N] */
    float *forward[MAX_CONVOLUTIONS], *data[MAX_CONVOLUTIONS]; /* [3][3][inputs][outputs], and by the windows of the transpose */
    size_t floats;
} packed_space;

static packed_space lay_out_packed(const geometry *g, float *base) {
    packed_space s;
    size_t at = 0;
    PLACE(table, g->channels * VALUES * N);
    for (int i = 0; i < g->convolutions; i++) {
        PLACE(forward[i], WEIGHTS);
        PLACE(data[i], WEIGHTS);
    }
    s.floats = at;
    return s;
}

/* ---- sums over windows ---- */

/* Windows of `rows` rows of `terms` numbers, over `images` images, `down` windows one below the other and `across` beside each other. */
typedef struct {
    int images, down, across, rows, terms;
    const float *w;    /* [rows][terms][N] */
    const float *bias; /* [N] */
    const float *in;
    size_t in_image, in_row, in_down; /* from image to image, in a window from row to row, from window to window below */
    float *out;
    size_t out_image, out_down;
    int out_step;
    const float *activation; /* as `out`: what is not positive there stays zero; without it, what is not positive here */
} windows;

INLINE void tile(int R, int P, int step, const windows *c, const float *in, size_t out) {
    vec sum[IMAGES * PIXELS][4];
    UNROLL for (int i = 0; i < R * P; i++)
        UNROLL for (int v = 0; v < V; v++) sum[i][v] = v_load(c->bias + v * VL);
    for (int y = 0; y < c->rows; y++)
        tile_add(R, P, V, c->terms, in + y * c->in_row, c->in_image, step, c->w + (size_t)y * c->terms * N, N, sum);
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (int v = 0; v < V; v++) {
                const size_t at = out + r * c->out_image + p * c->out_step + v * VL;
                const vec a = sum[r * P + p][v];
                v_store(c->out + at, c->activation ? v_where_positive(v_load(c->activation + at), a) : v_relu(a));
            }
}

#define TILE(P) \
    case P: \
        if (P <= PIXELS) tile(R, P <= PIXELS ? P : 1, step, c, in, out); \
        break;

INLINE void any_tile(int R, int pixels, int step, const windows *c, const float *in, size_t out) {
    switch (pixels) { TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6) TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12) }
}

/* A row is cut into parts of nearly one length. */
INLINE void image_windows(int R, int step, const windows *c, int image) {
    const int parts = (c->across + PIXELS - 1) / PIXELS;
    for (int y = 0; y < c->down; y++)
        for (int i = 0; i < parts; i++) {
            const int x = c->across * i / parts, pixels = c->across * (i + 1) / parts - x;
            any_tile(R, pixels, step, c, c->in + image * c->in_image + y * c->in_down + (size_t)x * step,
                     image * c->out_image + y * c->out_down + (size_t)x * c->out_step);
        }
}

INLINE void all_windows(int step, const windows *c) {
    int image = 0;
    for (; image + IMAGES <= c->images; image += IMAGES) image_windows(IMAGES, step, c, image);
    for (; image < c->images; image++) image_windows(1, step, c, image);
}

static __attribute__((noinline)) void convolve(const windows *c) { all_windows(N, c); }
static __attribute__((noinline)) void convolve_every_second(const windows *c) { all_windows(2 * N, c); }

/* ---- the layers of one group ---- */

INLINE void embed(const geometry *g, const uint8_t *pixels, int images, const float *table, const float *bias, float *out) {
    const map m = g->maps[0];
    for (int i = 0; i < images; i++)
        for (int y = 0; y < m.height; y++)
            for (int x = 0; x < m.width; x++, pixels += g->channels) {
                vec sum[V];
                UNROLL for (int v = 0; v < V; v++) sum[v] = v_load(bias + v * VL);
                for (int c = 0; c < g->channels; c++)
                    UNROLL for (int v = 0; v < V; v++) sum[v] = v_add(sum[v], v_load(table + ((size_t)c * VALUES + pixels[c]) * N + v * VL));
                float *at = out + i * m.floats + m.inside + y * m.row + (size_t)x * N;
                UNROLL for (int v = 0; v < V; v++) v_store(at + v * VL, v_relu(sum[v]));
            }
}

static void embed_backward(const geometry *g, const uint8_t *pixels, int images, const scratch_space *t) {
    const map m = g->maps[0];
    for (int i = 0; i < images; i++)
        for (int y = 0; y < m.height; y++)
            for (int x = 0; x < m.width; x++, pixels += g->channels) {
                const float *slope = t->gradient[0] + i * m.floats + m.inside + y * m.row + (size_t)x * N;
                for (int c = 0; c < g->channels; c++) {
                    float *brightness = t->dbrightness + c * N;
                    UNROLL for (int v = 0; v < N; v += VL)
                        v_store(brightness + v, v_fma(v_set(pixels[c]), v_load(slope + v), v_load(brightness + v)));
                    if (pixels[c] < KINDS) add_rows(1, N, slope, t->dkinds + (c * KINDS + pixels[c]) * N);
                }
            }
    add_rows(images * (int)(m.floats / N), N, t->gradient[0], t->db[0]);
}

/* `out` is the next layer's map, or `flat`, which has no border */
static void forward_layer(const geometry *g, int layer, int images, const float *in, const float *w, const float *bias, float *out) {
    const map m = g->maps[layer], o = g->maps[layer + 1];
    const int is_last = layer + 1 == g->convolutions, stride = stride_of(layer);
    const windows c = {
        .images = images, .down = o.height, .across = o.width, .rows = 3, .terms = 3 * N, .w = w, .bias = bias,
        .in = in, .in_image = m.floats, .in_row = m.row, .in_down = stride * m.row,
        .out = is_last ? out : out + o.inside, .out_image = is_last ? (size_t)g->flat : o.floats,
        .out_down = is_last ? (size_t)o.width * N : o.row, .out_step = N,
    };
    if (stride == 1) convolve(&c);
    else convolve_every_second(&c);
}

static void weights_layer(const geometry *g, int layer, int images, const float *in, const scratch_space *t) {
    const map m = g->maps[layer], o = g->maps[layer + 1];
    const int stride = stride_of(layer);
    const float *slope = t->gradient[layer + 1];
    for (int y = 0; y < 3; y++)
        for (int j = 0; j < 3 * N; j += TERMS_AT_ONCE)
            tile_weights(TERMS_AT_ONCE, V, images, o.height, o.width, in + y * m.row + j, m.floats, stride * m.row, stride * N,
                         slope + o.inside, o.floats, o.row, N, t->dw[layer] + (y * 3 * N + j) * N);
    add_rows(images * (int)(o.floats / N), N, slope, t->db[layer + 1]);
}

/* Taps that reach a pixel: all three with stride 1, last first; with stride 2 the middle one of even pixels, the outer two of odd ones. */
typedef struct {
    int count, taps[3];
} reach;

static reach reach_of(int stride, int parity) {
    if (stride == 1) return (reach){3, {2, 1, 0}};
    return parity ? (reach){2, {2, 0}} : (reach){1, {1}};
}

/* torch's [outputs][inputs][3][3] -> for each parity of row and column [taps][taps][outputs][inputs] */
static void pack_transposed(const float *w, int stride, float *packed) {
    for (int phase = 0; phase < stride * stride; phase++) {
        const reach down = reach_of(stride, phase / 2), across = reach_of(stride, phase % 2);
        for (int i = 0; i < down.count * across.count; i++, packed += N * N) {
            const int tap = 3 * down.taps[i / across.count] + across.taps[i % across.count];
            for (int n = 0; n < N; n++)
                for (int c = 0; c < N; c++) packed[n * N + c] = w[(n * N + c) * 9 + tap];
        }
    }
}

static void data_layer(const geometry *g, int layer, int images, const float *activation, const float *w, const scratch_space *t) {
    static const float zeros[N];
    const map m = g->maps[layer], o = g->maps[layer + 1];
    const int stride = stride_of(layer);
    const float *slope = t->gradient[layer + 1] + (stride == 1 ? 0 : o.inside); /* the first window's corner */
    for (int phase = 0; phase < stride * stride; phase++) {
        const int odd_row = phase / 2, odd_column = phase % 2;
        const int rows = reach_of(stride, odd_row).count, columns = reach_of(stride, odd_column).count;
        const size_t first = m.inside + odd_row * m.row + odd_column * N;
        const windows c = {
            .images = images, .down = (m.height - odd_row + stride - 1) / stride,
            .across = (m.width - odd_column + stride - 1) / stride, .rows = rows, .terms = columns * N, .w = w, .bias = zeros,
            .in = slope, .in_image = o.floats, .in_row = o.row, .in_down = o.row,
            .out = t->gradient[layer] + first, .out_image = m.floats, .out_down = stride * m.row, .out_step = stride * N,
            .activation = activation + first,
        };
        convolve(&c);
        w += rows * columns * N * N;
    }
}

/* The gradient of the last convolution's outputs, with a border */
static void open_flat(const geometry *g, int images, const float *dflat, float *out) {
    const map m = g->maps[g->convolutions];
    const size_t row = (size_t)m.width * N;
    for (int i = 0; i < images; i++)
        for (int y = 0; y < m.height; y++, dflat += row) memcpy(out + i * m.floats + m.inside + y * m.row, dflat, row * sizeof(float));
}

/* ---- the functions of api.h ---- */

static size_t packed_floats(const network_shape *shape) {
    const geometry g = measure(shape);
    return lay_out_packed(&g, 0).floats;
}

static size_t saved_floats(const network_shape *shape, int samples, int keep) {
    const geometry g = measure(shape);
    return lay_out(&g, 0, samples, keep).floats;
}

static size_t scratch_floats(const network_shape *shape, int samples) {
    const geometry g = measure(shape);
    return lay_out_scratch(&g, 0, samples).floats;
}

static void pack(const network_shape *shape, const_pointers parameters, int backward, float *packed, float *scratch) {
    const geometry g = measure(shape);
    const packed_space p = lay_out_packed(&g, packed);
    const float *kinds = parameters[0], *brightness = parameters[2];
    (void)scratch;
    for (int c = 0; c < g.channels; c++)
        for (int value = 0; value < VALUES; value++)
            for (int n = 0; n < N; n++)
                p.table[((size_t)c * VALUES + value) * N + n] = brightness[n * g.channels + c] * (value / 255.0f) +
                                                                (value < KINDS ? kinds[(n * g.channels + c) * KINDS + value] : 0.0f);
    for (int i = 0; i < g.convolutions; i++) {
        const float *w = parameters[3 + 2 * i];
        for (int tap = 0; tap < 9; tap++) /* torch's [outputs][inputs][3][3] */
            for (int c = 0; c < N; c++)
                for (int n = 0; n < N; n++) p.forward[i][(tap * N + c) * N + n] = w[(n * N + c) * 9 + tap];
        if (backward) pack_transposed(w, stride_of(i), p.data[i]);
    }
}

static void forward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed,
                         int keep, float *place, float *scratch, float *features) {
    const geometry g = measure(shape);
    const saved s = lay_out(&g, place, samples, keep);
    const scratch_space t = lay_out_scratch(&g, scratch, samples);
    const packed_space p = lay_out_packed(&g, (float *)packed);
    const size_t image = (size_t)shape->height * shape->width * g.channels;
    const float *const *last = parameters + 3 + 2 * g.convolutions;
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        const size_t at = keep ? first : 0;
        embed(&g, pixels + first * image, images, p.table, parameters[1], s.maps[0] + at * g.maps[0].floats);
        for (int i = 0; i < g.convolutions; i++) {
            float *out = i + 1 < g.convolutions ? s.maps[i + 1] + at * g.maps[i + 1].floats : s.flat + (size_t)first * g.flat;
            forward_layer(&g, i, images, s.maps[i] + at * g.maps[i].floats, p.forward[i], parameters[4 + 2 * i], out);
        }
    }
    linear_forward(g.flat, FEATURES, s.flat, samples, last[0], last[1], 1, t.x_transposed, t.z_transposed, features);
}

static void write_gradients(const geometry *g, const scratch_space *t, pointers gradients) {
    const int C = g->channels;
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++) {
            gradients[2][n * C + c] = t->dbrightness[c * N + n] / 255.0f;
            for (int kind = 0; kind < KINDS; kind++) gradients[0][(n * C + c) * KINDS + kind] = t->dkinds[(c * KINDS + kind) * N + n];
        }
    memcpy(gradients[1], t->db[0], N * sizeof(float));
    for (int i = 0; i < g->convolutions; i++) {
        unpack_gradient(t->dw[i], N, N, 3, 1.0f, gradients[3 + 2 * i]);
        memcpy(gradients[4 + 2 * i], t->db[i + 1], N * sizeof(float));
    }
}

/* After `forward` with `keep` on the same place. */
static void backward(const network_shape *shape, const uint8_t *pixels, int samples, const_pointers parameters, const float *packed,
                          float *place, float *scratch, const float *features, const float *dfeatures, pointers gradients) {
    const geometry g = measure(shape);
    const saved s = lay_out(&g, place, samples, 1);
    const scratch_space t = lay_out_scratch(&g, scratch, samples);
    const packed_space p = lay_out_packed(&g, (float *)packed);
    const size_t image = (size_t)shape->height * shape->width * g.channels;
    const int last = 3 + 2 * g.convolutions;
    memset(t.dw[0], 0, (size_t)(t.x_transposed - t.dw[0]) * sizeof(float));
    linear_backward(g.flat, FEATURES, s.flat, samples, parameters[last], features, dfeatures, 1, 1, t.x_transposed, t.z_transposed, gradients[last],
                    gradients[last + 1], t.dflat);
    for (int first = 0; first < samples; first += GROUP) {
        const int images = samples - first < GROUP ? samples - first : GROUP;
        open_flat(&g, images, t.dflat + (size_t)first * g.flat, t.gradient[g.convolutions]);
        for (int i = g.convolutions - 1; i >= 0; i--) {
            const float *in = s.maps[i] + first * g.maps[i].floats;
            weights_layer(&g, i, images, in, &t);
            data_layer(&g, i, images, in, p.data[i], &t);
        }
        embed_backward(&g, pixels + first * image, images, &t);
    }
    write_gradients(&g, &t, gradients);
}

const trunk small_image_trunk = {packed_floats, saved_floats, scratch_floats, NULL, pack, forward, backward, NULL};
