/*
 * Messages between the broker and fsdp-worker.
 *
 * They are sent over a SOCK_SEQPACKET socketpair; the worker's end is its fd 3.
 * Each message is one of the structs below, as it is in memory: both programs
 * are built together, and the worker's hello says which build it is. The fd of
 * a chunk, the memfd of a plan and the file of timelines are sent with their
 * messages.
 *
 * The broker describes chunks and plans before a job uses them. Jobs of one
 * stream run in their order; jobs of different streams run in parallel. The
 * worker makes no decisions; it checks all ranges against the chunks and plans
 * that it knows, so that a mistake of the broker is an error and not a stray
 * write.
 *
 * A job on devices belongs to a communicator. A job of its own opens the
 * communicator, and JOB_FORGET_COMM closes it. Its jobs are enqueued in the
 * order in which they arrive, and complete in any order. Each rank has ranges
 * of its own. If one job fails, other jobs of the communicator fail as well,
 * and the broker then forgets it. A communicator that is forgotten is aborted:
 * its incomplete jobs, and those that still arrive for it, complete with
 * -ECANCELED.
 */
#pragma once
#include "collective/plan.h"
#include "proto/device_uuid.h"
#include <stdbool.h>
#include <stdint.h>

#define WORKER_FD    3
#define JOB_MAX_TEXT 240
#define JOB_PROTOCOL 4

#define JOB_NCCL_ID_SIZE 128 /* the size of NCCL's id */
#define JOB_MAX_WHAT     64

enum job_message_kind {
	/* to the worker: */
	JOB_CHUNK = 1,        /* struct job_chunk, with an fd */
	JOB_FORGET_CHUNK = 2, /* struct job_chunk */
	JOB_PLAN = 3,         /* struct job_plan, with an fd */
	JOB_FORGET_PLAN = 4,  /* struct job_plan */
	JOB_GATHER = 5,       /* struct job */
	JOB_REDUCE = 6,       /* struct job */
	/* from the worker: */
	JOB_HELLO = 7, /* struct job_hello */
	JOB_DONE = 8,  /* struct job_done */
	/* to the worker, for communicators on devices: */
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
	char cpu[32];     /* name of its kernels (struct kernels) */
};

struct job_chunk {
	uint32_t kind;
	uint32_t chunk; /* id; never used twice */
	uint64_t size;  /* bytes */
	/* The fd is a VMM chunk of this device; for the host it is a memfd. */
	struct device_uuid device;
};

/* The memfd holds `n_entries` struct plan_entry of the group's plan. */
struct job_plan {
	uint32_t kind;
	uint32_t n_entries;
	uint64_t plan; /* number; never used twice */
	uint32_t n_shards, n_replicas;
	uint32_t layout;      /* enum plan_layout */
	uint32_t is_per_rank; /* only for jobs of communicators on devices */
	uint32_t n_gather_buckets, n_reduce_buckets;
	/* sizes for one replica, as in struct plan */
	uint64_t shards_size, full_size, input_size, grads_size, partial_size;
};

/* A range of a chunk. The size is 0 if there is no range. */
struct job_range {
	uint32_t chunk;
	uint32_t reserved;
	uint64_t offset, size;
};

enum job_flags {
	JOB_ACCUMULATE = 1, /* add to the grads that are there */
	JOB_PARTIAL_IN = 2, /* `partial` holds sums to add */
	/* stop before the all-reduce: write `partial` (with JOB_PARTIAL_IN: add
	 * to it), do not touch the grads */
	JOB_PARTIAL_OUT = 4,
};

struct job {
	uint32_t kind; /* JOB_GATHER or JOB_REDUCE */
	uint32_t stream;
	uint64_t number; /* number of the job; job_done returns it */
	uint64_t plan;
	/* JOB_GATHER: casts and copies all of `shards` to `full`, for each
	 * replica, and sets the padding of `full` to zero. */
	struct job_range shards, full;
	/* JOB_REDUCE: plan.h describes the ranges, and reduce.h the
	 * arithmetic. */
	uint32_t flags; /* enum job_flags */
	uint8_t has_factor, is_sum_forced;
	uint16_t reserved;
	/* the divisions for each dtype follow from it (divide.h) */
	double factor;
	struct job_range grads, partial;
	struct job_range inputs[PLAN_MAX_RANKS]; /* indexed by rank */
};

struct job_member {
	uint32_t rank; /* in the world */
	uint32_t reserved;
	struct device_uuid device;
};

/* This job makes streams and opens NCCL for the ranks of this node, each on its
 * device. It is done when all of them are open. */
struct job_comm {
	uint32_t kind;
	uint32_t n_world; /* number of ranks on all nodes */
	uint64_t number;
	uint64_t comm;       /* id; never used twice */
	uint32_t n_shards;   /* divides n_world */
	uint32_t n_local;    /* number of members */
	uint32_t timeout_ms; /* for each wait for other ranks */
	/* if 0, all ranks are members, and the worker makes the id */
	uint32_t has_nccl_id;
	uint8_t nccl_id[JOB_NCCL_ID_SIZE];
	char name[JOB_MAX_TEXT]; /* for error sentences */
	struct job_member members[PLAN_MAX_RANKS];
};

struct job_forget_comm {
	uint32_t kind;
	uint32_t reserved;
	uint64_t comm;
};

/* The fd is the file of a member's timelines (shm/timeline.h). It is sent at
 * most once, before the first job that names one of them. */
struct job_timelines {
	uint32_t kind;
	uint32_t member; /* index in members of job_comm */
	uint64_t comm;
};

/* This job fails with -EINVAL unless all ranks of the world have the same
 * value. The sentence says what differs (`what`, such as "the step to commit")
 * and names a rank. */
struct job_compare {
	uint32_t kind;
	uint32_t reserved;
	uint64_t number;
	uint64_t comm;
	uint64_t value;
	char what[JOB_MAX_WHAT];
};

/*
 * The ranges of one rank. For a gather they are the shards (the plan's size
 * divided by n_shards), and the whole parameters followed by the tail of
 * wire_gather_tail(). For a reduction they are the gradients followed by the
 * tail of wire_reduce_tail(), and the reduced gradients and partial sums (each
 * the plan's size divided by n_shards). Ranges may be larger.
 */
struct job_rank {
	union {
		struct {
			struct job_range shards, full;
		} gather;
		struct {
			struct job_range input, grads, partial;
			/* The gradients are ready when this timeline of the
			 * rank has reached `value`. If it is 0, they are
			 * ready. */
			uint32_t timeline, reserved;
			uint64_t value;
		} reduce;
	};
};

/* A gather or reduction on devices, by all members: ranks[i] has the ranges of
 * members[i]. The other fields are as in struct job. */
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
	int32_t code; /* 0 or negative errno */
	uint64_t number;
	uint64_t n_bytes; /* bytes that were read and written */
	uint64_t ns;      /* time from the first to the last of its tasks */
	char sentence[JOB_MAX_TEXT];
};
