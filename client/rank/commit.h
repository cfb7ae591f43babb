/*
 * Commits: a rank tells the broker that its shards of a step are written.
 *
 * With a stream, fsdp_commit_on() does not wait for the device. It records the
 * progress of the streams; fsdp_wait() waits until they have reached that point
 * and then tells the broker. So a step that the broker has seen committed is in
 * memory, whichever process dies afterwards. Until then the rank does not
 * change its groups.
 */
#pragma once
#include "client/rank/comm.h"

/* Tell the broker of the commit that is under way, if it does not know yet. The
 * call may wait for the device for `timeout_ms`, but not longer than the
 * communicator's time-out. Returns -ETIMEDOUT if the device has not finished;
 * the call may then be repeated. Any other failure ends the commit. */
int commit_send(struct fsdp_comm *comm, int32_t timeout_ms, struct error *err);

/* End the commit, since all ranks have committed. */
void commit_end(struct fsdp_comm *comm);
