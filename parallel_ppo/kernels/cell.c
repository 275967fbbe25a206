/* A recurrent cell over a sequence, forward and backward through time, as torch's nn.GRU and nn.LSTM of one layer.
 *
 * T steps, B samples, N = T B rows, I inputs, H units, U: units filled up with zeros to a multiple of 32; all arrays have a row per sample and step.
 * Only what depends on the state runs step by step; the products with inputs, and those of all gradients, take all rows at once.
 * Every sum goes over its terms one after the other, so a row depends on no other row. */
#include "functions.h"
#include "linear.h"
#include "network.h"

enum { GATES = 4 }; /* kept of each unit: r, z, q = the recurrent part of n, n; or i, f, g, o. GRUs have two products with r and z each, one with q and n */

typedef struct {
    int I, H, U, gates, B, N; /* gates of a product: 3 or 4 */
    bool lstm;
} sizes;

typedef struct {
    float *input, *recurrent, *back, *bias; /* strips [I][STRIP] and [H][STRIP] for each gate; [gates U][STRIP] of the other direction; [GATES U] */
    size_t floats;
} weights;

typedef struct {
    float *gates, *h, *c;                 /* [N][GATES U]; the state before each step [N][U] */
    float *tanh_c, *now_h, *now_c;        /* [N][U]; [B][U] */
    float *by_h, *by_c, *sums;            /* [B][U]; [GATES U] */
    float *slopes, *by_x, *panel;         /* transposed: [gates H][N]; [I][N] */
    float *even_x, *by_weight;            /* inputs and a gradient with rows of whole vectors */
    size_t floats;
} space;

INLINE int whole(int count, int unit) { return (count + unit - 1) / unit * unit; }

static sizes sizes_of(const recurrent_cell *cell, int steps, int samples) {
    const bool lstm = cell->kind == LSTM;
    return (sizes){cell->inputs, cell->units, whole(cell->units, 32), lstm ? 4 : 3, samples, steps * samples, lstm};
}

static weights weights_at(const sizes *z, float *base) {
    weights s;
    size_t at = 0;
    PLACE(input, z->gates * z->U * (size_t)z->I);
    PLACE(recurrent, z->gates * z->U * (size_t)z->H);
    PLACE(back, z->gates * z->U * (size_t)z->U);
    PLACE(bias, GATES * z->U);
    s.floats = at;
    return s;
}

static space space_at(const sizes *z, int keep, float *base) {
    const size_t N = z->N, U = z->U, lanes = padded(z->N), state = z->B * U, all = keep ? N * U : state, even = whole(z->I, 16);
    space s;
    size_t at = 0;
    PLACE(now_h, state);
    PLACE(now_c, z->lstm ? state : 0);
    PLACE(gates, N * GATES * U);
    PLACE(h, all);
    PLACE(c, z->lstm ? all : 0);
    PLACE(tanh_c, z->lstm ? all : 0);
    if (keep) {
        PLACE(by_h, state);
        PLACE(by_c, z->lstm ? state : 0);
        PLACE(sums, GATES * U);
        PLACE(slopes, (size_t)z->gates * z->H * lanes);
        PLACE(by_x, z->I * lanes);
        PLACE(panel, TERMS * PANEL);
        PLACE(even_x, N * even);
        PLACE(by_weight, (size_t)z->gates * z->H * (even > U ? even : U));
    }
    s.floats = at;
    return s;
}

size_t cell_packed_floats(const recurrent_cell *cell) {
    const sizes z = sizes_of(cell, 0, 0);
    return weights_at(&z, NULL).floats;
}

size_t cell_space_floats(const recurrent_cell *cell, int steps, int samples, int keep) {
    const sizes z = sizes_of(cell, steps, samples);
    return space_at(&z, keep, NULL).floats;
}

enum { STRIP = 2 * VL, STRIP_ROWS = VL == 16 ? 12 : 6 }; /* of a product below: their sums fit into the registers */

#define TILE(R)                                                                                                                           \
    case R:                                                                                                                               \
        tile_product(R, 2, terms, a, a_row, 1, b, STRIP, out, out_row, out, out_row);                                                     \
        break;

