#include "shm/slots.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLOTS_MAGIC   UINT64_C(0x314e484350445346) /* "FSDPCHN1" */
#define SLOTS_VERSION 1
#define LAG_VERSION   2 /* its users must set masks of readers */
#define SLOTS_SIZE    (2 * LAYOUT_PAGE_SIZE)
#define NO_CPU        (-1)
#define MAX_LOOKS     256 /* then slots_take() has found nothing */

_Static_assert(offsetof(struct slots_page, limit) == 20, "layout");
_Static_assert(offsetof(struct slots_page, capacity) == 24, "layout");
_Static_assert(offsetof(struct slots_page, channel) == 32, "layout");
_Static_assert(offsetof(struct slots_page, items) == 64, "layout");
_Static_assert(offsetof(struct slots_page, credits) == 128, "layout");
_Static_assert(offsetof(struct slots_page, order) == 192, "layout");
_Static_assert(offsetof(struct slots_page, people) == 256, "layout");
_Static_assert(sizeof(struct slots_people) == 64, "layout");
_Static_assert(offsetof(struct slots_page, words) == 320, "layout");
_Static_assert(offsetof(struct slots_page, masks) == 832, "layout");
_Static_assert(offsetof(struct slots_page, buffers) == 1344, "layout");
_Static_assert(sizeof(struct slots_buffer) == 16, "layout");
_Static_assert(offsetof(struct slots_page, starved) == 2368, "layout");
_Static_assert(offsetof(struct slots_page, users) == 2432, "layout");
_Static_assert(sizeof(struct slots_user) == 64, "a line for each user");
_Static_assert(offsetof(struct slots_page, heads) == 6528, "layout");
_Static_assert(sizeof(struct slots_head) == 1344, "layout");
_Static_assert(offsetof(struct slots_page, readers) == 92544, "layout");
_Static_assert(offsetof(struct slots_page, sent_ns) == 93056, "layout");
_Static_assert(sizeof(struct slots_page) <= SLOTS_SIZE, "layout");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "words are shared by processes");

/* --- the file ------------------------------------------------------------ */

static int map(struct slots *slots, struct error *err)
{
	void *at;
	int r = memfd_map(slots->fd, SLOTS_SIZE, true, &at, err);

	if (r < 0)
		return error_wrap(err, r, "cannot map a channel");
	slots->page = at;
	return 0;
}

static uint32_t version_of(const struct slots_form *form)
{
	return form->has_lag ? LAG_VERSION : SLOTS_VERSION;
}

int slots_create(struct slots *ret, const struct slots_form *form,
		 struct error *err)
{
	struct slots slots = {
		.fd = -1,
		.mode = form->mode,
		.has_lag = form->has_lag,
		.capacity = form->capacity,
	};
	int r = memfd_create_sealed("fsdp-channel", SLOTS_SIZE,
				    MEMFD_SEAL_CLOSED, &slots.fd, err);

	if (r == 0)
		r = map(&slots, err);
	if (r < 0) {
		slots_close(&slots);
		return r;
	}
	slots.page->magic = SLOTS_MAGIC;
	slots.page->version = version_of(form);
	slots.page->mode = form->mode;
	slots.page->capacity = form->capacity;
	slots.page->channel = form->channel;
	for (uint32_t i = 0; i < SLOTS_MAX; i++)
		atomic_init(&slots.page->words[i],
			    slots_word(0, 0, SLOTS_RETIRED));
	*ret = slots;
	return 0;
}

static int check(const struct slots *slots, const struct slots_form *form,
		 struct error *err)
{
	const struct slots_page *page = slots->page;

	if (page->magic == SLOTS_MAGIC && page->version == version_of(form) &&
	    page->channel == form->channel)
		return 0;
	return error_set(err, -EPROTO,
			 "the file is not that of channel %llu; install broker "
			 "and library of the same version",
			 (unsigned long long)form->channel);
}

