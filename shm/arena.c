/*
 * A two-level segregated fit, with its metadata on the heap.
 *
 * Every range, free or taken, is a node of 24 bytes in one growing array. Nodes
 * refer to each other by index. Node 0 ends the lists and the ring of
 * neighbours: it starts where the arena ends, and is never free. The size of a
 * range is the start of its neighbour minus its own start, so it is not stored
 * and cannot be wrong.
 *
 * A free node is in the list of its size class. A taken node is in a hash table
 * keyed by its start, where arena_release() finds it. Both use the same two
 * fields. All sizes are in granules of the alignment.
 *
 * A released range is inserted at the head of its class, and the rest of a
 * split at the tail. Allocation looks at the head first, and so finds pages
 * that are still in the caches.
 */
#include "shm/arena.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_MAX_SIZE (UINT64_C(1) << 44)

/* There are 32 size classes per power of two, and one for each size below 32
 * granules. */
#define SECOND_BITS 5
#define N_SECOND    (1u << SECOND_BITS)

/* Ranges in the class of a size may be too small for that size. This many of
 * them are tried before the next class, where every range is large enough. */
#define N_TRIES 8

#define FREE_FLAG (UINT64_C(1) << 63)

struct node {
	uint64_t start; /* | FREE_FLAG */
	/* neighbours in memory; unused nodes: next in the chain */
	uint32_t next;
	uint32_t prev;
	uint32_t link_next; /* free: class list; taken: hash chain */
	uint32_t link_prev; /* free: class list, the head's is the tail */
};

_Static_assert(sizeof(struct node) == 24, "small books");

struct arena {
	struct node *nodes;
	uint32_t n_touched; /* nodes ever used, with node 0 */
	uint32_t capacity;
	uint32_t first_unused; /* chain of unused nodes */
	uint32_t *buckets;     /* heads of hash chains */
	uint32_t n_taken, n_free;
	unsigned int bucket_bits;
	unsigned int shift; /* log2 of the size of a granule */
	uint64_t used;      /* in granules */
	unsigned int n_first;
	/* first level: the rows that have a free range */
	uint64_t first_map;
	/* the classes of each row that have a free range */
	uint32_t *second_maps;
	uint32_t *classes; /* heads of the classes, N_SECOND for each row */
	/* Only arena_reserve() uses `order`: the nodes in the order of their
	 * starts at the time when it was made. It is dropped when a node is
	 * removed. */
	uint32_t *order;
	uint32_t n_order;
	uint64_t n_steps; /* steps walked since `order` was made */
};

static uint64_t node_start(const struct arena *arena, uint32_t node)
{
	return arena->nodes[node].start & ~FREE_FLAG;
}

static bool node_is_free(const struct arena *arena, uint32_t node)
{
	return arena->nodes[node].start & FREE_FLAG;
}

static uint64_t node_size(const struct arena *arena, uint32_t node)
{
	return node_start(arena, arena->nodes[node].next) -
	       node_start(arena, node);
}

/* --- size classes -------------------------------------------------------- */

/* Returns the class of ranges of `size` granules: row * N_SECOND + column. */
static unsigned int class_of(uint64_t size)
{
	unsigned int top;

	if (size < N_SECOND)
		return (unsigned int)size;
	top = 63 - (unsigned int)__builtin_clzll(size);
	return (top - SECOND_BITS + 1) * N_SECOND +
	       ((unsigned int)(size >> (top - SECOND_BITS)) & (N_SECOND - 1));
}

/* Returns the lowest class all of whose ranges have at least `size`
 * granules. */
static unsigned int class_above(uint64_t size)
{
	unsigned int top;

	if (size < N_SECOND)
		return (unsigned int)size;
	top = 63 - (unsigned int)__builtin_clzll(size);
	return class_of(size + (UINT64_C(1) << (top - SECOND_BITS)) - 1);
}

/* Finds the lowest class from `class` up that has a range. Returns false if
 * there is none. */
static bool class_find(const struct arena *arena, unsigned int class,
		       unsigned int *ret_class)
{
	unsigned int row = class / N_SECOND;
	uint64_t rows;
	uint32_t columns;

	if (row >= arena->n_first)
		return false;
	columns = arena->second_maps[row] & ~UINT32_C(0) << class % N_SECOND;
	if (columns == 0) {
		rows = arena->first_map & ~UINT64_C(1) << row;
		if (rows == 0)
			return false;
		row = (unsigned int)__builtin_ctzll(rows);
		columns = arena->second_maps[row];
	}
	*ret_class = row * N_SECOND + (unsigned int)__builtin_ctz(columns);
	return true;
}

