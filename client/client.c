/*
 * Checks, and functions that send requests to the broker.
 */
#include "client/client.h"
#include "client/clock.h"
#include "client/one_way.h"
#include <errno.h>

int client_refuse(const struct fsdp_client *client, struct error *err)
{
	if (!client)
		return error_set(err, -EINVAL,
				 "there is no connection: the client is NULL; "
				 "fsdp_connect() makes one");
	return error_set(err, -ECHILD,
			 "this process was forked after the connection to "
			 "fsdpd was made; call fsdp_connect() in it (Python: "
			 "fsdp.connect() or fsdp.default())");
}

int client_check_tensor(const struct fsdp_tensor *tensor, struct error *err)
{
	if (!tensor)
		return error_set(err, -EINVAL,
				 "there is no tensor: the handle is NULL");
	if (!tensor->is_live)
		return error_set(err, -EINVAL,
				 "the handle was freed; get the tensor again");
	return client_check(tensor->client, err);
}

int client_check_held(const struct fsdp_tensor *tensor, struct error *err)
{
	int r = client_check_tensor(tensor, err);

	if (r < 0 || atomic_load_explicit(&tensor->holds, memory_order_relaxed))
		return r;
	return error_set(err, -EINVAL,
			 "the handle is not held: acquire it first, and "
			 "release it once for each hold");
}

int client_check_batch(const struct fsdp_client *client, size_t n,
		       struct error *err)
{
	int r = client_check(client, err);

	if (r < 0)
		return r;
	if (n > FSDP_MAX_BATCH)
		return error_set(err, -E2BIG,
				 "one call cannot take %zu items; split them "
				 "into calls of at most %d",
				 n, FSDP_MAX_BATCH);
	return 0;
}

int client_refuse_old_broker(struct error *err)
{
	return error_set(err, -EPROTO,
			 "cannot wait for a newer version: this fsdpd is too "
			 "old for it; install the version that libfsdp has");
}

static bool is_holding(struct fsdp_tensor *tensor, void *data)
{
	const uint32_t *chunk = data;

	/* Relaxed: a thread that gets a new hold meanwhile reads the state
	 * table, in which the slots of the chunk do not exist any more. */
	return desc_rest(tensor_desc(tensor))->chunk == *chunk &&
	       atomic_load_explicit(&tensor->holds, memory_order_relaxed) > 0;
}

static bool is_chunk_held(uint32_t chunk, void *data)
{
	return tensor_find(data, is_holding, &chunk) != NULL;
}

void client_retire(struct fsdp_client *client)
{
	mappings_retire(&client->mappings, &client->table, is_chunk_held,
			client);
}

static int call_once(struct fsdp_client *client, const struct request *request,
		     struct received *ret, struct error *err)
{
	struct stream_node *told;
	int r;

	client_retire(client);
	deferred_collect(client);
	told = event_book_tell(&client->events, &client->connection);
	r = connection_call(&client->connection, request, -1, ret, err);
	if (told) /* A refusal is a reply, too. */
		event_book_told(
			&client->events, told,
			r == 0 || !connection_is_down(&client->connection));
	return r;
}

/* While there are streams that only this process can look at, a call that waits
 * looks at them this often: other processes may wait for the memory, and the
 * call itself may wait for those processes. */
#define LOOK_MS 20

static bool must_look(const struct fsdp_client *client)
{
	return stream_list_is_busy(&client->events) ||
	       stream_list_is_busy(&client->deferred);
}

static int32_t next_slice(const struct fsdp_client *client,
			  const struct interrupt *interrupt, int32_t left_ms)
{
	if (must_look(client) && (left_ms < 0 || left_ms > LOOK_MS))
		return LOOK_MS;
	return interrupt_slice(interrupt, left_ms);
}

/* Tell whether a request was refused since its time was over, not at once. */
static bool is_by_time(int r, int64_t took_ms, int32_t timeout_ms)
{
	return (r == -ETIMEDOUT || r == -ENOMEM || r == -EDQUOT) &&
	       took_ms >= timeout_ms;
}

/* Make a call that waits in slices; between them, look at our streams and call
 * `interrupt`. */
static int call_patiently(struct fsdp_client *client,
			  const struct request *request,
			  const struct interrupt *interrupt,
			  struct received *ret, struct error *err)
{
	struct request copy = *request;
	int32_t *timeout_ms = request_timeout(&copy);
	int64_t start_ms = clock_now_ms(), now_ms = start_ms, begun_ms;
	int32_t whole_ms, left_ms;
	bool is_late;
	int r;

	if (!timeout_ms)
		return call_once(client, request, ret, err);
	whole_ms = left_ms = *timeout_ms;
	for (;;) {
		begun_ms = now_ms;
		*timeout_ms = next_slice(client, interrupt, left_ms);
		r = call_once(client, &copy, ret, err);
		now_ms = clock_now_ms();
		if (whole_ms >= 0)
			left_ms = (int32_t)(whole_ms - (now_ms - start_ms));
		is_late = is_by_time(r, now_ms - begun_ms, *timeout_ms);
		if (!is_late || *timeout_ms <= 0 ||
		    (whole_ms >= 0 && left_ms <= 0))
			break;
		if (ret->is_interrupted || interrupt_is_asked(interrupt))
			return interrupt_refuse(err);
	}
	if (is_late && *timeout_ms != whole_ms)
		error_wrap(err, r, "after %lld ms",
			   (long long)(now_ms - start_ms));
	return r;
}

int client_call(struct fsdp_client *client, const struct request *request,
		struct received *ret, struct error *err)
{
	int r = client_check(client, err);

	if (r < 0)
		return r;
	if (__builtin_expect(!must_look(client), 1))
		return call_once(client, request, ret, err);
	return call_patiently(client, request, &(struct interrupt){0}, ret,
			      err);
}

int client_call_in_slices(struct fsdp_client *client,
			  const struct request *request, struct received *ret,
			  struct error *err)
{
	int r = client_check(client, err);

	return r < 0 ? r
		     : call_patiently(client, request,
				      &client->connection.self.interrupt, ret,
				      err);
}

/* Release this process's descriptor of a chunk that it shared, when none of its
 * tensors is held here any more; then unmap retired chunks. */
static void end_share(struct fsdp_client *client, uint32_t chunk)
{
	if (!is_chunk_held(chunk, client))
		mappings_end_own(&client->mappings, chunk);
	client_retire(client);
}

int client_unshare(const struct fsdp_tensor *tensor, int32_t timeout_ms,
		   struct error *err)
{
	const struct request request = {
		.kind = MESSAGE_UNSHARE,
		.unshare = {.ref = {.slot = tensor->slot,
				    .generation = tensor->generation},
			    .timeout_ms = timeout_ms},
	};
	struct received received;
	int r = client_call_in_slices(tensor->client, &request, &received, err);

	if (r < 0)
		return r;
	received_deinit(&received);
	end_share(tensor->client, desc_rest(tensor_desc(tensor))->chunk);
	return 0;
}

int client_send_one_way(struct fsdp_client *client,
			const struct request *request,
			const struct one_way *one_way, struct error *err)
{
	client_retire(client);
	return connection_send_one_way(&client->connection, request, one_way,
				       err);
}

int client_command(struct fsdp_client *client, const struct request *request,
		   struct error *err)
{
	struct received received;
	int r = client_call(client, request, &received, err);

	if (r < 0)
		return r;
	received_deinit(&received);
	return 0;
}