/* A user needs only the mapping. Forked children do not inherit it. */
static int keep_private(struct slots *slots, struct error *err)
{
	if (madvise(slots->page, SLOTS_SIZE, MADV_DONTFORK) < 0)
		return error_errno(
			err, -errno,
			"cannot hide a channel from forked processes");
	(void)close(slots->fd);
	slots->fd = -1;
	return 0;
}

int slots_open(struct slots *ret, int fd, const struct slots_form *form,
	       enum slots_side side, struct error *err)
{
	struct slots slots = {
		.fd = fd,
		.mode = form->mode,
		.has_lag = form->has_lag,
		.capacity = form->capacity,
	};
	int r = memfd_check(fd, SLOTS_SIZE, NULL, err);

	if (r == 0)
		r = map(&slots, err);
	if (r == 0)
		r = check(&slots, form, err);
	if (r == 0 && side == SLOTS_USER)
		r = keep_private(&slots, err);
	if (r < 0) {
		slots_close(&slots);
		return r;
	}
	*ret = slots;
	return 0;
}

void slots_close(struct slots *slots)
{
	if (slots->page)
		(void)munmap(slots->page, SLOTS_SIZE);
	if (slots->fd >= 0)
		(void)close(slots->fd);
	*slots = SLOTS_NULL;
}

/* --- words --------------------------------------------------------------- */

/*
 * All words are accessed seq_cst, as bell.h explains. So what a user has
 * written to a buffer is also complete before the word tells it.
 */
uint64_t slots_load(const struct slots *slots, uint32_t at)
{
	return atomic_load_explicit(&slots->page->words[at],
				    memory_order_seq_cst);
}

static void store(struct slots *slots, uint32_t at, uint64_t word)
{
	atomic_store_explicit(&slots->page->words[at], word,
			      memory_order_seq_cst);
}

static bool swap(struct slots *slots, uint32_t at, uint64_t from, uint64_t to)
{
	return atomic_compare_exchange_strong_explicit(
		&slots->page->words[at], &from, to, memory_order_seq_cst,
		memory_order_relaxed);
}

static uint64_t load_mask(const struct slots *slots, uint32_t at)
{
	return atomic_load_explicit(&slots->page->masks[at],
				    memory_order_seq_cst);
}

static uint64_t load_readers(const struct slots *slots, uint32_t at)
{
	return atomic_load_explicit(&slots->page->readers[at],
				    memory_order_seq_cst);
}

/* relaxed: the broker increases it before it admits the slot, and a user that
 * does not see the new value does not see the slot either */
static uint32_t n_slots(const struct slots *slots)
{
	uint32_t n = atomic_load_explicit(&slots->page->n_slots,
					  memory_order_relaxed);

	return n < SLOTS_MAX ? n : SLOTS_MAX;
}

uint32_t slots_limit(const struct slots *slots)
{
	return atomic_load_explicit(&slots->page->limit, memory_order_seq_cst);
}

bool slots_is_surplus(const struct slots *slots, uint32_t at)
{
	uint32_t limit = slots_limit(slots);

	return limit && at >= limit;
}

/* Returns the number of slots that may be claimed; later ones may not. */
static uint32_t n_claimed(const struct slots *slots)
{
	uint32_t n = n_slots(slots), limit = slots_limit(slots);

	return limit && limit < n ? limit : n;
}

/* --- producers ----------------------------------------------------------- */

/* Returns whether an item would reach a consumer. A broadcast without consumers
 * loses items at once. */
static bool has_audience(const struct slots *slots)
{
	return slots->mode == SLOTS_SHARE || slots_consumers(slots);
}

/* Returns whether other producers wait for credits while this one has more than
 * its share. */
static bool must_yield(const struct slots *slots, uint32_t place)
{
	uint64_t starved = atomic_load_explicit(&slots->page->starved,
						memory_order_seq_cst);
	uint32_t n = n_claimed(slots), n_mine = 0, n_all;

	if (!(starved & ~slots_bit(place)))
		return false;
	n_all = (uint32_t)__builtin_popcountll(slots_producers(slots));
	for (uint32_t i = 0; i < n; i++) {
		uint64_t word = slots_load(slots, i);
		enum slots_state state = slots_state(word);

		if ((state == SLOTS_WRITING || state == SLOTS_QUEUED) &&
		    slots_owner(word) == place)
			n_mine++;
	}
	return n_all > 1 && n_mine > (n + n_all - 1) / n_all;
}