/* Marks a taken node as free, and inserts it into its class. */
static void free_insert(struct arena *arena, uint32_t node, bool at_head)
{
	unsigned int class = class_of(node_size(arena, node));
	uint32_t head = arena->classes[class], tail;

	arena->nodes[node].start |= FREE_FLAG;
	arena->n_free++;
	if (head == 0) {
		arena->nodes[node].link_next = 0;
		arena->nodes[node].link_prev = node;
		arena->classes[class] = node;
		arena->second_maps[class / N_SECOND] |= UINT32_C(1)
							<< class % N_SECOND;
		arena->first_map |= UINT64_C(1) << class / N_SECOND;
		return;
	}
	tail = arena->nodes[head].link_prev;
	arena->nodes[node].link_next = at_head ? head : 0;
	arena->nodes[node].link_prev = tail;
	arena->nodes[head].link_prev = node;
	if (at_head)
		arena->classes[class] = node;
	else
		arena->nodes[tail].link_next = node;
}

/* Removes a free node from its class. Its size must not have changed yet. */
static void free_remove(struct arena *arena, uint32_t node)
{
	unsigned int class = class_of(node_size(arena, node));
	struct node *this = &arena->nodes[node];
	uint32_t head = arena->classes[class];

	this->start &= ~FREE_FLAG;
	arena->n_free--;
	if (this->link_next != 0)
		arena->nodes[this->link_next].link_prev = this->link_prev;
	else
		arena->nodes[head].link_prev = this->link_prev;
	if (head != node) {
		arena->nodes[this->link_prev].link_next = this->link_next;
		return;
	}
	arena->classes[class] = this->link_next;
	if (this->link_next != 0)
		return;
	arena->second_maps[class / N_SECOND] &=
		~(UINT32_C(1) << class % N_SECOND);
	if (arena->second_maps[class / N_SECOND] == 0)
		arena->first_map &= ~(UINT64_C(1) << class / N_SECOND);
}

/* Returns the first of at most `n_tries` ranges of a class that is large
 * enough. */
static uint32_t class_fit(const struct arena *arena, unsigned int class,
			  uint64_t size, uint32_t n_tries)
{
	uint32_t node = arena->classes[class];

	for (; node != 0 && n_tries > 0; n_tries--) {
		if (node_size(arena, node) >= size)
			return node;
		node = arena->nodes[node].link_next;
	}
	return 0;
}

/*
 * Returns a free range of at least `size` granules, or 0. The class of the size
 * itself is tried first, because it contains ranges that were released with
 * exactly this size. The whole class is searched before the call fails.
 */
static uint32_t find_fit(const struct arena *arena, uint64_t size)
{
	unsigned int class;
	uint32_t node;

	node = class_fit(arena, class_of(size), size, N_TRIES);
	if (node != 0)
		return node;
	if (class_find(arena, class_above(size), &class))
		return arena->classes[class];
	return class_fit(arena, class_of(size), size, UINT32_MAX);
}

/* --- hash of taken ranges ------------------------------------------------ */

static uint32_t *bucket(const struct arena *arena, uint64_t start)
{
	/* Fibonacci hashing spreads starts, which are multiples of a block
	 * size. */
	uint64_t hash = start * UINT64_C(0x9e3779b97f4a7c15);

	return &arena->buckets[hash >> (64 - arena->bucket_bits)];
}

static void taken_insert(struct arena *arena, uint32_t node)
{
	uint32_t *head = bucket(arena, node_start(arena, node));

	arena->nodes[node].link_next = *head;
	*head = node;
	arena->n_taken++;
	arena->used += node_size(arena, node);
}

/* Removes the range that starts at `start` from the table. Returns 0 if no
 * range starts there. */
static uint32_t taken_remove(struct arena *arena, uint64_t start)
{
	uint32_t *at = bucket(arena, start), node;

	while (*at != 0 && node_start(arena, *at) != start)
		at = &arena->nodes[*at].link_next;
	node = *at;
	if (node == 0)
		return 0;
	*at = arena->nodes[node].link_next;
	arena->n_taken--;
	arena->used -= node_size(arena, node);
	return node;
}

/* --- growing ------------------------------------------------------------- */

