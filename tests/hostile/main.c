/*
 * hostile: processes that attack a broker, and the processes with which they
 * share memory, beside innocent ones. What they do follows from one seed and
 * the scheduler.
 *
 * At the end the innocent processes must have ended well, and the broker must
 * have the counters, descriptors and mappings that it had at the start.
 */
#include "tests/hostile/hostile.h"
#include "tests/lib/chaos.h"
#include "tests/lib/inventory.h"
#include "tests/lib/patience.h"
#include <grp.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONFIG                                                                 \
	"[memory]\nmemory_max = 320M\nchunk_min = 2M\nchunk_max = 8M\n"        \
	"warm_ms = 20\n[quota]\nquota_bytes = 64M\n"
#define FIRST_USER 61001
#define GROUP      61100 /* of the guests and the hostile processes */
#define N_INNOCENT (N_CLIENTS + N_RANKS + 2 + N_GUESTS)
/* Only a process that hangs reaches it. */
#define CALL_MS 60000
/* The supervisor gives up at the fifth death of a broker within 10 s. */
#define BROKER_PAUSE_MS 2600

struct field {
	struct siege *siege;
	struct daemon daemon;
	struct chance chance;
	pid_t innocent[N_INNOCENT], hostile[N_HOSTILE];
	uint64_t n_ops, moved_ms; /* of the calm clients */
	uint64_t killed_ms;       /* when a broker was killed last */
	unsigned int n_lives, n_brokers;
};

void siege_become(const struct siege *siege, enum siege_user user)
{
	const gid_t gid = user == USER_CALM ? FIRST_USER : GROUP;
	const uid_t uid = FIRST_USER + (uid_t)user;

	if (siege->has_users)
		must(setgroups(0, NULL) == 0 && setresgid(gid, gid, gid) == 0 &&
		     setresuid(uid, uid, uid) == 0);
	/* Changing the user resets both settings. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_DUMPABLE, 1);
}

static pid_t start(struct field *field, child_fn *fn, uint32_t number)
{
	struct life life = {
		.siege = field->siege,
		.seed = (uint64_t)draw(&field->chance, UINT32_MAX) << 32 | 1,
		.number = number,
	};

	return child_start(fn, &life);
}

/* --- innocent ------------------------------------------------------------ */

static void start_innocent(struct field *field)
{
	static const struct {
		child_fn *fn;
		uint32_t n;
	} roles[] = {{calm_client, N_CLIENTS},
		     {calm_rank, N_RANKS},
		     {calm_producer, 1},
		     {calm_consumer, 1},
		     {guest_live, N_GUESTS}};
	struct siege *siege = field->siege;
	uint32_t n = 0;

	siege->training = (struct exact_board){.socket = siege->socket,
					       .comm = "calm",
					       .world = N_RANKS,
					       .n_shards = N_RANKS,
					       .is_harsh = !siege->has_users};
	atomic_store(&siege->training.last_step, UINT64_MAX);
	memset(siege->soak.seen, 0, sizeof(siege->soak.seen));
	atomic_store(&siege->soak.must_end, 0);
	atomic_store(&siege->must_end, 0);
	atomic_store(&siege->n_items, 0);
	for (size_t i = 0; i < sizeof(roles) / sizeof(roles[0]); i++) {
		for (uint32_t j = 0; j < roles[i].n; j++)
			field->innocent[n++] = start(field, roles[i].fn, j);
	}
}

static void end_innocent(struct field *field)
{
	struct siege *siege = field->siege;

	atomic_store(&siege->training.last_step,
		     atomic_load(&siege->training.max_step) + 3);
	atomic_store(&siege->soak.must_end, 1);
	atomic_store(&siege->must_end, 1);
	for (int i = 0; i < N_INNOCENT; i++)
		must(child_wait(field->innocent[i]) == 0);
}

static void check_calls(const struct siege *siege)
{
	uint64_t now = clock_ms();

	for (int i = 0; i < N_GUESTS; i++) {
		uint64_t since = atomic_load(&siege->guests[i].since_ms);

		if (!since || now < since + CALL_MS)
			continue;
		fprintf(stderr, "guest %d hangs in %s\n", i,
			atomic_load(&siege->guests[i].doing));
		must(!"a call returns");
	}
}

/* The calm clients must make progress, and no innocent process may end. */
static void check_innocent(struct field *field)
{
	uint64_t n = atomic_load(&field->siege->soak.n_ops);
	int status;

	for (int i = 0; i < N_INNOCENT; i++) {
		if (waitpid(field->innocent[i], &status, WNOHANG) == 0)
			continue;
		fprintf(stderr, "innocent process %d: wait status %#x\n", i,
			(unsigned int)status);
		must(!"innocent processes live");
	}
	if (n != field->n_ops) {
		field->n_ops = n;
		field->moved_ms = clock_ms();
	}
	must(clock_ms() < field->moved_ms + PATIENCE_MS);
	check_calls(field->siege);
}

/* --- hostile ------------------------------------------------------------- */

/* A hostile process is killed, or ends because it was refused. Its library must
 * survive what the process itself writes. */
static void revive(struct field *field, unsigned int n_lives)
{
	for (uint32_t i = 0; i < N_HOSTILE; i++) {
		pid_t *pid = &field->hostile[i];
		int status = 0;

		if (*pid > 0 && waitpid(*pid, &status, WNOHANG) == 0)
			continue;
		if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) {
			fprintf(stderr, "hostile process %d: signal %d\n",
				(int)*pid, WTERMSIG(status));
			must(!"the library survives");
		}
		*pid = 0;
		if (field->n_lives < n_lives)
			*pid = start(field, hostile_live, ++field->n_lives);
	}
}

