/*
 * Counters and files. A file is mapped once for each device whose streams use
 * it, and once for no device if this process has only looked at it. The file of
 * another user is mapped read-only; if a device cannot register read-only
 * pages, the file is not mapped for it, and the host waits in its place.
 */
#include "client/timeline.h"
#include "client/client.h"
#include "cuda/context.h"
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

struct timeline_file {
	struct timeline_file *next;
	uint64_t session;
	struct timelines timelines;
	struct fence_map map; /* its device is NULL: it is not registered */
	/* The broker refused to give the file writable. Protected by the lock
	 * of the book. */
	bool is_for_host;
};

void timeline_book_init(struct timeline_book *book)
{
	*book = (struct timeline_book){.files = NULL};
	pthread_mutex_init(&book->lock, NULL);
	for (uint32_t i = 0; i < TIMELINES; i++)
		pthread_mutex_init(&book->counters[i].lock, NULL);
}

static void file_free(struct timeline_file *file)
{
	fence_unmap(&file->map);
	timelines_close(&file->timelines);
	free(file);
}

int timeline_book_synchronize(const struct timeline_book *book,
			      int32_t timeout_ms, struct error *err)
{
	const struct device *last = NULL;
	const struct timeline_file *file;
	int r = 0;

	for (file = book->files; file && r == 0; file = file->next) {
		const struct device *device = file->map.device;

		if (device && device != last)
			r = context_synchronize(device, timeout_ms, err);
		last = device ? device : last;
	}
	return r;
}

void timeline_book_deinit(struct timeline_book *book, bool is_forked)
{
	while (book->files) {
		struct timeline_file *file = book->files;

		book->files = file->next;
		if (is_forked) {
			free(file);
			continue;
		}
		file_free(file);
	}
}

/* --- files --------------------------------------------------------------- */

/* Find the file of a session that is mapped for `device`; NULL: for any device
 * or none. The lock of the book is held. */
static struct timeline_file *find(const struct timeline_book *book,
				  uint64_t session, const struct device *device)
{
	struct timeline_file *file = book->files;

	while (file && (file->session != session ||
			(device && file->map.device != device)))
		file = file->next;
	return file;
}

static bool is_own(const struct fsdp_client *client, uint64_t session)
{
	return session == client->connection.self.session;
}

/* The broker replied that the tensor's ready fence has ended: the work is
 * complete, or the session is over. */
#define TIMELINE_ENDED 1

static int ask(struct fsdp_client *client, uint64_t session,
	       const struct slot_ref *ref, bool is_writable,
	       struct timelines *ret, struct error *err)
{
	struct request request = {.kind = MESSAGE_TIMELINES};
	struct received received;
	int r;

	if (!is_own(client, session)) {
		request.timelines.session = session;
		request.timelines.ref = *ref;
		request.timelines.wants_writable = is_writable;
	}
	r = client_call(client, &request, &received, err);
	if (r < 0)
		return r == -ESRCH ? TIMELINE_ENDED : r;
	if (received.n_fds != 1 ||
	    received.reply.timelines.session != session) {
		r = error_set(err, -EPROTO,
			      "fsdpd sent no timelines of session %llu",
			      (unsigned long long)session);
	} else {
		r = timelines_open(ret, received.fds[0], is_writable, err);
		received.fds[0] = -1;
	}
	received_deinit(&received);
	return r;
}

/* Get a file that is not in the list yet. Its descriptor is closed, since the
 * mapping is sufficient, and the broker keeps the file. */
static int fetch(struct fsdp_client *client, uint64_t session,
		 const struct slot_ref *ref, bool is_writable,
		 struct timeline_file **ret, struct error *err)
{
	struct timeline_file *file = calloc(1, sizeof(*file));
	int r;

	if (!file)
		return error_nomem(err, "a timeline");
	file->session = session;
	r = ask(client, session, ref, is_writable, &file->timelines, err);
	if (r != 0) {
		free(file);
		return r;
	}
	(void)close(file->timelines.fd);
	file->timelines.fd = -1;
	*ret = file;
	return 0;
}

/* Register the file and add it to the list. If another thread has done so in
 * the meantime, free it and return the other one. */
static int add(struct timeline_book *book, struct timeline_file *file,
	       const struct device *device, struct timeline_file **ret,
	       struct error *err)
{
	struct timeline_file *other;
	int r = 0;

	if (device)
		r = fence_map(device, file->timelines.pages, TIMELINE_SIZE,
			      !file->timelines.is_writable, &file->map, err);
	if (r < 0) {
		file_free(file);
		return r;
	}
	pthread_mutex_lock(&book->lock);
	other = find(book, file->session, device);
	if (other)
		other->is_for_host |= file->is_for_host;
	if (!other) {
		file->next = book->files;
		book->files = file;
	}
	pthread_mutex_unlock(&book->lock);
	if (other)
		file_free(file);
	*ret = other ? other : file;
	return 0;
}

static struct timeline_file *find_desc(struct timeline_book *book,
				       uint64_t session,
				       const struct device *device)
{
	struct timeline_file *file;

	pthread_mutex_lock(&book->lock);
	file = find(book, session, device);
	if (!file) {
		file = find(book, session, NULL);
		if (file && !file->is_for_host)
			file = NULL;
	}
	pthread_mutex_unlock(&book->lock);
	return file;
}