static int buckets_grow(struct arena *arena)
{
	unsigned int bits = arena->bucket_bits + 1;
	uint32_t *buckets, *head, node;

	buckets = calloc(UINT64_C(1) << bits, sizeof(*buckets));
	if (!buckets)
		return -ENOMEM;
	free(arena->buckets);
	arena->buckets = buckets;
	arena->bucket_bits = bits;
	node = arena->nodes[0].next;
	for (; node != 0; node = arena->nodes[node].next) {
		if (node_is_free(arena, node))
			continue;
		head = bucket(arena, node_start(arena, node));
		arena->nodes[node].link_next = *head;
		*head = node;
	}
	return 0;
}

static int nodes_grow(struct arena *arena, uint32_t n)
{
	uint32_t capacity = arena->capacity;
	struct node *nodes;

	if (n <= capacity - arena->n_touched)
		return 0;
	capacity = capacity < 32 ? 32 : capacity;
	if (capacity > UINT32_MAX / 2)
		return -ENOMEM;
	capacity *= 2;
	nodes = reallocarray(arena->nodes, capacity, sizeof(*nodes));
	if (!nodes)
		return -ENOMEM;
	arena->nodes = nodes;
	arena->capacity = capacity;
	return 0;
}

/* Makes space for one more taken range and `n` new nodes, before anything
 * changes. */
static int grow(struct arena *arena, uint32_t n, struct error *err)
{
	int r = failpoint_fail("arena.grow");

	if (r == 0)
		r = nodes_grow(arena, n);
	if (r == 0 && arena->n_taken >> arena->bucket_bits != 0)
		r = buckets_grow(arena);
	if (r < 0)
		return error_set(err, r,
				 "cannot allocate memory for the nodes of %u "
				 "memory ranges",
				 arena->n_taken);
	return 0;
}

static uint32_t node_take(struct arena *arena)
{
	uint32_t node = arena->first_unused;

	if (node != 0) {
		arena->first_unused = arena->nodes[node].next;
		return node;
	}
	assert(arena->n_touched < arena->capacity);
	return arena->n_touched++;
}

/* --- ranges -------------------------------------------------------------- */

/* Splits a node in two. The second part is a new node, which is in no list
 * yet. */
static uint32_t node_split(struct arena *arena, uint32_t node, uint64_t size)
{
	uint32_t rest = node_take(arena), next = arena->nodes[node].next;

	arena->nodes[rest].start = node_start(arena, node) + size;
	arena->nodes[rest].next = next;
	arena->nodes[rest].prev = node;
	arena->nodes[next].prev = rest;
	arena->nodes[node].next = rest;
	return rest;
}

/* Joins a node with the next one in memory. Neither may be in a list. */
static void node_join(struct arena *arena, uint32_t node)
{
	uint32_t gone = arena->nodes[node].next;
	uint32_t next = arena->nodes[gone].next;

	arena->nodes[node].next = next;
	arena->nodes[next].prev = node;
	arena->nodes[gone].next = arena->first_unused;
	arena->first_unused = gone;
}

static void order_drop(struct arena *arena)
{
	free(arena->order);
	arena->order = NULL;
	arena->n_order = 0;
}

/* Turns the first `size` granules of a free node into a taken range. */
static void take_front(struct arena *arena, uint32_t node, uint64_t size)
{
	free_remove(arena, node);
	if (node_size(arena, node) > size)
		free_insert(arena, node_split(arena, node, size), false);
	taken_insert(arena, node);
}

static uint64_t granules(const struct arena *arena, uint64_t size)
{
	uint64_t mask = (UINT64_C(1) << arena->shift) - 1;

	return (size >> arena->shift) + ((size & mask) != 0);
}

int arena_alloc(struct arena *arena, uint64_t size, uint64_t *ret_offset,
		struct error *err)
{
	uint32_t node;
	int r;

	if (size == 0)
		return error_set(
			err, -EINVAL,
			"the size of a memory range must be greater than 0");
	if (size > arena_size(arena))
		return ARENA_FULL;
	size = granules(arena, size);
	node = find_fit(arena, size);
	if (node == 0)
		return ARENA_FULL;
	r = grow(arena, 1, err);
	if (r < 0)
		return r;
	take_front(arena, node, size);
	*ret_offset = node_start(arena, node) << arena->shift;
	return ARENA_OK;
}

