/*
 * What a rank's thread does on its device: it opens the rank, does the shares
 * of jobs, and releases everything.
 */
#pragma once
#include "broker/worker/device_rank.h"

/* Make and map what the share needs and does not have yet. The driver may wait
 * for all streams of the process meanwhile. */
int device_work_prepare(struct device_rank *rank, struct device_share *share,
			struct error *err);

/* Do a share. If its work goes on on a stream, share->done is recorded after
 * the work; else the share is done. */
int device_work_begin(struct device_rank *rank, struct device_share *share,
		      struct error *err);

/* Release groups whose plans were forgotten. No work may be under way. */
void device_work_drop_groups(struct device_rank *rank);

/* Abort; afterwards nothing of this rank runs on the device. -ETIMEDOUT: its
 * work does not end, and only the end of the process will end it. */
int device_work_abort(struct device_rank *rank, struct error *err);
/* The rank was aborted. */
void device_work_close(struct device_rank *rank);

/* Does the device's context have an error that stays? */
int device_work_check(const struct device_rank *rank, struct error *err);
