/*
 * Bundles: staging, the commit, and getting all members at once.
 *
 * The broker seals a bundle's memory against writing, which the kernel refuses
 * while any process has it mapped writable. So the commit first removes our
 * mappings but keeps their addresses, and afterwards maps the read-only memory
 * at the same addresses: pointers into the members stay valid. Device memory
 * has no seals, and our streams may be reading it, so its mapping does not
 * change.
 */
#include "client/bundle.h"
#include "client/client.h"
#include "client/device.h"
#include "client/places.h"
#include "client/sized.h"
#include "client/spec.h"
#include "client/stream.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct fsdp_bundle {
	struct fsdp_client *client;
	uint64_t id;
	bool is_on_device;
	/* by the broker, but its memory is not mapped again yet */
	bool is_committed;
	/* A commit got no reply, so the broker may have carried it out. */
	bool is_in_doubt;
	uint64_t version;
	uint32_t *chunks; /* owned; the chunks that contain its members */
	size_t n_chunks;
	struct fsdp_bundle *next;
};

/* --- making and freeing -------------------------------------------------- */

static void free_one(struct fsdp_bundle *bundle)
{
	free(bundle->chunks);
	free(bundle);
}

void bundle_free_all(struct fsdp_client *client)
{
	while (client->bundles) {
		struct fsdp_bundle *bundle = client->bundles;

		client->bundles = bundle->next;
		free_one(bundle);
	}
}

/* For a NULL bundle this returns NULL, which client_check() refuses. */
static struct fsdp_client *client_of(const struct fsdp_bundle *bundle)
{
	return bundle ? bundle->client : NULL;
}

static void unlink_and_free(struct fsdp_bundle *bundle)
{
	struct fsdp_client *client = bundle->client;
	struct fsdp_bundle **link = &client->bundles;

	pthread_mutex_lock(&client->bundles_lock);
	while (*link != bundle)
		link = &(*link)->next;
	*link = bundle->next;
	pthread_mutex_unlock(&client->bundles_lock);
	free_one(bundle);
}

static struct bundle_begin_request
begin_request(const char *name, const struct fsdp_bundle_options *options)
{
	return (struct bundle_begin_request){
		.name = name,
		.access = spec_access(&options->access),
		.size_hint = options->size_hint,
		.flags = options->flags,
		.ttl_ms = options->ttl_ms,
		.device = device_uuid_of(&options->device),
		.timeout_ms = options->timeout_ms,
		.n_kept = options->n_kept,
	};
}

static int bundle_new(struct fsdp_client *client, const struct request *request,
		      struct fsdp_bundle **ret, struct error *err)
{
	struct fsdp_bundle *bundle = calloc(1, sizeof(*bundle));
	struct received received;
	int r;

	if (!bundle)
		return error_nomem(err, "a bundle");
	/* In slices, a call that was interrupted waits at the broker only for
	 * the rest of one; it could still begin the bundle. */
	r = client_call_in_slices(client, request, &received, err);
	if (r < 0) {
		free(bundle);
		return r;
	}
	bundle->client = client;
	bundle->id = received.reply.bundle.bundle;
	bundle->is_on_device =
		!device_uuid_is_host(&request->bundle_begin.device);
	received_deinit(&received);
	*ret = bundle;
	return 0;
}

static void link_bundle(struct fsdp_client *client, struct fsdp_bundle *bundle)
{
	pthread_mutex_lock(&client->bundles_lock);
	bundle->next = client->bundles;
	client->bundles = bundle;
	pthread_mutex_unlock(&client->bundles_lock);
}

int fsdp_bundle_begin(struct fsdp_client *client, const char *name,
		      const struct fsdp_bundle_options *options,
		      struct fsdp_bundle **ret)
{
	static const struct fsdp_bundle_options defaults;
	struct error *err = error_of_thread();
	struct fsdp_bundle_options o;
	struct request request = {.kind = MESSAGE_BUNDLE_BEGIN};
	struct fsdp_bundle *bundle = NULL;
	int r = client_check(client, err);

	if (r == 0)
		r = sized_take(&o, options ? options : &defaults,
			       SIZED(fsdp_bundle_options), err);
	if (r < 0)
		return r;
	request.bundle_begin = begin_request(name, &o);
	r = device_check_usable(&request.bundle_begin.device, err);
	if (r == 0)
		r = bundle_new(client, &request, &bundle, err);
	if (r < 0)
		return r;
	link_bundle(client, bundle);
	*ret = bundle;
	return 0;
}

/* --- members ------------------------------------------------------------- */

static bool has_chunk(const struct fsdp_bundle *bundle, uint32_t chunk)
{
	for (size_t i = 0; i < bundle->n_chunks; i++)
		if (bundle->chunks[i] == chunk)
			return true;
	return false;
}