bool slots_has_credit(const struct slots *slots, uint32_t place)
{
	uint32_t n = has_audience(slots) ? n_claimed(slots) : 0;

	for (uint32_t i = 0; i < n; i++) {
		if (slots_state(slots_load(slots, i)) == SLOTS_FREE)
			return !must_yield(slots, place);
	}
	return false;
}

/* relaxed, here and below: only the user itself writes it, for fsdpctl */
static void count(struct slots *slots, uint32_t place)
{
	_Atomic uint64_t *n = &slots->page->users[place].n_items;

	atomic_fetch_add_explicit(n, 1, memory_order_relaxed);
}

bool slots_claim(struct slots *slots, uint32_t place, struct slots_hold *ret)
{
	uint32_t n = n_claimed(slots);

	if (!has_audience(slots) || must_yield(slots, place))
		return false;
	for (uint32_t i = 0; i < n; i++) {
		uint64_t word = slots_load(slots, i), mine;

		if (slots_state(word) != SLOTS_FREE)
			continue;
		mine = slots_word(slots_number(word), place + 1, SLOTS_WRITING);
		if (!swap(slots, i, word, mine))
			continue;
		*ret = (struct slots_hold){i, mine};
		failpoint("slots.claimed");
		return true;
	}
	return false;
}

static void copy_head(struct slots_head *to, const struct slots_head *from)
{
	size_t size = from->kind == SLOTS_ERROR
			      ? strnlen(from->text, SLOTS_TEXT - 1) + 1
			      : from->n_parts * sizeof(from->parts[0]);

	memcpy(to, from, offsetof(struct slots_head, parts) + size);
}

/* Frees the slot of an item that no consumer of the broadcast needs. */
static void finish(struct slots *slots, const struct slots_hold *hold)
{
	uint64_t number = slots_number(hold->word);

	failpoint("slots.finished");
	if (swap(slots, hold->at, hold->word,
		 slots_word(number, 0, SLOTS_FREE)))
		bell_ring(&slots->page->credits);
}

/* With a limit of lag: frees the slot if no consumer needs or reads the item
 * any more. The first mask is read first, because a consumer that is not in it
 * does not set its bit in the second one. */
static void free_if_unused(struct slots *slots, uint32_t at)
{
	const struct slots_hold hold = {at, slots_load(slots, at)};

	if (slots_state(hold.word) == SLOTS_QUEUED && !load_mask(slots, at) &&
	    !load_readers(slots, at))
		finish(slots, &hold);
}

/* With a limit of lag, these clear and set the bit of a consumer that reads the
 * item. set_hand() returns false if the consumer was cut. */
static void clear_hand(struct slots *slots, uint32_t place, uint32_t at)
{
	atomic_fetch_and_explicit(&slots->page->readers[at], ~slots_bit(place),
				  memory_order_seq_cst);
	free_if_unused(slots, at);
}

static bool set_hand(struct slots *slots, uint32_t place,
		     const struct slots_hold *hold)
{
	atomic_fetch_or_explicit(&slots->page->readers[hold->at],
				 slots_bit(place), memory_order_seq_cst);
	failpoint("slots.hand_set");
	if ((load_mask(slots, hold->at) & slots_bit(place)) &&
	    slots_load(slots, hold->at) == hold->word)
		return true;
	clear_hand(slots, place, hold->at);
	return false;
}

/* Clears the bits of consumers that do not need the item any more. */
static void clear_mask(struct slots *slots, const struct slots_hold *hold,
		       uint64_t mask)
{
	uint64_t left = atomic_fetch_and_explicit(&slots->page->masks[hold->at],
						  ~mask, memory_order_seq_cst);

	if (left & ~mask)
		return;
	if (slots->has_lag)
		free_if_unused(slots, hold->at);
	else
		finish(slots, hold);
}

