/*
 * fsdp-bench hostile: measures how long an innocent client's ping takes while
 * eight processes of another user attack the broker. For comparison eight
 * processes only compute in the same run. The two kinds alternate, because even
 * the times without an attack vary on a busy machine. The pings of all pairs
 * are pooled.
 *
 * The bystander pings, waits for a millisecond, and pings again. A ping that
 * took longer than that counts as all the pings that it prevented, each later
 * by a millisecond (HdrHistogram corrects in the same way). So the quantiles
 * are those of time, and one long stall is not a single sample among thousands.
 *
 * The broker has the priority of its service (systemd/fsdpd.service.in), if the
 * user may set it.
 *
 * The budgets are: the p99 is at most twice that with the computing processes,
 * and the worst ping is at most 20 ms above theirs.
 */
#include "hostile.h"
#include "child.h"
#include "fsdp.h"
#include "fsdp_inspect.h"
#include <grp.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define SECOND_NS       1000000000ull
#define ATTACKER_UID    61001
#define N_PAIRS         4
#define PAUSE_NS        1000000
#define WORST_BEYOND_US 20000
#define P99_BUDGET      2
/* The benchmark waits no longer than this for a ping. */
#define PATIENCE_NS (30 * SECOND_NS)

/* --- the bystander ------------------------------------------------------- */

/* The process that pings writes this in shared memory, so that a ping that
 * hangs is seen. */
struct diary {
	uint64_t began; /* start of the current ping; 0 if there is none */
	uint64_t n;
	uint64_t ns[1 << 16];
};

#define DIARY_MAX (sizeof(((struct diary *)0)->ns) / sizeof(uint64_t))

struct bystander {
	const struct bench *bench;
	const char *socket;
	struct diary *diary;
	uint64_t duration_ns;
};

static void be_bystander(int sock_fd, void *data)
{
	const struct bystander *me = data;
	struct diary *diary = me->diary;
	struct fsdp_client *client;
	uint64_t start;
	char go;

	unpin(me->bench);
	client = client_open(me->socket);
	must(fsdp_ping(client), "ping");
	message_send(sock_fd, "r", 1);
	message_receive(sock_fd, &go, 1);
	start = now_ns();
	while (diary->n < DIARY_MAX && now_ns() - start < me->duration_ns) {
		uint64_t began = now_ns();

		__atomic_store_n(&diary->began, began, __ATOMIC_SEQ_CST);
		must(fsdp_ping(client), "ping");
		diary->ns[diary->n] = now_ns() - began;
		__atomic_store_n(&diary->began, 0, __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&diary->n, 1, __ATOMIC_SEQ_CST);
		sleep_us(PAUSE_NS / 1000);
	}
	fsdp_close(client);
}

/* Add one ping, and those that it prevented, in us. */
static void add_ping(struct samples *samples, uint64_t ns)
{
	samples_add(samples, (double)ns / 1000);
	while (ns > 2 * PAUSE_NS) {
		ns -= PAUSE_NS;
		samples_add(samples, (double)ns / 1000);
	}
}

static bool has_ended(pid_t pid)
{
	siginfo_t info = {0};

	sys(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT),
	    "wait for a child");
	return info.si_pid != 0;
}

/* Wait for the bystander. A ping that hangs counts with the time that
 * passed. */
static void bystander_end(struct child *child, const struct diary *diary,
			  uint64_t duration_ns, struct samples *samples)
{
	uint64_t end = now_ns() + duration_ns + PATIENCE_NS;
	uint64_t began;

	while (!has_ended(child->pid) && now_ns() < end)
		sleep_us(10000);
	began = __atomic_load_n(&diary->began, __ATOMIC_SEQ_CST);
	for (uint64_t i = 0; i < diary->n; i++)
		add_ping(samples, diary->ns[i]);
	if (has_ended(child->pid)) {
		child_wait(child);
		return;
	}
	if (began)
		add_ping(samples, now_ns() - began);
	child_kill(child);
}

/* --- attackers, and others that only compute ----------------------------- */

struct turn {
	const struct bench *bench;
	const struct attack *attack; /* NULL if the process only computes */
	const char *socket;
	unsigned index;
	bool is_rehearsal;
};

static void be_another_user(void)
{
	if (getuid() != 0)
		return;
	sys(setgroups(0, NULL), "setgroups");
	sys(setresgid(ATTACKER_UID, ATTACKER_UID, ATTACKER_UID), "setresgid");
	sys(setresuid(ATTACKER_UID, ATTACKER_UID, ATTACKER_UID), "setresuid");
	/* The change of the user has cleared this. */
	sys(prctl(PR_SET_PDEATHSIG, SIGKILL), "prctl");
}

static void compute(void)
{
	for (volatile uint64_t n = 0;; n++)
		;
}