static bool are_any(const struct field *field)
{
	int i = 0;

	while (i < N_HOSTILE && field->hostile[i] <= 0)
		i++;
	return i < N_HOSTILE;
}

/* The next broker finds files that hostile processes have written. */
static void kill_broker(struct field *field)
{
	if (clock_ms() < field->killed_ms + BROKER_PAUSE_MS)
		return;
	daemon_kill_broker(&field->daemon);
	field->killed_ms = clock_ms();
	field->n_brokers++;
}

static void attack(struct field *field, unsigned int n_lives)
{
	field->moved_ms = clock_ms();
	do {
		revive(field, n_lives);
		kill_broker(field);
		check_innocent(field);
		nap_ms(1);
	} while (are_any(field));
}

/* --- before and after ---------------------------------------------------- */

static int remove_comm(const struct fsdp_comm_entry *entry, void *client)
{
	(void)fsdp_comm_remove(client, entry->name);
	return 0;
}

static int remove_one(const struct fsdp_entry *entry, void *client)
{
	char text[FSDP_MAX_NAME + 1];
	const char *name = text;

	snprintf(text, sizeof(text), "%s", entry->info->name);
	if (entry->bundle)
		strrchr(text, '/')[1] = '\0';
	(void)fsdp_remove(client, &name, 1);
	return 0;
}

/* Remove all that the processes have left, as administrator. */
static void clean(struct field *field)
{
	const struct fsdp_connect_options options = {
		.path = field->siege->socket};
	const struct figures empty = {
		.sessions = 1, .chunks = FIGURE_ANY, .chunk_bytes = FIGURE_ANY};
	struct fsdp_client *client = NULL;

	must(fsdp_connect(&options, &client) == 0);
	soak_await_deadlines(client);
	must(fsdp_comms(client, remove_comm, client) == 0);
	must(fsdp_list(client, NULL, remove_one, client) == 0);
	must(figures_await(client, &empty));
	must(fsdp_close(client) == 0);
}

static void await_ops(struct field *field, uint64_t n)
{
	field->moved_ms = clock_ms();
	while (atomic_load(&field->siege->soak.n_ops) < n) {
		check_innocent(field);
		nap_ms(1);
	}
}

/* List what a broker has that was restarted, and has worked without hostile
 * processes. */
static void take_stock(struct field *field, struct inventory *ret)
{
	kill_broker(field);
	start_innocent(field);
	await_ops(field, 300);
	end_innocent(field);
	clean(field);
	inventory_settle(&field->daemon, ret);
}

static void report(const struct field *field, uint64_t ms)
{
	const struct siege *siege = field->siege;
	uint64_t n_calls = 0, n_refused = 0, n_items = 0, n_steps = 0;

	for (int i = 0; i < N_GUESTS; i++) {
		n_calls += atomic_load(&siege->guests[i].n_calls);
		n_refused += atomic_load(&siege->guests[i].n_refused);
		n_items += atomic_load(&siege->guests[i].n_items);
		n_steps += atomic_load(&siege->guests[i].n_steps);
	}
	printf("hostile: %u lives in %.1f s, %u brokers killed: %llu spoilt "
	       "frames, %llu abuses "
	       "of files, %llu words\n"
	       "calm: %llu operations, %llu refused, %llu items, %llu steps of "
	       "training\nguests: %llu calls, %llu refused, %llu items, %llu "
	       "steps\n",
	       field->n_lives, (double)ms / 1000, field->n_brokers,
	       (unsigned long long)atomic_load(&siege->n_frames),
	       (unsigned long long)atomic_load(&siege->n_files),
	       (unsigned long long)atomic_load(&siege->n_words),
	       (unsigned long long)atomic_load(&siege->soak.n_ops),
	       (unsigned long long)atomic_load(&siege->soak.n_refused),
	       (unsigned long long)atomic_load(&siege->n_items),
	       (unsigned long long)atomic_load(&siege->training.max_step),
	       (unsigned long long)n_calls, (unsigned long long)n_refused,
	       (unsigned long long)n_items, (unsigned long long)n_steps);
}

static void run(uint64_t seed, unsigned int n_lives)
{
	const struct daemon_options options = {.is_supervised = true,
					       .config = CONFIG};
	struct field field = {.siege = shared_memory(sizeof(struct siege)),
			      .chance = {seed << 1 | 1}};
	struct inventory before = {.n = 0};
	uint64_t start_ms;

	daemon_start_with(&field.daemon, &options);
	must(chmod(field.daemon.dir, 0755) == 0);
	field.siege->has_users = getuid() == 0;
	if (!field.siege->has_users)
		puts("skipped: different users; only root can be these");
	field.siege->socket = daemon_socket(&field.daemon);
	field.siege->soak.socket = field.siege->socket;
	field.siege->soak.is_harsh = !field.siege->has_users;
	take_stock(&field, &before);
	start_ms = clock_ms();
	start_innocent(&field);
	attack(&field, n_lives);
	await_ops(&field, atomic_load(&field.siege->soak.n_ops) + 100);
	end_innocent(&field);
	report(&field, clock_ms() - start_ms);
	clean(&field);
	must(inventory_await(&field.daemon, &before));
	inventory_drop(&before);
	daemon_stop(&field.daemon);
}

int main(int argc, char **argv)
{
	struct course course = {choose_seed("FSDP_HOSTILE_SEED"), 60};

	course_choose(argc, argv, "lives", &course);
	run(course.seed, course.n);
	return 0;
}