/* Find or get the file as it is mapped for `device`. If `device` is NULL, or
 * cannot register the file, this is any mapping, which only the host may use.
 * TIMELINE_ENDED: the session has ended; never returned for our own. */
static int get_file(struct fsdp_client *client, uint64_t session,
		    const struct slot_ref *ref, const struct device *device,
		    struct timeline_file **ret, struct error *err)
{
	struct timeline_book *book = &client->timelines;
	bool is_own_file = is_own(client, session);
	/* Some devices cannot register read-only pages. */
	bool is_writable =
		is_own_file || (device && !device->has_readonly_register);
	struct timeline_file *file = find_desc(book, session, device);
	int r;

	if (file) {
		*ret = file;
		return 0;
	}
	r = fetch(client, session, ref, is_writable, &file, err);
	if (r == -EACCES && is_writable && !is_own_file) {
		device = NULL;
		r = fetch(client, session, ref, false, &file, err);
		if (r == 0)
			file->is_for_host = true;
	}
	return r == 0 ? add(book, file, device, ret, err) : r;
}

/* --- our own counters ---------------------------------------------------- */

static bool is_habit(const struct counter *counter, const struct device *device,
		     CUstream stream)
{
	return counter->used && counter->stream == stream &&
	       counter->device == device &&
	       (stream != CU_STREAM_PER_THREAD ||
		pthread_equal(counter->thread, pthread_self()));
}

/* Choose the counter that the stream used last, or else the one that was unused
 * for the longest time. */
static uint32_t choose(struct timeline_book *book, const struct device *device,
		       CUstream stream)
{
	uint32_t chosen = 1;

	pthread_mutex_lock(&book->lock);
	for (uint32_t i = 1; i < TIMELINES; i++) {
		const struct counter *counter = &book->counters[i];

		if (is_habit(counter, device, stream)) {
			chosen = i;
			break;
		}
		if (counter->used < book->counters[chosen].used)
			chosen = i;
	}
	book->counters[chosen].device = device;
	book->counters[chosen].stream = stream;
	book->counters[chosen].thread = pthread_self();
	book->counters[chosen].used = ++book->n_chosen;
	pthread_mutex_unlock(&book->lock);
	return chosen;
}

static uint64_t offset_of(uint32_t timeline)
{
	return (uint64_t)timeline * TIMELINE_STRIDE;
}

/* Enqueue the next value. The counter's lock is held. */
static int write_next(struct counter *counter, const struct timeline_file *file,
		      uint32_t timeline, CUstream stream, struct error *err)
{
	uint64_t offset = offset_of(timeline), last = counter->value;
	int r = 0;

	if (!timeline_has_reached(timelines_load(&file->timelines, timeline),
				  last))
		r = fence_wait(&file->map, stream, offset, last, err);
	if (r == 0)
		r = fence_signal(&file->map, stream, offset, last + 1, err);
	if (r == 0)
		counter->value = last + 1;
	return r;
}

int timeline_signal(struct fsdp_client *client, const struct device *device,
		    CUstream stream, struct fence *ret, struct error *err)
{
	uint64_t session = client->connection.self.session;
	struct timeline_file *file;
	struct counter *counter;
	uint32_t timeline;
	int r;

	r = get_file(client, session, NULL, device, &file, err);
	if (r < 0)
		return r;
	timeline = choose(&client->timelines, device, stream);
	counter = &client->timelines.counters[timeline];
	pthread_mutex_lock(&counter->lock);
	r = write_next(counter, file, timeline, stream, err);
	if (r == 0)
		*ret = (struct fence){session, timeline, counter->value};
	pthread_mutex_unlock(&counter->lock);
	return r;
}

/* --- waiting ------------------------------------------------------------- */

static bool is_reached(const struct timeline_file *file,
		       const struct fence *fence)
{
	return timeline_has_reached(
		timelines_load(&file->timelines, fence->timeline),
		fence->value);
}

bool timeline_peek(struct fsdp_client *client, const struct fence *fence)
{
	struct timeline_book *book = &client->timelines;
	const struct timeline_file *file;

	pthread_mutex_lock(&book->lock);
	file = find(book, fence->session, NULL);
	pthread_mutex_unlock(&book->lock);
	return file && is_reached(file, fence);
}

int timeline_look(struct fsdp_client *client, const struct slot_ref *ref,
		  const struct fence *fence, bool *ret, struct error *err)
{
	struct timeline_file *file;
	int r = get_file(client, fence->session, ref, NULL, &file, err);

	if (r == 0)
		*ret = is_reached(file, fence);
	else if (r == TIMELINE_ENDED)
		*ret = true;
	return r < 0 ? r : 0;
}

int timeline_wait(struct fsdp_client *client, const struct slot_ref *ref,
		  const struct fence *fence, const struct device *device,
		  CUstream stream, struct error *err)
{
	struct timeline_file *file;
	int r = get_file(client, fence->session, ref, device, &file, err);

	if (r == TIMELINE_ENDED)
		return 0;
	if (r < 0 || is_reached(file, fence))
		return r;
	if (!file->map.device)
		return TIMELINE_FOR_HOST;
	return fence_wait(&file->map, stream, offset_of(fence->timeline),
			  fence->value, err);
}
