/*
 * Hostile processes: clients that do everything that a client may do, and all
 * the rest, until they are killed.
 */
#include "tests/hostile/hostile.h"
#include "tests/lib/chaos.h"
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define MAX_LIFE_MS 600

struct self {
	struct guest guest;
	bool spares_chunks;
};

/* --- the end ------------------------------------------------------------- */

static void *die_later(void *ms)
{
	nap_ms((unsigned int)(uintptr_t)ms);
	(void)raise(SIGKILL);
	(void)kill(getpid(), SIGKILL);
	return NULL;
}

/* --- acts ---------------------------------------------------------------- */

static void use_tensors(struct self *self)
{
	static const struct fsdp_spec spec = {FSDP_U8, 1, {5000}};
	struct fsdp_client *client = self->guest.client;
	struct fsdp_tensor *tensor = NULL, *other = NULL;
	char name[16];
	const char *names[] = {name};

	snprintf(name, sizeof(name), "evil/%u", draw(&self->guest.chance, 8));
	if (fsdp_alloc(client, &spec, 1, NULL, 0, &tensor) == 0) {
		struct fsdp_publication it = {.tensor = tensor,
					      .name = name,
					      .flags = FSDP_REPLACE,
					      .ttl_ms = 1000};

		(void)fsdp_publish(client, &it, 1);
	}
	if (fsdp_get(client, names, 1, NULL, &other) == 0 &&
	    draw(&self->guest.chance, 2))
		(void)fsdp_release(other);
	fsdp_free(other);
	if (draw(&self->guest.chance, 3))
		fsdp_free(tensor);
	if (draw(&self->guest.chance, 4) == 0)
		(void)fsdp_remove(client, names, 1);
}

static void use_bundle(struct self *self)
{
	static const struct fsdp_spec spec = {FSDP_U8, 1, {5000}};
	struct fsdp_client *client = self->guest.client;
	struct fsdp_bundle *bundle = NULL;
	const char *name = "evil/b/one";
	struct fsdp_tensor *tensor = NULL;

	if (fsdp_bundle_begin(client, "evil/b/", NULL, &bundle) < 0)
		return;
	if (fsdp_bundle_alloc(bundle, &name, &spec, 1, &tensor) == 0 &&
	    draw(&self->guest.chance, 2))
		fsdp_free(tensor);
	if (draw(&self->guest.chance, 2))
		(void)fsdp_bundle_commit(bundle, NULL);
	else
		fsdp_bundle_abort(bundle);
}

static void share(struct self *self)
{
	if (guest_is_run_time())
		guest_use_run(&self->guest);
	else
		guest_use_channel(&self->guest);
}

static void speak(struct self *self)
{
	frames_speak(self->guest.siege, &self->guest.chance);
}

static void abuse_files(struct self *self)
{
	for (int i = 0; i < 20; i++)
		files_abuse(self->guest.siege, &self->guest.chance,
			    self->spares_chunks);
}

static void (*const acts[])(struct self *) = {
	use_tensors, use_bundle, speak, abuse_files, share, share, share, share,
};

/* A hostile process of another user may write the memory of channels and runs
 * that it takes part in. One of the same user spares it, since there is nothing
 * that could prevent it. */
void hostile_live(void *data)
{
	static const uint32_t spoils[] = {0, 0, 50, 8};
	const struct life *life = data;
	const struct fsdp_connect_options options = {
		.path = life->siege->socket};
	struct self self = {.guest = {.siege = life->siege,
				      .chance = {life->seed},
				      .rank = N_GUESTS}};
	struct chance *chance = &self.guest.chance;
	uintptr_t ms = 20 + draw(chance, MAX_LIFE_MS);
	pthread_t thread;

	self.spares_chunks = !life->siege->has_users || draw(chance, 3) == 0;
	siege_become(life->siege,
		     self.spares_chunks ? USER_GUEST : USER_HOSTILE);
	must(pthread_create(&thread, NULL, die_later, (void *)ms) == 0);
	frames_spoil(life->siege, life->seed,
		     spoils[draw(chance, sizeof(spoils) / sizeof(spoils[0]))]);
	if (draw(chance, 4)) {
		const struct scribbler scribbler = {
			life->siege, {life->seed ^ 2}, self.spares_chunks};

		scribble_begin(&scribbler);
	}
	if (fsdp_connect(&options, &self.guest.client) < 0)
		return;
	for (;;)
		acts[draw(chance, sizeof(acts) / sizeof(acts[0]))](&self);
}
