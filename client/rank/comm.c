/*
 * The checks and the requests of a communicator.
 *
 * A communicator ends for this process when the broker returns -ECONNABORTED.
 * The sentence is kept, so that every later call returns the same. A broker
 * that was restarted returns this for communicators that it does not continue;
 * if a broker does not come back, the library returns it.
 */
#include "client/rank/comm.h"
#include "client/rank/engine.h"
#include "client/rank/plain_device.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

int comm_refuse(const struct fsdp_comm *comm, struct error *err)
{
	int r;

	if (!comm)
		return error_set(err, -EINVAL,
				 "there is no communicator: the handle of it, "
				 "or of its group, is NULL");
	r = client_check(comm->client, err);
	if (r == 0 && comm->failure.code < 0)
		r = error_set(err, comm->failure.code, "%s", comm->failure.msg);
	return r;
}

int comm_check_idle(const struct fsdp_comm *comm, struct error *err)
{
	int r = comm_check(comm, err);

	if (r == 0 && comm->committing)
		r = error_set(err, -EBUSY,
			      "step %" PRIu64
			      " is being committed; call fsdp_wait() for the "
			      "commit first",
			      comm->committing);
	return r;
}

/* End the communicator for this process. Transfers must not use their memory
 * afterwards, since the caller may free it. */
static int end(struct fsdp_comm *comm, struct error *err)
{
	comm->failure = *err;
	if (comm->engine)
		engine_abort(comm->engine);
	*err = comm->failure;
	return err->code;
}

int comm_call(struct fsdp_comm *comm, const struct request *request,
	      struct received *ret, struct error *err)
{
	int r = client_call(comm->client, request, ret, err);

	if (r == 0)
		return 0;
	/* -EBADF means that this process has closed the connection. -EINTR and
	 * -ETIMEDOUT mean that the caller may call again; by then the next
	 * broker may be there. */
	if (r != -ECONNABORTED && r != -EBADF && r != -EINTR &&
	    r != -ETIMEDOUT && connection_is_down(&comm->client->connection))
		r = error_wrap(err, -ECONNABORTED,
			       "fsdpd has exited, and the communicators that "
			       "ran there have ended");
	return r == -ECONNABORTED ? end(comm, err) : r;
}

int comm_command(struct fsdp_comm *comm, const struct request *request,
		 struct error *err)
{
	struct received received;
	int r = comm_call(comm, request, &received, err);

	if (r == 0)
		received_deinit(&received);
	return r;
}

int comm_ask_why(struct fsdp_comm *comm, struct error *err)
{
	struct request request = {.kind = MESSAGE_COMM_BOARD,
				  .comm_board = {.comm = comm->id}};

	return comm_command(comm, &request, err);
}

void comm_give_up(struct fsdp_comm *comm, const struct error *why)
{
	char sentence[MESSAGE_MAX_TEXT + 1];
	struct request request = {
		.kind = MESSAGE_COMM_FAIL,
		.comm_fail = {.comm = comm->id, .sentence = sentence},
	};

	snprintf(sentence, sizeof(sentence), "%.*s", MESSAGE_MAX_TEXT,
		 why->msg);
	(void)client_command(comm->client, &request, NULL);
}

int comm_fail_run(struct fsdp_comm *comm, struct error *err)
{
	int r;

	err->code = -ECONNABORTED;
	comm_give_up(comm, err);
	r = comm_check_run(comm, err);
	/* The result is 0 if the broker does not know the failure yet. */
	return r < 0 ? r : end(comm, err);
}

int comm_check_stream(const struct fsdp_comm *comm, void *stream,
		      struct error *err)
{
	if (comm->engine)
		return engine_check_stream(comm->engine, stream, err);
	if (plain_is_device(comm))
		return plain_check_stream(&comm->device, stream, err);
	return error_set(err, -EINVAL,
			 "communicator '%s' is on host memory, and its ranks "
			 "do not use streams; pass NULL as stream",
			 comm->name);
}

void comm_end_spent(struct fsdp_comm *comm)
{
	tensor_end(comm->spent);
	comm->spent = NULL;
}