void slots_publish(struct slots *slots, uint32_t place,
		   const struct slots_hold *hold, const struct slots_head *head)
{
	struct slots_page *page = slots->page;
	uint64_t mask = 0, number, gone;
	struct slots_hold queued;

	copy_head(&page->heads[hold->at], head);
	if (slots->mode == SLOTS_BROADCAST) {
		mask = slots_consumers(slots);
		atomic_store_explicit(&page->masks[hold->at], mask,
				      memory_order_seq_cst);
	}
	/* relaxed: the word that is stored below publishes it */
	if (slots->has_lag)
		atomic_store_explicit(&page->sent_ns[hold->at], bell_now_ns(),
				      memory_order_relaxed);
	number = atomic_fetch_add_explicit(&page->order, 1,
					   memory_order_seq_cst) +
		 1;
	failpoint("slots.numbered");
	queued = (struct slots_hold){
		hold->at, slots_word(number, place + 1, SLOTS_QUEUED)};
	store(slots, queued.at, queued.word);
	count(slots, place);
	failpoint("slots.queued");
	if (slots->mode == SLOTS_SHARE) {
		bell_ring_one(&page->items);
		return;
	}
	gone = mask & ~slots_consumers(slots);
	if (gone || !mask)
		clear_mask(slots, &queued, gone);
	bell_ring(&page->items);
}

void slots_cancel(struct slots *slots, const struct slots_hold *hold)
{
	uint64_t number = slots_number(hold->word);

	if (swap(slots, hold->at, hold->word,
		 slots_word(number, 0, SLOTS_FREE)))
		bell_ring(&slots->page->credits);
}

/* --- consumers ----------------------------------------------------------- */

/* Returns whether it is an item for this consumer. */
static bool is_mine(const struct slots *slots, uint32_t place,
		    const struct slots_seen *seen, uint32_t at, uint64_t word)
{
	if (slots_state(word) != SLOTS_QUEUED)
		return false;
	if (slots->mode == SLOTS_SHARE)
		return true;
	return atomic_load_explicit(&seen->numbers[at], memory_order_seq_cst) <
		       slots_number(word) &&
	       (load_mask(slots, at) & slots_bit(place));
}

bool slots_has_item(const struct slots *slots, uint32_t place,
		    const struct slots_seen *seen)
{
	uint32_t n = n_slots(slots);

	for (uint32_t i = 0; i < n; i++) {
		if (is_mine(slots, place, seen, i, slots_load(slots, i)))
			return true;
	}
	return false;
}

/* Looks once through all words. Returns true if it found an older item. */
static bool look(const struct slots *slots, uint32_t place,
		 const struct slots_seen *seen, struct slots_hold *best)
{
	uint32_t n = n_slots(slots);
	bool is_changed = false;

	for (uint32_t i = 0; i < n; i++) {
		uint64_t word = slots_load(slots, i);

		if (word >= best->word || !is_mine(slots, place, seen, i, word))
			continue;
		*best = (struct slots_hold){i, word};
		is_changed = true;
	}
	return is_changed;
}

/* In a broadcast only threads of one user compete for an item. Returns false to
 * a thread that is late: another thread has received this or a later item of
 * the slot. */
static bool see(struct slots_seen *seen, const struct slots_hold *hold)
{
	_Atomic uint64_t *word = &seen->numbers[hold->at];
	uint64_t number = slots_number(hold->word);
	uint64_t last = atomic_load_explicit(word, memory_order_acquire);

	while (last < number) {
		if (atomic_compare_exchange_weak_explicit(word, &last, number,
							  memory_order_acq_rel,
							  memory_order_acquire))
			return true;
	}
	return false;
}

static bool take(struct slots *slots, uint32_t place, struct slots_seen *seen,
		 struct slots_hold *hold)
{
	uint64_t number = slots_number(hold->word), mine;

	if (slots->mode == SLOTS_BROADCAST)
		return see(seen, hold) &&
		       (!slots->has_lag || set_hand(slots, place, hold));
	mine = slots_word(number, place + 1, SLOTS_HELD);
	if (!swap(slots, hold->at, hold->word, mine))
		return false;
	hold->word = mine;
	return true;
}

