/*
 * To commit a step, a rank tells the broker that its shards are written.
 *
 * With a stream, fsdp_commit_on() does not wait for the device. It notes how
 * far the streams are; fsdp_wait() waits until they are that far and then tells
 * the broker. So a step that the broker has seen committed is in memory,
 * whichever process dies afterwards. Until then the rank does not change its
 * groups.
 */
#pragma once
#include "client/rank/comm.h"

/* Tell the broker of the commit that is under way, if it does not know yet. The
 * call may wait for the device for `timeout_ms` and at most the communicator's
 * time-out: -ETIMEDOUT, after which the call may be repeated. Any other failure
 * ends the commit. */
int commit_send(struct fsdp_comm *comm, int32_t timeout_ms, struct error *err);

/* All ranks have committed, so the step ends. */
void commit_end(struct fsdp_comm *comm);
