/*
 * What the broker tells fsdp-worker, and what it hears back.
 *
 * One SOCK_SEQPACKET socketpair, the worker's end is its fd 3. Every message
 * is one of the structs below, as it lies in memory: both ends are built
 * together, and the worker says in its hello which build it is of. A chunk's
 * fd travels with its message, a plan's memfd with its own.
 *
 * The worker is told about chunks and plans before a job needs them. Jobs of
 * one stream run in their order; jobs of different streams side by side. The
 * worker does what it is told and decides nothing; it checks all ranges
 * against the chunks and plans it knows, so that a mistake is an error and not
 * a stray write.
 */
#pragma once
#include "broker/collective/plan.h"
#include <stdbool.h>
#include <stdint.h>

#define WORKER_FD    3
#define JOB_MAX_TEXT 240
#define JOB_PROTOCOL 1

enum job_message_kind {
	/* to the worker */
	JOB_CHUNK = 1,        /* struct job_chunk, with an fd */
	JOB_FORGET_CHUNK = 2, /* struct job_chunk */
	JOB_PLAN = 3,         /* struct job_plan, with an fd */
	JOB_FORGET_PLAN = 4,  /* struct job_plan */
	JOB_GATHER = 5,       /* struct job */
	JOB_REDUCE = 6,       /* struct job */
	/* from the worker */
	JOB_HELLO = 7, /* struct job_hello */
	JOB_DONE = 8,  /* struct job_done */
};

struct job_hello {
	uint32_t kind;
	uint32_t protocol; /* JOB_PROTOCOL */
	uint32_t n_threads;
	uint32_t reserved;
	char version[32]; /* FSDP_VERSION */
	char cpu[32];     /* which kernels: "avx512", "avx2", "generic" */
};

struct job_chunk {
	uint32_t kind;
	uint32_t chunk; /* id, never used again */
	uint64_t size;  /* bytes */
};

/* The memfd holds `n_entries` struct plan_entry of the group's plan. */
struct job_plan {
	uint32_t kind;
	uint32_t n_entries;
	uint64_t plan; /* number, never used again */
	uint32_t n_shards, n_replicas;
	/* of one replica, as in struct plan */
	uint64_t shards_size, full_size, input_size, grads_size, partial_size;
};

/* A range of a chunk; size 0: none. */
struct job_range {
	uint32_t chunk;
	uint32_t reserved;
	uint64_t offset, size;
};

enum job_flags {
	JOB_ACCUMULATE = 1,  /* add to the grads that are there */
	JOB_PARTIAL_IN = 2,  /* `partial` holds sums to add */
	JOB_PARTIAL_OUT = 4, /* stop before the all-reduce: write `partial`
				(JOB_PARTIAL_IN: add to it), leave the grads */
};

struct job {
	uint32_t kind; /* JOB_GATHER, JOB_REDUCE */
	uint32_t stream;
	uint64_t number; /* completion ticket: comes back in job_done */
	uint64_t plan;
	/* JOB_GATHER: cast and copy all of `shards` to `full`, for every
	 * replica. Padding in `full` is zero behind it. */
	struct job_range shards, full;
	/* JOB_REDUCE: see plan.h, and the order of the arithmetic in reduce.h
	 */
	uint32_t flags; /* enum job_flags */
	uint8_t has_factor, is_sum_forced;
	uint16_t reserved;
	double factor; /* the divisions follow for each dtype: divide.h */
	struct job_range grads, partial;
	struct job_range inputs[PLAN_MAX_RANKS]; /* by rank */
};

struct job_done {
	uint32_t kind;
	int32_t code; /* 0 or -errno */
	uint64_t number;
	uint64_t n_bytes; /* read and written */
	uint64_t ns;      /* from the first to the last of its tasks */
	char sentence[JOB_MAX_TEXT];
};