bool slots_take(struct slots *slots, uint32_t place, struct slots_seen *seen,
		struct slots_hold *ret)
{
	struct slots_hold best;
	uint32_t n = 0;

	do {
		best.word = UINT64_MAX;
		while (n++ < MAX_LOOKS && look(slots, place, seen, &best))
			;
		if (best.word == UINT64_MAX)
			return false;
		failpoint("slots.found");
	} while (!take(slots, place, seen, &best));
	*ret = best;
	count(slots, place);
	failpoint("slots.taken");
	return true;
}

void slots_read(const struct slots *slots, const struct slots_hold *hold,
		struct slots_head *ret)
{
	memcpy(ret, &slots->page->heads[hold->at], sizeof(*ret));
	ret->text[SLOTS_TEXT - 1] = '\0';
}

void slots_put_back(struct slots *slots, uint32_t place,
		    struct slots_seen *seen, const struct slots_hold *hold)
{
	uint64_t number = slots_number(hold->word);

	if (slots->has_lag)
		clear_hand(slots, place, hold->at);
	if (slots->mode == SLOTS_BROADCAST) {
		/* Other threads of this consumer may sleep. */
		atomic_store_explicit(&seen->numbers[hold->at], number - 1,
				      memory_order_seq_cst);
		bell_ring(&slots->page->items);
	} else if (swap(slots, hold->at, hold->word,
			slots_word(number, place + 1, SLOTS_QUEUED))) {
		bell_ring_one(&slots->page->items);
	}
}

void slots_release(struct slots *slots, uint32_t place,
		   const struct slots_hold *hold)
{
	uint64_t number = slots_number(hold->word);

	if (slots->mode == SLOTS_BROADCAST) {
		clear_mask(slots, hold, slots_bit(place));
		if (slots->has_lag)
			clear_hand(slots, place, hold->at);
		return;
	}
	if (swap(slots, hold->at, hold->word,
		 slots_word(number, 0, SLOTS_FREE)))
		bell_ring(&slots->page->credits);
}

/* --- the broker ---------------------------------------------------------- */

void slots_ring(struct slots *slots)
{
	bell_ring_always(&slots->page->items);
	bell_ring_always(&slots->page->credits);
}

static void store_present(struct slots *slots,
			  const struct slots_present *present)
{
	struct slots_people *people = &slots->page->people;

	atomic_store_explicit(&people->producers, present->producers,
			      memory_order_seq_cst);
	atomic_store_explicit(&people->consumers, present->consumers,
			      memory_order_seq_cst);
}

void slots_set_users(struct slots *slots, const struct slots_present *present)
{
	store_present(slots, present);
	slots_ring(slots);
}

void slots_add_user(struct slots *slots, const struct slots_present *present,
		    const struct slots_newcomer *who)
{
	struct slots_people *people = &slots->page->people;
	struct slots_user *user = &slots->page->users[who->place];

	memset(user, 0, sizeof(*user));
	atomic_init(&user->cpu, NO_CPU);
	atomic_init(&user->pid, who->pid);
	(void)strncpy(user->name, who->name, SLOTS_NAME - 1);
	user->knows_limit = who->knows_limit;
	if (present->producers & slots_bit(who->place))
		atomic_fetch_add_explicit(&people->n_producers, 1,
					  memory_order_seq_cst);
	if (present->consumers & slots_bit(who->place))
		atomic_fetch_add_explicit(&people->n_consumers, 1,
					  memory_order_seq_cst);
	/* The bit of an earlier user stays set until now, so that its death is
	 * not counted again if the broker dies while it removes the user. */
	atomic_fetch_and_explicit(&people->ending, ~slots_bit(who->place),
				  memory_order_seq_cst);
	store_present(slots, present);
	slots_ring(slots);
}