/* out[rows][STRIP] += a[rows][terms] b[terms][STRIP], for any number of rows. With b in one piece, few rows are as fast as memory. */
static void strip_product(int rows, int terms, const float *a, size_t a_row, const float *b, float *out, size_t out_row) {
    while (rows > 0) {
        const int most = STRIP_ROWS, now = rows <= most ? rows : rows < 2 * most ? (rows + 1) / 2 : most;
        switch (now) {
            TILE(1) TILE(2) TILE(3) TILE(4) TILE(5) TILE(6)
#if VL == 16
            TILE(7) TILE(8) TILE(9) TILE(10) TILE(11) TILE(12)
#endif
        }
        rows -= now, a += now * a_row, out += now * out_row;
    }
}

/* Where a gate of the input's product is kept: behind r and z comes q, which has no part of the input. */
INLINE int input_gate(const sizes *z, int gate) { return !z->lstm && gate == 2 ? 3 : gate; }

void cell_pack(const recurrent_cell *cell) {
    const sizes z = sizes_of(cell, 0, 0);
    const weights to = weights_at(&z, cell->packed);
    const float *const w = cell->weights[0], *const v = cell->weights[1], *const input_bias = cell->weights[2], *const bias = cell->weights[3];
    const size_t I = z.I, H = z.H, U = z.U;
    if (H < U) memset(cell->packed, 0, to.floats * sizeof(float));
    for (int gate = 0; gate < z.gates; gate++) {
        for (size_t j = 0; j < H; j += STRIP) {
            const int width = H - j < STRIP ? H - j : STRIP;
            transpose(w + (gate * H + j) * I, width, I, I, to.input + (gate * U + j) * I, STRIP);
            transpose(v + (gate * H + j) * H, width, H, H, to.recurrent + (gate * U + j) * H, STRIP);
            for (size_t row = 0; row < H; row++)
                memcpy(to.back + z.gates * U * j + (gate * U + row) * STRIP, v + (gate * H + row) * H + j, width * sizeof(float));
        }
        for (size_t j = 0; j < H; j++) {
            const bool apart = input_gate(&z, gate) != gate;
            to.bias[gate * U + j] = apart ? bias[gate * H + j] : input_bias[gate * H + j] + bias[gate * H + j];
            if (apart) to.bias[3 * U + j] = input_bias[gate * H + j];
        }
    }
}

/* --- forward --------------------------------------------------------------------------------------------------------------------------- */

static void gru_step(const sizes *z, float *gates, const float *before, float *now) {
    const size_t U = z->U;
    for (int b = 0; b < z->B; b++, gates += GATES * U, before += U, now += U)
        for (size_t j = 0; j < U; j += VL) {
            const vec reset = v_sigmoid(v_load(gates + j)), update = v_sigmoid(v_load(gates + U + j));
            const vec n = v_tanh(v_fma(reset, v_load(gates + 2 * U + j), v_load(gates + 3 * U + j)));
            v_store(gates + j, reset), v_store(gates + U + j, update), v_store(gates + 3 * U + j, n);
            v_store(now + j, v_fma(update, v_sub(v_load(before + j), n), n));
        }
}

static void lstm_step(const sizes *z, float *gates, const float *before, float *tanh_c, float *now_h, float *now_c) {
    const size_t U = z->U;
    for (int b = 0; b < z->B; b++, gates += GATES * U, before += U, tanh_c += U, now_h += U, now_c += U)
        for (size_t j = 0; j < U; j += VL) {
            const vec in = v_sigmoid(v_load(gates + j)), forget = v_sigmoid(v_load(gates + U + j));
            const vec new = v_tanh(v_load(gates + 2 * U + j)), out = v_sigmoid(v_load(gates + 3 * U + j));
            const vec c = v_fma(forget, v_load(before + j), v_mul(in, new)), bounded = v_tanh(c);
            v_store(gates + j, in), v_store(gates + U + j, forget), v_store(gates + 2 * U + j, new), v_store(gates + 3 * U + j, out);
            v_store(now_c + j, c), v_store(tanh_c + j, bounded);
            v_store(now_h + j, v_mul(out, bounded));
        }
}

