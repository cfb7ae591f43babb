/*
 * Committing a step: the broker is told when this rank's shards are written.
 *
 * With a stream nothing waits for the device in fsdp_commit_on(). It notes how
 * far the streams are, and fsdp_wait() waits until they have come so far and
 * tells the broker then: a step that the broker has seen committed is in
 * memory, whoever dies afterwards. In between the rank leaves its groups alone
 * in any case.
 */
#pragma once
#include "client/rank/comm.h"

/* Tell the broker of the commit that is under way, unless it was told. The
 * device may be waited for within `timeout_ms` and the communicator's time-out:
 * -ETIMEDOUT, and the call may be repeated; any other failure ends the commit.
 */
int commit_send(struct fsdp_comm *comm, int32_t timeout_ms, struct error *err);

/* All ranks have committed. */
void commit_end(struct fsdp_comm *comm);
