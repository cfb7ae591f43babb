/*
 * All communicators on devices, and their jobs.
 *
 * The link's thread checks jobs and gives every rank its share; the ranks do
 * them in that order. A communicator that has failed stays over until it is
 * forgotten.
 */
#pragma once
#include "collective/job.h"
#include <stdint.h>

struct device_comm;
struct error;
struct store;

struct device_comms {
	int sock_fd;         /* borrowed */
	struct store *store; /* borrowed */
	struct device_comm *first;
};

/* Aborts and awaits them all. */
void device_comms_deinit(struct device_comms *comms);

/* The jobs: answered when they are done, or else an error, to be answered. */
int device_comms_open(struct device_comms *comms, const struct job_comm *job,
		      struct error *err);
int device_comms_compare(struct device_comms *comms,
			 const struct job_compare *job, struct error *err);
int device_comms_run(struct device_comms *comms, const struct job_device *job,
		     struct error *err);

/* A member's file; `fd` stays the caller's. -ECANCELED: the communicator is
 * not known. */
int device_comms_take_timelines(struct device_comms *comms,
				const struct job_timelines *message, int fd,
				struct error *err);

/* No-op for one that was refused. */
void device_comms_forget(struct device_comms *comms, uint64_t id);

/* A plan was forgotten: ranks that have it let it go, when they are idle. */
void device_comms_drop_plans(struct device_comms *comms);
