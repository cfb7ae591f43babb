#include "broker/session/leftover.h"
#include "broker/base/account.h"
#include "broker/base/closer.h"
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

void leftover_close(const struct leftover *leftover)
{
	if (leftover->account)
		account_refund(leftover->account, ACCOUNT_QUEUE,
			       leftover->charge);
	/* A descriptor that is slow to close cannot be in the socket. */
	if (!leftover->took_fds)
		close(leftover->sock_fd);
	else
		closer_put_connection(leftover->closer, leftover->uid,
				      leftover->sock_fd);
}

static void on_closed(uv_handle_t *handle)
{
	free(handle->data);
}

static void end(struct leftover *leftover)
{
	*leftover->at = leftover->next;
	if (leftover->next)
		leftover->next->at = leftover->at;
	uv_close((uv_handle_t *)&leftover->poll, on_closed);
	leftover_close(leftover);
}

static void on_event(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	end(poll->data);
}

static void link_in(struct leftover *leftover)
{
	leftover->at = leftover->list;
	leftover->next = *leftover->list;
	if (leftover->next)
		leftover->next->at = &leftover->next;
	*leftover->list = leftover;
}

void leftover_keep(uv_loop_t *loop, const struct leftover *leftover)
{
	struct leftover *kept = malloc(sizeof(*kept));

	if (!kept) {
		leftover_close(leftover);
		return;
	}
	*kept = *leftover;
	kept->poll.data = kept;
	if (uv_poll_init(loop, &kept->poll, kept->sock_fd) < 0) {
		leftover_close(kept);
		free(kept);
		return;
	}
	link_in(kept);
	if (shutdown(kept->sock_fd, SHUT_WR) < 0 ||
	    uv_poll_start(&kept->poll, UV_DISCONNECT, on_event) < 0)
		end(kept);
}

void leftovers_close(struct leftover *list)
{
	struct leftover *next;

	for (; list; list = next) {
		next = list->next;
		end(list);
	}
}
