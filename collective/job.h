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
 *
 * On devices jobs are of a communicator, which is opened by a job of its own
 * and closed by being forgotten. Its jobs are enqueued in the order in which
 * they come, and done in any. Each rank has ranges of its own. Once one of them
 * has failed, others fail as well, and the broker forgets it. What is forgotten
 * is aborted: jobs that are not done are answered with -ECANCELED, as are those
 * that still come for it.
 */
#pragma once
#include "collective/plan.h"
#include "proto/device_uuid.h"
#include <stdbool.h>
#include <stdint.h>

#define WORKER_FD    3
#define JOB_MAX_TEXT 240
#define JOB_PROTOCOL 4

#define JOB_NCCL_ID_SIZE 128 /* NCCL's */
#define JOB_MAX_WHAT     64

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
	/* to the worker, of communicators on devices */
	JOB_COMM = 9,           /* struct job_comm */
	JOB_FORGET_COMM = 10,   /* struct job_forget_comm */
	JOB_COMPARE = 11,       /* struct job_compare */
	JOB_DEVICE_GATHER = 12, /* struct job_device */
	JOB_DEVICE_REDUCE = 13, /* struct job_device */
	JOB_TIMELINES = 14,     /* struct job_timelines, with an fd */
};

struct job_hello {
	uint32_t kind;
	uint32_t protocol; /* JOB_PROTOCOL */
	uint32_t n_threads;
	uint32_t reserved;
	char version[32]; /* FSDP_VERSION */
	char cpu[32];     /* which kernels: struct kernels' name */
};

struct job_chunk {
	uint32_t kind;
	uint32_t chunk; /* id, never used again */
	uint64_t size;  /* bytes */
	struct device_uuid
		device; /* the fd is a VMM chunk of it; or the host */
};

/* The memfd holds `n_entries` struct plan_entry of the group's plan. */
struct job_plan {
	uint32_t kind;
	uint32_t n_entries;
	uint64_t plan; /* number, never used again */
	uint32_t n_shards, n_replicas;
	uint32_t layout;      /* enum plan_layout */
	uint32_t is_per_rank; /* for jobs of communicators on devices, and no
				 others */
	uint32_t n_gather_buckets, n_reduce_buckets;
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

/*
 * A job: make streams and open NCCL for those ranks of the world that are here,
 * each on its device. Done when all of them are open.
 */
struct job_member {
	uint32_t rank; /* in the world */
	uint32_t reserved;
	struct device_uuid device;
};
struct job_comm {
	uint32_t kind;
	uint32_t n_world; /* ranks, on all nodes */
	uint64_t number;
	uint64_t comm;        /* id, never used again */
	uint32_t n_shards;    /* divides n_world */
	uint32_t n_local;     /* members */
	uint32_t timeout_ms;  /* of every wait for other ranks */
	uint32_t has_nccl_id; /* else all are here, and the worker makes one */
	uint8_t nccl_id[JOB_NCCL_ID_SIZE];
	char name[JOB_MAX_TEXT]; /* for sentences */
	struct job_member members[PLAN_MAX_RANKS];
};

struct job_forget_comm {
	uint32_t kind;
	uint32_t reserved;
	uint64_t comm;
};

/* The fd is the file of a member's timelines (shm/timeline.h); it comes at most
 * once, before the first job that names one of them. */
struct job_timelines {
	uint32_t kind;
	uint32_t member; /* its place in job_comm */
	uint64_t comm;
};

/* A job: -EINVAL unless all ranks of the world have the same value; the
 * sentence says what differs ("the step to commit"), and names a rank. */
struct job_compare {
	uint32_t kind;
	uint32_t reserved;
	uint64_t number;
	uint64_t comm;
	uint64_t value;
	char what[JOB_MAX_WHAT];
};

/*
 * What one rank has, of at least these sizes: shards (of the plan's size over
 * n_shards) and whole parameters, with the tail of wire_gather_tail() behind
 * them; or gradients, with that of wire_reduce_tail() behind them, and reduced
 * ones and partial sums (each of the plan's size over n_shards).
 */
struct job_rank {
	union {
		struct {
			struct job_range shards, full;
		} gather;
		struct {
			struct job_range input, grads, partial;
			/* The gradients are there when that timeline of the
			 * rank has come so far; 0: they are. */
			uint32_t timeline, reserved;
			uint64_t value;
		} reduce;
	};
};

/* A gather or reduction on devices, of all members: in ranks[i] is what that
 * of members[i] has. The rest is as in struct job. */
struct job_device {
	uint32_t kind;
	uint32_t flags;
	uint64_t number, comm, plan;
	uint8_t has_factor, is_sum_forced;
	uint16_t reserved[3];
	double factor;
	struct job_rank ranks[PLAN_MAX_RANKS];
};

struct job_done {
	uint32_t kind;
	int32_t code; /* 0 or -errno */
	uint64_t number;
	uint64_t n_bytes; /* read and written */
	uint64_t ns;      /* from the first to the last of its tasks */
	char sentence[JOB_MAX_TEXT];
};
