/* Rounds of work that is claimed and counted in shared memory, without a message for each piece.
 *
 * The header holds the number of the present round and how many items it has; 0 items: nothing more will come. Each item has a word: the
 * round, who holds it, whether it is done. Nothing is counted by increments, so whoever dies leaves no count behind that is wrong. A word
 * of an earlier round is free. As long as one of a round's items is not done, that round is the present one: so whoever has claimed an item
 * may read what the round is about. The bell changes whenever there may be something to claim. */
#include <linux/futex.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { ITEM_BITS = 24, NOTHING = -1, OVER = -2 };

typedef uint64_t word; /* header: round << 24 | items; of an item: round << 24 | holder << 1 | done */

static word load(const word *at) { return __atomic_load_n(at, __ATOMIC_SEQ_CST); }

static word claimed_by(word round, int holder) { return round << ITEM_BITS | (word)holder << 1; }

void rounds_ring(uint32_t *bell) {
    __atomic_add_fetch(bell, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void rounds_open(word *header, uint32_t *bell, word round, int items) {
    __atomic_store_n(header, round << ITEM_BITS | (word)items, __ATOMIC_SEQ_CST);
    rounds_ring(bell);
}

/* The k-th item that one of `holders` tries: those of its own share first, then backwards from there, the last of the others' first. */
static int preferred(int k, int items, int holder, int holders) {
    const int first = (int)((int64_t)holder * items / holders), own = (int)((int64_t)(holder + 1) * items / holders) - first;
    return k < own ? first + k : (first - 1 - (k - own) + items) % items;
}

static int claim(word *items_words, word round, int items, int holder, int holders) {
    for (int k = 0; k < items; k++) {
        const int item = preferred(k, items, holder, holders);
        word seen = load(items_words + item);
        if (seen >> ITEM_BITS < round &&
            __atomic_compare_exchange_n(items_words + item, &seen, claimed_by(round, holder), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
            return item;
    }
    return NOTHING;
}

/* Claims an item, waiting for one if need be; NOTHING after `milliseconds`, OVER when no more will come. */
int rounds_next(const word *header, uint32_t *bell, word *items_words, int holder, int holders, int milliseconds) {
    for (int attempt = 0; attempt < 2; attempt++) {
        const uint32_t heard = __atomic_load_n(bell, __ATOMIC_SEQ_CST);
        const word now = load(header);
        const int items = (int)(now & (((word)1 << ITEM_BITS) - 1));
        if (items == 0) return OVER;
        const int item = claim(items_words, now >> ITEM_BITS, items, holder, holders);
        if (item >= 0) return item;
        const struct timespec patience = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
        if (attempt == 0) syscall(SYS_futex, bell, FUTEX_WAIT, heard, &patience, NULL, 0);
    }
    return NOTHING;
}

bool rounds_is_done(const word *items_words, word round, int items) {
    for (int item = 0; item < items; item++)
        if ((load(items_words + item) >> ITEM_BITS) < round || !(load(items_words + item) & 1)) return false;
    return true;
}

/* Marks an item that this holder has claimed in the present round; true for whoever sees that it was the last. */
bool rounds_finish(const word *header, word *items_words, int item) {
    const word now = load(header);
    __atomic_store_n(items_words + item, load(items_words + item) | 1, __ATOMIC_SEQ_CST);
    return rounds_is_done(items_words, now >> ITEM_BITS, (int)(now & (((word)1 << ITEM_BITS) - 1)));
}

/* Lets others claim what a holder, confirmed dead, had claimed and not done: in this round only, for a process that was held up since an
 * earlier one must not take up an item that others may finish, and whose place they may use again, before it goes on. */
void rounds_free(uint32_t *bell, word *items_words, word round, int items, int holder) {
    for (int item = 0; item < items; item++)
        if (load(items_words + item) == claimed_by(round, holder))
            __atomic_store_n(items_words + item, claimed_by(round - 1, holder), __ATOMIC_SEQ_CST);
    rounds_ring(bell);
}
