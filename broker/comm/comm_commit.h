/*
 * Commits: when every rank has written its next shards, all shards change from
 * one step to the next in one transaction.
 */
#pragma once
#include <stdint.h>

struct comm;
struct commit_request;
struct error;

/* Commit the next shards of the rank, which has written all of them. Returns
 * -EBUSY or -EINVAL if the rank cannot commit now. */
int comm_commit(struct comm *comm, uint32_t rank,
		const struct commit_request *request, struct error *err);

/* Returns the mask of ranks that have committed the present step. */
uint64_t comm_committed(const struct comm *comm);

/* Complete the commit if all ranks of all nodes have committed. */
void comm_commit_progress(struct comm *comm);
