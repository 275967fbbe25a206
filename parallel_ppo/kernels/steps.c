/* All optimizer steps of an update, taken by workers that no process leads.
 *
 * A step has four stages, each a round of items that are claimed (`claims.h`): the gradients of the microbatches; their sum, by ranges of parameters; the
 * optimizer, by the same ranges, into scratch; the scratch copied back. On several nodes the coordinator exchanges sums between the second and the
 * third. The process that finds all items of a stage done opens the next stage. An item writes nothing that another item of its stage reads, and
 * nothing that it would read itself if it were done again. So another process can redo what a dead one left half-done, and no step is taken twice.
 * Whether a step is taken follows from numbers that stay as they are until the stage is over; each range finds that out for itself.
 *
 * C performs the stages that it can; those in `python_stages` are returned to the caller. */
#include "claims.h"
#include "flat.h"
#include "ppo.h"
#include <immintrin.h>
#include <math.h>
#include <string.h>

enum { BLOCK = 16384, DEPTH = 32 };
static const double LEAST_SPIN = 2e-6, MOST_SPIN = 1e-4, TURN = 0.05; /* seconds: of `spin_seconds`; of work before the caller gets control */

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static word end_of(const steps *s) { return s->first + (word)(STAGES * s->steps); }
static int stage_of(const steps *s, word round) { return (int)((round - s->first) % STAGES); }
static int64_t step_of(const steps *s, word round) { return (int64_t)((round - s->first) / STAGES); }
static int items_of(const steps *s, word round) { return (int)(stage_of(s, round) == MICROBATCHES ? s->microbatches : s->ranges); }
static double *result_of(const steps *s, int64_t step) { return s->results + step * RESULTS; }

static double *time_of(const steps *s, word round, int item) {
    const int stage = stage_of(s, round);
    const int64_t before[STAGES] = {0, s->microbatches, 0, s->microbatches + s->ranges, s->microbatches + 2 * s->ranges}, place = before[stage] + item;
    return s->times + (step_of(s, round) * (s->microbatches + 3 * s->ranges) + place) * TIMES;
}

/* --- the stages ------------------------------------------------------------------------------------------------------------------------- */

static void microbatch_stage(steps *s, int64_t step, int item) {
    const int64_t microbatch = s->first_microbatch + item;
    const gradient_part *policy = s->parts;
    const int64_t epoch = step / s->minibatches, minibatch = step % s->minibatches;
    const int64_t slice = microbatch / policy->per_slice, number = microbatch % policy->per_slice;
    int64_t at = (epoch * s->slices + slice) * s->samples + minibatch * s->slice_samples;
    for (int64_t before = 0; before < number; before++) at += s->microbatch_sizes[before];
    if (s->packed_step != step) mlp_pack(s->microbatch->network);
    s->packed_step = step;
    microbatch_gradient(s->microbatch, s->rollout, s->rows + at, (int)s->microbatch_sizes[number], s->scalars + step * s->num_scalars,
                        (float *)policy->gradients + microbatch * policy->end, s->microbatch_statistics + microbatch * STATISTICS);
}

static int64_t blocks_before(int64_t end) { return (end + BLOCK - 1) / BLOCK; }
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Where a range begins: whole blocks, as even as possible. */
static int64_t begin_of(const steps *s, int range) {
    return least(range * blocks_before(s->parameters) / s->ranges * BLOCK, s->parameters);
}

static void sum_stage(const steps *s, int range) {
    const int64_t first_slice = s->first_microbatch / s->parts[0].per_slice, slices = s->microbatches / s->parts[0].per_slice;
    for (int64_t at = begin_of(s, range); at < begin_of(s, range + 1); at += BLOCK) {
        const gradient_part *part = s->parts + (at >= s->parts[0].end);
        const int64_t stride = part->end - part->first, first = first_slice * part->per_slice * stride + at - part->first;
        s->squares[at / BLOCK] = flat_tree_sum(part->gradients + first, stride, (int)(slices * part->per_slice), least(BLOCK, part->end - at), s->gradient + at);
    }
}