static struct attacker open_attacker(const struct turn *turn)
{
	unpin(turn->bench);
	be_another_user();
	return (struct attacker){.bench = turn->bench,
				 .socket = turn->socket,
				 .client = client_open(turn->socket),
				 .index = turn->index,
				 .is_rehearsal = turn->is_rehearsal};
}

static void be_attacker(int sock_fd, void *data)
{
	const struct turn *turn = data;
	struct attacker attacker;
	char go;

	if (!turn->attack) {
		unpin(turn->bench);
		message_send(sock_fd, "r", 1);
		compute();
	}
	attacker = open_attacker(turn);
	if (turn->attack->arm)
		turn->attack->arm(&attacker);
	/* Some attacks shut out the user who makes them. */
	message_send(sock_fd, "r", 1);
	message_receive(sock_fd, &go, 1);
	for (;;)
		(void)turn->attack->strike(&attacker);
}

static void be_rehearser(int sock_fd, void *data)
{
	const struct turn *turn = data;
	struct attacker attacker = open_attacker(turn);

	(void)sock_fd;
	if (turn->attack->arm)
		turn->attack->arm(&attacker);
	if (turn->attack->strike(&attacker) < 0)
		die("%s: it cannot strike: %s", turn->attack->name,
		    fsdp_error());
	fsdp_close(attacker.client);
}

static void be_preparer(int sock_fd, void *data)
{
	const struct turn *turn = data;
	struct attacker attacker = open_attacker(turn);

	(void)sock_fd;
	turn->attack->prepare(&attacker);
	fsdp_close(attacker.client);
}

/* --- what keeps the descriptors, and can be stopped ---------------------- */

#define KEEPER_NAME "notify.sock"

