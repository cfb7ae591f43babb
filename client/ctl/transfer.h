/*
 * Moves bytes between files and host memory by several threads, and computes
 * the digest of each job on the way.
 *
 * A job is a range of a file and the memory for it. The pieces of a job are
 * moved in order, so that the kernel reads ahead. Each thread works on a job of
 * its own. If no job is left for a thread, it helps another thread with its
 * job. A thread that has moved a piece digests all pieces that are next in
 * order, while they are in a cache.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;
struct progress;

struct transfer;

enum transfer_direction {
	TRANSFER_READ,   /* file to memory */
	TRANSFER_WRITE,  /* memory to file */
	TRANSFER_DIGEST, /* only the digest */
};

struct transfer_job {
	enum transfer_direction direction;
	int fd;
	const char *path; /* for errors; borrowed */
	uint64_t offset;  /* in the file */
	/* TRANSFER_READ requires a shared mapping of a file, and unmaps the
	 * pages that are done: the next use maps them again. The others only
	 * read the memory. */
	void *memory;
	uint64_t size;
	uint64_t *ret_digest; /* XXH3 of the bytes */
};

/* Starts the threads, at most one for each CPU. It fails only if not even one
 * thread can be started. `progress` may be NULL. */
int transfer_start(struct progress *progress, struct transfer **ret,
		   struct error *err);
/* Adds a job, which threads begin at once. The memory and file of the job must
 * stay valid. An error of an earlier job is returned here or by
 * transfer_wait(). */
int transfer_add(struct transfer *transfer, const struct transfer_job *job,
		 struct error *err);
/* Waits until all jobs are done. Returns the error of the first job that
 * failed, or -EINTR if interrupt.h has noted a signal. */
int transfer_wait(struct transfer *transfer, struct error *err);
/* Stops the threads and drops unfinished jobs. `transfer` may be NULL. */
void transfer_stop(struct transfer *transfer);