void arena_release(struct arena *arena, uint64_t offset)
{
	uint32_t node = taken_remove(arena, offset >> arena->shift);
	uint32_t next, prev;

	assert(node != 0 && node_start(arena, node) << arena->shift == offset);
	next = arena->nodes[node].next;
	prev = arena->nodes[node].prev;
	if (node_is_free(arena, next)) {
		free_remove(arena, next);
		node_join(arena, node);
	}
	if (node_is_free(arena, prev)) {
		free_remove(arena, prev);
		node_join(arena, prev);
		node = prev;
	}
	free_insert(arena, node, true);
	order_drop(arena); /* it may contain the node that was joined */
}

/* --- taking given ranges ------------------------------------------------- */

/* If there is no heap memory, the walk is longer, but still correct. */
static void order_make(struct arena *arena)
{
	uint32_t n = arena->n_taken + arena->n_free, node, *order;

	arena->n_steps = 0;
	order = reallocarray(arena->order, n, sizeof(*order));
	if (!order)
		return;
	arena->order = order;
	arena->n_order = 0;
	node = arena->nodes[0].next;
	for (; node != 0; node = arena->nodes[node].next)
		order[arena->n_order++] = node;
}

/* Returns the last node of `order` that starts at or before `start`, or the
 * first node of the arena if there is no order. */
static uint32_t order_find(const struct arena *arena, uint64_t start)
{
	uint32_t low = 0, high = arena->n_order, middle;

	while (high - low > 1) {
		middle = low + (high - low) / 2;
		if (node_start(arena, arena->order[middle]) <= start)
			low = middle;
		else
			high = middle;
	}
	return high == 0 ? arena->nodes[0].next : arena->order[low];
}

/*
 * Returns the node that covers `start`. The pool reserves the tail of a chunk
 * again and again, so the last node is tried first. Otherwise nodes are walked
 * from the nearest node in `order`, which is made again when as many steps were
 * walked as it costs to make it. So any sequence of reserves is cheap, and
 * allocation and release do not have to maintain the order.
 */
static uint32_t node_covering(struct arena *arena, uint64_t start)
{
	uint32_t node = arena->nodes[0].prev;

	if (node_start(arena, node) <= start)
		return node;
	if (arena->n_steps > arena->n_taken + arena->n_free)
		order_make(arena);
	node = order_find(arena, start);
	while (node_start(arena, arena->nodes[node].next) <= start) {
		node = arena->nodes[node].next;
		arena->n_steps++;
	}
	return node;
}

/* Splits the granules before `start` off a free node. Returns the rest, which
 * is free. */
static uint32_t cut_front(struct arena *arena, uint32_t node, uint64_t start)
{
	uint32_t rest;

	if (node_start(arena, node) == start)
		return node;
	free_remove(arena, node);
	rest = node_split(arena, node, start - node_start(arena, node));
	free_insert(arena, node, false);
	free_insert(arena, rest, false);
	return rest;
}

int arena_reserve(struct arena *arena, uint64_t offset, uint64_t size,
		  struct error *err)
{
	uint64_t start = offset >> arena->shift, total = arena_size(arena);
	uint32_t node;
	int r;

	if (size == 0 || offset >= total || size > total - offset ||
	    start << arena->shift != offset)
		return error_set(err, -EINVAL,
				 "%llu bytes at offset %llu are not a range of "
				 "an arena of %llu bytes",
				 (unsigned long long)size,
				 (unsigned long long)offset,
				 (unsigned long long)total);
	size = granules(arena, size);
	node = node_covering(arena, start);
	if (!node_is_free(arena, node) ||
	    start + size > node_start(arena, arena->nodes[node].next))
		return error_set(err, -EEXIST,
				 "bytes at %llu of an arena are taken already",
				 (unsigned long long)offset);
	r = grow(arena, 2, err);
	if (r < 0)
		return r;
	take_front(arena, cut_front(arena, node, start), size);
	return 0;
}

/* --- life and looking ---------------------------------------------------- */

static int arena_init(struct arena *arena, uint64_t size)
{
	uint64_t n = size >> arena->shift;

	arena->bucket_bits = 4;
	arena->n_first = class_of(n) / N_SECOND + 1;
	arena->buckets = calloc(UINT64_C(1) << arena->bucket_bits,
				sizeof(*arena->buckets));
	arena->second_maps =
		calloc(arena->n_first, sizeof(*arena->second_maps));
	arena->classes = calloc((size_t)arena->n_first * N_SECOND,
				sizeof(*arena->classes));
	if (!arena->buckets || !arena->second_maps || !arena->classes ||
	    nodes_grow(arena, 2) < 0)
		return -ENOMEM;
	arena->n_touched = 2;
	arena->nodes[0] = (struct node){.start = n, .next = 1, .prev = 1};
	arena->nodes[1] = (struct node){.start = 0};
	free_insert(arena, 1, true);
	return 0;
}