static void be_keeper(int sock_fd, void *data)
{
	const struct bench *bench = data;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char byte;
	int fd = sys(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket");

	snprintf(address.sun_path, sizeof(address.sun_path), "%.90s/%s",
		 bench->dir, KEEPER_NAME);
	sys(bind(fd, (struct sockaddr *)&address, sizeof(address)), "bind");
	message_send(sock_fd, "r", 1);
	/* If a message has no space for descriptors, the kernel closes those
	 * that come with it. */
	while (recv(fd, &byte, 1, 0) >= 0)
		;
}

/* --- one attack ---------------------------------------------------------- */

struct battle {
	const struct bench *bench;
	const struct attack *attack;
	struct daemon daemon;
	struct child keeper;
	struct diary *diary;
	bool is_rehearsal;
};

static void await_ready(const struct child *child)
{
	char ready;

	message_receive(child->sock_fd, &ready, 1);
}

static void set_deaf(const struct battle *battle, const struct attack *attack,
		     int signal)
{
	if (attack && attack->has_deaf_keeper)
		kill(battle->keeper.pid, signal);
}

/* Returns how long one half of a pair takes. If an attack needs a while to show
 * its effect, each of its halves takes all of that time. */
static uint64_t duration_ns(const struct battle *battle, bool is_attacked)
{
	unsigned shortest = battle->attack->min_seconds;
	unsigned seconds = battle->bench->is_quick ? 4 : 10;

	if (shortest && is_attacked)
		return shortest * SECOND_NS;
	return (shortest > seconds ? shortest : seconds) * SECOND_NS / N_PAIRS;
}

/* Adds the bystander's pings while eight attackers, or as many processes that
 * only compute, are running. */
static void measure(struct battle *battle, const struct attack *attack,
		    struct samples *samples)
{
	struct turn turns[N_ATTACKERS];
	struct child children[N_ATTACKERS], child;
	struct bystander bystander = {
		.bench = battle->bench,
		.socket = battle->daemon.socket,
		.diary = battle->diary,
		.duration_ns = duration_ns(battle, attack != NULL)};
	int cpu = battle->bench->client_cpu;

	memset(battle->diary, 0, sizeof(*battle->diary));
	child_start(&child, cpu, be_bystander, &bystander);
	await_ready(&child);
	for (unsigned i = 0; i < N_ATTACKERS; i++) {
		turns[i] = (struct turn){.bench = battle->bench,
					 .attack = attack,
					 .socket = battle->daemon.socket,
					 .index = i};
		child_start(&children[i], cpu, be_attacker, &turns[i]);
	}
	for (unsigned i = 0; i < N_ATTACKERS; i++)
		await_ready(&children[i]);
	set_deaf(battle, attack, SIGSTOP);
	for (unsigned i = 0; i < N_ATTACKERS; i++)
		message_send(children[i].sock_fd, "g", 1);
	message_send(child.sock_fd, "g", 1);
	bystander_end(&child, battle->diary, bystander.duration_ns, samples);
	for (unsigned i = 0; i < N_ATTACKERS; i++)
		child_kill(&children[i]);
	set_deaf(battle, attack, SIGCONT);
}

static void battle_begin(struct battle *battle, const struct bench *bench,
			 const struct attack *attack)
{
	struct daemon_options options = {.config = attack->config,
					 .is_unpinned = true,
					 .is_service = true};
	char notify[160];

	*battle = (struct battle){.bench = bench, .attack = attack};
	battle->diary =
		mmap(NULL, sizeof(*battle->diary), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (battle->diary == MAP_FAILED)
		die("mmap: %m");
	if (attack->has_deaf_keeper) {
		snprintf(notify, sizeof(notify), "%.90s/%s", bench->dir,
			 KEEPER_NAME);
		options.notify_socket = notify;
		child_start(&battle->keeper, bench->client_cpu, be_keeper,
			    (void *)bench);
		await_ready(&battle->keeper);
	}
	sys(chmod(bench->dir, 0755), "chmod");
	daemon_start(&battle->daemon, bench, &options);
}

static void battle_prepare(struct battle *battle)
{
	struct turn turn = {.bench = battle->bench,
			    .attack = battle->attack,
			    .socket = battle->daemon.socket,
			    .index = N_ATTACKERS,
			    .is_rehearsal = battle->is_rehearsal};
	struct child child;

	if (!battle->attack->prepare)
		return;
	child_start(&child, battle->bench->client_cpu, be_preparer, &turn);
	child_wait(&child);
}

static int find_other(const struct fsdp_peer *peer, void *data)
{
	(void)data;
	return peer->pid != (uint32_t)getpid();
}

static int find_any(const struct fsdp_entry *entry, void *data)
{
	(void)entry;
	(void)data;
	return 1;
}

/* Returns whether the broker has no sessions of other processes left, and no
 * names that end by themselves. */
static bool is_settled(const struct battle *battle, struct fsdp_client *client)
{
	const char *mortal = battle->attack->mortal;

	return fsdp_clients(client, find_other, NULL) == 0 &&
	       (!mortal || fsdp_list(client, mortal, find_any, NULL) == 0);
}

/* Wait until the broker has finished its work for attackers that have exited.
 * Gives up if the broker hangs. */
static void battle_settle(const struct battle *battle)
{
	struct fsdp_client *client = client_open(battle->daemon.socket);
	uint64_t end = now_ns() + PATIENCE_NS;

	while (!is_settled(battle, client) && now_ns() < end)
		sleep_us(10000);
	fsdp_close(client);
}

/* SIGKILL also ends a broker that hangs. */
static void battle_end(struct battle *battle)
{
	kill(battle->daemon.pid, SIGKILL);
	waitpid(battle->daemon.pid, NULL, 0);
	unlink(battle->daemon.socket);
	if (battle->attack->has_deaf_keeper)
		child_kill(&battle->keeper);
	munmap(battle->diary, sizeof(*battle->diary));
}

/* --- the table ----------------------------------------------------------- */

struct verdict {
	struct result p99, worst; /* in us */
	double calm_median, calm_worst, longest_loop_ms;
};

static void judge(struct samples *calm, struct samples *attacked,
		  struct verdict *ret)
{
	double calm_p99 = samples_quantile(calm, 0.99);
	double calm_worst = samples_quantile(calm, 1);
	double worst = samples_quantile(attacked, 1);

	ret->calm_median = samples_quantile(calm, 0.5);
	ret->calm_worst = calm_worst;
	ret->p99 = (struct result){
		.median = samples_quantile(attacked, 0.5),
		.p99 = samples_quantile(attacked, 0.99),
		.floor = calm_p99,
		.ratio = samples_quantile(attacked, 0.99) / calm_p99,
		.n = attacked->n,
	};
	ret->worst = (struct result){
		.median = worst,
		.p99 = NAN,
		.floor = calm_worst + WORST_BEYOND_US,
		.ratio = worst / (calm_worst + WORST_BEYOND_US),
		.n = attacked->n,
	};
}

static int find_longest(const char *name, uint64_t value, void *data)
{
	if (strcmp(name, "loop_longest_ns") == 0)
		*(double *)data = (double)value / 1000000;
	return 0;
}

/* Returns NAN if the broker does not count this, or does not reply. */
static double longest_loop_ms(const struct battle *battle)
{
	struct fsdp_connect_options options = {.path = battle->daemon.socket,
					       .reconnect_ms = 5000};
	struct fsdp_client *client;
	double ms = NAN;

	if (battle->attack->has_deaf_keeper ||
	    fsdp_connect(&options, &client) < 0)
		return NAN;
	(void)fsdp_status(client, find_longest, &ms, NULL);
	fsdp_close(client);
	return ms;
}

static void print_json(const struct attack *attack, const char *suffix,
		       const char *unit, const struct result *result,
		       double budget)
{
	printf("{\"name\": \"hostile_%s%s\"", attack->name, suffix);
	print_number("median", result->median);
	print_number("p99", result->p99);
	printf(", \"unit\": \"%s\", \"n\": %zu", unit, result->n);
	print_number("floor", result->floor);
	print_number("ratio", result->ratio);
	print_number("budget", budget);
	printf("}\n");
}

static void print_verdict(const struct bench *bench,
			  const struct attack *attack,
			  const struct verdict *verdict)
{
	const struct result *p99 = &verdict->p99, *worst = &verdict->worst;
	bool is_met = p99->ratio <= P99_BUDGET && worst->ratio <= 1;
	struct result loop = {.median = verdict->longest_loop_ms,
			      .p99 = NAN,
			      .floor = NAN,
			      .ratio = NAN};

	if (bench->is_json) {
		print_json(attack, "", "us", p99, P99_BUDGET);
		print_json(attack, "_worst", "us", worst, 1);
		print_json(attack, "_loop", "ms", &loop, NAN);
		return;
	}
	printf("%-17s %8.3f %8.2f %8.2f  %8.3f %8.2f %8.2f  %6.2f %8.2f "
	       "%8.2f  %-7s  %s\n",
	       attack->name, verdict->calm_median / 1000, p99->floor / 1000,
	       verdict->calm_worst / 1000, p99->median / 1000, p99->p99 / 1000,
	       worst->median / 1000, p99->ratio,
	       (worst->median - verdict->calm_worst) / 1000,
	       verdict->longest_loop_ms, is_met ? "met" : "NOT MET",
	       attack->what);
}

static void run(const struct bench *bench, const struct attack *attack)
{
	struct samples calm = SAMPLES_NULL, attacked = SAMPLES_NULL;
	struct verdict verdict;
	struct battle battle;

	battle_begin(&battle, bench, attack);
	battle_prepare(&battle);
	for (int i = 0; i < N_PAIRS; i++) {
		battle_settle(&battle);
		measure(&battle, NULL, &calm);
		measure(&battle, attack, &attacked);
	}
	judge(&calm, &attacked, &verdict);
	verdict.longest_loop_ms = longest_loop_ms(&battle);
	battle_end(&battle);
	print_verdict(bench, attack, &verdict);
	fflush(stdout);
	samples_deinit(&calm);
	samples_deinit(&attacked);
}

/* Let one attacker strike once, and check that the broker still replies. */
static void rehearse(const struct bench *bench, const struct attack *attack)
{
	struct turn turn = {
		.bench = bench, .attack = attack, .is_rehearsal = true};
	struct battle battle;
	struct child child;

	battle_begin(&battle, bench, attack);
	battle.is_rehearsal = true;
	battle_prepare(&battle);
	turn.socket = battle.daemon.socket;
	set_deaf(&battle, attack, SIGSTOP);
	child_start(&child, bench->client_cpu, be_rehearser, &turn);
	child_wait(&child);
	set_deaf(&battle, attack, SIGCONT);
	battle_settle(&battle);
	battle_end(&battle);
	printf("%s\n", attack->name);
	fflush(stdout);
}

static bool is_among(const char *name, char **names)
{
	for (; *names; names++)
		if (strcmp(*names, name) == 0)
			return true;
	return false;
}

const char *hostile_find_unknown(char **names)
{
	for (; *names; names++) {
		size_t i = 0;

		while (i < n_attacks && strcmp(attacks[i].name, *names) != 0)
			i++;
		if (i == n_attacks)
			return *names;
	}
	return NULL;
}

static const char head[] =
	"An innocent client pings, in ms; beside %u processes that compute, "
	"and beside %u\n"
	"processes of %s user that attack. Budgets: p99 at most %u times, the "
	"worst at\n"
	"most %u ms beyond. loop: the broker's longest iteration.\n\n"
	"%-17s %26s  %26s  %6s %8s %8s\n"
	"%-17s %8s %8s %8s  %8s %8s %8s\n";

static void run_each(const struct bench *bench,
		     void (*fn)(const struct bench *bench,
				const struct attack *attack))
{
	for (size_t i = 0; i < n_attacks; i++)
		if (!*bench->parts || is_among(attacks[i].name, bench->parts))
			fn(bench, &attacks[i]);
}

void rehearsal(const struct bench *bench, struct result *ret)
{
	run_each(bench, rehearse);
	*ret = (struct result){0};
}

void hostile(const struct bench *bench, struct result *ret)
{
	if (!bench->is_json)
		printf(head, N_ATTACKERS, N_ATTACKERS,
		       getuid() == 0 ? "another" : "the same", P99_BUDGET,
		       WORST_BEYOND_US / 1000, "", "beside computing",
		       "attacked", "p99", "worst", "loop", "attack", "median",
		       "p99", "worst", "median", "p99", "worst");
	fflush(stdout);
	run_each(bench, run);
	*ret = (struct result){0};
}
