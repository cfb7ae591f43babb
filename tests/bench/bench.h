/*
 * Functions that every row of fsdp-bench needs, for time, samples and pairs.
 *
 * A number from one machine has little meaning alone. So rows measure a floor
 * (what the bare kernel or memory needs for the same work) and ours in turns,
 * block by block, in one run and on the same CPUs. One block of each is a
 * *pair*; a row's ratio is the median of its pairs' ratios. The quartiles of
 * these ratios show their spread, and a row has pairs until it is known how far
 * the median may be off.
 *
 * Each row runs in a process of its own, which may therefore simply die() if
 * something does not work. main.c reports it and continues.
 */
#pragma once
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct fsdp_client;

struct bench {
	bool is_quick, is_json;
	unsigned n_pairs;
	const char *dir;   /* the row's own directory, empty at first */
	const char *fsdpd; /* path of the broker */
	/* Clients run on the first CPU, servers (fsdpd, and those of floors) on
	 * the second, and a second client on the third. On a machine with two
	 * CPUs the second client uses the first CPU, and on a machine with one
	 * CPU all processes share it. Floor and ours are placed alike. */
	int client_cpu, server_cpu, second_cpu;
	cpu_set_t cpus; /* all CPUs that we may use */
	/* names of a table's parts, then NULL; NULL for all parts */
	char **parts;
};

/* The median of some ratios between their quartiles. */
struct spread {
	double low, median, high;
};

/* The result of a row. A value that does not exist is NAN. */
struct result {
	double median, p99, floor, ratio;
	/* quartiles of the ratios of the pairs; 0 if the row has no pairs */
	double ratio_low, ratio_high;
	/* Times of the best block of each, which other processes disturbed
	 * least. 0 if not measured. */
	double min, floor_min;
	size_t n; /* number of samples of ours */
	/* The MPI libraries' times divided by ours, as in party.h. 0 if not
	 * measured. */
	double mpi[2];
};

/* Print a sentence to stderr, and exit. */
void die(const char *format, ...)
	__attribute__((noreturn, format(printf, 1, 2)));
/* Call die() with the library's sentence if `r` is negative. */
void must(int r, const char *what);
/* Call die() with errno's sentence if `r` is negative. Returns `r`. */
int sys(int r, const char *what);

uint64_t now_ns(void);
uint64_t cpu_ns(void); /* used by this thread */
void sleep_us(unsigned us);
void pin(int cpu);
/* Lets the process run on all of the benchmark's CPUs again. */
void unpin(const struct bench *bench);

/* Write the path of a program in the directory of fsdp-bench, whether it exists
 * or not. `ret` has PATH_MAX bytes. */
const char *bench_beside(const char *program, char *ret);

struct samples {
	double *values;
	size_t n, n_max;
};

#define SAMPLES_NULL ((struct samples){0})

void samples_add(struct samples *samples, double value);
/* Sorts the samples, and returns their quantile `q`, which is the median for
 * 0.5. Returns NAN if there are no samples. */
double samples_quantile(struct samples *samples, double q);
void samples_deinit(struct samples *samples);
/* Sorts the samples. */
struct spread samples_spread(struct samples *samples);

/* How often a row is repeated. */
struct repeats {
	unsigned n, n_min;
	bool is_quick;
	uint64_t start; /* ns */
};

struct repeats repeats_begin(const struct bench *bench, unsigned n_min);
/* Returns whether another pair is needed. There are at least `n_min` pairs, and
 * exactly so many if `is_quick` is set. Then pairs are added until the medians
 * of all `lists` of ratios are known to about 5 %. There are at most four times
 * as many pairs, and none is added after 0.2 s for each of `n_min`. A list may
 * be empty. */
bool repeats_next(struct repeats *repeats, struct samples *const *lists,
		  size_t n_lists);

struct pairs {
	/* samples of the current block */
	struct samples floor, ours;
	struct samples floors, blocks, ratios; /* one for each pair */
	struct samples all;                    /* every sample of ours */
};

