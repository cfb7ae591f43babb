/*
 * Moving bytes between files and host memory by several threads, with the
 * digest of each job on the way.
 *
 * A job is one range of a file and its memory. Threads take its pieces in
 * order, so that the kernel reads ahead, and pieces of later jobs when those
 * are taken. Whoever finishes a piece digests all pieces that are next, while
 * they are in a cache.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct error;
struct progress;

struct transfer;

enum transfer_direction {
	TRANSFER_READ,   /* from the file into memory */
	TRANSFER_WRITE,  /* from memory into the file */
	TRANSFER_DIGEST, /* only the digest */
};

struct transfer_job {
	enum transfer_direction direction;
	int fd;
	const char *path; /* for sentences; borrowed */
	uint64_t offset;  /* in the file */
	void *memory;     /* not changed by a write or a digest */
	uint64_t size;
	uint64_t *ret_digest; /* XXH3 of the bytes */
};

/* Start the threads; one fewer than CPUs at most fail silently to start.
 * `progress` may be NULL. */
int transfer_start(struct progress *progress, struct transfer **ret,
		   struct error *err);
/* Threads begin with it at once. What the job points to must stay. An error of
 * an earlier job is returned here or by transfer_wait(). */
int transfer_add(struct transfer *transfer, const struct transfer_job *job,
		 struct error *err);
/* Returns when all jobs are done; the first error of one, or a signal noted by
 * interrupt.h (-EINTR). */
int transfer_wait(struct transfer *transfer, struct error *err);
/* Drops what is not done. NULL is allowed. */
void transfer_stop(struct transfer *transfer);