static void clear_where(const uint8_t *starts, int rows, size_t width, float *x) {
    for (int b = 0; b < rows; b++)
        if (starts[b]) memset(x + b * width, 0, width * sizeof(float));
}

static void copy_rows(int rows, size_t width, const float *in, size_t in_row, float *out, size_t out_row) {
    for (int b = 0; b < rows; b++) memcpy(out + b * out_row, in + b * in_row, width * sizeof(float));
}

void cell_forward(const recurrent_cell *cell, const float *x, const float *state, const uint8_t *starts, int steps, int samples, int keep, float *memory,
                  float *out, float *final) {
    const sizes z = sizes_of(cell, steps, samples);
    const weights by = weights_at(&z, cell->packed);
    const space s = space_at(&z, keep, memory);
    const size_t I = z.I, H = z.H, U = z.U, row = GATES * U, state_row = z.lstm ? 2 * H : H;
    copy_rows(z.B, H, state, state_row, s.now_h, U);
    if (z.lstm) copy_rows(z.B, H, state + H, state_row, s.now_c, U);
    for (int n = 0; n < z.N; n++) memcpy(s.gates + n * row, by.bias, row * sizeof(float));
    for (int gate = 0; gate < z.gates; gate++)
        for (size_t j = 0; j < U; j += STRIP)
            strip_product(z.N, I, x, I, by.input + (gate * U + j) * I, s.gates + input_gate(&z, gate) * U + j, row);
    for (int t = 0; t < steps; t++, starts += z.B) {
        const size_t first = (size_t)t * z.B, kept = keep ? first * U : 0;
        float *const gates = s.gates + first * row, *const h = s.h + kept, *const c = s.c + kept;
        memcpy(h, s.now_h, z.B * U * sizeof(float));
        clear_where(starts, z.B, U, h);
        for (size_t j = 0; j < z.gates * U; j += STRIP) strip_product(z.B, H, h, U, by.recurrent + j * H, gates + j, row);
        if (z.lstm) {
            memcpy(c, s.now_c, z.B * U * sizeof(float));
            clear_where(starts, z.B, U, c);
            lstm_step(&z, gates, c, s.tanh_c + kept, s.now_h, s.now_c);
        } else gru_step(&z, gates, h, s.now_h);
        copy_rows(z.B, H, s.now_h, U, out + first * H, H);
    }
    copy_rows(z.B, H, s.now_h, U, final, state_row);
    if (z.lstm) copy_rows(z.B, H, s.now_c, U, final + H, state_row);
}

/* --- backward -------------------------------------------------------------------------------------------------------------------------- */

INLINE vec through_sigmoid(vec g, vec y) { return v_mul(g, v_mul(y, v_sub(v_set(1.0f), y))); }
INLINE vec through_tanh(vec g, vec y) { return v_fnma(v_mul(g, y), y, g); }

/* The derivative in the state after a step becomes that in the gates, in their place, and the part of that in the state before which no weight takes. */
static void gru_back(const sizes *z, float *gates, const float *before, float *by_h) {
    const size_t U = z->U;
    for (int b = 0; b < z->B; b++, gates += GATES * U, before += U, by_h += U)
        for (size_t j = 0; j < U; j += VL) {
            const vec reset = v_load(gates + j), update = v_load(gates + U + j), q = v_load(gates + 2 * U + j), n = v_load(gates + 3 * U + j);
            const vec g = v_load(by_h + j), by_n = through_tanh(v_fnma(g, update, g), n);
            v_store(gates + j, through_sigmoid(v_mul(by_n, q), reset));
            v_store(gates + U + j, through_sigmoid(v_mul(g, v_sub(v_load(before + j), n)), update));
            v_store(gates + 2 * U + j, v_mul(by_n, reset));
            v_store(gates + 3 * U + j, by_n);
            v_store(by_h + j, v_mul(g, update));
        }
}