#define PAIRS_NULL ((struct pairs){0})

/* Returns whether another pair is needed (see repeats_next()). */
bool pairs_next(struct pairs *pairs, struct repeats *repeats);
/* Makes a pair of the two current blocks, which must be complete. */
void pairs_close(struct pairs *pairs);
/* Computes the result of all pairs. Samples are divided by `unit` (1000 makes
 * us of ns). */
void pairs_result(struct pairs *pairs, double unit, struct result *ret);
void pairs_deinit(struct pairs *pairs);

/* Makes the result of a row whose limit is a fixed number. `value` is compared
 * with the limit. */
void absolute_result(struct samples *samples, double value, double limit,
		     struct result *ret);

/* Prints `, "key": value` of a JSON object. Writes null for a number that is
 * not finite. */
void print_number(const char *key, double value);

/* Connects to the broker at `socket`. */
struct fsdp_client *client_open(const char *socket);

/* Writes "PREFIX/00012345". `ret` must have NAME_SIZE bytes. */
#define NAME_SIZE 64
void name_format(char *ret, const char *prefix, size_t i);

/* Publishes `n` tensors of `size` bytes as PREFIX/00000000 and so on, and keeps
 * no hold of them. */
void publish_many(struct fsdp_client *client, const char *prefix, size_t n,
		  size_t size);

/* --- the rows; each in the file of its family ---------------------------- */

typedef void row_fn(const struct bench *bench, struct result *ret);

row_fn hot_acquire_release, hot_get_by_name;
row_fn rpc_ping, rpc_get, rpc_publish, rpc_release, rpc_alloc_warm, rpc_get_100;
row_fn model_attach_1000;
row_fn publish_to_waiter, publish_to_waiter_one_wake;
row_fn channel_one_way, channel_64kib, channel_64kib_filled, channel_1mib;
row_fn channel_wakes, channel_wakes_busy;
row_fn handover_1mib, handover_64mib;
row_fn handover_steady_faults, handover_steady_mmaps, handover_steady_fds;
row_fn death_reclaim_1000, idle_wakeups, broker_rss_per_100k, restart_10k;
row_fn scale_ls, scale_status, scale_who, scale_top, scale_top_tensors;
row_fn scale_metrics;
row_fn scale_bytes_per_tensor, scale_restart, scale_restart_idle;
row_fn alloc_churn_growth;
row_fn local_all_gather_64mib, local_reduce_scatter_64mib;
row_fn direct_unshard_in_place;
row_fn direct_death, direct_death_p99, direct_death_1gib;
row_fn direct_reduce_1kib;
row_fn direct_reduce_64kib;
row_fn direct_reduce_1mib;
row_fn direct_reduce_4mib;
row_fn direct_reduce_64mib;
row_fn direct_gather_64kib, direct_gather_cast_64kib;
row_fn direct_gather_1mib, direct_gather_cast_1mib;
row_fn direct_gather_4mib, direct_gather_cast_4mib;
row_fn direct_gather_64mib, direct_gather_cast_64mib;
row_fn worker_gather_4mib, worker_gather_64mib;
row_fn worker_all_reduce_4mib, worker_all_reduce_64mib;
row_fn mpi_gather_64kib, mpi_reduce_64kib;
row_fn mpi_gather_1kib, mpi_reduce_1kib, mpi_reduce_1kib_crowded;
row_fn tensor_all_reduce_1kib, tensor_all_reduce_1mib, tensor_all_reduce_64mib;
row_fn tensor_broadcast, tensor_reduce, tensor_all_gather, tensor_gather;
row_fn tensor_scatter, tensor_reduce_scatter, tensor_all_to_all, tensor_send;
row_fn load_1gib;
row_fn plan_65536, meter_request_ns, sandbox_ping;

/* These functions print tables of their own instead of a row. */
row_fn collectives, gpu, hostile, rehearsal;