/* As `minibatches.tree_sum` of the microbatches' statistics. */
static void sum_statistics(const steps *s, double *sums) {
    double waiting[DEPTH][STATISTICS];
    int depth = 0;
    for (int64_t microbatch = 0; microbatch < s->all_microbatches; microbatch++) {
        memcpy(waiting[depth++], s->microbatch_statistics + microbatch * STATISTICS, sizeof(waiting[0]));
        const int partners = microbatch + 1 == s->all_microbatches ? depth - 1 : __builtin_ctz(~(unsigned)microbatch);
        for (int merged = 0; merged < partners; merged++, depth--)
            for (int k = 0; k < STATISTICS; k++) waiting[depth - 2][k] += waiting[depth - 1][k];
    }
    memcpy(sums, waiting[0], sizeof(waiting[0]));
}

/* Of some blocks of the gradient; added as `minibatches.plain_sum` does. */
static double norm_of(const steps *s, int64_t first, int64_t end) {
    double total = 0;
    for (int64_t block = first; block < end; block++) total += s->squares[block];
    return total >= 0 ? sqrt(total) : NAN;
}

/* The policy's learning rate at a step, which follows from earlier rows of results: the rule of features/adaptive_rate.py. */
static double rate_of(const steps *s, int64_t step, const double *sums) {
    if (step == 0) return s->parts[0].learning_rate;
    const double rate = result_of(s, step - 1)[RATE], divergence = sums[4] / s->batch_size;
    if (s->adapts && divergence > 2 * s->adaptive_kl) return fmax(rate / s->adaptive_factor, s->adaptive_min);
    if (s->adapts && divergence > 0 && divergence < s->adaptive_kl / 2) return fmin(rate * s->adaptive_factor, s->adaptive_max);
    return rate;
}

/* Whether a step is taken, and its row of results. Every range calls this and finds the same; the first one writes it. */
bool steps_judge(const steps *s, int range, double *result) {
    sum_statistics(s, result);
    const int64_t policy_blocks = blocks_before(s->parts[0].end);
    result[NORM] = norm_of(s, 0, policy_blocks);
    result[PREDICTOR_NORM] = norm_of(s, policy_blocks, blocks_before(s->parameters));
    result[RATE] = rate_of(s, step_of(s, s->round), result);
    bool finite = true;
    for (int k = 0; k <= PREDICTOR_NORM; k++) finite = finite && isfinite(result[k]);
    if (s->has_target && !(result[4] / s->batch_size <= s->target_kl)) result[VERDICT] = STOPPED;
    else result[VERDICT] = finite ? GO : NOT_FINITE;
    if (range == 0) memcpy(result_of(s, step_of(s, s->round)), result, RESULTS * sizeof(double));
    return result[VERDICT] == GO;
}

static void optimizer_stage(const steps *s, int64_t step, int range) {
    double found[RESULTS];
    if (!steps_judge(s, range, found)) return;
    const double *corrections = s->rates + 2 * step, rates[] = {found[RATE], s->parts[1].learning_rate};
    for (int k = 0; k < 2; k++) {
        const gradient_part *part = s->parts + k;
        const int64_t begin = begin_of(s, range), at = begin > part->first ? begin : part->first;
        const int64_t count = least(begin_of(s, range + 1), part->end) - at;
        if (count <= 0) continue;
        const double wanted = part->max_norm / (found[NORM + k] + 1e-6);
        const float *const from[] = {s->now[0] + at, s->now[1] + at, s->now[2] + at};
        float *const into[] = {s->next[0] + at, s->next[1] + at, s->next[2] + at};
        const adam_numbers numbers = {s->beta1, s->beta2, rates[k] / corrections[0], corrections[1], s->epsilon};
        flat_adam_into(from, into, s->gradient + at, count, wanted < 1 ? wanted : 1, numbers);
    }
}

static void copy_stage(const steps *s, int range) {
    const int64_t at = begin_of(s, range), count = begin_of(s, range + 1) - at;
    for (int k = 0; k < 3; k++) memcpy(s->now[k] + at, s->next[k] + at, count * sizeof(float));
}

void steps_perform(steps *s, int item) {
    const int64_t step = step_of(s, s->round);
    switch (stage_of(s, s->round)) {
        case MICROBATCHES: microbatch_stage(s, step, item); break;
        case SUM: sum_stage(s, item); break;
        case OPTIMIZER: optimizer_stage(s, step, item); break;
        default: copy_stage(s, item);
    }
}

/* --- the rounds ------------------------------------------------------------------------------------------------------------------------- */