/* The name of the dead user is written before the death is counted. */
static void note_death(struct slots *slots, uint32_t place)
{
	struct slots_people *people = &slots->page->people;
	const struct slots_user *user = &slots->page->users[place];

	people->last_pid = user->pid;
	memcpy(people->last_name, user->name, SLOTS_NAME);
	people->last_name[SLOTS_NAME - 1] = '\0';
	atomic_fetch_add_explicit(&people->n_died, 1, memory_order_seq_cst);
}

void slots_note_ending(struct slots *slots, uint32_t place)
{
	uint64_t producers = slots_producers(slots);
	uint64_t present = producers | slots_consumers(slots);

	if (!(slots_living(slots, present) & slots_bit(place)))
		return;
	if (producers & slots_bit(place))
		note_death(slots, place);
	atomic_fetch_or_explicit(&slots->page->people.ending, slots_bit(place),
				 memory_order_seq_cst);
	slots_ring(slots);
}

/* Clears the bits of consumers that have left. If they left when they were
 * about to free the slot as the last ones, this frees it. */
static void clear_consumers(struct slots *slots, uint64_t mask, uint32_t at)
{
	const struct slots_hold hold = {at, slots_load(slots, at)};
	uint64_t left = atomic_fetch_and_explicit(&slots->page->masks[at],
						  ~mask, memory_order_seq_cst);

	if (slots->has_lag)
		free_if_unused(slots, at);
	else if (slots_state(hold.word) == SLOTS_QUEUED && !(left & ~mask))
		finish(slots, &hold);
}

static void remove_user_at(struct slots *slots, uint32_t place, uint32_t at)
{
	uint64_t word = slots_load(slots, at);
	enum slots_state state = slots_state(word);

	if ((state == SLOTS_WRITING || state == SLOTS_HELD) &&
	    slots_owner(word) == place)
		(void)swap(slots, at, word,
			   slots_word(slots_number(word), 0, SLOTS_FREE));
	if (slots->has_lag)
		atomic_fetch_and_explicit(&slots->page->readers[at],
					  ~slots_bit(place),
					  memory_order_seq_cst);
	if (slots->mode == SLOTS_BROADCAST)
		clear_consumers(slots, slots_bit(place), at);
}

void slots_remove_user(struct slots *slots, const struct slots_present *present,
		       uint32_t place, bool died)
{
	if (died)
		slots_note_ending(slots, place);
	store_present(slots, present);
	failpoint("slots.unlisted");
	atomic_fetch_and_explicit(&slots->page->starved, ~slots_bit(place),
				  memory_order_seq_cst);
	for (uint32_t i = 0; i < SLOTS_MAX; i++)
		remove_user_at(slots, place, i);
	failpoint("slots.removed");
	slots_ring(slots);
}

/* Numbers grow, so the smallest is the oldest. The word is read again after the
 * mask, so that the mask belongs to its item. */
uint64_t slots_find_late(const struct slots *slots, int64_t sent_before_ns)
{
	struct slots_hold oldest = {0, UINT64_MAX};
	uint64_t mask = 0, late = 0;

	for (uint32_t i = 0; i < SLOTS_MAX; i++) {
		uint64_t word = slots_load(slots, i);

		if (slots_state(word) == SLOTS_FREE &&
		    !slots_is_surplus(slots, i))
			return 0;
		if (slots_state(word) != SLOTS_QUEUED || word >= oldest.word)
			continue;
		mask = load_mask(slots, i) & slots_consumers(slots);
		if (!mask)
			continue;
		oldest = (struct slots_hold){i, word};
		late = mask;
	}
	if (late && slots_load(slots, oldest.at) == oldest.word &&
	    atomic_load_explicit(&slots->page->sent_ns[oldest.at],
				 memory_order_relaxed) <= sent_before_ns)
		return late;
	return 0;
}

void slots_cut(struct slots *slots, const struct slots_present *present,
	       uint64_t consumers)
{
	store_present(slots, present);
	failpoint("slots.cut");
	for (uint32_t i = 0; i < SLOTS_MAX; i++)
		clear_consumers(slots, consumers, i);
	slots_ring(slots);
}

