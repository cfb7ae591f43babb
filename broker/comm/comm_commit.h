/*
 * Commits: every rank has written its next shards, and all of them change from
 * one step to the next in one transaction.
 */
#pragma once
#include <stdint.h>

struct comm;
struct commit_request;
struct error;

/* The rank has written all its next shards and commits them.
 * -EBUSY, -EINVAL. */
int comm_commit(struct comm *comm, uint32_t rank,
		const struct commit_request *request, struct error *err);

/* The mask of ranks that have committed the present step. */
uint64_t comm_committed(const struct comm *comm);

/* Complete the commit once all ranks of all nodes have committed. */
void comm_commit_progress(struct comm *comm);