/* Under the lock, since several threads may allocate members. */
static int note_chunks(struct fsdp_bundle *bundle,
		       const struct places_reply *places, struct error *err)
{
	struct fsdp_client *client = bundle->client;
	int r = 0;

	pthread_mutex_lock(&client->bundles_lock);
	for (uint32_t i = 0; i < places->n_places; i++) {
		uint32_t chunk = places->places[i].chunk, *chunks;

		if (chunk == 0 || has_chunk(bundle, chunk))
			continue;
		chunks = reallocarray(bundle->chunks, bundle->n_chunks + 1,
				      sizeof(*chunks));
		if (!chunks) {
			r = error_nomem(err, "a bundle");
			break;
		}
		bundle->chunks = chunks;
		chunks[bundle->n_chunks++] = chunk;
	}
	pthread_mutex_unlock(&client->bundles_lock);
	return r;
}

int fsdp_bundle_alloc(struct fsdp_bundle *bundle, const char *const *names,
		      const struct fsdp_spec *specs, size_t n,
		      struct fsdp_tensor **ret)
{
	struct fsdp_client *client = client_of(bundle);
	struct error *err = error_of_thread();
	struct alloc_request alloc = {.access = {.gid = GID_DEFAULT},
				      .n_items = (uint32_t)n};
	struct places_use use = {.n = n, .names = names, .is_writable = true};
	struct received received;
	struct places_reply *places = &received.reply.places;
	int r;

	r = client_check_batch(client, n, err);
	if (r < 0 || n == 0)
		return r;
	alloc.bundle = use.bundle = bundle->id;
	r = spec_alloc(client, &alloc, specs, names, &received, err);
	if (r < 0)
		return r;
	r = note_chunks(bundle, places, err);
	if (r == 0)
		return places_receive(client, &received, &use, ret, err);
	places_give_back(client, places);
	received_deinit(&received);
	return r;
}

/* --- commit and abort ---------------------------------------------------- */

struct writability {
	uint64_t bundle;
	bool is_writable;
};

static bool set_writable(struct fsdp_tensor *tensor, void *data)
{
	const struct writability *it = data;

	if (tensor->bundle == it->bundle)
		atomic_store_explicit(&tensor->is_writable, it->is_writable,
				      memory_order_relaxed);
	return false;
}

static void set_members_writable(const struct fsdp_bundle *bundle,
				 bool is_writable)
{
	struct writability it = {bundle->id, is_writable};

	(void)tensor_find(bundle->client, set_writable, &it);
}

static int unmap_all(struct fsdp_bundle *bundle, struct error *err)
{
	int r = 0;

	if (bundle->is_on_device)
		return 0;
	for (size_t i = 0; i < bundle->n_chunks && r == 0; i++)
		r = mappings_reserve(&bundle->client->mappings,
				     bundle->chunks[i], err);
	return r;
}

/* Map all chunks again, with the access that the broker now allows. */
static int map_again(struct fsdp_bundle *bundle, struct error *err)
{
	if (bundle->is_on_device)
		return 0;
	for (size_t i = 0; i < bundle->n_chunks; i += FRAME_MAX_FDS) {
		size_t n = bundle->n_chunks - i;
		int r;

		if (n > FRAME_MAX_FDS)
			n = FRAME_MAX_FDS;
		r = places_fetch_chunks(bundle->client, bundle->chunks + i,
					(uint32_t)n, err);
		if (r < 0)
			return r;
	}
	return 0;
}

static int commit(struct fsdp_bundle *bundle, struct error *err)
{
	struct request request = {.kind = MESSAGE_BUNDLE_COMMIT,
				  .bundle_commit = {.bundle = bundle->id}};
	struct received received = {0};
	int r = unmap_all(bundle, err);

	if (r < 0)
		return r;
	r = client_call(bundle->client, &request, &received, err);
	bundle->is_in_doubt |= r < 0 && !received.is_refused;
	if (r < 0)
		return r;
	bundle->version = received.reply.bundle.version;
	bundle->is_committed = true;
	received_deinit(&received);
	return 0;
}

/* Map all chunks again, writable. This fails if the broker has carried out the
 * commit, although its reply did not arrive; on a device, whose mapping does
 * not tell, also if it may have done so. */
static int map_writable(struct fsdp_bundle *bundle, struct error *err)
{
	struct range range;
	int r = map_again(bundle, err);

	if (bundle->is_on_device && bundle->is_in_doubt)
		return error_set(err, -EACCES,
				 "fsdpd may have committed the bundle");
	for (size_t i = 0; i < bundle->n_chunks && r == 0; i++)
		r = mappings_find(&bundle->client->mappings, bundle->chunks[i],
				  true, &range, err);
	return r;
}

/* After a failed commit the members must be writable again. */
static void undo_commit(struct fsdp_bundle *bundle, struct error *err)
{
	struct error why = ERROR_NULL;

	if (map_writable(bundle, &why) == 0)
		set_members_writable(bundle, true);
	else
		error_set(err, err->code,
			  "%.200s; abort the bundle, because its memory could "
			  "not be made writable again: %.200s",
			  err->msg, why.msg);
}