bool slots_take_away(struct slots *slots, uint32_t at)
{
	uint64_t word = slots_load(slots, at);

	return slots->has_lag && slots_state(word) == SLOTS_QUEUED &&
	       !load_mask(slots, at) &&
	       (load_readers(slots, at) & ~slots_consumers(slots)) &&
	       swap(slots, at, word,
		    slots_word(slots_number(word), 0, SLOTS_RETIRED));
}

/* With a larger limit, slots that are not retired yet can be claimed again, so
 * producers that wait for a slot are woken. */
void slots_set_limit(struct slots *slots, uint32_t limit)
{
	atomic_store_explicit(&slots->page->limit, limit, memory_order_seq_cst);
	failpoint("slots.limited");
	bell_ring_always(&slots->page->credits);
}

bool slots_retire(struct slots *slots, uint32_t at)
{
	uint64_t word = slots_load(slots, at);

	return slots_state(word) == SLOTS_FREE &&
	       swap(slots, at, word,
		    slots_word(slots_number(word), 0, SLOTS_RETIRED));
}

/* Bits of readers of the old buffer are cleared. */
void slots_admit(struct slots *slots, uint32_t at, uint32_t slot,
		 uint64_t generation)
{
	struct slots_page *page = slots->page;
	uint64_t number = slots_number(slots_load(slots, at));

	/* relaxed: the word that is stored below publishes them */
	atomic_store_explicit(&page->buffers[at].slot, slot,
			      memory_order_relaxed);
	atomic_store_explicit(&page->buffers[at].generation, generation,
			      memory_order_relaxed);
	atomic_store_explicit(&page->readers[at], 0, memory_order_seq_cst);
	if (n_slots(slots) <= at)
		atomic_store_explicit(&page->n_slots, at + 1,
				      memory_order_relaxed);
	store(slots, at, slots_word(number, 0, SLOTS_FREE));
	bell_ring_always(&page->credits);
}

bool slots_take_out(struct slots *slots, uint32_t at, uint32_t place)
{
	uint64_t word = slots_load(slots, at);

	return slots_state(word) == SLOTS_HELD && slots_owner(word) == place &&
	       swap(slots, at, word,
		    slots_word(slots_number(word), 0, SLOTS_RETIRED));
}

void slots_force_out(struct slots *slots, uint32_t at)
{
	store(slots, at,
	      slots_word(slots_number(slots_load(slots, at)), 0,
			 SLOTS_RETIRED));
}

void slots_count(const struct slots *slots, uint32_t *ret_queued,
		 uint32_t *ret_free, uint32_t *ret_held)
{
	uint32_t n[SLOTS_RETIRED + 1] = {0};

	for (uint32_t i = 0; i < SLOTS_MAX; i++) {
		enum slots_state state = slots_state(slots_load(slots, i));

		if (state <= SLOTS_RETIRED)
			n[state]++;
	}
	*ret_queued = n[SLOTS_QUEUED];
	*ret_free = n[SLOTS_FREE];
	*ret_held = n[SLOTS_WRITING] + n[SLOTS_HELD];
}

/* The user can write any value into `want`; an invalid one is treated as
 * SLOTS_NOTHING. */
void slots_look(const struct slots *slots, uint32_t place,
		struct slots_status *ret)
{
	const struct slots_user *user = &slots->page->users[place];
	uint32_t what = atomic_load_explicit(&user->want, memory_order_relaxed);
	uint64_t since_ns =
		atomic_load_explicit(&user->since_ns, memory_order_relaxed);
	uint64_t now_ns = (uint64_t)bell_now_ns();

	*ret = (struct slots_status){
		.n_items = atomic_load_explicit(&user->n_items,
						memory_order_relaxed),
		.n_waits = atomic_load_explicit(&user->n_waits,
						memory_order_relaxed),
		.want = what <= SLOTS_WANTS_CREDIT ? (enum slots_want)what
						   : SLOTS_NOTHING,
	};
	if (ret->want != SLOTS_NOTHING && since_ns < now_ns)
		ret->wait_ns = now_ns - since_ns;
}
