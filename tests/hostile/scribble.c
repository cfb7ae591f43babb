/*
 * Writes to all files that the broker has sent writable: the ref-counter file,
 * channels, boards, and chunks.
 */
#include "shm/board.h"
#include "shm/slots.h"
#include "tests/hostile/hostile.h"
#include "tests/lib/chaos.h"
#include <pthread.h>
#include <sched.h>

#define N(list) (sizeof(list) / sizeof((list)[0]))
#define BURST   100 /* words between two looks at the files */

/* A value that a word may have, or one that it can never have. */
static uint64_t invent(struct chance *chance, uint64_t old)
{
	static const uint64_t values[] = {0,
					  1,
					  UINT64_MAX,
					  INT64_MAX,
					  INT32_MAX,
					  UINT32_MAX,
					  UINT64_C(1) << 63,
					  UINT64_C(0x8000000080000000)};

	switch (draw(chance, 6)) {
	case 0:
		return old + 1 + draw(chance, 3);
	case 1:
		return old - 1 - draw(chance, 3);
	case 2:
		return old ^ UINT64_C(1) << draw(chance, 64);
	case 3:
		return draw(chance, 4096);
	case 4:
		return (uint64_t)draw(chance, UINT32_MAX) << 32 |
		       draw(chance, UINT32_MAX);
	default:
		return values[draw(chance, sizeof(values) / sizeof(values[0]))];
	}
}

/* Most words that processes share are in the first pages. */
static size_t choose_offset(struct chance *chance, size_t size)
{
	static const size_t reach[] = {512, 4096, 16384, 131072, SIZE_MAX};
	size_t max = reach[draw(chance, N(reach))];

	if (max > size)
		max = size;
	return draw(chance, (uint32_t)(max / 8)) * 8;
}

/* Writes what a user of the channel may write: that a slot is in any state, and
 * whose it is. Most slots stay usable. */
void forge_slots(struct chance *chance, const struct file *file)
{
	static const enum slots_state states[] = {
		SLOTS_FREE,   SLOTS_FREE,   SLOTS_FREE,    SLOTS_QUEUED,
		SLOTS_QUEUED, SLOTS_QUEUED, SLOTS_WRITING, SLOTS_HELD,
	};
	struct slots_page *page = (void *)file->map;
	_Atomic uint64_t *word = &page->words[draw(chance, 6)];

	atomic_store(word, slots_word(slots_number(atomic_load(word)),
				      1 + draw(chance, 6),
				      states[draw(chance, N(states))]));
}

/* Writes numbers of a run that are nearly right. */
void forge_board(struct chance *chance, const struct file *file)
{
	struct board_page *page = (void *)file->map;
	uint32_t rank = draw(chance, N_GUESTS + 1), one = draw(chance, 3) - 1;
	struct box *box = (struct box *)(page + 1) + rank;
	struct gathers_buffer *buffer = &page->gathers.buffers[draw(chance, 4)];
	struct pieces *pieces = draw(chance, 2)
					? &buffer->pieces
					: &page->pieces[draw(chance, 8)];
	_Atomic uint32_t *const words[] = {
		&page->ranks[rank].arrived,
		&page->cells[rank][draw(chance, 8)].number,
		&page->works[rank].number,
		&page->recalls,
		&page->gathers_lock.owner,
		&buffer->version,
		&buffer->lap,
		&box->put,
		&box->taken,
		&box->sent[draw(chance, N_GUESTS + 1)],
		&box->received[draw(chance, N_GUESTS + 1)],
		&page->cells[rank][draw(chance, 8)].slot,
		(_Atomic uint32_t *)&pieces->next,
		(_Atomic uint32_t *)&pieces->done,
	};
	_Atomic uint64_t *const longer[] = {
		&page->gathers.filling[0],
		&page->gathers.ended[rank][0],
		&page->gathers.ranks[rank].began,
		&page->gathers.order[draw(chance, 8)],
		&buffer->last,
		&buffer->size,
	};

	if (draw(chance, 3))
		(void)atomic_fetch_add(words[draw(chance, N(words))], one);
	else
		(void)atomic_fetch_add(longer[draw(chance, N(longer))],
				       (uint64_t)(int32_t)one);
}

static void scribble(struct chance *chance, const struct file *file)
{
	uint8_t *at = file->map + choose_offset(chance, file->size);
	_Atomic uint64_t *word = (_Atomic uint64_t *)(void *)at;
	uint64_t value = invent(chance, atomic_load(word));

	if (file->forge && draw(chance, 16)) {
		file->forge(chance, file);
		return;
	}
	if (draw(chance, 3))
		atomic_store(word, value);
	else
		atomic_store((_Atomic uint32_t *)(void *)at, (uint32_t)value);
}

/* A fast one soon leaves nothing that works, and a slow one lets others reach
 * more states. */
static void *run(void *data)
{
	static const uint32_t pauses[] = {0, 2000, 50000, 1000000};
	struct scribbler *scribbler = data;
	struct chance *chance = &scribbler->chance;
	uint32_t pause = pauses[draw(chance, N(pauses))];
	struct file files[MAX_FILES];
	uint32_t n;

	for (;;) {
		n = files_map(files, scribbler->spares_chunks);
		for (uint32_t i = 0; n && i < BURST; i++) {
			scribble(chance, &files[draw(chance, n)]);
			for (uint32_t j = draw(chance, pause + 1); j; j--)
				atomic_signal_fence(memory_order_seq_cst);
		}
		atomic_fetch_add(&scribbler->siege->n_words, n ? BURST : 0);
		(void)sched_yield();
	}
	return NULL;
}

void scribble_begin(const struct scribbler *scribbler)
{
	static struct scribbler copy; /* one for each process */
	pthread_t thread;

	copy = *scribbler;
	must(pthread_create(&thread, NULL, run, &copy) == 0);
}
