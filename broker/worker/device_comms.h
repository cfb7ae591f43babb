/*
 * All communicators on devices, and their jobs.
 *
 * The link's thread checks jobs and gives every rank its share; the ranks do
 * their shares in that order. A communicator that has failed stays over until
 * it is forgotten.
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

/* Abort all of them, and wait for their ends. */
void device_comms_deinit(struct device_comms *comms);

/* Begin a job, which is answered when it is done. After an error the caller
 * must answer it. */
int device_comms_open(struct device_comms *comms, const struct job_comm *job,
		      struct error *err);
int device_comms_compare(struct device_comms *comms,
			 const struct job_compare *job, struct error *err);
int device_comms_run(struct device_comms *comms, const struct job_device *job,
		     struct error *err);

/* Take a file of one rank; `fd` stays the caller's. -ECANCELED: the
 * communicator is not known. */
int device_comms_take_timelines(struct device_comms *comms,
				const struct job_timelines *message, int fd,
				struct error *err);

/* Does nothing for one that was refused. */
void device_comms_forget(struct device_comms *comms, uint64_t id);

/* A plan was forgotten: ranks that have it release it when they are idle. */
void device_comms_drop_plans(struct device_comms *comms);