static void lstm_back(const sizes *z, float *gates, const float *before, const float *tanh_c, float *by_h, float *by_c) {
    const size_t U = z->U;
    for (int b = 0; b < z->B; b++, gates += GATES * U, before += U, tanh_c += U, by_h += U, by_c += U)
        for (size_t j = 0; j < U; j += VL) {
            const vec in = v_load(gates + j), forget = v_load(gates + U + j), new = v_load(gates + 2 * U + j), out = v_load(gates + 3 * U + j);
            const vec g = v_load(by_h + j), bounded = v_load(tanh_c + j);
            const vec by = v_add(v_load(by_c + j), through_tanh(v_mul(g, out), bounded));
            v_store(gates + j, through_sigmoid(v_mul(by, new), in));
            v_store(gates + U + j, through_sigmoid(v_mul(by, v_load(before + j)), forget));
            v_store(gates + 2 * U + j, through_tanh(v_mul(by, in), new));
            v_store(gates + 3 * U + j, through_sigmoid(v_mul(g, bounded), out));
            v_store(by_h + j, v_zero());
            v_store(by_c + j, v_mul(by, forget));
        }
}

/* x [N][even], an even number of vectors -> by [gates H][inputs] */
static void by_weight(const sizes *z, const space *s, const float *x, int inputs, int even, float *by) {
    float *const to = inputs == even ? by : s->by_weight;
    weight_gradient(even, z->gates * z->H, x, z->N, s->slopes, padded(z->N), s->panel, to);
    if (to != by) copy_rows(z->gates * z->H, inputs, to, even, by, inputs);
}

void cell_backward(const recurrent_cell *cell, const float *x, const uint8_t *starts, int steps, int samples, float *memory, const float *dout,
                   pointers gradients, float *dx) {
    const sizes z = sizes_of(cell, steps, samples);
    const weights by = weights_at(&z, cell->packed);
    const space s = space_at(&z, 1, memory);
    const size_t H = z.H, U = z.U, row = GATES * U, state = z.B * U, lanes = padded(z.N);
    memset(s.by_h, 0, state * sizeof(float));
    if (z.lstm) memset(s.by_c, 0, state * sizeof(float));
    for (int t = steps - 1; t >= 0; t--) {
        const size_t first = (size_t)t * z.B;
        float *const gates = s.gates + first * row;
        for (int b = 0; b < z.B; b++)
            for (size_t j = 0; j < H; j++) s.by_h[b * U + j] += dout[(first + b) * H + j];
        if (z.lstm) lstm_back(&z, gates, s.c + first * U, s.tanh_c + first * U, s.by_h, s.by_c);
        else gru_back(&z, gates, s.h + first * U, s.by_h);
        if (t == 0) break;
        for (size_t j = 0; j < U; j += STRIP) strip_product(z.B, z.gates * U, gates, row, by.back + z.gates * U * j, s.by_h + j, U);
        clear_where(starts + first, z.B, U, s.by_h);
        if (z.lstm) clear_where(starts + first, z.B, U, s.by_c);
    }
    memset(s.sums, 0, row * sizeof(float));
    add_rows(z.N, row, s.gates, s.sums);
    for (int gate = 0; gate < z.gates; gate++) {
        memcpy(gradients[2] + gate * H, s.sums + input_gate(&z, gate) * U, H * sizeof(float));
        memcpy(gradients[3] + gate * H, s.sums + gate * U, H * sizeof(float));
        transpose(s.gates + gate * U, z.N, H, row, s.slopes + gate * H * lanes, lanes);
    }
    by_weight(&z, &s, s.h, H, U, gradients[1]);
    if (!z.lstm) transpose(s.gates + 3 * U, z.N, H, row, s.slopes + 2 * H * lanes, lanes);
    const int even = whole(z.I, 16);
    if (even > z.I) copy_rows(z.N, z.I, x, z.I, s.even_x, even);
    by_weight(&z, &s, even > z.I ? s.even_x : x, z.I, even, gradients[0]);
    input_gradient(z.I, z.gates * H, cell->weights[0], s.slopes, lanes, s.by_x);
    transpose(s.by_x, z.I, z.N, lanes, dx, z.I);
}
