/* Work that is claimed and counted in shared memory, without a message for each piece.
 *
 * Each item of a round has a word: the round, who holds it, whether it is done. Nothing is counted by increments, so whoever dies leaves no
 * count behind that is wrong. A word of an earlier round is free. The bell changes whenever there may be something to claim. */
#ifndef PARALLEL_PPO_CLAIMS_H
#define PARALLEL_PPO_CLAIMS_H

#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ITEM_BITS = 24, NOTHING = -1, OVER = -2 };

typedef uint64_t word; /* of an item: round << 24 | holder << 1 | done */

static inline word load(const word *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }

static inline bool replace(word *at, word expected, word wanted) {
    return __atomic_compare_exchange_n(at, &expected, wanted, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

static inline word claimed_by(word round, int holder) { return round << ITEM_BITS | (word)holder << 1; }

/* The k-th item that one of `holders` tries: those of its own share first, then backwards from there, the last of the others' first. */
static inline int preferred(int k, int items, int holder, int holders) {
    const int first = (int)((int64_t)holder * items / holders), own = (int)((int64_t)(holder + 1) * items / holders) - first;
    return k < own ? first + k : (first - 1 - (k - own) + items) % items;
}

static inline int claim(word *words, word round, int items, int holder, int holders) {
    for (int k = 0; k < items; k++) {
        const int item = preferred(k, items, holder, holders);
        const word seen = load(words + item);
        if (seen >> ITEM_BITS < round && replace(words + item, seen, claimed_by(round, holder))) return item;
    }
    return NOTHING;
}

static inline bool all_done(const word *words, word round, int items) {
    for (int item = 0; item < items; item++) {
        const word seen = load(words + item);
        if (seen >> ITEM_BITS < round || !(seen & 1)) return false;
    }
    return true;
}

static inline void mark_done(word *at) { __atomic_store_n(at, load(at) | 1, __ATOMIC_SEQ_CST); }

/* An odd bell: somebody may sleep. */
static inline void ring(uint32_t *bell) {
    uint32_t seen = __atomic_load_n(bell, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(bell, &seen, (seen | 1) + 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    if (seen & 1) syscall(SYS_futex, bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/* Until the bell is another than `heard`, or the time is over. */
static inline void sleep_on(uint32_t *bell, uint32_t heard, int milliseconds) {
    const struct timespec patience = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
    uint32_t seen = heard;
    if (!(heard & 1) && !__atomic_compare_exchange_n(bell, &seen, heard | 1, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST) && seen != (heard | 1))
        return;
    syscall(SYS_futex, bell, FUTEX_WAIT, heard | 1, &patience, NULL, 0);
}

/* Lets others claim what a holder, confirmed dead, had claimed and not done: in this round only, for a process that was held up since an
 * earlier one must not take up an item that others may finish, and whose place they may use again, before it goes on. */
static inline void free_claims(uint32_t *bell, word *words, word round, int items, int holder) {
    for (int item = 0; item < items; item++)
        if (load(words + item) == claimed_by(round, holder))
            __atomic_store_n(words + item, claimed_by(round - 1, holder), __ATOMIC_SEQ_CST);
    ring(bell);
}

#endif