int arena_new(uint64_t size, uint64_t align, struct arena **ret,
	      struct error *err)
{
	struct arena *arena;
	int r;

	assert(align > 0 && (align & (align - 1)) == 0);
	if (size == 0 || size > ARENA_MAX_SIZE || size % align != 0)
		return error_set(err, -EINVAL,
				 "an arena cannot have %llu bytes",
				 (unsigned long long)size);
	r = failpoint_fail("arena.grow");
	arena = r < 0 ? NULL : calloc(1, sizeof(*arena));
	if (!arena)
		goto no_heap;
	arena->shift = (unsigned int)__builtin_ctzll(align);
	r = arena_init(arena, size);
	if (r < 0)
		goto no_heap;
	*ret = arena;
	return 0;
no_heap:
	arena_free(arena);
	return error_nomem(err, "the nodes of an arena");
}

struct arena *arena_free(struct arena *arena)
{
	if (!arena)
		return NULL;
	free(arena->nodes);
	free(arena->buckets);
	free(arena->second_maps);
	free(arena->classes);
	free(arena->order);
	free(arena);
	return NULL;
}

uint64_t arena_size(const struct arena *arena)
{
	return node_start(arena, 0) << arena->shift;
}

uint64_t arena_used(const struct arena *arena)
{
	return arena->used << arena->shift;
}

void arena_visit_free(const struct arena *arena, arena_visit_fn *fn, void *data)
{
	uint32_t node = arena->nodes[0].next;

	for (; node != 0; node = arena->nodes[node].next)
		if (node_is_free(arena, node))
			fn(node_start(arena, node) << arena->shift,
			   node_size(arena, node) << arena->shift, data);
}

/* --- consistency --------------------------------------------------------- */

static bool taken_has(const struct arena *arena, uint32_t node)
{
	uint32_t at = *bucket(arena, node_start(arena, node));

	while (at != 0 && at != node)
		at = arena->nodes[at].link_next;
	return at == node;
}

/* Checks the ring of neighbours: starts ascend, no two free nodes are
 * neighbours, and the counts are right. */
static bool ring_is_consistent(const struct arena *arena)
{
	uint32_t node = arena->nodes[0].next, prev = 0, n_free = 0, n_taken = 0;
	uint64_t end = 0, used = 0;

	for (; node != 0; prev = node, node = arena->nodes[node].next) {
		if (arena->nodes[node].prev != prev ||
		    node_start(arena, node) != end ||
		    node_start(arena, arena->nodes[node].next) <= end)
			return false;
		end += node_size(arena, node);
		if (node_is_free(arena, node)) {
			n_free++;
			if (node_is_free(arena, prev))
				return false;
			continue;
		}
		n_taken++;
		used += node_size(arena, node);
		if (!taken_has(arena, node))
			return false;
	}
	return arena->nodes[0].prev == prev && end == node_start(arena, 0) &&
	       n_free == arena->n_free && n_taken == arena->n_taken &&
	       used == arena->used;
}

/* Checks one class: its members are free and of its size, links are symmetric,
 * and the maps are right. */
static bool class_is_consistent(const struct arena *arena, unsigned int class,
				uint32_t *n_free)
{
	uint32_t head = arena->classes[class], node = head, prev = 0;
	bool in_second =
		arena->second_maps[class / N_SECOND] >> class % N_SECOND & 1;
	bool in_first = arena->first_map >> class / N_SECOND & 1;

	if (in_second != (head != 0) || (in_second && !in_first))
		return false;
	for (; node != 0; prev = node, node = arena->nodes[node].link_next) {
		if (!node_is_free(arena, node) ||
		    class_of(node_size(arena, node)) != class ||
		    (node != head && arena->nodes[node].link_prev != prev))
			return false;
		(*n_free)++;
	}
	return head == 0 || arena->nodes[head].link_prev == prev;
}

bool arena_is_consistent(const struct arena *arena)
{
	unsigned int class, row;
	uint32_t n_free = 0;

	if (!ring_is_consistent(arena))
		return false;
	for (class = 0; class < arena->n_first * N_SECOND; class ++)
		if (!class_is_consistent(arena, class, &n_free))
			return false;
	for (row = 0; row < arena->n_first; row++)
		if ((arena->first_map >> row & 1) !=
		    (arena->second_maps[row] != 0))
			return false;
	return n_free == arena->n_free;
}
