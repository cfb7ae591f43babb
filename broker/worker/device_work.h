/*
 * What a rank's thread does on its device: opening, the shares of jobs, and
 * letting go of it all.
 */
#pragma once
#include "broker/worker/device_rank.h"

/* Make and map what the share needs, as far as it is not there. The driver may
 * wait for all streams of the process meanwhile. */
int device_work_prepare(struct device_rank *rank, struct device_share *share,
			struct error *err);

/* Do what is to be done in a share; where it goes on on a stream, share->done
 * is recorded behind it, else it is done. */
int device_work_begin(struct device_rank *rank, struct device_share *share,
		      struct error *err);

/* Groups whose plans were forgotten; nothing is under way. */
void device_work_drop_groups(struct device_rank *rank);

/* Abort; then nothing of this rank runs on the device. -ETIMEDOUT: that does
 * not end, and can be left only with the process. */
int device_work_abort(struct device_rank *rank, struct error *err);
/* Aborted. */
void device_work_close(struct device_rank *rank);

/* Has the device's context an error that stays? */
int device_work_check(const struct device_rank *rank, struct error *err);