/* Opens the stage after a round that is done; another process may be faster. */
static void advance(steps *s, word round) {
    word next = round + 1;
    if (stage_of(s, round) == OPTIMIZER && result_of(s, step_of(s, round))[VERDICT] != GO) next = end_of(s);
    else if (stage_of(s, next) == EXCHANGE && !s->has_exchange) next++;
    if (!replace(s->header, round, next)) return;
    s->opened_exchange = next < end_of(s) && stage_of(s, next) == EXCHANGE;
    /* Only one process can claim a single item: the one that opened the stage goes on with it. If it dies, the coordinator wakes the others. */
    if (next == end_of(s) || (items_of(s, next) > 1 && !s->opened_exchange)) wake(s->futex);
}

/* The item that was claimed last is done. */
void steps_finish(steps *s, int item) {
    double *times = time_of(s, s->round, item);
    times[1] = seconds();
    times[2] = (double)s->holder;
    mark_done(s->claims + item);
    if (all_done(s->claims, s->round, items_of(s, s->round))) advance(s, s->round);
}

/* A wake-up takes longer than a small microbatch. So a process waits awake at first: longer if that was worth it, shorter if it was not, down to next
 * to nothing where microbatches are long or other processes need the core. */
static void wait_for(steps *s, uint32_t seen, int milliseconds) {
    const double until = seconds() + s->spin_seconds;
    do {
        for (int k = 0; k < 8; k++) _mm_pause();
        if (__atomic_load_n(s->futex, __ATOMIC_SEQ_CST) != seen) {
            s->spin_seconds = 2 * s->spin_seconds < MOST_SPIN ? 2 * s->spin_seconds : MOST_SPIN;
            return;
        }
    } while (seconds() < until);
    s->spin_seconds = s->spin_seconds / 2 > LEAST_SPIN ? s->spin_seconds / 2 : LEAST_SPIN;
    sleep_on(s->futex, seen, milliseconds);
}

/* Works until the update is over (OVER), for a while (AGAIN), until it has opened an exchange (EXCHANGE_OPENED), or up to an item that the caller
 * has to perform and finish. If no item is available it waits; with 0 milliseconds it returns NOTHING instead. */
int steps_take_part(steps *s, int milliseconds) {
    const double until = seconds() + TURN;
    do {
        if (s->opened_exchange) {
            s->opened_exchange = false;
            return EXCHANGE_OPENED;
        }
        const uint32_t seen = __atomic_load_n(s->futex, __ATOMIC_SEQ_CST);
        const word round = load(s->header);
        if (round < s->first || round >= end_of(s)) return OVER;
        const bool is_exchange = stage_of(s, round) == EXCHANGE;
        const int item = is_exchange ? NOTHING : claim(s->claims, round, items_of(s, round), (int)s->holder, (int)s->holders);
        if (item >= 0) {
            s->round = round;
            time_of(s, round, item)[0] = seconds();
            if (s->python_stages >> stage_of(s, round) & 1) return item;
            steps_perform(s, item);
            steps_finish(s, item);
        } else if (!is_exchange && all_done(s->claims, round, items_of(s, round))) advance(s, round);
        else if (milliseconds == 0) return NOTHING;
        else wait_for(s, seen, milliseconds);
    } while (seconds() < until);
    return AGAIN;
}

void steps_open(steps *s) {
    __atomic_store_n(s->header, s->first, __ATOMIC_SEQ_CST);
    wake(s->futex);
}

/* Whether the coordinator has to exchange sums with other nodes now, and that it has done so. */
bool steps_awaits_exchange(const steps *s) {
    const word round = load(s->header);
    return round >= s->first && round < end_of(s) && stage_of(s, round) == EXCHANGE;
}

void steps_exchanged(steps *s) {
    __atomic_store_n(s->header, load(s->header) + 1, __ATOMIC_SEQ_CST);
    wake(s->futex);
}

/* Frees the items of a holder that is confirmed dead, whatever the round: the present one cannot end while one of its items is not done. The
 * others are always woken: the dead one may have opened a stage, or the end, and not have woken them. */
void steps_free(steps *s, int holder) {
    const word round = load(s->header);
    if (round >= s->first && round < end_of(s) && stage_of(s, round) != EXCHANGE) free_claims(s->claims, round, items_of(s, round), holder);
    wake_all(s->futex);
}