int fsdp_bundle_commit(struct fsdp_bundle *bundle, uint64_t *ret_version)
{
	struct error *err = error_of_thread();
	int r;

	r = client_check(client_of(bundle), err);
	if (r < 0)
		return r;
	if (!bundle->is_committed) {
		set_members_writable(bundle, false);
		r = commit(bundle, err);
		if (r < 0) {
			undo_commit(bundle, err);
			return r;
		}
	}
	r = map_again(bundle, err);
	if (r < 0)
		return error_wrap(err, r,
				  "the bundle was committed, but its memory "
				  "could not be mapped again (call "
				  "fsdp_bundle_commit() again to retry)");
	if (ret_version)
		*ret_version = bundle->version;
	unlink_and_free(bundle);
	return 0;
}

void fsdp_bundle_abort(struct fsdp_bundle *bundle)
{
	struct request request = {.kind = MESSAGE_BUNDLE_ABORT};

	if (!bundle || guard_is_forked(&bundle->client->guard))
		return;
	request.bundle_abort.bundle = bundle->id;
	if (!bundle->is_committed) {
		set_members_writable(bundle, false);
		(void)client_command(bundle->client, &request, NULL);
	}
	unlink_and_free(bundle);
}

/* --- get ----------------------------------------------------------------- */

/* Check that the stream can be used; the members of a committed bundle are
 * written already. */
static int await(struct fsdp_tensor **tensors, size_t n, uint64_t version,
		 const struct fsdp_get_options *options, struct error *err)
{
	int r = version > options->newer_than
			? stream_await(tensors, n, options, 0, err)
			: client_refuse_old_broker(err);

	while (r < 0 && n-- > 0)
		fsdp_free(tensors[n]);
	return r;
}

static int adopt_members(struct fsdp_client *client, struct received *received,
			 const struct fsdp_get_options *options,
			 struct fsdp_tensor ***ret, size_t *ret_n,
			 struct error *err)
{
	const struct bundle_get_reply *reply = &received->reply.bundle_get;
	struct places_use use = {
		.n = reply->n_members, .is_named = true, .options = options};
	struct fsdp_tensor **tensors;
	struct manifest *manifest;
	int r;

	if (received->n_fds < 1)
		return error_set(err, -EPROTO, "fsdpd sent no manifest");
	r = places_open_manifest(client, reply, received->fds[0], &manifest,
				 err);
	if (r < 0)
		return r;
	places_take_chunks(client, received, reply->chunks, reply->n_chunks, 1);
	/* The array has one item more, because an empty bundle must not give
	 * NULL. */
	tensors = calloc((size_t)reply->n_members + 1,
			 sizeof(struct fsdp_tensor *));
	if (tensors) {
		r = places_adopt_manifest(client, manifest, &use, tensors, err);
	} else {
		places_give_back_manifest(client, manifest);
		r = error_nomem(err, "%u handles", reply->n_members);
	}
	manifest_close(manifest);
	if (r == 0)
		r = await(tensors, use.n, reply->version, options, err);
	if (r < 0) {
		free(tensors);
		return r;
	}
	*ret = tensors;
	*ret_n = use.n;
	return 0;
}

int bundle_get_adopt(struct fsdp_client *client, struct received *received,
		     const struct fsdp_get_options *options,
		     struct fsdp_tensor ***ret, size_t *ret_n,
		     struct error *err)
{
	int r = adopt_members(client, received, options, ret, ret_n, err);

	received_deinit(received);
	return r;
}

int bundle_get_request(const struct fsdp_client *client, const char *name,
		       const struct fsdp_get_options *given,
		       struct fsdp_get_options *ret_options,
		       struct request *ret, struct error *err)
{
	int r = client_check(client, err);

	if (r == 0)
		r = sized_take(ret_options, given, SIZED(fsdp_get_options),
			       err);
	if (r < 0)
		return r;
	if (ret_options->version && ret_options->newer_than)
		return error_set(err, -EINVAL,
				 "options->version and options->newer_than are "
				 "both set; set only one of them");
	if (ret_options->known_only)
		return error_set(
			err, -EINVAL,
			"options->known_only cannot be used for a bundle, "
			"because only fsdpd knows its members; leave it 0");
	*ret = (struct request){
		.kind = MESSAGE_BUNDLE_GET,
		.bundle_get = {.name = name,
			       .timeout_ms = ret_options->timeout_ms,
			       .is_trust_set = ret_options->is_trust_set,
			       .trusted_uid = ret_options->trusted_uid,
			       .newer_than = ret_options->newer_than,
			       .version = ret_options->version},
	};
	return 0;
}

int fsdp_bundle_get(struct fsdp_client *client, const char *name,
		    const struct fsdp_get_options *options,
		    struct fsdp_tensor ***ret, size_t *ret_n)
{
	struct error *err = error_of_thread();
	struct fsdp_get_options desc;
	struct received received;
	struct request request;
	int r;

	r = bundle_get_request(client, name, options, &desc, &request, err);
	if (r == 0)
		r = client_call(client, &request, &received, err);
	return r < 0 ? r
		     : bundle_get_adopt(client, &received, &desc, ret, ret_n,
					err);
}
